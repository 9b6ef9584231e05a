"""Markdown: the source text itself, with the headings that CommonMark sees in it."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean
from bifolio.errors import DocumentError
from bifolio.types import Document, Heading

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"""(["']?)([^\W\d][\w.-]*)\1[ \t]*:(?:[ \t]+(.*))?$""")
_BLOCK_SCALAR = re.compile(r"([|>])[-+0-9]*[ \t]*(?:#.*)?")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)')[ \t]*(?:#.*)?""")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_NESTED = tuple("[{|>&*!@`%")
_USUAL_KEYS = frozenset({"title", "author", "date", "tags", "layout", "slug", "category"})
_ACCESS = re.compile(r"""^[ \t]*["']?access["']?[ \t]*:""", re.IGNORECASE | re.MULTILINE)
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


_Value = str | int | float | bool | tuple[str, ...]


def _split_front_matter(text: str) -> tuple[str, dict[str, _Value]]:
    """The text with as many empty lines in place of YAML front matter, and the plain values and lists in it.

    Raises:
        DocumentError: access labels are there and cannot be read: then nobody may see the document by mistake.
    """
    match = _FRONT_MATTER.match(text)
    entries = _entries(match[1].split("\n")[:-1]) if match else None
    metadata: dict[str, _Value] = {}
    for key, lines in entries or ():
        value = _list(lines) or _value(lines)
        if value is not None:
            metadata[key] = value
    head = match[1] if match else text.partition("\n\n")[0] if text.startswith("---\n") else ""
    if "access" not in metadata and _ACCESS.search(head):
        raise DocumentError(
            "access in what may be its front matter cannot be read; expected a line such as 'access: hr' or "
            "'access: [hr, board]' among lines of 'key: value' between two lines of '---'"
        )
    if match is None or entries is None:
        return text, {}
    return "\n" * match[0].count("\n") + text[match.end() :], metadata


def _entries(lines: Sequence[str]) -> list[tuple[str, list[str]]] | None:
    """The keys of a YAML mapping, each with the lines of its value; None for what may be prose between two rules.

    YAML allows more, such as blank lines between keys: what is in doubt is content.
    """
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is not None:
            found.append((entry[2], [(entry[3] or "").strip()]))
        elif not found or not _goes_on(found[-1][1][0], line):
            return None
        elif not line.startswith("#"):
            found[-1][1].append(line)
    usual = any(not key[0].isupper() or key.lower() in _USUAL_KEYS for key, _ in found)  # "Warning: do not open" is not
    return found if usual else None


def _goes_on(value: str, line: str) -> bool:
    """Whether a line that is no entry may stand below one with this value."""
    if not line.strip():
        return bool(_BLOCK_SCALAR.fullmatch(value))
    if line.startswith("- ") or line == "-":
        return not value
    return line[0] in " \t#" or (line[0] in "]}" and value[:1] in {"[", "{"})


def _list(lines: Sequence[str]) -> tuple[str, ...] | None:
    """The plain elements of a list, in brackets or one a line; None for what is no such list."""
    first, rest = lines[0], [line.strip() for line in lines[1:] if line.strip()]
    whole = _COMMENT.sub("", " ".join([first, *rest])).strip()
    if whole.startswith("[") and whole.endswith("]") and not set(whole[1:-1]) & set("[]{}"):
        parts = [part.strip() for part in whole[1:-1].split(",")]
    elif not first and rest and all(line.startswith("- ") for line in rest):
        parts = [line[2:].strip() for line in rest]
    else:
        return None
    values = [_scalar(part) for part in parts if part]
    if any(value is None for value in values):
        return None
    return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values) or None


def _value(lines: Sequence[str]) -> str | int | float | bool | None:
    """The scalar that these lines are; None for lists, mappings and null."""
    first, rest = lines[0], list(lines[1:])
    block = _BLOCK_SCALAR.fullmatch(first)
    if block:
        literal = textwrap.dedent("\n".join(rest)).strip("\n")
        return literal if block[1] == "|" else re.sub(r"\n(\n*)", lambda match: match[1] or " ", literal)
    if not first and rest:
        return None
    return _scalar(" ".join([first, *(line.strip() for line in rest)]))


def _scalar(source: str) -> str | int | float | bool | None:
    """A YAML scalar's value; None for what is no plain scalar."""
    quoted = _QUOTED.fullmatch(source)
    if quoted:
        return quoted[2].replace("''", "'") if quoted[1] is None else re.sub(r'\\(["\\/])', r"\1", quoted[1])
    bare = _COMMENT.sub("", source).strip()
    if not bare or bare.startswith(_NESTED) or bare.lower() in {"null", "~"}:
        return None
    if bare.lower() in {"true", "false"}:
        return bare.lower() == "true"
    if _INTEGER.fullmatch(bare):
        return int(bare)
    if _DECIMAL.fullmatch(bare) and math.isfinite(float(bare)):
        return float(bare)
    return source  # with its "#": more titles have one than comments


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
