"""The nouns that travel between layers: frozen, plain, without behaviour beyond reading their own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Metadata = Mapping[str, "str | int | float | bool | tuple[str, ...]"]
"""Of a document; a tuple has several values of one key."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a document.

    Attributes:
        start: Offset in code points where the heading's own text begins in ``Document.text``.
        level: 1 for the outermost.
        title: The heading's text without markup.
    """

    start: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """From offset ``start`` on (until the next mark) the text stands in this line or on this page of the file.

    Attributes:
        start: Offset in code points into ``Document.text``.
        line: Line of the source file, from 1; None where lines mean nothing (PDF).
        page: Page, from 1; None for formats without pages.
    """

    start: int
    line: int | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A document's canonical text and the maps from its offsets to places that a person can find.

    Attributes:
        text: The canonical text. Every passage is a span of it: ``text[start:end] == passage.text``, always.
        title: Title for people and for the encoder; "" if the document has none.
        member: Name of the record inside its file (a JSONL id, a TSV id); "" when the file is the document.
        media_type: Such as ``text/markdown``.
        headings: In order of ``start``.
        marks: In order of ``start``; empty means that line n of ``text`` is line n of the file.
        metadata: Flat values; kept with every passage.
        whole: True for a ready-made passage (``--as-passages``): it is not split.
        warnings: What a person should know about the extraction.
    """

    text: str
    title: str = ""
    member: str = ""
    media_type: str = "text/plain"
    headings: tuple[Heading, ...] = ()
    marks: tuple[Mark, ...] = ()
    metadata: Metadata = field(default_factory=dict)
    whole: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Where a passage lies in its document, before the document has a source.

    Attributes:
        start: First code point.
        end: One past the last code point.
        heading: Path of headings above the passage, outermost first, joined with " > ".
    """

    start: int
    end: int
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """What is retrieved, read on its own and cited: z in the paper.

    Attributes:
        id: Unique in its collection; for ``--as-passages`` the id of the input file.
        text: Exactly ``document.text[span[0]:span[1]]``.
        title: Title of the document.
        heading: Path of headings within the document, joined with " > ".
        source: The file as the user named it.
        place: Where a person finds it: ``manual.md:12-20``, ``manual.pdf p. 3``.
        span: Offsets in code points into the document's canonical text.
        metadata: The document's metadata.
    """

    id: str
    text: str
    title: str = ""
    heading: str = ""
    source: str = ""
    place: str = ""
    span: tuple[int, int] = (0, 0)
    metadata: Metadata = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Title and heading path in one line, each word once: what the models read above the text."""
        if not self.heading or self.heading == self.title:
            return self.title or self.heading
        if not self.title or self.heading.startswith(f"{self.title} > "):
            return self.heading
        return f"{self.title} > {self.heading}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage.

    Attributes:
        passage: The passage.
        score: What it was ranked by: the inner product of question and passage in mode dense, BM25 in mode lexical,
            the logit of its prior in mode hybrid.
        log_prior: log p(z | x) over the passages retrieved, nats (MATH: log pi_z).
        duplicates: Passages that say the same and were left out for this one.
    """

    passage: Passage
    score: float
    log_prior: float
    duplicates: tuple[Passage, ...] = ()
