"""Passages that the caller brings along, in place of retrieval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from bifolio.errors import UsageError
from bifolio.types import Passage

_KEYS = frozenset(("id", "title", "text", "score"))


def own_passages(given: Sequence[Passage | Mapping[str, Any]]) -> tuple[tuple[Passage, ...], list[float] | None]:
    """Passages as given, and their scores if each has one (logits of the prior).

    Args:
        given: :class:`Passage` objects, or mappings with ``text`` and, if wanted, ``title``, ``id`` and ``score``.

    Raises:
        UsageError: there is none, one is of another kind, an id occurs twice, or only some have a score.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise UsageError(f"passages {given!r}: expected a list of at least one passage, such as [{{'text': '...'}}]")
    passages: list[Passage] = []
    scores: list[float] = []
    for place, one in enumerate(given, start=1):
        passage, score = (one, None) if isinstance(one, Passage) else _parse(one, place)
        for name in ("id", "title", "text"):
            value = getattr(passage, name)
            if not isinstance(value, str):
                raise UsageError(f"passage {place}: its {name} is {value!r}, expected a text")
            checked_text(f"passage {place}: its {name}", value)
        passages.append(passage)
        if score is not None:
            scores.append(score)
    ids = [passage.id for passage in passages]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise UsageError(f"two passages have the id {twice!r}: give each its own, or none")
    if scores and len(scores) < len(passages):
        raise UsageError(f"{len(scores)} of {len(passages)} passages have a score: give all of them one, or none")
    return tuple(passages), scores or None


def _parse(one: Any, place: int) -> tuple[Passage, float | None]:
    if not isinstance(one, Mapping) or "text" not in one:
        raise UsageError(f"passage {place} is {one!r}: expected a mapping with the key 'text', or a Passage")
    unknown = sorted(map(str, set(one) - _KEYS))
    if unknown:
        raise UsageError(f"passage {place} has the unknown key {unknown[0]!r}: expected {', '.join(sorted(_KEYS))}")
    for name in ("id", "title", "text"):
        if not isinstance(one.get(name, ""), str):
            raise UsageError(f"passage {place}: its {name} is {one[name]!r}, expected a text")
    score = one.get("score")
    name = one.get("id") or f"given-{place}"
    title = one.get("title", "")
    passage = Passage(name, one["text"], title, place=title or name, span=(0, len(one["text"])))
    return passage, None if score is None else _number(score, place)


def _number(score: Any, place: int) -> float:
    """A score as a float, of whatever library."""
    try:
        value = math.nan if isinstance(score, bool) or not isinstance(score, Real) else float(score)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise UsageError(f"passage {place}: its score is {str(score)[:40]}, expected a finite number")
    return value


def checked_text(what: str, text: str) -> str:
    """The text, if it can be written in UTF-8.

    Raises:
        UsageError: it has half a character (a lone surrogate).
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is no text from character {error.start + 1} on: expected what UTF-8 has") from error
    return text
