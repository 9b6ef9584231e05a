"""Plain text, and whatever else is text without a reader of its own (source code, logs, XML)."""

from __future__ import annotations

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean
from bifolio.types import Document


def read_text(data: bytes) -> Document:
    """Read a text file; line n of the document is line n of the file.

    Raises:
        SkippedDocument: The bytes are no text.
        DocumentError: No charset fits.
    """
    decoded = decode(data)
    return Document(text=clean(decoded.text), warnings=decoded.warnings)
