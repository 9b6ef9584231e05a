"""JSONL and TSV, as they are or compressed with gzip: each record is a document; read as a stream.

Memory does not grow with the file: one record is held at a time, and the ids that were met are kept on the disk.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from bifolio.corpus.charset import byte_order_mark
from bifolio.corpus.cleaning import clean
from bifolio.corpus.readers.text import read_text
from bifolio.errors import DocumentError
from bifolio.types import Document, Mark

_UNDECODABLE = re.compile("[\udc80-\udcff]")
_LONGEST_FIELD = 2**31 - 1
_LONGEST_RECORD = 64 << 20
"""Characters of a record: a few bytes of gzip may stand for a line without an end."""
_LOOKED_THROUGH = 1 << 30  # bytes after a fault that are unpacked to see whether the packing is the cause
_NAMED = 3  # records without text


def unpacked(path: Path) -> Path:
    """The name that a file has without gzip's suffix: its suffix decides on the format."""
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, out of gzip where its name says so.

    Raises:
        DocumentError: It is no gzip, or a damaged one; wherever reading stands then.
    """
    if unpacked(path) == path:
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            try:
                yield cast(IO[bytes], packed)
            except DocumentError:  # what is wrong with the text may come from damage that shows at the end only
                for _ in range(_LOOKED_THROUGH >> 16):
                    if not packed.read(1 << 16):
                        break
                raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DocumentError(f"damaged gzip, or cut short ({error}): fetch it again") from error


def read_jsonl(path: Path, whole: bool) -> Iterator[Document]:
    """Read ``{"id", "title", "text", ...}``, one object a line; other scalar values become metadata.

    Args:
        path: The file.
        whole: Whether a record is a ready-made passage.

    Yields:
        A document for each record.

    Raises:
        DocumentError: A line is no such object, or an id appears twice.
    """
    yield from _with_warnings(_objects(path, whole))


def _objects(path: Path, whole: bool) -> Iterator[Document]:
    with _Ids() as ids, _open(path, newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            lines.taken = 0
            _check_decoded(line, number)
            if not line.strip():
                continue
            record = _parse(line, number)
            text, title = record.get("text"), record.get("title")
            if not isinstance(text, str):
                found = f"must be a string, got {_kind(text)}" if "text" in record else "is missing"
                raise DocumentError(f"line {number}: field 'text' {found}")
            if title is not None and not isinstance(title, str):
                raise DocumentError(f"line {number}: field 'title' must be a string, got {_kind(title)}")
            metadata = {clean(key): value for key, value in record.items() if key not in {"id", "title", "text"}}
            yield Document(
                text=clean(text),
                title=clean(title or "").strip(),
                member=ids.name(record.get("id"), number),
                media_type="application/jsonl",
                marks=(Mark(0, line=number),),
                metadata=_scalars(metadata),
                whole=whole,
            )


def read_tsv(path: Path, whole: bool) -> Iterator[Document]:
    """Read a table with the columns ``id`` and ``text``, and ``title`` if there is one, in any order.

    Quotes are those of CSV, as in DPR's ``psgs_w100.tsv``. Without that header the file is plain text.

    Args:
        path: The file.
        whole: Whether a record is a ready-made passage.

    Yields:
        A document for each row.

    Raises:
        DocumentError: A row does not fit the header, an id appears twice, or ``whole`` and there is no header.
    """
    if csv.field_size_limit() < _LONGEST_FIELD:  # csv has no limit of one reader alone, and its default is 128 KiB
        csv.field_size_limit(_LONGEST_FIELD)
    with _open(path, newline="") as lines:
        header = [name.strip() for name in next(lines, "").rstrip("\r\n").split("\t")]
        header = [clean(name[1:-1] if name[:1] == name[-1:] == '"' else name) for name in header]
        if {"id", "text"} <= set(header):
            yield from _with_warnings(_rows(lines, header, whole))
            return
    if whole or unpacked(path) != path:
        raise DocumentError(f"line 1: expected a header with the columns id and text, got {', '.join(header)[:80]!r}")
    yield read_text(path.read_bytes())


def _rows(lines: _Lines, header: list[str], whole: bool) -> Iterator[Document]:
    with _Ids() as ids:
        yield from _rows_with(ids, lines, header, whole)


def _rows_with(ids: _Ids, lines: _Lines, header: list[str], whole: bool) -> Iterator[Document]:
    rows = csv.reader(lines, delimiter="\t", strict=True)
    while True:
        lines.taken = 0
        number = rows.line_num + 2  # the header was read before
        try:
            row = next(rows, None)
        except csv.Error as error:
            last = rows.line_num + 1
            where = f"line {number}" if last <= number else f"lines {number}-{last}"
            raise DocumentError(f"{where}: malformed TSV ({error}); a quote in a quoted field is doubled") from error
        if row is None:
            return
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(header):
            raise DocumentError(f"line {number}: expected {len(header)} columns as in the header, got {len(row)}")
        _check_decoded("\t".join(row), number)
        record = {name: clean(field) for name, field in zip(header, row, strict=True)}
        text, title = record["text"], record.get("title", "").strip()
        yield Document(
            text=text,
            title=title,
            member=ids.name(record["id"], number),
            media_type="text/tab-separated-values",
            marks=(Mark(0, line=number),),
            metadata={name: value for name, value in record.items() if name not in {"id", "title", "text", ""}},
            whole=whole,
        )


class _Ids:
    """The ids of a file, each with its line; SQLite moves them to a file of its own when they become many."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE ids (name TEXT PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID; BEGIN"
        )

    def __enter__(self) -> _Ids:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def name(self, given: object, line: int) -> str:
        """The record's id, or its line number if it has none."""
        if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
            raise DocumentError(f"line {line}: field 'id' must be a string or an integer, got {_kind(given)}")
        name = clean(str(given)).strip() if given is not None else ""
        name = name or str(line)
        try:
            self._db.execute("INSERT INTO ids VALUES (?, ?)", (name, line))
        except sqlite3.IntegrityError:
            (first,) = self._db.execute("SELECT line FROM ids WHERE name = ?", (name,)).fetchone()
            raise DocumentError(f"line {line}: id {name!r} is already that of line {first}") from None
        return name


class _Lines:
    """The lines of a file. Whoever reads sets ``taken`` to 0 where a record begins."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.taken = 0
        """Characters since then."""
        self._number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self._number += 1
        line = self._file.readline(_LONGEST_RECORD + 1)
        self.taken += len(line)
        if self.taken > _LONGEST_RECORD:
            raise DocumentError(
                f"line {self._number}: the record has more than {_LONGEST_RECORD:,} characters, "
                "which is no passage and no document"
            )
        if not line:
            raise StopIteration
        return line


@contextmanager
def _open(path: Path, newline: str) -> Iterator[_Lines]:
    with open_bytes(path) as file:
        mark = byte_order_mark(file.read(4))
    encoding = {"": "utf-8", "utf-8": "utf-8-sig"}.get(mark, mark[:6])  # "utf-16" and "utf-32" drop their mark
    with open_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding=encoding, errors="surrogateescape", newline=newline)
        yield _Lines(text)


def _check_decoded(line: str, number: int) -> None:
    bad = None if line.isascii() else _UNDECODABLE.search(line)
    if bad is not None:
        raise DocumentError(f"line {number}: byte 0x{ord(bad[0]) - 0xDC00:02x} is not UTF-8: convert the file to UTF-8")


def _parse(line: str, number: int) -> dict[str, object]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DocumentError(f"line {number}: malformed JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of brackets
        raise DocumentError(f"line {number}: JSON beyond what can be read ({error})") from error
    if not isinstance(record, dict):
        raise DocumentError(f"line {number}: expected a JSON object, got {_kind(record)}")
    return record


def _scalars(values: dict[str, object]) -> dict[str, str | int | float | bool | tuple[str, ...]]:
    """The values that metadata can hold: neither null nor nested, nor NaN, which JSON has no word for.

    Raises:
        DocumentError: access labels are there and cannot be read: then nobody may see the record by mistake.
    """
    found: dict[str, str | int | float | bool | tuple[str, ...]] = {}
    for key, value in values.items():
        if isinstance(value, str):
            found[key] = clean(value)
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            found[key] = value
        elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            found[key] = tuple(clean(one) for one in value)
        elif key == "access":
            raise DocumentError(f"access is {value!r}; expected a label, or a list of labels")
    return found


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _with_warnings(documents: Iterator[Document]) -> Iterator[Document]:
    """The documents, the last one without text saying how many have none.

    Their number is known at the end, so each of them waits until the next or the end.
    """
    lines: list[str] = []
    count, waiting = 0, None
    for document in documents:
        if document.text.strip():
            yield document
            continue
        if waiting is not None:
            yield waiting
        waiting = document
        count += 1
        if count <= _NAMED:
            lines.append(str(document.marks[0].line))
    if waiting is not None:
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        where = f"line{'s' if count > 1 else ''} {', '.join(lines)}{more}"
        yield replace(waiting, warnings=(f"{where}: no text",))
