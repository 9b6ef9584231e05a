"""Vectors and ids as every dense index takes them, and the exact top-k that the approximate ones are measured with.

Scores are inner products s_z = E_Q(x) . E_P(z) (MATH section 1). BLAS rounds the same product differently depending
on where a row stands in a block, so it only proposes candidates here; whoever may belong to the top-k is scored again
by :func:`inner_products`, whose result depends on the two vectors alone. Equal vectors therefore tie exactly, and ties
go to the smaller id however the vectors were added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64, Shaped

from bifolio.errors import UsageError

_QUERIES_AT_ONCE = 256
_SCORES_AT_ONCE = 2**22  # 16 MiB of float32: the largest score matrix, and the largest block of vectors
_MARGIN = 4.0  # times the bound on one product's rounding error; two products are compared, then rounded


class Part(NamedTuple):
    """Vectors that were added together.

    Attributes:
        vectors: float32 or float16, (n, D); may be memory-mapped.
        ids: Their ids.
        norm: The largest Euclidean norm of a row.
    """

    vectors: Shaped[np.ndarray, "n D"]
    ids: Int64[np.ndarray, " n"]
    norm: float


def as_vectors(vectors: Any, dimension: int, what: str) -> Float[np.ndarray, "N D"]:
    """The vectors as float32 or float16, which come back as they are, without a copy; float64 is rounded to float32.

    Args:
        vectors: An array of shape (N, ``dimension``).
        dimension: D.
        what: How the message calls them: "vectors", "queries".

    Raises:
        UsageError: not an array of that shape, or not of a floating type.
    """
    array: np.ndarray = np.asanyarray(vectors)  # any array: a memory map stays one
    if array.ndim != 2 or array.shape[1] != dimension:
        raise UsageError(f"{what} have shape {array.shape}; expected (N, {dimension}), the dimension of this index")
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise UsageError(f"{what} are {array.dtype}; expected float32 (float16 and float64 are converted)")
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):  # becomes inf, which largest_norm reports with its row
            rounded: Float32[np.ndarray, "N D"] = array.astype(np.float32)
        return rounded
    return array


def largest_norm(vectors: Float[np.ndarray, "N D"], what: str) -> float:
    """The largest Euclidean norm of a row, 0 without rows; reads block by block.

    Raises:
        UsageError: a row has NaN or infinity; the message names the first such row.
    """
    largest = 0.0
    rows = max(1, _SCORES_AT_ONCE // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), rows):
        block = np.asarray(vectors[start : start + rows], dtype=np.float64)
        squares = np.einsum("nd,nd->n", block, block)
        if not np.isfinite(squares).all():
            row = start + int(np.flatnonzero(~np.isfinite(squares))[0])
            raise UsageError(f"row {row} of the {what} has NaN or infinity; every value must be a finite float32")
        largest = max(largest, float(squares.max()))
    return float(np.sqrt(largest))


class UsedIds:
    """The ids of an index: n of them, in however many adds, cost O(n log n) in all.

    They are kept in sorted blocks, each more than twice as long as the next, so there are at most log2(n) + 1 blocks to
    look into, and an id is merged at most log1.5(n) times: its block grows by half or more.
    """

    def __init__(self) -> None:
        self._blocks: list[Int64[np.ndarray, " m"]] = []

    def add(self, ids: Int64[np.ndarray, " N"]) -> None:
        """Add ids that :func:`as_ids` let through."""
        merged, total = [ids], len(ids)
        while self._blocks and len(self._blocks[-1]) <= 2 * total:
            merged.append(self._blocks.pop())
            total += len(merged[-1])
        if total:
            self._blocks.append(np.sort(np.concatenate(merged), kind="stable"))  # fast on sorted runs

    def among(self, ordered: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " n"]:
        """Those of some sorted ids that are here, sorted."""
        here = np.zeros(len(ordered), dtype=bool)
        for block in self._blocks:
            at = np.minimum(np.searchsorted(block, ordered), len(block) - 1)
            here |= block[at] == ordered
        return ordered[here]


def as_ids(ids: Any, count: int, used: UsedIds) -> Int64[np.ndarray, " N"]:
    """The ids as a copy in int64, checked: one a vector, >= 0, unique, and unused.

    Args:
        ids: What the caller gave.
        count: How many vectors came with them.
        used: Ids in use; the new ones are not added to them.

    Raises:
        UsageError: one of the conditions does not hold; the message names the id.
    """
    array = np.asarray(ids)
    if array.shape != (count,):
        raise UsageError(f"ids have shape {array.shape}; expected ({count},), one for each vector")
    if not count:
        return np.empty(0, dtype=np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"ids are {array.dtype}; expected int64")
    least, most = int(array.min()), int(array.max())
    if least < 0 or most > np.iinfo(np.int64).max:
        raise UsageError(f"id {least if least < 0 else most} is out of range; ids are between 0 and 2**63 - 1")
    array = array.astype(np.int64)
    ordered = np.sort(array)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise UsageError(f"id {int(twice[0])} is given twice; every vector needs an id of its own")
    taken = used.among(ordered)
    if len(taken):
        raise UsageError(f"id {int(taken[0])} is already in the index; add takes unused ids only")
    return array


def as_queries(
    queries: Any, dimension: int, k: int, norm: float
) -> tuple[Float32[np.ndarray, "Q D"], Float64[np.ndarray, " Q"]]:
    """The queries in float32, contiguous, and for each a bound on how far BLAS may put two equal scores apart.

    |fl(a.b) - a.b| <= D u |a| |b| with u = 2**-24, for any order of summation.

    Args:
        queries: (Q, ``dimension``).
        dimension: D.
        k: How many results are wanted.
        norm: The largest norm of a vector in the index.

    Raises:
        UsageError: k < 1, a wrong shape or type, a value that is not finite, or products beyond float32.
    """
    if k < 1:
        raise UsageError(f"k is {k}; expected at least 1")
    array = np.ascontiguousarray(as_vectors(queries, dimension, "queries"), dtype=np.float32)
    largest = largest_norm(array, "queries")
    if largest * norm > float(np.finfo(np.float32).max):
        raise UsageError(f"vectors of norm {norm:.3g} times queries of norm {largest:.3g} overflow float32; scale them")
    norms = np.sqrt(np.einsum("qd,qd->q", array, array, dtype=np.float64))
    return array, _MARGIN * (dimension + 4) * 2.0**-24 * norm * norms


def inner_products(query: Float32[np.ndarray, " D"], vectors: Float[np.ndarray, "n D"]) -> Float32[np.ndarray, " n"]:
    """Inner products summed in float64 and rounded once: the same for equal vectors wherever they stand."""
    products = np.ascontiguousarray(vectors, dtype=np.float64) * query.astype(np.float64)
    scores: Float32[np.ndarray, " n"] = products.sum(axis=1).astype(np.float32)
    return scores


def best(
    scores: Float32[np.ndarray, " n"], ids: Int64[np.ndarray, " n"], k: int
) -> tuple[Float32[np.ndarray, " k"], Int64[np.ndarray, " k"]]:
    """The k best, best first, ties by smaller id."""
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]


class Letting:
    """Which vectors of an index a mask lets through; of the last mask it is remembered, for a collection asks again."""

    def __init__(self) -> None:
        self._last: tuple[Any, tuple[int, ...], list[Bool[np.ndarray, " n"]], int] | None = None

    def through(
        self, parts: Sequence[Part], allowed: Bool[np.ndarray, " R"] | None
    ) -> tuple[list[Bool[np.ndarray, " n"]] | None, int]:
        """For each part which vectors may be returned, None where all may, and how many that are in all.

        Args:
            parts: The vectors.
            allowed: Id i may be returned if ``i < len(allowed)`` and ``allowed[i]``; do not change it afterwards.

        Raises:
            UsageError: it is no mask.
        """
        total = sum(len(part.ids) for part in parts)
        if allowed is None:
            return None, total
        if not isinstance(allowed, np.ndarray) or allowed.ndim != 1 or allowed.dtype != np.bool_:
            raise UsageError(
                f"allowed is {type(allowed).__name__} {getattr(allowed, 'dtype', '')}; expected a 1-d mask"
            )
        sizes, last = tuple(len(part.ids) for part in parts), self._last
        if last is None or last[0] is not allowed or last[1] != sizes:
            kept = [_let(part.ids, allowed) for part in parts]
            last = self._last = allowed, sizes, kept, int(sum(np.count_nonzero(keep) for keep in kept))
        return (None if last[3] == total else last[2]), last[3]


def _let(ids: Int64[np.ndarray, " n"], allowed: Bool[np.ndarray, " R"]) -> Bool[np.ndarray, " n"]:
    inside: Bool[np.ndarray, " n"] = ids < len(allowed)
    if inside.all():
        found: Bool[np.ndarray, " n"] = allowed[ids]
        return found
    inside[inside] = allowed[ids[inside]]
    return inside


def top_k(
    queries: Float32[np.ndarray, "Q D"],
    slack: Float64[np.ndarray, " Q"],
    parts: Sequence[Part],
    k: int,
    kept: Sequence[Bool[np.ndarray, " n"]] | None = None,
) -> tuple[Float32[np.ndarray, "Q k"], Int64[np.ndarray, "Q k"]]:
    """The exact min(k, n) best of all parts; working memory is bounded whatever n is.

    Args:
        queries: From :func:`as_queries`.
        slack: From :func:`as_queries`, for a norm that no vector exceeds.
        parts: The vectors.
        k: At least 1.
        kept: For each part which of its vectors count; all when left out.
    """
    k = min(k, sum(len(part.ids) for part in parts) if kept is None else int(sum(np.count_nonzero(x) for x in kept)))
    scores = np.empty((len(queries), k), dtype=np.float32)
    ids = np.empty((len(queries), k), dtype=np.int64)
    if k:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            rows = slice(start, start + _QUERIES_AT_ONCE)
            found = _top_k_of_chunk(queries[rows], slack[rows], parts, k, kept)
            for offset, (row_scores, row_ids) in enumerate(found):
                scores[start + offset], ids[start + offset] = row_scores, row_ids
    return scores, ids


def _top_k_of_chunk(
    queries: Float32[np.ndarray, "q D"],
    slack: Float64[np.ndarray, " q"],
    parts: Sequence[Part],
    k: int,
    kept: Sequence[Bool[np.ndarray, " n"]] | None,
) -> list[tuple[Float32[np.ndarray, " k"], Int64[np.ndarray, " k"]]]:
    """Results of a few queries, in one pass over the vectors."""
    found = [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in queries]
    floor = np.full(len(queries), -np.inf)  # score of the k-th best so far
    rows = max(1, _SCORES_AT_ONCE // max(len(queries), queries.shape[1]))
    for number, part in enumerate(parts):
        for start in range(0, len(part.ids), rows):
            keep = None if kept is None else kept[number][start : start + rows]
            block, block_ids = _block(part, start, rows, keep)
            if not len(block):
                continue
            scores = queries @ block.T
            cut = floor
            if len(block) > k:
                cut = np.maximum(floor, np.partition(scores, len(block) - k, axis=1)[:, len(block) - k])
            above = scores >= (cut - slack).astype(np.float32)[:, None]
            for row in np.flatnonzero(above.any(axis=1)):
                at = np.flatnonzero(above[row])
                again = inner_products(queries[row], block[at])
                found[row] = best(
                    np.concatenate([found[row][0], again]), np.concatenate([found[row][1], block_ids[at]]), k
                )
                if len(found[row][0]) == k:
                    floor[row] = found[row][0][-1]
    return found


def _block(
    part: Part, start: int, rows: int, keep: Bool[np.ndarray, " m"] | None
) -> tuple[Float32[np.ndarray, "n D"], Int64[np.ndarray, " n"]]:
    """Some of a part's vectors that count, with their ids; those that do not count are not even read."""
    vectors, ids = part.vectors[start : start + rows], part.ids[start : start + rows]
    if keep is not None and not keep.all():
        vectors, ids = vectors[keep], ids[keep]
    return np.asarray(vectors, dtype=np.float32), ids
