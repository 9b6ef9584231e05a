"""Which dense indexes the suite is run on, and the brute force that they are compared with."""

import numpy as np
import pytest

from bifolio import registry

# Every index that the registry knows, those of installed packages with an entry point too, without an argument; and
# those with an argument that are tested as well.
NAMES = sorted({*registry.names("index"), "faiss:flat", "faiss:hnsw", "faiss:hnsw16", "faiss:ivfpq"})
RECALL = 0.95
"""What an approximate index must find, on average, of the k best of 2,000 x 16 normally distributed vectors."""
D = 24


def index_class(name):
    """The class and the argument of a name; faiss is skipped, visibly, where it is not installed."""
    if name.startswith("faiss"):
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    return registry.resolve("index", name)


def draw(seed, count, dimension=D):
    return np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)


def brute_force(queries, vectors, ids, k):
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    order = np.array([np.lexsort((ids, -row))[:k] for row in scores])
    return np.take_along_axis(scores, order, 1), np.asarray(ids)[order]


def check(index, queries, vectors, ids, k):
    """The index gives what brute force gives."""
    scores, found = index.search(queries, k)
    want_scores, want_ids = brute_force(queries, vectors, ids, min(k, len(ids)))
    assert scores.dtype == np.float32 and found.dtype == np.int64
    assert found.tolist() == want_ids.tolist()
    np.testing.assert_allclose(scores, want_scores, rtol=1e-6, atol=1e-6)


def recall(index, queries, vectors, ids, k):
    """The part of the k best that the index finds; what it gives is sorted, distinct, known and scored exactly."""
    scores, found = index.search(queries, k)
    want_scores, want_ids = brute_force(queries, vectors, ids, len(ids))
    assert scores.shape == found.shape == (len(queries), min(k, len(ids)))
    assert scores.dtype == np.float32 and found.dtype == np.int64
    hits = 0
    for row, row_ids in enumerate(found.tolist()):
        true = dict(zip(want_ids[row].tolist(), want_scores[row].tolist(), strict=True))
        assert len(set(row_ids)) == len(row_ids)
        assert set(row_ids) <= set(true)  # no -1 either
        np.testing.assert_allclose(scores[row], [true[i] for i in row_ids], rtol=1e-6, atol=1e-6)
        assert row_ids == [i for _, i in sorted(zip((-scores[row]).tolist(), row_ids, strict=True))]
        hits += len(set(row_ids) & set(want_ids[row, :k].tolist()))
    return hits / found.size
