"""Readers: one file becomes documents. Each format family has a file of its own; this one chooses among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bifolio.corpus.charset import refuse_binary
from bifolio.corpus.files import find_files
from bifolio.corpus.readers.html import read_html
from bifolio.corpus.readers.markdown import read_markdown
from bifolio.corpus.readers.pdf import read_pdf
from bifolio.corpus.readers.records import open_bytes, read_jsonl, read_tsv, unpacked
from bifolio.corpus.readers.text import read_text
from bifolio.errors import DocumentError, EmptyDocument, MissingPathError, SkippedDocument
from bifolio.types import Document

__all__ = ["find_files", "read"]

_SUFFIXES = {
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".tsv": "tsv",
}
_WHOLE_FILES: dict[str, Callable[[bytes], Document]] = {
    "text": read_text,
    "markdown": read_markdown,
    "html": read_html,
}
_RECORDS = ("jsonl", "tsv")
_HEAD = 8192
_BEFORE_HTML = re.compile(rb"\s+|\xef\xbb\xbf|<\?[^>]*>|<!--.*?-->", re.DOTALL)
_HTML = re.compile(rb"<(?:!doctype\s+html|html)\b", re.IGNORECASE)


def read(path: Path, *, as_passages: bool = False) -> Iterator[Document]:
    """Read the documents of one file, in order. JSONL and TSV, also in gzip, are streamed: an error may come late.

    A record without text may come later than those with text that follow it: the last of them tells of all.

    The suffix decides on the format; a file without a known one is read as what its first bytes look like.

    Args:
        path: The file.
        as_passages: Take each record of a JSONL or TSV file as a ready-made passage.

    Yields:
        One document for a text, Markdown, HTML or PDF file, one for each record of a JSONL or TSV file.

    Raises:
        MissingPathError: There is no such file.
        SkippedDocument: The file holds no text, or with ``as_passages`` no records.
        DocumentError: The file is damaged, encrypted, undecodable or malformed; the message says where.
        MissingExtraError: The library for this format is not installed.
    """
    try:
        yield from _read(path, as_passages)
    except UnicodeDecodeError as error:
        raise DocumentError(f"not {error.encoding} as its byte order mark says: {error.reason}") from error
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror or error}") from error


def _read(path: Path, as_passages: bool) -> Iterator[Document]:
    if not path.exists():
        raise MissingPathError(f"no such file: {path}")
    if not path.is_file():
        raise SkippedDocument("not a regular file")
    packed = unpacked(path) != path and _SUFFIXES.get(unpacked(path).suffix.lower()) in _RECORDS
    with open_bytes(path) if packed else path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        raise EmptyDocument("empty file")
    kind = _SUFFIXES.get((unpacked(path) if packed else path).suffix.lower()) or _sniff(head)
    if as_passages and kind not in _RECORDS:
        raise SkippedDocument("not a passage file: expected .jsonl or .tsv, or one of them with .gz")
    if kind == "pdf":
        yield read_pdf(path)
        return
    refuse_binary(head)
    records = 0
    if kind in _RECORDS:
        for document in (read_jsonl if kind == "jsonl" else read_tsv)(path, as_passages):
            records += 1
            yield document
        if not records:
            raise EmptyDocument("no records in the file")
        return
    document = _WHOLE_FILES[kind](path.read_bytes())
    if not document.text or document.text.isspace():
        raise EmptyDocument("no text in the page" if kind == "html" else "only white space")
    yield document


def _sniff(head: bytes) -> str:
    if head.startswith(b"%PDF-"):
        return "pdf"
    position = 0
    while match := _BEFORE_HTML.match(head, position):  # one by one: a repeated group would try all ways to divide them
        position = match.end()
    return "html" if _HTML.match(head, position) else "text"
