"""Which new passages an encoder has read before: as many as a collection has, so they are kept on the disk."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable

from bifolio.types import Passage


def encoder_input(passage: Passage) -> bytes:
    """Equal for passages that an encoder cannot tell apart: it reads the label and the text."""
    return hashlib.sha256(f"{passage.label}\0{passage.text}".encode()).digest()


class Twins:
    """For new rows older ones with the same :func:`encoder_input`.

    SQLite keeps them in a file of its own that goes with the object; its memory does not grow.
    """

    def __init__(self) -> None:
        """No passage is known."""
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE inputs (input BLOB PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE twins (row INTEGER PRIMARY KEY, old INTEGER NOT NULL); CREATE INDEX old ON twins (old); BEGIN"
        )

    def __enter__(self) -> Twins:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def expect(self, first: int, passages: Iterable[Passage]) -> None:
        """The older version of a file has these passages, from row ``first`` on; those of other files are forgotten."""
        self._db.execute("DELETE FROM inputs")
        rows = ((encoder_input(passage), row) for row, passage in enumerate(passages, first))
        self._db.executemany("INSERT OR REPLACE INTO inputs VALUES (?, ?)", rows)

    def match(self, first: int, passages: Iterable[Passage]) -> None:
        """The new version of that file has these passages, from row ``first`` on."""
        rows = ((row, encoder_input(passage)) for row, passage in enumerate(passages, first))
        self._db.executemany("INSERT INTO twins SELECT ?, row FROM inputs WHERE input = ?", rows)

    def count(self, first: int, end: int) -> int:
        """How many different old rows from ``first`` to before ``end`` are the twin of a new one."""
        query = "SELECT count(DISTINCT old) FROM twins WHERE old >= ? AND old < ?"
        return int(self._db.execute(query, (first, end)).fetchone()[0])

    def between(self, first: int, end: int) -> dict[int, int]:
        """The old row of each new one from ``first`` to before ``end`` that has one."""
        query = "SELECT row, old FROM twins WHERE row >= ? AND row < ?"
        return dict(self._db.execute(query, (first, end)).fetchall())
