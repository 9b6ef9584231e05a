"""Canonical text: what every reader hands on, so that offsets and line numbers mean the same everywhere."""

from __future__ import annotations

import re

_SPACE_LIKE = re.compile("[\x0b\x0c\x1c-\x1f]")
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Canonical form of decoded text; line n stays line n.

    Line ends become LF, a leading BOM goes, lone surrogates become U+FFFD, controls other than LF and TAB go (those
    that separate words, such as the form feed, become a space). Nothing is normalised beyond that: a passage quotes its
    document letter for letter.
    """
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return without_controls(text)


def without_controls(text: str) -> str:
    """A part of a cleaned document whose entities or escapes were expanded after the cleaning."""
    text = _SPACE_LIKE.sub(" ", text)
    text = _INVISIBLE.sub("", text)
    return _LONE_SURROGATE.sub("\ufffd", text)
