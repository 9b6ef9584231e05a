"""Documents into passages that can be read, found and cited on their own.

The default ends passages at sentence and paragraph ends and keeps sections apart; ``words`` is the paper's way,
disjoint chunks of 100 words (Lewis et al. 2020, section 3).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from bifolio.corpus.atoms import WORD, Atoms, Cut
from bifolio.corpus.outline import Outline
from bifolio.corpus.places import Places, place
from bifolio.errors import UsageError
from bifolio.types import Document, Span

__all__ = ["Places", "SplitOptions", "place", "split"]

Mode = Literal["sentence", "words"]
_LONGEST = 1.5  # times words: no passage is longer
_SHORTEST = 0.25  # times words: no passage is shorter by choice
_ENOUGH = 1.2  # times words: what remains of a section stays one passage up to here
_SHORT_TAIL = 0.3
# What a cut is worth, in passages: a sentence end is taken unless it is that much further from the size aimed at.
_WORTH: dict[int, float] = {
    Cut.NEVER: -3.0,
    Cut.WORD: -1.2,
    Cut.CLAUSE: -0.8,
    Cut.LINE: -0.6,
    Cut.SENTENCE: 0.0,
    Cut.BLOCK: 0.1,
    Cut.PARAGRAPH: 0.3,
}
_TAIL_PENALTY = 0.5


@dataclass(frozen=True)
class SplitOptions:
    """How documents become passages.

    Attributes:
        words: Words of a passage.
        mode: Where passages end.
    """

    words: Annotated[int, "Words of a passage, about; scripts without spaces count a word for 1.5 characters."] = 100
    mode: Annotated[Mode, "'sentence' ends passages at sentence ends; 'words' after exactly so many words."] = (
        "sentence"
    )

    def __post_init__(self) -> None:
        if isinstance(self.words, bool) or not isinstance(self.words, int) or self.words < 1:
            raise UsageError(f"words must be a whole number from 1 on, got {self.words!r}")
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode must be {' or '.join(map(repr, get_args(Mode)))}, got {self.mode!r}")


def split(document: Document, options: SplitOptions | None = None) -> list[Span]:
    """Split a document into passages, in order, that together hold all its text but the white space between them.

    A passage has at most ``1.5 * words`` words. One that begins a section begins with its heading; a section of less
    than a quarter of the size goes with what follows under the same headings. A document that is ``whole`` is one
    passage.

    Args:
        document: The document.
        options: Size and mode.
    """
    options = options or SplitOptions()
    text = document.text
    if document.whole:
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        return [Span(start, end)] if start < end else []
    atoms = Atoms(text, options.words, lines_are_blocks=document.media_type == "text/html")
    if not atoms.starts:
        return []
    outline = Outline(document)
    if options.mode == "words":
        ranges = _fixed(atoms, options.words * WORD)
    else:
        ranges = (
            chunk
            for low, high in _groups(atoms, outline, options.words * WORD)
            for chunk in _packed(atoms, low, high, options.words * WORD)
        )
    spans = ((atoms.starts[low], atoms.ends[high - 1]) for low, high in ranges)
    return [Span(start, end, outline.path_at(start, end)) for start, end in spans]


def _fixed(atoms: Atoms, size: int) -> Iterator[tuple[int, int]]:
    """Disjoint chunks of ``size``, whatever they cut."""
    low, total = 0, len(atoms.starts)
    while low < total:
        high = max(low + 1, bisect_right(atoms.before, atoms.before[low] + size) - 1)
        yield low, high
        low = high


def _groups(atoms: Atoms, outline: Outline, size: int) -> list[tuple[int, int]]:
    """Ranges of atoms that passages do not cross: sections, the short ones with what follows them."""
    total = len(atoms.starts)
    firsts = [*(bisect_left(atoms.starts, section.start) for section in outline.sections), total]
    bodies = [bisect_left(atoms.starts, section.body) for section in outline.sections]
    for first, body in zip(firsts, bodies, strict=False):
        for index in range(first, body):  # within a heading, and between it and its text
            atoms.cuts[index] = Cut.NEVER
    groups: list[tuple[int, int]] = []
    low = 0
    for index, (section, following) in enumerate(itertools.pairwise(outline.sections)):
        high = firsts[index + 1]
        weight = atoms.before[high] - atoms.before[low]
        only_heading = bodies[index] >= high
        if weight < _SHORTEST * size and (only_heading or section.leads_to(following)):
            continue
        if low == high or (only_heading and weight < _LONGEST * size):
            continue
        groups.append((low, high))
        low = high
    if groups and bodies[-1] >= total and atoms.before[total] - atoms.before[low] < _SHORTEST * size:
        low, _ = groups.pop()  # a heading at the end with nothing under it
    if low < total:
        groups.append((low, total))
    return groups


def _packed(atoms: Atoms, low: int, high: int, size: int) -> Iterator[tuple[int, int]]:
    """Fill passages of about ``size`` from the atoms of one group, each cut being the best in reach."""
    while low < high:
        rest = atoms.before[high] - atoms.before[low]
        if rest <= _ENOUGH * size:
            yield low, high
            return
        cut = _best_cut(atoms, low, high, size)
        yield low, cut
        low = cut


def _best_cut(atoms: Atoms, low: int, high: int, size: int) -> int:
    """The atom before which a passage that begins at ``low`` ends."""
    before = atoms.before
    base = before[low]
    first = max(low + 1, bisect_left(before, base + int(_SHORTEST * size), low, high))
    last = min(high, bisect_right(before, base + int(_LONGEST * size), low, high + 1) - 1)
    if first > last:  # no atom ends in reach
        return max(low + 1, last)
    if before[high] - base > (_LONGEST + _SHORT_TAIL) * size:
        middle = bisect_left(before, base + size, first, last)
        candidates: Iterable[int] = _nearest(atoms.cuts, first, middle, last)
    else:
        candidates = range(first, last + 1)
    return max(candidates, key=lambda index: (_worth(atoms, low, index, high, size), -index))


def _worth(atoms: Atoms, low: int, index: int, high: int, size: int) -> float:
    """How good a passage of the atoms from ``low`` to ``index`` is."""
    distance = abs(atoms.before[index] - atoms.before[low] - size) / size
    rest = atoms.before[high] - atoms.before[index]
    penalty = _TAIL_PENALTY if 0 < rest < _SHORT_TAIL * size else 0.0
    return _WORTH[atoms.cuts[index - 1]] - distance - penalty


def _nearest(cuts: bytearray, first: int, middle: int, last: int) -> list[int]:
    """For each kind of cut the places nearest to ``middle``: far from a document's end none other can be the best."""
    found = []
    for kind in Cut:
        below = cuts.rfind(kind, first - 1, middle - 1)
        above = cuts.find(kind, middle - 1, last)
        found += [index + 1 for index in (below, above) if index >= 0]
    return found
