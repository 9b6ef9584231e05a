"""The text of an HTML tree: blocks become lines, and every line knows its line in the source.

The lines are libxml2's up to 65,535. Beyond, and after an end tag that spans lines, they are counted from the text
alone, so that a tag which spans lines makes what follows it a little too early.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from bifolio.corpus.cleaning import without_controls
from bifolio.types import Heading, Mark

_PARAGRAPHS = frozenset(
    "p h1 h2 h3 h4 h5 h6 pre table ul ol dl blockquote hr figure address fieldset details center listing xmp".split()
)
_LINES = frozenset(
    "div section article main header footer nav aside li dt dd tr caption thead tbody tfoot figcaption summary form "
    "legend body html dir hgroup optgroup frameset noframes center menu".split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_LISTS = frozenset({"ul", "ol", "dl"})
_VERBATIM = frozenset({"pre", "listing", "xmp"})
_CELLS = frozenset({"td", "th"})
_STRUCTURE = frozenset({"table", "pre", *_HEADINGS})  # in a cell: the table lays out the page
_LAST_KNOWN_LINE = 65_535  # libxml2 counts the lines of HTML no further
_SPACE = re.compile("([ \t\n\r\f\xa0]+)")


@dataclass(frozen=True)
class Rendered:
    """The text of a tree.

    Attributes:
        text: The text.
        headings: Its headings.
        marks: Where in ``text`` a new line of the source begins.
        size: Characters other than white space.
    """

    text: str = ""
    headings: tuple[Heading, ...] = ()
    marks: tuple[Mark, ...] = ()
    size: int = 0


def render(root: Any, dropped: Set[Any]) -> Rendered:
    """Write the text under ``root`` without the elements ``dropped``."""
    from lxml import etree

    writer = _Writer()
    layout = _layout_tables(root)
    skipped = None
    for event, element in etree.iterwalk(root, events=("start", "end", "comment")):
        if skipped is not None:
            if event == "end" and element is skipped:
                skipped = None
                writer.text(element.tail)
            else:
                writer.pass_over(event, element)
        elif not isinstance(element.tag, str):  # a comment counts for its lines, and its tail is text
            writer.line += (element.text or "").count("\n")
            writer.text(element.tail)
        elif event == "start":
            writer.sync(element.sourceline)
            if element in dropped:
                skipped = element
                writer.pass_over(event, element)
                continue
            _open(writer, element, layout)
            writer.text(_first_text(writer, element))
        else:
            _close(writer, element, layout)
            if element is not root:
                writer.text(element.tail)
    return writer.rendered()


def _layout_tables(root: Any) -> set[Any]:
    """Tables whose cells hold tables, headings or code: their cells are blocks. All others are rows of cells."""
    from lxml import etree

    found: set[Any] = set()
    tables: list[Any] = []
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if event == "start" and tables and element.tag in _STRUCTURE:
            found.add(tables[-1])
        if element.tag == "table":
            if event == "end":
                tables.pop()
                continue
            tables.append(element)
            if element.get("role") in {"presentation", "none"}:
                found.add(element)
    return found


def _first_text(writer: _Writer, element: Any) -> str | None:
    """An element's own text; a line break at the start of <pre> is not part of it."""
    text: str | None = element.text
    if text and element.tag in _VERBATIM and text.startswith("\n"):
        writer.line += 1
        return text[1:]
    return text


def _open(writer: _Writer, element: Any, layout: Set[Any]) -> None:
    tag = element.tag
    if tag == "table":
        writer.tables.append(element in layout)
    writer.gap(_gap(writer, tag))
    if tag in _LISTS:
        writer.lists += 1
    if tag in _CELLS and not writer.in_layout:
        if not writer.row_is_new:
            writer.cells += 1
        writer.row_is_new = False
        writer.flat += 1
    elif tag in _CELLS:
        writer.gap(1)
    elif tag == "tr":
        writer.row_is_new, writer.cells = True, 0
    elif tag == "li":
        writer.prefix = "- "
    elif tag in _HEADINGS:
        writer.flat += 1
        writer.heading = _HEADINGS[tag]
    elif tag in _VERBATIM:
        writer.verbatim += 1
    elif tag == "br":
        writer.line_break()


def _close(writer: _Writer, element: Any, layout: Set[Any]) -> None:
    tag = element.tag
    if tag in _HEADINGS:
        writer.end_heading()
        writer.flat -= 1
    elif tag in _CELLS and not writer.in_layout:
        writer.flat -= 1
    elif tag in _VERBATIM:
        writer.verbatim -= 1
    elif tag == "li":
        writer.prefix = ""
    elif tag == "tr":
        writer.cells = 0
    if tag == "table":
        writer.tables.pop()
    if tag in _LISTS:
        writer.lists -= 1
    writer.gap(_gap(writer, tag))


def _gap(writer: _Writer, tag: str) -> int:
    """Line breaks around an element."""
    if tag in _LISTS and writer.lists:
        return 1
    return 2 if tag in _PARAGRAPHS else 1 if tag in _LINES else 0


class _Writer:
    """Collects text; white space is written only when text follows it."""

    def __init__(self) -> None:
        self.line = 1
        self.flat = 0  # within headings and cells, where blocks do not break lines
        self.verbatim = 0
        self.lists = 0
        self.tables: list[bool] = []
        self.row_is_new = True
        self.cells = 0  # cell separators to write before the next text
        self.prefix = ""
        self.heading = 0  # level of the heading that is open
        self._heading_start: int | None = None
        self._parts: list[str] = []
        self._length = 0
        self._size = 0
        self._breaks = 0
        self._spaces = ""
        self._headings: list[Heading] = []
        self._marks: list[Mark] = []

    @property
    def in_layout(self) -> bool:
        """Whether the innermost table lays out the page, or there is none."""
        return not self.tables or self.tables[-1]

    def sync(self, sourceline: int | None) -> None:
        """Take over the parser's line number, which is that of the end of the start tag."""
        if sourceline and sourceline < _LAST_KNOWN_LINE:
            self.line = sourceline

    def pass_over(self, event: str, element: Any) -> None:
        """Count the lines of what is left out."""
        if event == "start":
            self.sync(element.sourceline)
        texts = {"start": (element.text,), "end": (element.tail,), "comment": (element.text, element.tail)}[event]
        self.line += sum(text.count("\n") for text in texts if text)

    def gap(self, breaks: int) -> None:
        """Ask for line breaks before the next text."""
        if not breaks:
            return
        if self.flat:
            self._spaces = self._spaces or ("" if self._breaks else " ")
        else:
            self._breaks = max(self._breaks, breaks)
            self._spaces = ""

    def line_break(self) -> None:
        """A <br>: two in a row end a paragraph."""
        if self.flat:
            self.gap(1)
        else:
            self._breaks = min(2, self._breaks + 1)
            self._spaces = ""

    def text(self, text: str | None) -> None:
        """Write a text node."""
        if not text:
            return
        text = without_controls(text.replace("\xad", "").replace("\r", " "))  # as entities bring them
        if self.verbatim:
            self._verbatim(text)
            return
        for piece in _SPACE.split(text):
            if not piece:
                continue
            if piece[0] in " \t\n\r\f\xa0":
                self.line += piece.count("\n")
                if not self._breaks:
                    self._spaces = " "
            else:
                self._word(piece)

    def _verbatim(self, text: str) -> None:
        for index, line in enumerate(text.split("\n")):
            if index:
                self.line += 1
                self._breaks = self._breaks + 1 if self._parts else 0
                self._spaces = ""
            body = line.rstrip(" \t")
            if body:
                self._word(body)
                self._spaces = line[len(body) :]
            else:
                self._spaces += line

    def _word(self, word: str) -> None:
        lead = ""
        if self._parts:
            lead = "\n" * self._breaks + self._spaces
        elif self.verbatim:
            lead = self._spaces
        if self.cells:
            lead = f"{lead.rstrip(' ')}{' |' * self.cells} "
            lead = lead.lstrip(" ") if not self._parts or self._breaks else lead
        lead += self.prefix
        self._append(lead)
        self._breaks, self._spaces, self.cells, self.prefix = 0, "", 0, ""
        if not self._marks or self._marks[-1].line != self.line:
            self._marks.append(Mark(self._length, line=self.line))
        if self.heading and self._heading_start is None:
            self._heading_start = self._length
        self._append(word)
        self._size += len(word)

    def _append(self, part: str) -> None:
        if part:
            self._parts.append(part)
            self._length += len(part)

    def end_heading(self) -> None:
        """Keep the heading, if there was text in it."""
        start, level = self._heading_start, self.heading
        self._heading_start, self.heading = None, 0
        if start is None:
            return
        length, parts = 0, []
        for part in reversed(self._parts):
            if self._length - length <= start:
                break
            parts.append(part)
            length += len(part)
        self._headings.append(Heading(start, level, "".join(reversed(parts))))

    def rendered(self) -> Rendered:
        """What was written."""
        return Rendered("".join(self._parts), tuple(self._headings), tuple(self._marks), self._size)
