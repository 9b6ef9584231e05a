"""The SQLite file under the catalogue: its tables, how it is opened, and its complaints in our words."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bifolio.errors import (
    CollectionBusyError,
    CollectionDamagedError,
    CollectionError,
    CollectionVersionError,
)

FORMAT_VERSION = 1
BUSY_SECONDS = 5.0
"""How long a writer waits for another one before it gives up."""
_APPLICATION_ID = 0x6269666F  # "bifo"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE files (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,        -- absolute: what makes it the same file at the next ingest
    source TEXT NOT NULL UNIQUE,      -- as the user named it: what people see
    hash TEXT NOT NULL,               -- sha256 of the file's bytes
    options TEXT NOT NULL,            -- how it was read and split; other options mean reading it again
    added TEXT NOT NULL,              -- UTC, ISO 8601
    status TEXT NOT NULL,             -- ok | warning
    reason TEXT NOT NULL
);
CREATE INDEX files_hash ON files (hash);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    file INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    member TEXT NOT NULL,
    title TEXT NOT NULL,
    media_type TEXT NOT NULL,
    metadata TEXT NOT NULL,           -- JSON object
    text TEXT NOT NULL
);
CREATE INDEX documents_file ON documents (file);
CREATE TABLE passages (
    row INTEGER PRIMARY KEY,          -- of its vector
    id TEXT NOT NULL UNIQUE,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    start INTEGER NOT NULL,           -- code points of documents.text
    end INTEGER NOT NULL,
    heading TEXT NOT NULL,
    place TEXT NOT NULL
);
CREATE INDEX passages_document ON passages (document);
CREATE TABLE segments (
    name TEXT PRIMARY KEY,            -- file in vectors/
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    sha256 TEXT NOT NULL
);
"""


def create(path: Path) -> sqlite3.Connection:
    """A new catalogue file with empty tables."""
    connection = _connect(str(path))
    with complaints(path):
        _set_up(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    return connection


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing catalogue file of a format that this program reads.

    Raises:
        CollectionVersionError: it was written by a newer bifolio.
        CollectionDamagedError: it is not a catalogue, or not any more.
    """
    with complaints(path):
        try:
            return _checked(str(path), path)
        except sqlite3.OperationalError:
            # Without the right to write there SQLite cannot make the small file that readers share. Nobody else can
            # write either, so the file is read as it is, unless a writer left a part of it in its log.
            log = path.with_name(f"{path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise
            return _checked(f"{path.absolute().as_uri()}?mode=ro&immutable=1", path)


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=name.startswith("file:")
    )


def _checked(name: str, path: Path) -> sqlite3.Connection:
    connection = _connect(name)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise CollectionDamagedError(f"{path} is not a bifolio catalogue: restore it from a backup or rebuild")
        if version > FORMAT_VERSION:
            raise CollectionVersionError(
                f"{path.parent} has collection format {version}; this bifolio reads up to {FORMAT_VERSION}. "
                "Run: pip install --upgrade bifolio"
            )
        connection.execute("SELECT count(*) FROM meta").fetchone()
        _set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk before it is acknowledged


@contextmanager
def complaints(path: Path) -> Iterator[None]:
    """Turn SQLite's complaints about the file into ours."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.OperationalError as error:
        what = str(error)
        if "locked" in what or "busy" in what:
            raise CollectionBusyError(
                f"{path.parent}: another process is writing to this collection ({what}); try again later"
            ) from error
        if "readonly" in what or "full" in what:
            raise CollectionError(f"{path.parent} cannot be written: {what}; it is as it was") from error
        raise CollectionDamagedError(f"{path} cannot be read: {what}") from error
    except sqlite3.ProgrammingError as error:
        if "closed" not in str(error):
            raise
        raise CollectionError(f"{path.parent} was closed: open it again") from error
    except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
        raise CollectionDamagedError(
            f"{path} is damaged: {error}. Restore it from a backup, or delete the folder and ingest again"
        ) from error
