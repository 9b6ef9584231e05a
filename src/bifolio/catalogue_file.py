"""The SQLite file under the catalogue: its tables, how it is opened, and its complaints in our words."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bifolio import seals
from bifolio.attributes import SCHEMA as ATTRIBUTES
from bifolio.errors import (
    CollectionBusyError,
    CollectionDamagedError,
    CollectionError,
    CollectionVersionError,
)

FORMAT_VERSION = 2
BUSY_SECONDS = 5.0
"""How long a transaction waits for another one before it gives up."""
_APPLICATION_ID = 0x6269666F  # "bifo"

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE encoders (
    id INTEGER PRIMARY KEY,
    spec TEXT NOT NULL,               -- JSON of its EncoderSpec
    passages TEXT NOT NULL            -- fingerprint of the passage encoder alone; '' where there is no such thing
);
CREATE TABLE generations (
    id INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,          -- what it was made from; 0: from nothing
    encoder INTEGER NOT NULL REFERENCES encoders (id),
    at TEXT NOT NULL,                 -- UTC, ISO 8601
    action TEXT NOT NULL,             -- what made it: ingest, sync, rm ...
    changes TEXT NOT NULL,            -- JSON: how many files were added, changed, removed
    documents INTEGER NOT NULL,
    passages INTEGER NOT NULL
);
CREATE TABLE tags (name TEXT PRIMARY KEY, generation INTEGER NOT NULL REFERENCES generations (id)) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    action TEXT NOT NULL,
    generation INTEGER NOT NULL,      -- the live one afterwards
    note TEXT NOT NULL
);
-- A version of a file never changes but in where the file lies; another content is another version.
CREATE TABLE files (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,               -- absolute: what makes it the same file at the next ingest
    source TEXT NOT NULL,             -- as the user named it: what people see
    hash TEXT NOT NULL,               -- sha256 of what was read
    options TEXT NOT NULL,            -- how it was read and split; other options mean reading it again
    added TEXT NOT NULL,              -- UTC, ISO 8601
    status TEXT NOT NULL,             -- ok | warning
    reason TEXT NOT NULL,
    size INTEGER NOT NULL,            -- bytes, and
    mtime INTEGER NOT NULL,           -- nanoseconds, when it was read: not read again as long as both are the same
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    digest TEXT NOT NULL              -- sha256 of its documents and passages as they stand here
);
CREATE INDEX files_path ON files (path);
CREATE INDEX files_source ON files (source);
CREATE INDEX files_hash ON files (hash);
-- When a version was part of the collection: in the generations from born on, before died.
CREATE TABLE lives (
    file INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    born INTEGER NOT NULL,
    died INTEGER,
    PRIMARY KEY (file, born)
) WITHOUT ROWID;
CREATE INDEX lives_died ON lives (died);
CREATE INDEX lives_born ON lives (born);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    file INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    member TEXT NOT NULL,
    title TEXT NOT NULL,
    media_type TEXT NOT NULL,
    metadata TEXT NOT NULL,           -- JSON object
    access TEXT NOT NULL,             -- labels, each between commas; '' for everybody
    text TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL
);
CREATE INDEX documents_file ON documents (file);
CREATE INDEX documents_row ON documents (first_row);
CREATE INDEX documents_access ON documents (access) WHERE access != '';
CREATE TABLE passages (
    row INTEGER PRIMARY KEY,          -- of its vector
    id TEXT NOT NULL,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    start INTEGER NOT NULL,           -- code points of documents.text
    end INTEGER NOT NULL,
    heading TEXT NOT NULL,
    place TEXT NOT NULL,
    input BLOB NOT NULL               -- hash of what the encoder reads: equal means that a vector can be copied
);
CREATE INDEX passages_id ON passages (id);
CREATE INDEX passages_document ON passages (document);
CREATE INDEX passages_input ON passages (input);
-- Vectors: rows first_row ... of an encoder stand in a file of vectors/ from vector number "offset" on.
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- what an index has caught up with
    encoder INTEGER NOT NULL REFERENCES encoders (id),
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    file TEXT NOT NULL,
    "offset" INTEGER NOT NULL,
    norm REAL NOT NULL,               -- the largest
    sha256 TEXT NOT NULL
);
CREATE INDEX blocks_row ON blocks (encoder, first_row);
{ATTRIBUTES}
{seals.schema()}
"""


def create(path: Path) -> sqlite3.Connection:
    """A new catalogue file with empty tables."""
    connection = _connect(str(path))
    with complaints(path):
        _set_up(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    return connection


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing catalogue file of a format that this program reads.

    Raises:
        CollectionVersionError: it was written by a newer bifolio, or by an older one and has to be migrated.
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


def version(path: Path) -> int:
    """The format of a catalogue file, which may be an older one.

    Raises:
        CollectionDamagedError: it is not a catalogue.
    """
    with complaints(path):
        connection = _connect(str(path))
        try:
            return _version(connection, path)
        finally:
            connection.close()


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=name.startswith("file:")
    )


def _version(connection: sqlite3.Connection, path: Path) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise CollectionDamagedError(f"{path} is not a bifolio catalogue: restore it from a backup or rebuild")
    return int(found)


def _checked(name: str, path: Path) -> sqlite3.Connection:
    connection = _connect(name)
    try:
        found = _version(connection, path)
        if found > FORMAT_VERSION:
            raise CollectionVersionError(
                f"{path.parent} has collection format {found}; this bifolio reads up to {FORMAT_VERSION}. "
                "Run: pip install --upgrade bifolio"
            )
        if found < FORMAT_VERSION:
            raise CollectionVersionError(
                f"{path.parent} has collection format {found}; this bifolio reads {FORMAT_VERSION} and could not "
                "migrate it: open it once where it can be written"
            )
        connection.execute("SELECT count(*) FROM meta").fetchone()
        _set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    seals.register(connection)
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
