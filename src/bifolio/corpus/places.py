"""Where a person finds a passage in its file."""

from __future__ import annotations

import re
from bisect import bisect_right

from bifolio.types import Document, Mark, Span


class Places:
    """Places of passages of one document; the lines are counted once.

    Args:
        document: The document.
        source: Its file as the user named it.
    """

    def __init__(self, document: Document, source: str) -> None:
        self._source = source
        self._marks = document.marks
        self._starts = [mark.start for mark in document.marks]
        if not self._marks:
            self._starts = [0, *(match.end() for match in re.finditer("\n", document.text))]

    def of(self, span: Span) -> str:
        """``manual.md:12-20``, ``manual.pdf p. 3-4``, or the source alone where neither line nor page is known."""
        first, last = self._mark(span.start), self._mark(max(span.start, span.end - 1))
        if first.page is not None and last.page is not None:
            return f"{self._source} p. {_range(first.page, last.page)}"
        if first.line is not None and last.line is not None:
            return f"{self._source}:{_range(first.line, last.line)}"
        return self._source

    def _mark(self, position: int) -> Mark:
        index = max(0, bisect_right(self._starts, position) - 1)
        return self._marks[index] if self._marks else Mark(self._starts[index], line=index + 1)


def place(document: Document, span: Span, source: str) -> str:
    """Where a person finds one passage. For many passages of a document, ask one ``Places``."""
    return Places(document, source).of(span)


def _range(first: int, last: int) -> str:
    low, high = min(first, last), max(first, last)  # broken HTML may put what comes first later
    return str(low) if low == high else f"{low}-{high}"
