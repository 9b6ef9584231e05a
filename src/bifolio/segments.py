"""Where a new segment begins: the whole difference between the schemes.

A boundary is a function of the tokens already produced and of nothing else, the same in scoring, loss and decoding;
otherwise the probabilities of all answers would no longer sum to 1. So the rule is asked ``after this prefix, is the
prior restored before the next token?`` and never sees that next token.

"3.14", "Dr." and "U.S." need a look ahead. A full stop after an ordinary word closes its sentence at once, so that the
next sentence, or the end of the answer, is a segment of its own; one that is more likely something else closes it when
the next token is seen to begin with a capital or a digit, and that one token still belongs to the segment before. Where
"postgresql." turns out to go on with "conf" the end is withdrawn from the sentences that people see; the reset, which
could not know, has happened.
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
_END_AHEAD = re.compile(r"([.!?])[\"'”’»)\]」』）]*(?=\s+[\"'“‘«(\[]?(\w))")
_OPENS = {'"': '"', "“": "”", "«": "»", "(": ")", "「": "」", "『": "』", "（": "）"}
# A name follows these: never the end of a sentence.
_TITLES = frozenset("mr mrs ms dr prof st rev hon gen col lt sgt capt gov sen rep pres nos fig figs eq vol".split())
# These end a sentence only when a capital follows.
_ABBREVIATIONS = frozenset(
    "no jr sr vs etc al approx dept est inc ltd co corp univ assn ave blvd cf ca ed eds pp p ch "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun "
    "sec min max hr hrs ft in oz lb lbs".split()
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
    if not _quoting(bare):
        core = bare.rstrip(_CLOSERS)
        if core[-1] in _HARD or (core[-1] == "." and _certain(_word_before(core[:-1]))):
            return len(bare)
    for ahead in _END_AHEAD.finditer(text):
        before, following = text[: ahead.start()], ahead.group(2)
        if following.islower():
            continue
        if ahead.group(1) != "." or _plausible(_word_before(before), before, following):
            return ahead.end()
    return None


def _quoting(text: str) -> bool:
    """Is a quotation or a bracket open at the end? An inch mark or a closer without an opener opens nothing."""
    waiting: list[str] = []
    before = " "
    for character in text:
        if waiting and character == waiting[-1]:
            waiting.pop()
        elif character in _OPENS and (character != '"' or not before.isalnum()):
            waiting.append(_OPENS[character])
        before = character
    return bool(waiting)


def _certain(word: str) -> bool:
    """Can a full stop after ``word`` be nothing but the end of a sentence?"""
    lowered = word.lower()
    return len(word) > 1 and word.isalpha() and lowered not in _TITLES and lowered not in _ABBREVIATIONS


def _plausible(word: str, before: str, following: str) -> bool:
    """Does a full stop after ``word`` end a sentence, given that ``following``, which is no small letter, follows?"""
    if word.lower() in _TITLES or not word:
        return False
    if word.lower() == "no" and following.isdigit():  # "No. 7"
        return False
    if word.isdigit() and before.strip() == word:  # "3. Close the valve": the number of a list item
        return False
    if len(word) == 1 and word.isalpha():  # "J. Smith"
        return False
    return not re.fullmatch(r"(?:[^\W\d]\.)+[^\W\d]", word)  # "U.S. Army"


class SentenceBoundary:
    """Sentence ends found in a growing prefix. A reset is never taken back; an end that people see may be."""

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
        if (
            start and rest and rest[0].isalnum() and text[start - 1] in ".!?"
        ):  # "postgresql." was no end: "postgresql.conf"
            state = _Open(state.ends[:-1])
            start = state.ends[-1] if state.ends else 0
            rest = text[start:]
        end = _closed(rest)
        return _Open(state.ends) if end is None else _Open((*state.ends, start + end), fired=True)

    def __call__(self, prefix: tuple[int, ...]) -> bool:
        """Whether a sentence became closed with the last token of ``prefix``."""
        return self._state(prefix).fired

    def ends(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """Offsets into ``text(prefix)`` where sentences end; what follows the last one is open."""
        return self._state(prefix).ends


def boundary(scheme: str, text: Callable[[Sequence[int]], str], every: int = 1) -> Boundary:
    """The rule of a scheme, over tokens whose text is ``text(ids)``; ``requery`` begins anew after ``every`` tokens.

    Raises:
        UsageError: the scheme is unknown.
    """
    if scheme == "token":
        return lambda prefix: True
    if scheme == "sequence":
        return lambda prefix: False
    if scheme == "sentence":
        return SentenceBoundary(text)
    if scheme == "requery":
        return lambda prefix: len(prefix) % every == 0
    raise UsageError(f"unknown scheme {scheme!r}: expected one of {', '.join(SCHEMES)}")


def segment_ids(tokens: Sequence[int], starts_segment: Boundary) -> list[int]:
    """Number of the segment of each token, from 0."""
    ids, current = [], 0
    for i in range(len(tokens)):
        if i and starts_segment(tuple(tokens[:i])):
            current += 1
        ids.append(current)
    return ids
