"""A collection of format 1, which has no history, becomes one of format 2 in its place."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np

from bifolio import catalogue_file, history, seals
from bifolio.catalogue import encoder_input, file_digest
from bifolio.catalogue_file import FORMAT_VERSION, SCHEMA, complaints
from bifolio.errors import CollectionDamagedError
from bifolio.types import Passage
from bifolio.write_lock import write_lock

_SPLIT = {"words": 100, "mode": "sentence"}


def migrate(path: Path) -> None:
    """Carry a catalogue over, in one transaction: it is of the new format or as it was.

    Vectors stay where they are, as blocks. Indexes are made again by the next change.

    Raises:
        CollectionError: it cannot be written.
        CollectionBusyError: another process is writing.
        CollectionDamagedError: it is not as it was written.
    """
    with write_lock(path.parent, "migrate"):
        if catalogue_file.version(path) != 1:  # somebody else has done it
            return
        with complaints(path):
            connection = sqlite3.connect(path, isolation_level=None)
            seals.register(connection)
            try:
                connection.execute("PRAGMA foreign_keys = OFF")
                connection.execute("PRAGMA legacy_alter_table = ON")
                connection.execute("BEGIN IMMEDIATE")
                _carry(connection, path)
                connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                connection.execute("COMMIT")
            finally:
                connection.close()


def _carry(connection: sqlite3.Connection, path: Path) -> None:
    old = ("meta", "files", "documents", "passages", "segments")
    for index in ("files_hash", "documents_file", "passages_document"):
        connection.execute(f"DROP INDEX IF EXISTS {index}")
    for table in old:
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in _statements(SCHEMA):
        connection.execute(statement)
    meta = {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM old_meta")}
    spec = meta["encoder"]
    facts = {
        "index": meta["index"], "precision": "float32", "settings": {"split": _split(connection)}, "live": 1,
        "next_row": meta["next_row"],
    }  # fmt: skip
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()])
    passages = meta.get("passage_encoder", "")
    connection.execute("INSERT INTO encoders VALUES (1, ?, ?)", (json.dumps(spec), passages))
    _carry_files(connection)
    documents, count = (
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("documents", "passages")
    )
    changes = {"added": connection.execute("SELECT count(*) FROM files").fetchone()[0], "changed": 0, "removed": 0}
    connection.execute(
        "INSERT INTO generations VALUES (1, 0, 1, ?, 'migrate', ?, ?, ?)",
        (history.now(), json.dumps(changes), documents, count),
    )
    for name, first, rows, sha256 in connection.execute("SELECT name, first_row, rows, sha256 FROM old_segments"):
        norm = _norm(path.parent / "vectors" / name, rows, int(spec["dimension"]))
        connection.execute(
            'INSERT INTO blocks (encoder, first_row, rows, file, "offset", norm, sha256) VALUES (1, ?, ?, ?, 0, ?, ?)',
            (first, rows, name, norm, sha256),
        )
    for table in old:
        connection.execute(f"DROP TABLE old_{table}")


def _carry_files(connection: sqlite3.Connection) -> None:
    """Files, documents and passages, with what was not kept of them before."""
    connection.execute("""
        INSERT INTO files SELECT id, path, source, hash, options, added, status, reason, 0, 0,
        coalesce(
          (SELECT min(p.row) FROM old_passages p JOIN old_documents d ON d.id = p.document WHERE d.file = f.id), 0),
        (SELECT count(*) FROM old_passages p JOIN old_documents d ON d.id = p.document WHERE d.file = f.id), ''
        FROM old_files f""")
    connection.execute("INSERT INTO lives SELECT id, 1, NULL FROM files")
    connection.execute("""
        INSERT INTO documents SELECT id, file, member, title, media_type, metadata, '', text,
        coalesce((SELECT min(row) FROM old_passages p WHERE p.document = d.id), 0),
        (SELECT count(*) FROM old_passages p WHERE p.document = d.id) FROM old_documents d""")
    query = """
        SELECT p.row, p.id, p.document, p.start, p.end, p.heading, p.place, d.title,
               substr(d.text, p.start + 1, p.end - p.start)
        FROM old_passages p JOIN old_documents d ON d.id = p.document"""
    for *row, title, text in connection.execute(query):
        given = encoder_input(Passage("", "", title, row[5]).label, text)
        connection.execute("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, given))
    from bifolio import attributes

    for number, metadata in connection.execute("SELECT id, metadata FROM old_documents"):
        rows = [(number, *row) for row in attributes.rows(json.loads(metadata))]
        connection.executemany("INSERT INTO attributes (document, key, text, number) VALUES (?, ?, ?, ?)", rows)

    def ask(query: str, values: object = ()) -> list[tuple[object, ...]]:
        return connection.execute(query, values).fetchall()  # type: ignore[arg-type]

    for (number,) in connection.execute("SELECT id FROM files").fetchall():
        connection.execute("UPDATE files SET digest = ? WHERE id = ?", (file_digest(ask, number), number))


def _split(connection: sqlite3.Connection) -> dict[str, object]:
    """How most files were split."""
    query = "SELECT options FROM old_files GROUP BY options ORDER BY count(*) DESC LIMIT 1"
    found = connection.execute(query).fetchone()
    options = json.loads(found[0]) if found else {}
    return {key: options.get(key, default) for key, default in _SPLIT.items()}


def _norm(path: Path, rows: int, dimension: int) -> float:
    """The largest norm of a file of vectors."""
    try:
        vectors = np.memmap(path, dtype="<f4", mode="r", shape=(rows, dimension))
    except (OSError, ValueError) as error:
        raise CollectionDamagedError(
            f"{path}: {error}. Restore it from a backup, or delete the folder and ingest again"
        ) from error
    return max(
        (float(np.sqrt((vectors[at : at + 4096].astype(np.float64) ** 2).sum(axis=1)).max()))
        for at in range(0, rows, 4096)
    )


def _statements(script: str) -> list[str]:
    """The statements of a script; a trigger has semicolons of its own."""
    found, waiting = [], ""
    for line in script.splitlines(keepends=True):
        waiting += line
        if sqlite3.complete_statement(waiting):
            found.append(waiting)
            waiting = ""
    return [statement for statement in found if statement.strip()]
