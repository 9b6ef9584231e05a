"""Text cut into atoms: words, or pieces of what has no spaces, each with how good it is to end a passage after it.

A word weighs ``WORD``; scripts without spaces count a word for every 1.5 characters, and runs that are no words (URLs,
base64) one for every 16/3, so that ``1.5 * words`` words of them are ``8 * words`` characters.
"""

from __future__ import annotations

import enum
import re
import unicodedata
from array import array
from collections.abc import Iterator
from itertools import accumulate

from bifolio.corpus.sentences import ends_clause, ends_sentence

WORD = 48  # a unit that keeps all weights whole numbers
_SPACELESS_CHARACTER = 32
_RUN_CHARACTER = 9
_LONGEST_WORD = 32  # characters; what is longer is a run
_PIECE = 16  # characters of a run that stay together
_SPACELESS = (  # CJK with its punctuation, kana, Hangul, Thai, Lao, Myanmar, Khmer
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff01-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_HAS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_TOKEN = re.compile(r"\S+")
_OPENING = "「『（【《〈〔［｛“‘([{«"
_CLOSING = "」』）】》〉〕］｝”’)]}»。！？、，．：；!?.,:;…‥"
_SPACELESS_SENTENCE = "。！？．｡"
_SPACELESS_CLAUSE = "、，；：､"
_LONGEST_GRAPHEME = 64  # code points; nothing real is longer, and a limit must hold
_LIST_ITEM = re.compile(r"(?:[-*+•‣◦–|]|#{1,6}|>|```|~~~|\(?(?:\d{1,3}|[A-Za-z])[.)])(?=[ \t]|$)|[|•]", re.MULTILINE)
_BULLET = re.compile(r"[-*+•‣◦>]|#{1,6}|\(?(?:\d{1,3}|[A-Za-z])[.)]")


class Cut(enum.IntEnum):
    """How good it is to end a passage here, the worst first."""

    NEVER = 0  # only if nothing else fits
    WORD = 1
    CLAUSE = 2
    LINE = 3
    SENTENCE = 4
    BLOCK = 5
    PARAGRAPH = 6


_WORD_CUT = int(Cut.WORD)


class Atoms:
    """The atoms of a text, as parallel arrays.

    Args:
        text: The text.
        words: Size of a passage: pieces are small enough that passages can be filled evenly.
        lines_are_blocks: Whether a line break ends a block (HTML) rather than wraps a line.

    Attributes:
        starts: Where each atom begins.
        ends: One past its end.
        before: Weight of all atoms before this one; one longer than ``starts``.
        cuts: The ``Cut`` after each atom.
    """

    def __init__(self, text: str, words: int, *, lines_are_blocks: bool) -> None:
        self._text = text
        self._run = min(_PIECE, 8 * words)
        self._spaceless = max(1, min(12, words // 8))
        self._lines_are_blocks = lines_are_blocks
        self.starts, self.ends, self.cuts = array("q"), array("q"), bytearray()
        self._weights = array("q")
        self._fill()
        self.before = array("q", accumulate(self._weights, initial=0))

    def _fill(self) -> None:
        text = self._text
        cuts = self.cuts
        line_start = next_line_start = True
        end = 0
        word = ""
        for token in _TOKEN.finditer(text):
            start, next_end = token.span()
            if word:
                gap_is_space = start - end == 1 and text[end] == " "
                if not (gap_is_space and word[-1].isalnum()):  # most words take the short way
                    breaks = 0 if gap_is_space else text.count("\n", end, start)
                    cuts[-1] = self._cut(word, start, breaks, line_start)
                    next_line_start = breaks > 0
                line_start, next_line_start = next_line_start, False
            word, end = token[0], next_end
            if end - start > _LONGEST_WORD or not (word.isascii() or _HAS_SPACELESS.search(word) is None):
                self._pieces(start, end)
            else:
                self.starts.append(start)
                self.ends.append(end)
                self._weights.append(WORD)
                cuts.append(_WORD_CUT)
        if cuts:
            cuts[-1] = Cut.PARAGRAPH

    def _add(self, start: int, end: int, weight: int, cut: Cut = Cut.WORD) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self._weights.append(weight)
        self.cuts.append(cut)

    def _cut(self, word: str, following: int, breaks: int, line_start: bool) -> Cut:
        """The cut between a token and the one that begins at ``following``."""
        if breaks and word[-1] in ":：":  # what it announces belongs to it
            return Cut.CLAUSE
        if breaks > 1:
            return Cut.PARAGRAPH
        if breaks and (self._lines_are_blocks or _LIST_ITEM.match(self._text, following)):
            return Cut.BLOCK
        if line_start and _BULLET.fullmatch(word):
            return Cut.NEVER
        if word[-1].isalnum():
            return Cut.LINE if breaks else Cut.WORD
        if ends_sentence(word, self._text[following : following + 8]):
            return Cut.SENTENCE
        if breaks:
            return Cut.LINE
        return Cut.CLAUSE if ends_clause(word) else Cut.WORD

    def _pieces(self, start: int, end: int) -> None:
        """Cut a token into pieces; one that begins a token or a run weighs a word at least, for readers see a word."""
        at_start = True
        for begin, stop, spaceless in self._runs(start, end):
            size = self._spaceless if spaceless else self._run
            unit = _SPACELESS_CHARACTER if spaceless else _RUN_CHARACTER
            at_start = at_start or not spaceless
            while begin < stop:
                cut = _grapheme_end(self._text, begin, min(begin + size, stop), end)
                weight = unit * (cut - begin)
                self._add(begin, cut, max(WORD, weight) if at_start else weight, self._inner_cut(cut, end))
                begin, at_start = cut, False

    def _runs(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Parts of a token that are in scripts without spaces, or not; punctuation ends a part."""
        text = self._text
        for match in _RUNS.finditer(text, start, end):
            begin, stop = match.span()
            if begin < start:
                begin = start
            if begin >= stop:
                continue
            stop = _grapheme_end(text, begin, stop, end)
            start = stop
            yield begin, stop, match.lastgroup == "spaceless"

    def _inner_cut(self, position: int, end: int) -> Cut:
        """The cut at a place within a token."""
        if position >= end:
            return Cut.WORD
        last, following = self._text[position - 1], self._text[position]
        if following in _CLOSING or last in _OPENING:
            return Cut.NEVER
        if last.isalnum():
            return Cut.WORD
        if last in _CLOSING and _HAS_SPACELESS.match(self._text[position]):
            return Cut.SENTENCE if self._sentence_before(position) else Cut.CLAUSE
        if last in _SPACELESS_SENTENCE:
            return Cut.SENTENCE
        return Cut.CLAUSE if last in _SPACELESS_CLAUSE else Cut.WORD

    def _sentence_before(self, position: int) -> bool:
        """Whether closing marks before ``position`` follow a full stop, as in 。」."""
        tail = self._text[max(0, position - 6) : position].rstrip("」』）】》〉〕］｝”’)]}»")
        return tail[-1:] != "" and tail[-1] in "。！？．｡!?…"


_RUNS = re.compile(
    f"(?P<mark>[{re.escape(_SPACELESS_SENTENCE + _SPACELESS_CLAUSE)}]{{1,2}})"
    f"|(?P<spaceless>[{_SPACELESS}])(?:(?![{re.escape(_SPACELESS_SENTENCE + _SPACELESS_CLAUSE)}])[{_SPACELESS}])*"
    f"|[^\\s{_SPACELESS}]+"
)


def _grapheme_end(text: str, begin: int, position: int, limit: int) -> int:
    """The first place from ``position`` on where a grapheme that a reader sees ends, at most ``limit``."""
    limit = min(limit, position + _LONGEST_GRAPHEME)
    while position < limit and _within_grapheme(text, begin, position):
        position += 1
    return position


def _within_grapheme(text: str, begin: int, position: int) -> bool:
    following = text[position]
    if text[position - 1] == "\u200d":
        return True
    if following < "\u0300" or "\u309b" <= following <= "\u9fff":
        return False
    if "\U0001f1e6" <= following <= "\U0001f1ff":  # flags are pairs
        flags = position
        while flags > begin and "\U0001f1e6" <= text[flags - 1] <= "\U0001f1ff":
            flags -= 1
        return (position - flags) % 2 == 1
    return (
        unicodedata.category(following)[0] == "M"
        or "\u1160" <= following <= "\u11ff"  # vowels and finals of decomposed Hangul
        or "\udc00" <= following <= "\udfff"
        or "\U0001f3fb" <= following <= "\U0001f3ff"
        or "\U000e0020" <= following <= "\U000e007f"
        or following in "\u0e33\u0eb3\uff9e\uff9f\u200c\u200d"
    )
