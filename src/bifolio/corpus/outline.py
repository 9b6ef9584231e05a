"""A document's sections: where each begins, where its heading ends, and under which headings it stands."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from bifolio.types import Document

_UNDERLINE = re.compile(r"[ ]{0,3}(?:=+|-+)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """A section of a document.

    Attributes:
        start: Where the line of its heading begins.
        body: Where the heading ends.
        path: Titles of the headings above its text, its own the last; empty before the first heading.
    """

    start: int
    body: int
    path: tuple[str, ...]

    def leads_to(self, following: Section) -> bool:
        """Whether the two stand under the same headings: parent and child, or children of one parent."""
        shared = max(min(1, len(self.path)), len(self.path) - 1)
        return self.path[:shared] == following.path[:shared]


class Outline:
    """The sections of a document, in order; the first begins at 0.

    Args:
        document: The document.
    """

    def __init__(self, document: Document) -> None:
        self.sections = [Section(0, 0, ())]
        self._text = document.text
        above: list[tuple[int, str]] = []
        headings = document.headings
        underlined = document.media_type == "text/markdown"
        for index, heading in enumerate(headings):
            limit = headings[index + 1].start if index + 1 < len(headings) else len(self._text)
            while above and above[-1][0] >= heading.level:
                above.pop()
            if heading.title.strip():
                above.append((heading.level, heading.title.strip()))
            previous = self.sections[-1].body
            start = self._text.rfind("\n", previous, heading.start) + 1 or previous
            body = self._text.find("\n", heading.start, limit)
            body = limit if body < 0 else body
            underline = _UNDERLINE.match(self._text, body + 1, limit) if underlined else None
            self.sections.append(
                Section(start, underline.end() if underline else body, tuple(title for _, title in above))
            )
        self._starts = [section.start for section in self.sections]

    def path_at(self, start: int, end: int) -> str:
        """Headings above the first text from ``start`` on that is no heading itself, joined with " > "."""
        index = bisect_right(self._starts, start) - 1
        position = max(start, self.sections[index].body)
        while index + 1 < len(self.sections):
            following = self.sections[index + 1]
            if following.start >= end or self._text[position : following.start].strip():
                break
            index += 1
            position = following.body
        return " > ".join(self.sections[index].path)
