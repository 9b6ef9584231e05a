"""The exact top-k against enumeration: values, order, ties and parts, whatever the vectors are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import topk
from bifolio.errors import UsageError
from bifolio.indexes.exact import ExactIndex
from bifolio.topk import UsedIds, as_ids, best, inner_products


def expected(queries, stored, ids, k):
    """Scores summed in float64, sorted as Python sorts tuples."""
    rows = []
    for query in queries.astype(np.float64):
        scored = [
            (-float(np.float32(sum(query * row))), int(i))
            for row, i in zip(stored.astype(np.float64), ids, strict=True)
        ]
        rows.append(sorted(scored)[:k])
    return [[-score for score, _ in row] for row in rows], [[i for _, i in row] for row in rows]


@st.composite
def problems(draw):
    """Small integers in few dimensions: many exact ties, and every product exact in float32."""
    dimension = draw(st.integers(1, 4))
    count = draw(st.integers(1, 40))
    values = st.integers(-2, 2)
    stored = draw(st.lists(st.lists(values, min_size=dimension, max_size=dimension), min_size=count, max_size=count))
    asked = draw(st.lists(st.lists(values, min_size=dimension, max_size=dimension), min_size=1, max_size=5))
    ids = draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count, unique=True))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    return np.array(asked, np.float32), np.array(stored, np.float32), np.array(ids), cuts, draw(st.integers(1, 45))


@given(problems())
def test_ties_and_parts_like_enumeration(problem):
    queries, stored, ids, cuts, k = problem
    index = ExactIndex(stored.shape[1])
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        index.add(stored[start:stop], ids[start:stop])
    scores, found = index.search(queries, k)
    want_scores, want_ids = expected(queries, stored, ids, k)
    assert scores.tolist() == want_scores
    assert found.tolist() == want_ids


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
@settings(max_examples=25)
def test_equal_vectors_tie_exactly_wherever_they_stand(seed, k):
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((3, 37)).astype(np.float32)  # 37: no multiple of a vector register
    which = rng.integers(0, 3, 200)
    ids = rng.permutation(200)
    index = ExactIndex(37)
    index.add(few[which], ids)
    scores, found = index.search(rng.standard_normal((4, 37)).astype(np.float32), k)
    for row_scores, row in zip(scores, found, strict=True):
        kinds = which[np.argsort(ids)][row]  # which of the three vectors each result is
        order = list(dict.fromkeys(kinds.tolist()))
        members = [i for kind in order for i in sorted(ids[which == kind].tolist())]
        assert row.tolist() == members[:k]
        assert len(set(row_scores.tolist())) == len(order)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_blocks_never_change_a_result(seed):
    rng = np.random.default_rng(seed)
    stored = rng.standard_normal((300, 16)).astype(np.float32) * rng.lognormal(0, 3, (300, 1)).astype(np.float32)
    queries = rng.standard_normal((7, 16)).astype(np.float32)
    index = ExactIndex(16)
    index.add(stored, np.arange(300))
    whole = index.search(queries, 9)
    before = topk._SCORES_AT_ONCE, topk._QUERIES_AT_ONCE
    try:
        topk._SCORES_AT_ONCE, topk._QUERIES_AT_ONCE = 100, 3  # blocks of six vectors
        blocks = index.search(queries, 9)
    finally:
        topk._SCORES_AT_ONCE, topk._QUERIES_AT_ONCE = before
    assert np.array_equal(whole[0], blocks[0])
    assert np.array_equal(whole[1], blocks[1])
    assert whole[1].tolist() == expected(queries, stored, range(300), 9)[1]


@given(st.lists(st.lists(st.integers(0, 60), max_size=6), max_size=30))
def test_used_ids_are_those_of_a_set(adds):
    used, known = UsedIds(), set()
    for ids in adds:
        array = np.array(ids, dtype=np.int64)
        assert used.among(np.sort(array)).tolist() == sorted(i for i in ids if i in known)
        if known.isdisjoint(ids) and len(set(ids)) == len(ids):
            used.add(as_ids(array, len(ids), used))
            known.update(ids)
        else:
            with pytest.raises(UsageError, match=r"id \d+ is (already in the index|given twice)"):
                as_ids(array, len(ids), used)
    assert used.among(np.arange(61)).tolist() == sorted(known)


@pytest.mark.parametrize("each", [1, 7, 25])
def test_many_small_adds_sort_few_ids(monkeypatch, each):
    """10,000 ids: n log n is about 130,000. Sorting all of them at every add would be two million at 25 each."""
    counted, sort = [], np.sort

    def counting(array, **options):
        counted.append(len(array))
        return sort(array, **options)

    monkeypatch.setattr(np, "sort", counting)
    used, ids = UsedIds(), np.random.default_rng(0).permutation(10_000)
    for start in range(0, 10_000, each):
        used.add(ids[start : start + each])
        assert len(used._blocks) <= 14
    assert sum(counted) <= 10_000 * 14
    assert used.among(np.arange(9_990, 10_010)).tolist() == list(range(9_990, 10_000))


def test_best_orders_by_score_then_id():
    scores, ids = best(np.array([1, 3, 1, 3, 2], np.float32), np.array([5, 9, 4, 8, 7]), 4)
    assert scores.tolist() == [3, 3, 2, 1]
    assert ids.tolist() == [8, 9, 7, 4]


def test_cancellation_is_summed_in_float64():
    query = np.array([1e8, 1, -1e8], np.float32)
    assert inner_products(query, np.ones((1, 3), np.float32)).tolist() == [1.0]
