"""Several rankings of the same passages to one: pure functions of scores, ids, vectors and texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64, Int64

from bifolio.errors import UsageError

ALIKE = 0.9
"""Texts whose sets of three words in a row have this Jaccard index, or a larger one, say the same."""

_WORD = re.compile(r"\w+")


def reciprocal_rank(
    rankings: Sequence[Sequence[int] | Int64[np.ndarray, " n"]], k: int = 60
) -> tuple[Float64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
    """Reciprocal rank fusion: sum over rankings of 1 / (k + rank), ranks from 1 (Cormack et al. 2009, SIGIR).

    Args:
        rankings: Ids, best first; an id that occurs twice in one counts once, at its better rank, and takes up the
            room of one.
        k: How little the first ranks stand out.

    Returns:
        Scores and ids of the union, best first, ties by smaller id.

    Raises:
        UsageError: ``k`` is below 0.
    """
    if k < 0:
        raise UsageError(f"k {k!r} of reciprocal rank fusion: expected a number from 0 on")
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, one in enumerate(dict.fromkeys(int(i) for i in ranking), start=1):
            scores[one] = scores.get(one, 0.0) + 1.0 / (k + rank)
    order = sorted(scores, key=lambda one: (-scores[one], one))
    return np.array([scores[one] for one in order]), np.array(order, dtype=np.int64)


def weighted(
    dense: Float[np.ndarray, " n"], shares: Float[np.ndarray, " n"], *, scale: float, weight: float
) -> Float64[np.ndarray, " n"]:
    """Logits ``scale * s + weight * share``: saying about all that the question says is worth ``weight`` nats.

    A convex combination of a dense score and a lexical one that is normalised (Bruch, Gai and Ingber 2023,
    arXiv:2210.11934), put on the scale of the prior. It is normalised by what the question's words are worth, not by
    the best match among the passages: so a passage's logit does not depend on what else was found, and a question
    whose words no passage has is left to the dense scores.

    Args:
        dense: s, inner products.
        shares: How much of the question each passage says, from 0 on.
        scale: 1/tau of the prior.
        weight: Nats.
    """
    logits: Float64[np.ndarray, " n"] = scale * dense.astype(np.float64) + weight * shares.astype(np.float64)
    return logits


def mmr(
    relevance: Float[np.ndarray, " n"], vectors: Float[np.ndarray, "n D"], k: int, balance: float
) -> Int64[np.ndarray, " m"]:
    """Maximal marginal relevance: next comes the largest ``balance * r - (1 - balance) * max cos to those chosen``.

    Carbonell and Goldstein 1998 (SIGIR). Relevance r is moved to 0 ... 1 over the candidates first, so that it and
    the cosine are of one size.

    Args:
        relevance: Of n candidates, larger is better.
        vectors: Theirs; of any length, one of length 0 is like nothing.
        k: How many to choose.
        balance: 1 is relevance alone, 0 is diversity alone (after the first, which is the most relevant).

    Returns:
        Places of the min(k, n) chosen, in the order in which they are chosen; ties go to the smaller place.

    Raises:
        UsageError: ``balance`` is not within 0 and 1.
    """
    if not 0 <= balance <= 1:
        raise UsageError(f"mmr {balance!r}: expected a number from 0 (diverse) to 1 (relevant)")
    n = len(relevance)
    r = relevance.astype(np.float64)
    spread = float(np.ptp(r)) if n else 0.0
    r = (r - r.min()) / spread if spread > 0 else np.ones(n)
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1.0)
    chosen: list[int] = []
    alike = np.full(n, -np.inf)
    left = np.ones(n, dtype=bool)
    while len(chosen) < min(k, n):
        value = balance * r - (1 - balance) * alike if chosen else r
        place = int(np.where(left, value, -np.inf).argmax())
        chosen.append(place)
        left[place] = False
        alike = np.maximum(alike, unit @ unit[place])
    return np.array(chosen, dtype=np.int64)


def merge(
    shards: Sequence[tuple[Float[np.ndarray, " a"], Int64[np.ndarray, " a"]]], k: int
) -> tuple[Float[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
    """The exact best k of a whole from the exact best k of its parts.

    Exact because whoever is among the best k of the whole is among the best k of its part, under the same order.

    Args:
        shards: Scores and ids of each part; an id of several parts counts once, with its largest score.
        k: How many to return.

    Returns:
        Scores and ids of the min(k, number of ids) best, best first, ties by smaller id.

    Raises:
        UsageError: a part has not as many scores as ids.
    """
    for scores, ids in shards:
        if scores.shape != ids.shape:
            raise UsageError(f"a shard has {len(scores)} scores and {len(ids)} ids: expected as many")
    if not shards:
        return np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int64)
    all_scores = np.concatenate([scores for scores, _ in shards])
    all_ids = np.concatenate([ids for _, ids in shards]).astype(np.int64)
    order = np.lexsort((all_ids, -all_scores))
    _, first = np.unique(all_ids[order], return_index=True)
    kept = order[np.sort(first)][:k]
    return all_scores[kept], all_ids[kept]


def same_texts(texts: Sequence[str], alike: float = ALIKE) -> list[int]:
    """For each text the place of the first one that says the same; its own place where there is none.

    Two texts say the same if they are equal but for case, accents, punctuation and white space, or if their sets of
    three words in a row have a Jaccard index of at least ``alike``. They are compared with first ones only, and only
    with those that share one of their rarest triples: sets so similar must (prefix filtering, Chaudhuri et al. 2006).
    """
    first: list[int] = []
    whole: dict[str, int] = {}
    index: dict[tuple[str, ...], list[int]] = {}
    kept: dict[int, frozenset[tuple[str, ...]]] = {}
    for place, text in enumerate(texts):
        words = _WORD.findall(_plain(text))
        joined = " ".join(words) or text.strip()
        known = whole.get(joined)
        triples = frozenset(zip(words, words[1:], words[2:], strict=False)) if known is None else frozenset()
        # A set of n shares at least ceil(alike * n) with one so similar: of its n - that + 1 smallest, at least one.
        enough = int(np.ceil(alike * len(triples) - 1e-9))
        smallest = sorted(triples)[: len(triples) - enough + 1] if triples else []
        if known is None:
            near = {other for triple in smallest for other in index.get(triple, ())}
            known = next((o for o in sorted(near) if _jaccard(triples, kept[o]) >= alike), None)
        first.append(place if known is None else known)
        whole.setdefault(joined, first[-1])
        if known is None:
            kept[place] = triples
            for triple in smallest:
                index.setdefault(triple, []).append(place)
    return first


def _jaccard(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


def _plain(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f") if not decomposed.isascii() else decomposed
