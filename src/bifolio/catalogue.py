"""The catalogue: files, documents, passages and spans in SQLite, the single truth of a collection.

Vectors and indexes are numbered by a passage's ``row``, which is never used again once its passage is gone. A reader
holds one read transaction, so it keeps the generation that it opened whatever a writer does.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from bifolio import catalogue_file
from bifolio.catalogue_file import complaints
from bifolio.errors import CollectionMissingError, UsageError
from bifolio.types import Document, Passage, Span

# The text of a passage is never stored twice: it is a span of its document's.
_PASSAGE = """
SELECT p.row, p.id, substr(d.text, p.start + 1, p.end - p.start), d.title, p.heading, f.source, p.place, p.start, p.end,
       d.metadata
FROM passages p JOIN documents d ON d.id = p.document JOIN files f ON f.id = d.file
"""


@dataclass(frozen=True)
class FileRow:
    """A file as the catalogue knows it.

    Attributes:
        source: As the user named it.
        path: Absolute.
        hash: sha256 of its bytes.
        options: How it was read and split.
        added: UTC time of its last ingest, ISO 8601.
        status: ``ok`` or ``warning``.
        reason: What a person should know; "" for nothing.
        documents: Documents (records) in it.
        passages: Passages in it.
    """

    source: str
    path: str
    hash: str
    options: str
    added: str
    status: str
    reason: str
    documents: int
    passages: int


@dataclass(frozen=True)
class Segment:
    """One file of vectors: rows ``first_row`` to ``first_row + rows``."""

    name: str
    first_row: int
    rows: int
    sha256: str


class Catalogue:
    """One connection to a catalogue file, usable from any thread; it closes when nobody holds it any more."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use :meth:`create` or :meth:`open`."""
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()
        weakref.finalize(self, connection.close)

    @classmethod
    def create(cls, path: Path) -> Catalogue:
        """A new, empty catalogue file."""
        return cls(path, catalogue_file.create(path))

    @classmethod
    def open(cls, path: Path) -> Catalogue:
        """Open an existing catalogue and keep the generation that it has now.

        Raises:
            CollectionMissingError: there is no such file.
            CollectionVersionError: it was written by a newer bifolio.
            CollectionDamagedError: it is not a catalogue, or not any more.
        """
        if not path.is_file():
            raise CollectionMissingError(
                f"no collection at {path.parent}. Build one with: bifolio ingest PATH... -c {path.parent}"
            )
        catalogue = cls(path, catalogue_file.connect(path))
        try:
            catalogue.pin()
        except BaseException:
            catalogue.close()
            raise
        return catalogue

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        with self._lock:
            self._connection.close()

    def pin(self) -> None:
        """Read from the newest committed generation, and from no later one until the next call."""
        with self._lock, complaints(self.path):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM meta").fetchone()  # the snapshot is taken at the first read

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: everything inside is committed at its end, or nothing if it raises.

        Whether it is committed or not, :meth:`pin` comes after it.

        Raises:
            CollectionBusyError: another process is writing.
            CollectionError: the collection cannot be written.
        """
        with self._lock:
            try:
                with complaints(self.path):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    self._connection.execute("BEGIN IMMEDIATE")
                    yield
                    self._connection.execute("COMMIT")
            finally:
                self.pin()

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """A part of a transaction that leaves nothing behind if it raises."""
        with self._lock:
            self._connection.execute("SAVEPOINT part")
            try:
                yield
            except BaseException:
                if self._connection.in_transaction:  # a full disk has undone all of it already
                    self._connection.execute("ROLLBACK TO part")
                    self._connection.execute("RELEASE part")
                raise
            self._connection.execute("RELEASE part")

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, complaints(self.path):
            return self._connection.execute(query, values).fetchall()

    def _scalar(self, query: str, values: Sequence[Any] = ()) -> Any:
        rows = self._rows(query, values)
        return rows[0][0] if rows else None

    def _passage(self, row: tuple[Any, ...]) -> Passage:
        _, passage_id, text, title, heading, source, place, start, end, metadata = row
        with complaints(self.path):
            return Passage(passage_id, text, title, heading, source, place, (start, end), json.loads(metadata))

    # ---- what readers ask ----

    def meta(self) -> dict[str, Any]:
        """The collection's own facts, as JSON values."""
        with complaints(self.path):
            return {key: json.loads(value) for key, value in self._rows("SELECT key, value FROM meta")}

    def segments(self) -> list[Segment]:
        """Files of vectors, by row."""
        return [Segment(*row) for row in self._rows("SELECT name, first_row, rows, sha256 FROM segments ORDER BY 2")]

    def live_rows(self) -> list[int]:
        """Rows that have a passage, ascending."""
        return [row for (row,) in self._rows("SELECT row FROM passages ORDER BY row")]

    def live_row_array(self) -> Int64[np.ndarray, " N"]:
        """As :meth:`live_rows`, in the eight bytes a row that an array takes."""
        found = np.empty(self.counts()[1], dtype=np.int64)
        at, last = 0, -1
        while rows := self._rows("SELECT row FROM passages WHERE row > ? ORDER BY row LIMIT 100000", [last]):
            found[at : at + len(rows)] = np.fromiter((row for (row,) in rows), dtype=np.int64, count=len(rows))
            at, last = at + len(rows), rows[-1][0]
        return found

    def counts(self) -> tuple[int, int]:
        """Documents and passages."""
        return self._scalar("SELECT count(*) FROM documents"), self._scalar("SELECT count(*) FROM passages")

    def by_rows(self, rows: Iterable[int]) -> dict[int, Passage]:
        """Passages by row; a row without a passage is left out."""
        wanted = sorted(set(rows))
        found: dict[int, Passage] = {}
        for start in range(0, len(wanted), 500):  # SQLite limits the number of parameters
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            found |= {row[0]: self._passage(row) for row in self._rows(f"{_PASSAGE} WHERE p.row IN ({marks})", part)}
        return found

    def passages_between(self, first: int, end: int) -> Iterator[Passage]:
        """Passages of rows ``first`` to ``end``, in order; each document's text is fetched once."""
        query = """
        SELECT p.row, p.id, '', d.title, p.heading, f.source, p.place, p.start, p.end, d.metadata, d.id
        FROM passages p JOIN documents d ON d.id = p.document JOIN files f ON f.id = d.file
        WHERE p.row >= ? AND p.row < ? ORDER BY p.row LIMIT 1000
        """
        document, text = None, ""
        while rows := self._rows(query, [first, end]):
            for row in rows:
                if row[-1] != document:
                    document = row[-1]
                    text = self._scalar("SELECT text FROM documents WHERE id = ?", [document])
                yield self._passage((*row[:2], text[row[7] : row[8]], *row[3:-1]))
            first = rows[-1][0] + 1

    def by_id(self, passage_id: str) -> Passage | None:
        """A passage by its id."""
        try:
            passage_id.encode()
        except UnicodeEncodeError:  # bytes of the command line that are no text
            return None
        rows = self._rows(f"{_PASSAGE} WHERE p.id = ?", [passage_id])
        return self._passage(rows[0]) if rows else None

    def rows_by_id(self, passage_ids: Sequence[str]) -> dict[str, int]:
        """Rows of passages; an id that is not there is left out."""
        found: dict[str, int] = {}
        for start in range(0, len(passage_ids), 500):
            part = list(passage_ids[start : start + 500])
            marks = ",".join("?" * len(part))
            found.update(self._rows(f"SELECT id, row FROM passages WHERE id IN ({marks})", part))
        return found

    def document_text(self, passage_id: str) -> str:
        """Canonical text of the document that holds a passage; "" if there is no such passage."""
        query = "SELECT d.text FROM documents d JOIN passages p ON p.document = d.id WHERE p.id = ?"
        return self._scalar(query, [passage_id]) or ""

    def files(self) -> list[FileRow]:
        """All files, by source."""
        query = """
        SELECT f.source, f.path, f.hash, f.options, f.added, f.status, f.reason, count(DISTINCT d.id), count(p.row)
        FROM files f LEFT JOIN documents d ON d.file = f.id LEFT JOIN passages p ON p.document = d.id
        GROUP BY f.id ORDER BY f.source
        """
        return [FileRow(*row) for row in self._rows(query)]

    def file(self, path: str) -> FileRow | None:
        """What is known of one file, by absolute path; its counts are not looked up and are 0."""
        return next(iter(self._files("path = ?", [path])), None)

    def files_like(self, source: str, hash: str) -> list[FileRow]:
        """The file of this source, then some files of this content; counts as in :meth:`file`."""
        return self._files("source = ? OR hash = ? ORDER BY source = ? DESC, id LIMIT 50", [source, hash, source])

    def _files(self, where: str, values: Sequence[Any]) -> list[FileRow]:
        query = "SELECT source, path, hash, options, added, status, reason, 0, 0 FROM files WHERE"
        return [FileRow(*row) for row in self._rows(f"{query} {where}", values)]

    def rows_of(self, path: str) -> range:
        """Rows of a file's passages, by absolute path: they came in together, so there is no gap in them."""
        query = """
        SELECT min(p.row), count(*) FROM passages p JOIN documents d ON d.id = p.document JOIN files f ON f.id = d.file
        WHERE f.path = ?
        """
        ((first, count),) = self._rows(query, [path])
        return range(first, first + count) if count else range(0)

    # ---- what a writer does, inside writing() ----

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Write facts; other facts stay."""
        rows = [(key, json.dumps(value, sort_keys=True)) for key, value in values.items()]
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def add_segment(self, segment: Segment) -> None:
        """Name a file of vectors, which must be complete on disk."""
        values = (segment.name, segment.first_row, segment.rows, segment.sha256)
        self._connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", values)

    def replace_file(self, path: str, source: str, *, hash: str, options: str, added: str) -> tuple[int, str]:
        """Forget what a file had, if anything, and begin it anew; returns the file's number and its source.

        Another file may already go by this source (the same relative name seen from another folder): then the
        absolute path is the source.
        """
        self.drop_file(path)
        taken = "SELECT count(*) FROM files WHERE source = ?"
        names = (source, path, *(f"{path} ({number})" for number in range(2, 100)))
        source = next(name for name in names if not self._scalar(taken, [name]))
        cursor = self._connection.execute(
            "INSERT INTO files (path, source, hash, options, added, status, reason) VALUES (?, ?, ?, ?, ?, 'ok', '')",
            (path, source, hash, options, added),
        )
        return int(cursor.lastrowid or 0), source

    def drop_file(self, path: str) -> None:
        """Forget a file with all that it had."""
        self._connection.execute("DELETE FROM files WHERE path = ?", [path])

    def move_file(self, path: str, to: str) -> None:
        """The file of this absolute path is found elsewhere now."""
        self._connection.execute("UPDATE files SET path = ? WHERE path = ?", [to, path])

    def set_status(self, file: int, status: str, reason: str) -> None:
        """Record how the reading of a file went."""
        self._connection.execute("UPDATE files SET status = ?, reason = ? WHERE id = ?", (status, reason, file))

    def add_document(self, file: int, document: Document) -> int:
        """Add a document to a file; returns the number of the document."""
        cursor = self._connection.execute(
            "INSERT INTO documents (file, member, title, media_type, metadata, text) VALUES (?, ?, ?, ?, ?, ?)",
            (
                file,
                document.member,
                document.title,
                document.media_type,
                json.dumps(dict(document.metadata), ensure_ascii=False),
                document.text,
            ),
        )
        return int(cursor.lastrowid or 0)

    def add_passage(self, row: int, passage_id: str, document: int, span: Span, place: str) -> None:
        """Add a passage.

        Raises:
            UsageError: the id is taken.
        """
        try:
            self._connection.execute(
                "INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?)",
                (row, passage_id, document, span.start, span.end, span.heading, place),
            )
        except sqlite3.IntegrityError as error:
            taken = self.by_id(passage_id)
            if taken is None:
                raise
            raise UsageError(
                f"passage id {passage_id!r} is already used by {taken.place}. If it has moved here from a file that is "
                "read after this one, ingest again; otherwise give it another id"
            ) from error
