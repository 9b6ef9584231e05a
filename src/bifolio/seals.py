"""Seals: a checksum of every row of the catalogue's small tables, so that any changed byte is found.

SQLite's own check finds a broken tree and not a changed value. Documents and passages have the digest of their file;
every other row has a seal, written by triggers and compared by :func:`broken`.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from typing import Any

_TABLES = {
    "meta": (("key",), ("key", "value")),
    "encoders": (("id",), ("id", "spec", "passages")),
    "generations": (
        ("id",),
        ("id", "parent", "encoder", "at", "action", "changes", "documents", "passages"),
    ),
    "tags": (("name",), ("name", "generation")),
    "events": (("id",), ("id", "at", "action", "generation", "note")),
    "files": (
        ("id",),
        ("id", "path", "source", "hash", "options", "added", "status", "reason", "size", "mtime", "first_row", "rows",
         "digest"),
    ),
    "lives": (("file", "born"), ("file", "born", "died")),
    "blocks": (("id",), ("id", "encoder", "first_row", "rows", "file", "offset", "norm", "sha256")),
}  # fmt: skip
"""Table: the columns that name a row, and all columns."""


def canonical(values: Any) -> bytes:
    """Bytes that are the same for the same values, whatever the version of Python."""
    return json.dumps([value.hex() if isinstance(value, bytes) else value for value in values]).encode()


def _seal(*values: Any) -> str:
    return hashlib.blake2b(canonical(values), digest_size=8).hexdigest()


def register(connection: sqlite3.Connection) -> None:
    """Let a connection compute seals: without it nothing can be written."""
    connection.create_function("bifolio_seal", -1, _seal, deterministic=True)


def _quoted(columns: tuple[str, ...], row: str = "") -> str:
    return ", ".join(f'{row}"{column}"' for column in columns)


def _key(columns: tuple[str, ...], row: str = "") -> str:
    return " || ' ' || ".join(f'{row}"{column}"' for column in columns)


def schema() -> str:
    """The table of seals and its triggers; the tables come first."""
    statements = [
        'CREATE TABLE seals ("table" TEXT, "key" TEXT, seal TEXT NOT NULL, PRIMARY KEY ("table", "key")) WITHOUT ROWID'
    ]
    for table, (key, columns) in _TABLES.items():
        put = (
            f"INSERT OR REPLACE INTO seals VALUES ('{table}', {_key(key, 'NEW.')}, "
            f"bifolio_seal({_quoted(columns, 'NEW.')}));"
        )
        drop = f"""DELETE FROM seals WHERE "table" = '{table}' AND "key" = {_key(key, "OLD.")};"""
        statements += [
            f"CREATE TRIGGER {table}_came AFTER INSERT ON {table} BEGIN {put} END",
            f"CREATE TRIGGER {table}_changed AFTER UPDATE ON {table} BEGIN {drop} {put} END",
            f"CREATE TRIGGER {table}_went AFTER DELETE ON {table} BEGIN {drop} END",
        ]
    return ";\n".join(statements) + ";\n"


def broken(query: Callable[[str], list[tuple[Any, ...]]]) -> list[str]:
    """Rows that are not as they were written, as sentences."""
    found = []
    for table, (key, columns) in _TABLES.items():
        rows = query(
            f"SELECT {_key(key, 't.')} FROM {table} t LEFT JOIN seals s "
            f"""ON s."table" = '{table}' AND s."key" = CAST({_key(key, "t.")} AS TEXT) """
            f"WHERE s.seal IS NOT bifolio_seal({_quoted(columns, 't.')})"
        )
        found += [f"{table} {name} is not as it was written" for (name,) in rows]
        lost = query(
            f"""SELECT "key" FROM seals WHERE "table" = '{table}' """
            f"""AND "key" NOT IN (SELECT CAST({_key(key)} AS TEXT) FROM {table})"""
        )
        found += [f"{table} {name} is missing" for (name,) in lost]
    names = ", ".join(f"'{table}'" for table in _TABLES)
    unknown = query(f'SELECT "table" FROM seals WHERE "table" NOT IN ({names})')
    found += [f"a seal of {name!r} belongs to nothing" for (name,) in unknown]
    return found
