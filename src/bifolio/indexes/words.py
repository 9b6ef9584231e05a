"""What the lexical index takes for a word, the same in passages and in questions, in any language.

No stemming and no stop words: both belong to one language. Linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 80
"""Characters of a word that are kept."""

# Letters that combine are no \\w. Whole blocks of the scripts of India stand here but for their full stops.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff\u0f00-\u0fff"
)
# Scripts that are written without spaces, and Hangul, where what matters is seldom all between two spaces.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER = rf"[\w{_MARKS}]"
_CHUNK = re.compile(rf"{_LETTER}+(?:[-.:'’@/&+]+{_LETTER}+)*(?:\+\+|#)?")
_SPLIT = re.compile(r"[-.:'’@/&+#_]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\WA-Z\d_]+|\d+|[^\W\d_]+")
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_ASCII = re.compile(r"[a-z]+|[0-9]+")


def words(text: str) -> list[str]:
    """The words of a text in order.

    Case and accents are folded. A name of several parts (``getUserName``, ``snake_case``, ``P-7``, ``std::vector``,
    ``v1.2.3``) is a word as a whole and in its parts; ``C++`` and ``C#`` are not ``C``. Text without spaces becomes its
    characters and its pairs of characters.
    """
    found: list[str] = []
    for chunk in _CHUNK.findall(unicodedata.normalize("NFKC", text)):
        folded = fold(chunk)
        if _ASCII.fullmatch(folded) and (chunk.islower() or chunk.istitle() or chunk.isdigit()):  # nearly all words
            found.append(folded[:LONGEST])
            continue
        pieces = [piece for piece in _SPLIT.split(chunk) if piece]
        if pieces != [chunk] and len(folded) <= LONGEST and not _IS_UNSPACED.search(folded):
            found.append(folded)
        found += [part for piece in pieces for part in _parts(piece)]
    return [word for word in found if word]  # of an accent alone nothing is left


def fold(text: str) -> str:
    """Without case and accents."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text.casefold())))


def _parts(piece: str) -> list[str]:
    """The parts of a name without punctuation."""
    found: list[str] = []
    for run in _RUNS.findall(piece):
        if _IS_UNSPACED.match(run):
            found += run
            found += (run[at : at + 2] for at in range(len(run) - 1))
            continue
        whole = fold(run)
        humps = [fold(hump) for hump in _CAMEL.findall(run)] if run.isascii() and not run.islower() else []
        if len(humps) > 1 and len(humps) <= LONGEST:
            found += [whole[:LONGEST], *(hump[:LONGEST] for hump in humps)]
        else:
            found.append(whole[:LONGEST])
    return found
