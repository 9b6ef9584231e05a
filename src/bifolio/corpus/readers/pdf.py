"""PDF: the text layer, page by page. Scans have none; they need OCR first."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bifolio.corpus.cleaning import clean
from bifolio.errors import DocumentError, MissingExtraError
from bifolio.types import Document, Mark

_ONE_AT_A_TIME = threading.Lock()  # PDFium is not safe to call from two threads
_PASSWORD = re.compile("password", re.IGNORECASE)
_TRAILING = re.compile(r"[ \t]+$", re.MULTILINE)
_CID = re.compile(r"\(cid:\d+\)")
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x80-\x9f\ue000-\uf8ff\ufffd\uffff\U000f0000-\U0010ffff]")
_TOO_UNREADABLE = 0.3  # bullets of symbol fonts stay far below
_WORTH_A_WARNING = 0.05
_LETTER = r"[^\W\d_]"
# PDFium puts U+FFFE (formerly U+0002) for a hyphen at a line end, and U+FFFE for a glyph without a known letter too.
_HYPHEN_CODES = (2, 0xFFFE)
_BREAK = r"(?:[-\u00ad\u2010][ \t]*\n|[\ufffe\x02][ \t]*\n?)[ \t]*"
_MARK = re.compile("[\ufffe\x02]")
_BROKEN_WORD = re.compile(rf"(-?)(?<!{_LETTER})({_LETTER}+)({_BREAK})(?=({_LETTER}*))")
_WORD = re.compile(rf"{_LETTER}+(?:-{_LETTER}+)*")
_COMPOUNDS = frozenset({"self", "well"})
_NO_TITLE = re.compile(
    r"untitled|microsoft (?:word|powerpoint|excel)\b.*|document\d*|\W*"
    r"|.*\.(?:docx?|pptx?|xlsx?|od[tps]|rtf|tex|dvi|e?ps|pdf|indd|qxd|fm|jpe?g|png|tiff?|html?|txt)",
    re.IGNORECASE,
)


def read_pdf(path: Path) -> Document:
    """Read the text layer of a PDF file.

    Raises:
        DocumentError: The file is encrypted or damaged, or its text layer is missing or unreadable.
        MissingExtraError: pypdfium2 is not installed.
    """
    try:
        import pypdfium2
    except ImportError as error:
        raise MissingExtraError("pypdfium2", "docs", "reading PDF") from error
    with _ONE_AT_A_TIME:
        try:
            pdf = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError as error:
            if _PASSWORD.search(str(error)):
                raise DocumentError("encrypted: needs a password") from error
            raise DocumentError(f"damaged or not a PDF: {error}") from error
        try:
            raw, broken = _pages(pdf, pypdfium2.PdfiumError)
            title = _title(pdf)
        finally:
            pdf.close()
    pages = _whole_words([page.replace("\r\n", "\n").replace("\r", "\n") for page in raw])
    if not any(page.strip() for page in pages):
        raise DocumentError("no text layer (a scan?): needs OCR")
    unreadable = "".join(pages).count("\ufffd")
    share = _unreadable_share("".join(pages))
    if share > _TOO_UNREADABLE:
        raise DocumentError(f"text layer is not text ({share:.0%} of glyphs unreadable): needs OCR".replace("%", " %"))
    return _document(
        [_TRAILING.sub("", clean(page)).strip() for page in pages], title, _unreadable(share, unreadable), broken
    )


def _pages(pdf: Any, failure: type[Exception]) -> tuple[list[str], list[int]]:
    """Text of each page, "" where there is none; and the numbers of the pages that PDFium could not load."""
    texts, broken = [], []
    for index in range(len(pdf)):
        try:
            page = pdf[index]
        except failure:
            texts.append("")
            broken.append(index + 1)
            continue
        try:
            layer = page.get_textpage()
            try:
                texts.append(_text(layer))
            finally:
                layer.close()
        finally:
            page.close()
    return texts, broken


def _text(layer: Any) -> str:
    """A page's text, glyphs without a known letter (as ligatures often are) being U+FFFD."""
    text: str = layer.get_text_range()
    if "\ufffe" not in text:
        return text
    from pypdfium2.raw import FPDFText_GetUnicode

    codes = [FPDFText_GetUnicode(layer, index) for index in range(layer.count_chars())]
    marks = iter([code for code in codes if not code or code in _HYPHEN_CODES])
    return re.sub("\ufffe", lambda match: match[0] if next(marks, 2) else "\ufffd", text)


def _document(pages: Sequence[str], title: str, unreadable: str, broken: Sequence[int]) -> Document:
    parts: list[str] = []
    marks: list[Mark] = []
    position = 0
    for number, page in enumerate(pages, 1):
        if not page:
            continue
        if parts:
            position += 2
        marks.append(Mark(position, page=number))
        parts.append(page)
        position += len(page)
    warnings = []
    bare = [number for number, page in enumerate(pages, 1) if not page and number not in broken]
    if broken:
        warnings.append(f"damaged: {_numbers(broken)}")
    if bare:
        warnings.append(f"no text on {_numbers(bare)}")
    if unreadable:
        warnings.append(unreadable)
    return Document(
        text="\n\n".join(parts),
        title=title,
        media_type="application/pdf",
        marks=tuple(marks),
        warnings=tuple(warnings),
    )


def _whole_words(pages: Sequence[str]) -> list[str]:
    """The pages with the words whole that a line end broke, and with the hyphens that are the author's."""
    known: Counter[str] = Counter()
    for page in pages:
        unbroken = re.sub(rf"(?<!{_LETTER}){_LETTER}+{_BREAK}{_LETTER}*", " ", page)
        for word in _WORD.findall(unbroken.casefold()):
            known[word] += 1
            for part in word.split("-")[1:]:
                known[f"-{part}"] += 1

    def join(match: re.Match[str]) -> str:
        hyphen, first, gap, second = match.groups()
        if second[:1].islower() and not _is_compound(first.casefold(), second.casefold(), bool(hyphen), known):
            return f"{hyphen}{first}"
        return f"{hyphen}{first}-" if second else f"{hyphen}{first}{_MARK.sub('-', gap)}"

    return [_BROKEN_WORD.sub(join, page) for page in pages]


def _is_compound(first: str, second: str, is_part: bool, known: Counter[str]) -> bool:
    """Whether the hyphen between two halves belongs to the word. What the document has elsewhere decides."""
    joined, hyphenated = known[first + second], known[f"{first}-{second}"]
    if joined or hyphenated:
        return hyphenated > joined
    if len(first) == 1 or (first in _COMPOUNDS and len(second) > 4):
        return True
    if is_part:  # state-of-the-art, but not self-atten-tion
        return bool(known[first])
    return min(len(first), len(second)) > 3 and bool((known[first] and known[second]) or known[f"-{second}"])


def _unreadable(share: float, count: int) -> str:
    """A warning, or ""."""
    if share > _WORTH_A_WARNING:
        return f"{100 * share:.0f} % of glyphs unreadable"
    glyphs = "1 glyph has" if count == 1 else f"{count} glyphs have"
    return f"{glyphs} no known letter: read as U+FFFD" if count else ""


def _unreadable_share(text: str) -> float:
    glyphs = _CID.sub("\ufffd", "".join(text.split()))
    return len(_UNREADABLE.findall(glyphs)) / max(1, len(glyphs))


def _title(pdf: Any) -> str:
    """The title in the file's properties, unless a program made it up."""
    title = " ".join(clean(pdf.get_metadata_value("Title")).split())
    return "" if len(title) > 200 or _NO_TITLE.fullmatch(title) else title


def _numbers(pages: Sequence[int]) -> str:
    """``page 3`` or ``pages 3-5, 8``."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and runs[-1][1] == page - 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    listed = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{'page' if len(pages) == 1 else 'pages'} {listed}"
