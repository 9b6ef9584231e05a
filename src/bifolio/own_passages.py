"""Passages that the caller brings along, in place of retrieval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    passages, scores = [], []
    for place, one in enumerate(given, start=1):
        passage, score = (one, None) if isinstance(one, Passage) else _parse(one, place)
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
    if score is not None and (
        isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score)
    ):
        raise UsageError(f"passage {place}: its score is {score!r}, expected a finite number")
    name = one.get("id") or f"given-{place}"
    title = one.get("title", "")
    return Passage(name, one["text"], title, place=title or name, span=(0, len(one["text"]))), score
