"""Markdown: the source text itself, with the headings that CommonMark sees in it."""

from __future__ import annotations

import itertools
import math
import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean
from bifolio.types import Document, Heading

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"""(["']?)([\w][\w .-]*)\1[ \t]*:(?:[ \t]+(.*))?$""")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_NESTED = tuple("[{|>&*!@`%")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def read_markdown(data: bytes) -> Document:
    """Read a Markdown file; line n of the document is line n of the file, front matter being left blank.

    Raises:
        SkippedDocument: The bytes are no text.
        DocumentError: No charset fits.
    """
    decoded = decode(data)
    text, metadata = _split_front_matter(clean(decoded.text))
    headings = _headings(text)
    title = next((heading.title for heading in headings if heading.level == 1), "")
    return Document(
        text=text,
        title=title or str(metadata.get("title", "")),
        media_type="text/markdown",
        headings=headings,
        metadata=metadata,
        warnings=decoded.warnings,
    )


def _split_front_matter(text: str) -> tuple[str, dict[str, str | int | float | bool]]:
    """The text with as many empty lines in place of YAML front matter, and the plain scalars in it."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return text, {}
    metadata: dict[str, str | int | float | bool] = {}
    for line in match[1].splitlines():
        if not line.strip() or line.startswith((" ", "\t", "#", "- ", "]", "}")) or line == "-":
            continue
        entry = _ENTRY.match(line)
        if entry is None:  # prose between two thematic breaks
            return text, {}
        value = _scalar((entry[3] or "").strip())
        if value is not None:
            metadata[entry[2].strip()] = value
    return "\n" * match[0].count("\n") + text[match.end() :], metadata


def _scalar(source: str) -> str | int | float | bool | None:
    """A YAML scalar's value; None for what is no plain scalar."""
    if source[:1] in {'"', "'"}:
        end = source.rfind(source[0])
        return source[1:end] if end > 0 else None
    source = _COMMENT.sub("", source).strip()
    if not source or source.startswith(_NESTED) or source.lower() in {"null", "~"}:
        return None
    if source.lower() in {"true", "false"}:
        return source.lower() == "true"
    if _INTEGER.fullmatch(source):
        return int(source)
    if _DECIMAL.fullmatch(source) and math.isfinite(float(source)):
        return float(source)
    return source


def _headings(text: str) -> tuple[Heading, ...]:
    """Headings of the document itself, not those quoted or in lists."""
    parser = MarkdownIt("commonmark")
    parser.core.ruler.disable("inline")  # blocks are enough, and ten times faster
    tokens = parser.parse(text)
    inline_parser = MarkdownIt("commonmark")
    starts = [0, *itertools.accumulate(len(line) for line in text.split("\n") for line in (line + "\n",))]
    found = []
    for opening, inline in itertools.pairwise(tokens):
        if opening.type != "heading_open" or opening.level or opening.map is None:
            continue
        title = _plain(inline_parser, inline)
        if title:
            line = starts[opening.map[0]]
            marker = re.compile(r"[ \t]*(?:#{1,6}[ \t]+)?").match(text, line)
            found.append(Heading(marker.end() if marker else line, int(opening.tag[1:]), title))
    return tuple(found)


def _plain(parser: MarkdownIt, inline: Token) -> str:
    """The text of a heading without markup."""
    parts = []
    for token in parser.parseInline(inline.content):
        for child in token.children or ():
            if child.type in {"text", "code_inline", "image"}:
                parts.append(child.content)
            elif child.type in {"softbreak", "hardbreak"}:
                parts.append(" ")
    return " ".join("".join(parts).split())
