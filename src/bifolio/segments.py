"""Where a new segment begins: the whole difference between the schemes.

A boundary is a function of the tokens already produced and of nothing else, the same in scoring, loss and decoding;
otherwise the probabilities of all answers would no longer sum to 1. So the rule is asked ``after this prefix, is the
prior restored before the next token?`` and never sees that next token.

"3.14", "Dr." and "U.S." need a look ahead. A full stop that can only be the end of a sentence closes it at once, so
that the next sentence, or the end of the answer, is a segment of its own; one that could be something else closes it
when the following word has been seen, and that one word still belongs to the segment before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bifolio.errors import UsageError
from bifolio.options import SCHEMES

Boundary = Callable[[tuple[int, ...]], bool]
"""After this prefix (token ids, not empty), does a new segment begin?"""

_CLOSERS = "\"'”’»)]」』）"
_HARD = "!?。！？"
_TAIL = frozenset(_CLOSERS + _HARD + ".")
_STOP_AHEAD = re.compile(r"\.[\"'”’»)\]」』）]*(?=\s+[\"'“‘«(\[]?(\w))")
# A name follows these: never the end of a sentence.
_TITLES = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col lt sgt capt gov sen rep pres no nos fig figs eq vol".split()
)
# These end a sentence only when a capital follows.
_ABBREVIATIONS = frozenset(
    "vs etc al approx dept est inc ltd co corp univ assn ave blvd jan feb mar apr jun jul aug sep sept oct nov dec "
    "mon tue wed thu fri sat sun cf ca ed eds pp p ch sec min max hr hrs ft in oz lb lbs".split()
)


@dataclass(frozen=True)
class _Open:
    """State after a prefix: the ends of sentences found so far, as offsets into the prefix's text."""

    ends: tuple[int, ...] = ()
    fired: bool = False


def _word_before(text: str) -> str:
    """The word that ``text`` ends with, without quotes and brackets around it; "" if it ends with white space."""
    tail = text[-80:]
    if not tail or tail[-1].isspace():
        return ""
    return tail.split()[-1].strip("\"'“‘«([”’»)]")


def _closed(text: str) -> int | None:
    """Where the first sentence of ``text`` is known to end, or None while it is open or may be."""
    if not any(character.isalnum() for character in text):
        return None
    bare = text.rstrip()
    if "\n" in text[len(bare) :]:
        return len(bare)
    # An open quotation or bracket waits for its closer, or for the look ahead below.
    if bare.count('"') % 2 == 0 and bare.count("(") == bare.count(")") and bare.count("“") == bare.count("”"):
        core = bare.rstrip(_CLOSERS)
        if core[-1] in _HARD or (core[-1] == "." and _certain(_word_before(core[:-1]))):
            return len(bare)
    for ahead in _STOP_AHEAD.finditer(text):
        before = text[: ahead.start()]
        if not ahead.group(1).islower() and _plausible(_word_before(before), before):
            return ahead.end()
    return None


def _certain(word: str) -> bool:
    """Can a full stop after ``word`` be nothing but the end of a sentence?"""
    lowered = word.lower()
    return len(word) > 1 and word.isalpha() and lowered not in _TITLES and lowered not in _ABBREVIATIONS


def _plausible(word: str, before: str) -> bool:
    """Does a full stop after ``word`` end a sentence, given that a capital, a digit or a quotation follows?"""
    if word.lower() in _TITLES or not word:
        return False
    if word.isdigit() and before.strip() == word:  # "3. Close the valve": the number of a list item
        return False
    if len(word) == 1 and word.isalpha():  # "J. Smith"
        return False
    return not re.fullmatch(r"(?:\w\.)+\w", word)  # "U.S. Army"


class SentenceBoundary:
    """Sentence ends found in the text of a growing prefix; what was found is never taken back."""

    def __init__(self, text: Callable[[Sequence[int]], str]) -> None:
        """Remember ``text``, which turns token ids into their text."""
        self._text = text
        self._states: dict[tuple[int, ...], _Open] = {(): _Open()}

    def _state(self, prefix: tuple[int, ...]) -> _Open:
        known = len(prefix)
        while prefix[:known] not in self._states:
            known -= 1
        for length in range(known + 1, len(prefix) + 1):
            self._states[prefix[:length]] = self._advance(self._states[prefix[: length - 1]], prefix[:length])
        return self._states[prefix]

    def _advance(self, state: _Open, prefix: tuple[int, ...]) -> _Open:
        text = self._text(prefix)
        start = state.ends[-1] if state.ends else 0
        rest = text[start:]
        if start and rest and _TAIL.issuperset(rest):  # "?" was the end, now "?!" is: the same sentence
            return _Open((*state.ends[:-1], len(text)))
        end = _closed(rest)
        return _Open(state.ends) if end is None else _Open((*state.ends, start + end), fired=True)

    def __call__(self, prefix: tuple[int, ...]) -> bool:
        """Whether a sentence became closed with the last token of ``prefix``."""
        return self._state(prefix).fired

    def ends(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """Offsets into ``text(prefix)`` where sentences end; what follows the last one is open."""
        return self._state(prefix).ends


def boundary(scheme: str, text: Callable[[Sequence[int]], str]) -> Boundary:
    """The rule of a scheme, over tokens whose text is ``text(ids)``.

    Raises:
        UsageError: the scheme is unknown.
    """
    if scheme == "token":
        return lambda prefix: True
    if scheme == "sequence":
        return lambda prefix: False
    if scheme == "sentence":
        return SentenceBoundary(text)
    raise UsageError(f"unknown scheme {scheme!r}: expected one of {', '.join(SCHEMES)}")


def segment_ids(tokens: Sequence[int], starts_segment: Boundary) -> list[int]:
    """Number of the segment of each token, from 0."""
    ids, current = [], 0
    for i in range(len(tokens)):
        if i and starts_segment(tuple(tokens[:i])):
            current += 1
        ids.append(current)
    return ids
