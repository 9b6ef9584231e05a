"""Which dense index a collection of some size is best served by, and how good one is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Int64

from bifolio.indexes.exact import ExactIndex
from bifolio.protocols import DenseIndex

SCANNED = 100_000 * 384
"""Numbers that an exact search reads in about ten milliseconds on a laptop."""
GRAPHED = 2**30
"""Numbers, 4 GiB of them, beyond which a graph, which goes anywhere in them, takes more memory than a laptop has."""
_SAMPLE = 100  # vectors that are questions
_LOT = 65_536  # vectors that are compared at once


def choose(count: int, dimension: int) -> tuple[str, str]:
    """The name of an index for ``count`` vectors of ``dimension`` numbers, and why."""
    size = f"{count:,} vectors of {dimension} numbers"
    if count * dimension <= SCANNED:
        return "exact", f"{size} are looked through in about ten milliseconds"
    if importlib.util.find_spec("faiss") is None:
        return "exact", f"{size} would be found faster by a graph: pip install 'bifolio[faiss]'"
    if count * dimension > GRAPHED:
        memory = f"{count * dimension * 4 / 2**30:.0f} GiB"
        return "faiss:ivfpq", f"{size} need {memory} in a graph: codes in lists need less"
    return "faiss:hnsw", f"{size} take long to look through, and a graph visits few of them"


def measured_recall(
    index: DenseIndex,
    vectors_of: Callable[[Int64[np.ndarray, " n"]], Float32[np.ndarray, "n D"]],
    rows: Int64[np.ndarray, " N"],
    k: int = 10,
) -> float:
    """Share of the exact k best that an index finds, for up to 100 of its own vectors as questions.

    The questions stand at equal distances among ``rows``, so the same index always measures the same. All vectors are
    read once.

    Args:
        index: The index, with the vectors of ``rows``.
        vectors_of: Gives the vectors of rows.
        rows: All rows, ascending.
        k: How many are to be found.
    """
    if not len(rows):
        return 1.0
    queries = vectors_of(rows[np.linspace(0, len(rows) - 1, min(_SAMPLE, len(rows))).astype(np.int64)])
    scores = np.empty((len(queries), 0), np.float32)
    ids = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(rows), _LOT):
        lot = rows[start : start + _LOT]
        exact = ExactIndex(queries.shape[1])
        exact.add(vectors_of(lot), lot)
        found = exact.search(queries, k)
        scores, ids = np.hstack([scores, found[0]]), np.hstack([ids, found[1]])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, ids = np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)
    _, mine = index.search(queries, k)
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(mine.tolist(), ids.tolist(), strict=True)]))
