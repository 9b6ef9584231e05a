"""The catalogue: files, documents, passages and generations in SQLite, the single truth of a collection.

Vectors and indexes are numbered by a passage's ``row``, which is never used again once its passage is gone. What is
read here is every version of every file that is kept; which of them make up a generation says :mod:`bifolio.history`.
A reader holds one read transaction, so that nothing changes under it, whatever a writer does.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bifolio import attributes, catalogue_file
from bifolio.catalogue_file import complaints
from bifolio.errors import CollectionMissingError, CollectionVersionError
from bifolio.seals import canonical
from bifolio.types import Document, Passage, Span

# The text of a passage is never stored twice: it is a span of its document's.
_PASSAGE = """
SELECT p.row, p.id, substr(d.text, p.start + 1, p.end - p.start), d.title, p.heading, f.source, p.place, p.start, p.end,
       d.metadata
FROM passages p JOIN documents d ON d.id = p.document JOIN files f ON f.id = d.file
"""
_FILE = "id, path, source, hash, options, added, status, reason, size, mtime, first_row, rows"


@dataclass(frozen=True)
class FileRow:
    """A version of a file as the catalogue knows it.

    Attributes:
        id: Its number.
        path: Absolute.
        source: As the user named it.
        hash: sha256 of what was read.
        options: How it was read and split.
        added: UTC time when it was read, ISO 8601.
        status: ``ok`` or ``warning``.
        reason: What a person should know; "" for nothing.
        size: Bytes of the file.
        mtime: Its time of change, nanoseconds.
        first_row: Row of its first passage.
        passages: Passages in it: rows ``first_row`` to before ``first_row + passages``.
        documents: Documents (records) in it; 0 where they were not counted.
    """

    id: int
    path: str
    source: str
    hash: str
    options: str
    added: str
    status: str
    reason: str
    size: int
    mtime: int
    first_row: int
    passages: int
    documents: int = 0


@dataclass(frozen=True)
class Block:
    """Vectors of consecutive rows that stand together in a file.

    Attributes:
        first_row: Row of the first one.
        rows: How many.
        file: In ``vectors/``.
        offset: Number of the first one in that file.
        norm: The largest Euclidean norm.
        sha256: Of their bytes.
        id: Grows with every block: what an index has caught up with.
    """

    first_row: int
    rows: int
    file: str
    offset: int
    norm: float
    sha256: str
    id: int = 0


def encoder_input(label: str, text: str) -> bytes:
    """Equal for passages that an encoder cannot tell apart: it reads the label and the text."""
    return hashlib.sha256(f"{label}\0{text}".encode("utf-8", "surrogatepass")).digest()[:16]


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
        """Open an existing catalogue and keep the state that it has now; one of an older format is migrated first.

        Raises:
            CollectionMissingError: there is no such file.
            CollectionVersionError: it was written by a newer bifolio.
            CollectionDamagedError: it is not a catalogue, or not any more.
        """
        if not path.is_file():
            raise CollectionMissingError(
                f"no collection at {path.parent}. Build one with: bifolio ingest PATH... -c {path.parent}"
            )
        try:
            connection = catalogue_file.connect(path)
        except CollectionVersionError:
            if catalogue_file.version(path) != 1:
                raise
            from bifolio.migration import migrate

            migrate(path)
            connection = catalogue_file.connect(path)
        catalogue = cls(path, connection)
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
        """Read from the newest committed state, and from no later one until the next call."""
        with self._lock, complaints(self.path):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM meta").fetchone()  # the snapshot is taken at the first read

    def release(self) -> None:
        """Read from the newest committed state at every query, until :meth:`pin`."""
        with self._lock:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

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

    def copy_to(self, path: Path) -> None:
        """Write what is pinned to a new catalogue file, whatever a writer does meanwhile."""
        with self._lock, complaints(self.path):
            target = sqlite3.connect(path, isolation_level=None)
            try:
                self._connection.backup(target)
                target.execute("PRAGMA journal_mode = WAL")
            finally:
                target.close()

    def shrink(self) -> None:
        """Give unused space back to the system, as far as nobody else has the file open."""
        with self._lock, suppress(sqlite3.OperationalError):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.pin()

    def query(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with self._lock, complaints(self.path):
            return self._connection.execute(query, values).fetchall()

    def scalar(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The first value of the first row of a query; None if there is none."""
        rows = self.query(query, values)
        return rows[0][0] if rows else None

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Carry out a statement, inside :meth:`writing`; returns the number of the row that it inserted."""
        with self._lock:
            return int(self._connection.execute(statement, values).lastrowid or 0)

    def change_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Carry out a statement with each of the values, inside :meth:`writing`."""
        with self._lock:
            self._connection.executemany(statement, values)

    def _passage(self, row: tuple[Any, ...]) -> Passage:
        _, passage_id, text, title, heading, source, place, start, end, metadata = row
        with complaints(self.path):
            facts = {key: tuple(v) if isinstance(v, list) else v for key, v in json.loads(metadata).items()}
            return Passage(passage_id, text, title, heading, source, place, (start, end), facts)

    # ---- what readers ask ----

    def meta(self) -> dict[str, Any]:
        """The collection's own facts, as JSON values."""
        with complaints(self.path):
            return {key: json.loads(value) for key, value in self.query("SELECT key, value FROM meta")}

    def blocks(self, encoder: int) -> list[Block]:
        """Where the vectors of an encoder stand, by row."""
        query = 'SELECT first_row, rows, file, "offset", norm, sha256, id FROM blocks WHERE encoder = ? ORDER BY 1'
        return [Block(*row) for row in self.query(query, [encoder])]

    def by_rows(self, rows: Iterable[int]) -> dict[int, Passage]:
        """Passages by row; a row without a passage is left out."""
        wanted = sorted(set(rows))
        found: dict[int, Passage] = {}
        for start in range(0, len(wanted), 500):  # SQLite limits the number of parameters
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            found |= {row[0]: self._passage(row) for row in self.query(f"{_PASSAGE} WHERE p.row IN ({marks})", part)}
        return found

    def passages_between(self, first: int, end: int) -> Iterator[tuple[int, Passage]]:
        """Rows from ``first`` to before ``end`` with their passages; each document's text is fetched once."""
        query = """
        SELECT p.row, p.id, '', d.title, p.heading, f.source, p.place, p.start, p.end, d.metadata, d.id
        FROM passages p JOIN documents d ON d.id = p.document JOIN files f ON f.id = d.file
        WHERE p.row >= ? AND p.row < ? ORDER BY p.row LIMIT 1000
        """
        document, text = None, ""
        while rows := self.query(query, [first, end]):
            for row in rows:
                if row[-1] != document:
                    document = row[-1]
                    text = self.scalar("SELECT text FROM documents WHERE id = ?", [document])
                yield row[0], self._passage((*row[:2], text[row[7] : row[8]], *row[3:-1]))
            first = rows[-1][0] + 1

    def rows_end(self) -> int:
        """One more than the last row that has a passage; rows behind it may have been given and dropped again."""
        return int(self.scalar("SELECT coalesce(max(row) + 1, 0) FROM passages"))

    def rows_by_id(self, passage_ids: Sequence[str]) -> list[tuple[str, int]]:
        """Ids with the rows that ever had them: several where a file has several versions."""
        found: list[tuple[str, int]] = []
        for start in range(0, len(passage_ids), 500):
            part = [name for name in passage_ids[start : start + 500] if _is_text(name)]
            marks = ",".join("?" * len(part))
            found += self.query(f"SELECT id, row FROM passages WHERE id IN ({marks})", part)
        return found

    def document_text(self, row: int) -> str:
        """Canonical text of the document that has the passage of a row."""
        return str(
            self.scalar("SELECT d.text FROM documents d JOIN passages p ON p.document = d.id WHERE p.row = ?", [row])
        )

    def file(self, number: int) -> FileRow:
        """A version of a file."""
        return FileRow(*self.query(f"SELECT {_FILE} FROM files WHERE id = ?", [number])[0])

    def versions(self, where: str, values: Sequence[Any]) -> list[FileRow]:
        """Versions of files for which an expression over the table ``files`` holds, the newest first."""
        return [
            FileRow(*row) for row in self.query(f"SELECT {_FILE} FROM files WHERE {where} ORDER BY id DESC", values)
        ]

    # ---- what a writer does, inside writing() ----

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Write facts; other facts stay."""
        rows = [(key, json.dumps(value, sort_keys=True)) for key, value in values.items()]
        self.change_many("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def add_block(self, encoder: int, block: Block) -> None:
        """Name vectors, which must be complete on disk."""
        values = (encoder, block.first_row, block.rows, block.file, block.offset, block.norm, block.sha256)
        columns = 'encoder, first_row, rows, file, "offset", norm, sha256'
        self.change(f"INSERT INTO blocks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes of the command line that are no text
        return False
    return True


class FileWriter:
    """A new version of a file, document by document, inside :meth:`Catalogue.writing`."""

    def __init__(self, catalogue: Catalogue, first_row: int, facts: Mapping[str, Any]) -> None:
        """Begin at a row; ``facts`` are path, source, hash, options, added, size and mtime."""
        self._catalogue = catalogue
        self.source, self.path = str(facts["source"]), str(facts["path"])
        self.first_row = self.row = first_row
        columns = ", ".join(facts)
        marks = ", ".join("?" * len(facts))
        self.id = catalogue.change(
            f"INSERT INTO files ({columns}, status, reason, first_row, rows, digest) "
            f"VALUES ({marks}, 'ok', '', {first_row}, 0, '')",
            list(facts.values()),
        )

    def add(self, document: Document, access: Sequence[str], passages: Iterable[tuple[str, Span, str]]) -> None:
        """Add a document with its passages: id, span and place of each."""
        metadata = json.dumps(
            {key: list(v) if isinstance(v, tuple) else v for key, v in document.metadata.items()}, ensure_ascii=False
        )
        labels = f",{','.join(access)}," if access else ""
        values = (document.member, document.title, document.media_type, metadata, labels, document.text)
        first = self.row
        number = self._catalogue.change(
            "INSERT INTO documents (file, member, title, media_type, metadata, access, text, first_row, rows) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (self.id, *values, first),
        )
        rows = []
        for passage_id, span, place in passages:
            text = document.text[span.start : span.end]
            label = Passage(passage_id, "", document.title, span.heading).label
            row = (self.row, passage_id, number, span.start, span.end, span.heading, place, encoder_input(label, text))
            rows.append(row)
            self.row += 1
        self._catalogue.change_many("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._catalogue.change("UPDATE documents SET rows = ? WHERE id = ?", (self.row - first, number))
        self._catalogue.change_many(
            "INSERT INTO attributes (document, key, text, number) VALUES (?, ?, ?, ?)",
            [(number, *row) for row in attributes.rows(document.metadata)],
        )

    def finish(self, status: str, reason: str) -> None:
        """Record how it went."""
        digest = file_digest(self._catalogue.query, self.id)
        self._catalogue.change(
            "UPDATE files SET status = ?, reason = ?, rows = ?, digest = ? WHERE id = ?",
            (status, reason, self.row - self.first_row, digest, self.id),
        )


def file_digest(query: Callable[..., list[tuple[Any, ...]]], number: int) -> str:
    """sha256 of all that the catalogue has of the documents and passages of a version of a file."""
    digest = hashlib.sha256()
    columns = "member, title, media_type, metadata, access, text, first_row, rows"
    for (document,) in query("SELECT id FROM documents WHERE file = ? ORDER BY id", [number]):
        digest.update(canonical(query(f"SELECT {columns} FROM documents WHERE id = ?", [document])[0]))
        rows = "SELECT row, id, start, end, heading, place, input FROM passages WHERE document = ? ORDER BY row"
        for row in query(rows, [document]):
            digest.update(canonical(row))
        for row in query("SELECT key, text, number FROM attributes WHERE document = ? ORDER BY 1, 2, 3", [document]):
            digest.update(canonical(row))
    return digest.hexdigest()
