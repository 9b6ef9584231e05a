"""PDF: the text layer, page by page. Scans have none; they need OCR first."""

from __future__ import annotations

import re
import threading
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
# PDFium puts U+FFFE (formerly U+0002) where it took a hyphen at a line end for one that the typesetter added.
_BROKEN_WORD = re.compile(r"(?<=[^\W\d_])(?:[-\u00ad\u2010][ \t]*\n|[\ufffe\x02][ \t]*\n?)[ \t]*(?=([^\W\d_]?))")
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
    pages = [_BROKEN_WORD.sub(_join, page.replace("\r\n", "\n").replace("\r", "\n")) for page in raw]
    if not any(page.strip() for page in pages):
        raise DocumentError("no text layer (a scan?): needs OCR")
    share = _unreadable_share("".join(pages))
    if share > _TOO_UNREADABLE:
        raise DocumentError(f"text layer is not text ({share:.0%} of glyphs unreadable): needs OCR".replace("%", " %"))
    return _document([_TRAILING.sub("", clean(page)).strip() for page in pages], title, share, broken)


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
                texts.append(layer.get_text_range())
            finally:
                layer.close()
        finally:
            page.close()
    return texts, broken


def _document(pages: Sequence[str], title: str, share: float, broken: Sequence[int]) -> Document:
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
    if share > _WORTH_A_WARNING:
        warnings.append(f"{100 * share:.0f} % of glyphs unreadable")
    return Document(
        text="\n\n".join(parts),
        title=title,
        media_type="application/pdf",
        marks=tuple(marks),
        warnings=tuple(warnings),
    )


def _join(match: re.Match[str]) -> str:
    """Nothing between the halves of a word that goes on in lower case; otherwise the hyphen is the author's."""
    if match[1].islower():
        return ""
    return re.sub("[\ufffe\x02]", "-", match[0])


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
