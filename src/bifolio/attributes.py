"""Metadata of documents in the catalogue, one row a value, so that filters find documents by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from bifolio.filters import Comparison, as_row, glob, matches

SCHEMA = """
CREATE TABLE attributes (
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    text TEXT NOT NULL,
    number REAL                       -- NULL for what is no number
);
CREATE INDEX attributes_document ON attributes (document);
CREATE INDEX attributes_number ON attributes (key, number) WHERE number IS NOT NULL;
CREATE INDEX attributes_text ON attributes (key, text);
"""

_COLUMNS = {
    "source": "SELECT d.id, f.source FROM documents d JOIN files f ON f.id = d.file",
    "title": "SELECT id, title FROM documents",
    "media_type": "SELECT id, media_type FROM documents",
}


def rows(metadata: Mapping[str, Any]) -> list[tuple[str, str, float | None]]:
    """The rows of a document: key, text and number; of a list one for every element."""
    found: dict[tuple[str, str, float | None], None] = {}
    for key, value in metadata.items():
        for one in value if isinstance(value, tuple | list) else (value,):
            text, number = as_row(one)
            found[key, text, number] = None
    return list(found)


class SqlStore:
    """The documents of a catalogue, of every generation, as :class:`bifolio.filters.Store`."""

    def __init__(self, query: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]) -> None:
        """``query`` gives the rows of a statement."""
        self._query = query

    def documents(self) -> Int64[np.ndarray, " n"]:
        """All documents."""
        return _numbers(self._query("SELECT id FROM documents ORDER BY id", []))

    def matching(self, comparison: Comparison) -> Int64[np.ndarray, " n"]:
        """Documents for which a comparison holds, by the same rules as :func:`bifolio.filters.matches`."""
        key, operator, value, number = comparison.key, comparison.operator, comparison.value, comparison.number
        if key in _COLUMNS:
            texts = self._query(_COLUMNS[key], [])
            return _numbers(sorted((d,) for d, text in texts if matches(comparison, {key: text})))
        found = "SELECT DISTINCT document FROM attributes WHERE key = ?"
        values: list[Any] = [key]
        if operator == ":":
            texts = self._query("SELECT DISTINCT text FROM attributes WHERE key = ?", [key])
            pattern = glob(value)
            good = [text for (text,) in texts if pattern.fullmatch(text)]
            numbers: list[tuple[Any, ...]] = []
            for start in range(0, len(good), 500):
                part = good[start : start + 500]
                marks = ",".join("?" * len(part))
                numbers += self._query(f"{found} AND text IN ({marks})", [key, *part])
            return _numbers(sorted(set(numbers)))
        conditions: list[tuple[str, Any]] = []
        if number is not None:
            conditions.append((f"number IS NOT NULL AND number {operator} ?", number))
        if number is None or operator in ("=", "!="):
            conditions.append((f"number IS NULL AND text {operator} ?", value))
        where = " OR ".join(f"({condition})" for condition, _ in conditions)
        values += [given for _, given in conditions]
        return _numbers(self._query(f"{found} AND ({where}) ORDER BY document", values))


def _numbers(found: Sequence[tuple[Any, ...]]) -> Int64[np.ndarray, " n"]:
    return np.fromiter((number for (number,) in found), dtype=np.int64, count=len(found))
