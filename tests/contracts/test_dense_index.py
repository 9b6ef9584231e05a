"""What every dense index must do, in values and order against brute force. One suite, every index.

An index of your own needs a class for ``bifolio.protocols.DenseIndex`` and ``DenseIndexClass`` and, in its package, an
entry point ``bifolio.index``: installed next to a checkout of this repository, it is tested by

    pytest tests/contracts/test_dense_index.py

``NAMES`` in ``dense_index.py`` is the one list; a name with an argument is added there. ``third_party.py`` is such an
index in fifty lines.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.protocols import DenseIndex
from contracts.dense_index import NAMES, RECALL, D, brute_force, check, draw, index_class, recall


@pytest.fixture(params=NAMES)
def named(request, monkeypatch):
    if request.param == "faiss:ivfpq":  # the suite's vectors are too few to learn lists from, but for this
        monkeypatch.setattr("bifolio.indexes.faiss._LEARN", 300)
    return index_class(request.param)


@pytest.fixture
def cls(named):
    """The class that the registry gives."""
    return named[0]


@pytest.fixture
def make(named):
    cls, argument = named
    return lambda dimension=D: cls(dimension, argument)


@pytest.fixture(scope="module")
def big():
    """2,000 x 16: far more than a graph visits, so that it is the graph which answers."""
    return draw(0, 2000, 16), np.random.default_rng(1).permutation(10**6)[:2000]


def test_satisfies_the_protocol(cls, make):
    assert isinstance(make(), DenseIndex)
    assert len(make()) == 0
    assert len(make(1)) == 0
    assert callable(cls.load)


def test_constructor_refuses(cls):
    for dimension in (0, -3):
        with pytest.raises(UsageError, match=f"dimension is {dimension}"):
            cls(dimension, "")
    with pytest.raises(UsageError, match="no-such-argument"):
        cls(D, "no-such-argument")


@pytest.mark.parametrize("queries", [1, 3, 33])  # faiss computes few and many queries by different code
def test_values_and_order(make, queries):
    vectors, ids = draw(0, 200), np.random.default_rng(1).permutation(10_000)[:200]
    index = make()
    index.add(vectors, ids)
    assert len(index) == 200
    check(index, draw(2, queries), vectors, ids, 7)


def test_add_after_search(make):
    vectors, ids = draw(0, 90), np.arange(90) * 3
    index = make()
    index.add(vectors[:50], ids[:50])
    check(index, draw(1, 4), vectors[:50], ids[:50], 10)
    index.add(vectors[50:], ids[50:])
    index.add(vectors[:0], ids[:0])
    check(index, draw(1, 4), vectors, ids, 10)


def test_many_small_adds(make):
    vectors, ids = draw(0, 250), np.random.default_rng(1).permutation(10_000)[:250]
    index = make()
    for start in range(0, 250, 3):
        index.add(vectors[start : start + 3], ids[start : start + 3])
        for used in (ids[0], ids[start // 2], ids[start]):
            with pytest.raises(UsageError, match=f"id {used} is already"):
                index.add(draw(7, 2), np.array([20_000, used]))
    assert len(index) == 250
    check(index, draw(2, 5), vectors, ids, 7)


@pytest.mark.parametrize("k", [1, 10, 100, 1900, 1999])
def test_two_thousand_vectors(make, big, k):
    vectors, ids = big
    index = make(16)
    index.add(vectors[:1500], ids[:1500])
    index.add(vectors[1500:], ids[1500:])
    assert recall(index, draw(2, 20, 16), vectors, ids, k) >= RECALL


@pytest.mark.parametrize("k", [2000, 2001])
def test_two_thousand_vectors_when_all_are_asked_for(make, big, k):
    index = make(16)
    index.add(*big)
    check(index, draw(2, 5, 16), *big, k)


def test_two_thousand_vectors_saved(cls, make, big, tmp_path):
    vectors, ids = big
    index = make(16)
    index.add(vectors[:1500], ids[:1500])
    index.save(tmp_path / "index.bin")
    again = cls.load(tmp_path / "index.bin")
    before, after = index.search(draw(2, 20, 16), 10), again.search(draw(2, 20, 16), 10)
    assert np.array_equal(before[0], after[0]) and np.array_equal(before[1], after[1])
    again.add(vectors[1500:], ids[1500:])
    assert recall(again, draw(2, 20, 16), vectors, ids, 10) >= RECALL


def test_ties_go_to_the_smaller_id_also_at_the_cut(make):
    four = draw(0, 4)
    four /= np.linalg.norm(four, axis=1, keepdims=True)  # so that each is nearest to itself
    vectors, ids = np.repeat(four, 40, axis=0), np.random.default_rng(3).permutation(160)
    index = make()
    index.add(vectors, ids)
    scores, found = index.search(four, 25)
    for kind in range(4):
        assert found[kind].tolist() == sorted(ids[40 * kind : 40 * kind + 40].tolist())[:25]
        assert len(set(scores[kind].tolist())) == 1


def test_k_larger_than_the_index(make):
    vectors, ids = draw(0, 5), np.array([9, 2, 7, 0, 4])
    index = make()
    index.add(vectors, ids)
    assert index.search(draw(1, 2), 50)[1].shape == (2, 5)
    check(index, draw(1, 2), vectors, ids, 50)


def test_every_vector_is_found_when_all_are_asked_for(make):
    vectors, ids = draw(0, 400), np.arange(400)
    index = make()
    index.add(vectors, ids)
    check(index, draw(1, 3), vectors, ids, 400)


def test_empty_index_and_no_queries(make):
    index = make()
    scores, ids = index.search(draw(0, 3), 4)
    assert scores.shape == ids.shape == (3, 0)
    index.add(draw(1, 6), np.arange(6))
    scores, ids = index.search(draw(0, 3)[:0], 4)
    assert scores.shape == ids.shape == (0, 4)


@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.3, 0.97, 1.0])
def test_only_what_is_allowed(make, big, share):
    """As many as there are, up to k, of few, of many and of all; what was deleted is not allowed any more."""
    vectors, ids = big
    small = np.arange(len(ids))
    index = make(16)
    index.add(vectors, small)
    allowed = np.random.default_rng(5).random(len(ids)) < share
    for k in (1, 10, 100):
        scores, found = index.search(draw(2, 20, 16), k, allowed)
        assert scores.shape == found.shape == (20, min(k, int(allowed.sum())))
        assert allowed[found].all()
        if found.size:
            want_scores, want = brute_force(draw(2, 20, 16), vectors[allowed], small[allowed], k)
            assert sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), want.tolist(), strict=True)) >= (
                RECALL * want.size
            )
            products = np.einsum("qd,qkd->qk", draw(2, 20, 16), vectors[found])
            np.testing.assert_allclose(scores, products, rtol=1e-5, atol=1e-5)
            assert (np.diff(scores, axis=1) <= 0).all()
    if allowed.any():
        check_all = index.search(draw(2, 3, 16), len(ids), allowed)
        assert np.array_equal(check_all[1], brute_force(draw(2, 3, 16), vectors[allowed], small[allowed], len(ids))[1])


def test_a_mask_is_by_id_and_what_lies_beyond_it_is_not_allowed(make):
    vectors, ids = draw(0, 40), np.random.default_rng(1).permutation(10**6)[:40]
    index = make()
    index.add(vectors, ids)
    allowed = np.zeros(int(np.sort(ids)[20]) + 1, dtype=bool)
    chosen = ids[ids < len(allowed)][::2]
    allowed[chosen] = True
    scores, found = index.search(draw(1, 3), 40, allowed)
    picked = np.isin(ids, chosen)
    want_scores, want = brute_force(draw(1, 3), vectors[picked], ids[picked], 40)
    assert found.tolist() == want.tolist()
    np.testing.assert_allclose(scores, want_scores, rtol=1e-6, atol=1e-6)
    assert index.search(draw(1, 3), 4, np.zeros(0, dtype=bool))[1].shape == (3, 0)
    index.add(draw(7, 1), np.array([chosen[0] + 10**6]))  # an added one is beyond the mask, too
    assert index.search(draw(1, 3), 40, allowed)[1].tolist() == want.tolist()
    assert index.search(draw(1, 3), 50)[1].shape == (3, 41)


@pytest.mark.parametrize("allowed", [[True, False], np.ones(3), np.ones((2, 2), dtype=bool), np.array([0, 1])])
def test_a_mask_of_another_kind_is_refused(make, allowed):
    index = make()
    index.add(draw(0, 3), np.arange(3))
    with pytest.raises(UsageError, match=r"allowed is .*expected a 1-d mask"):
        index.search(draw(1, 1), 2, allowed)


def test_masks_in_ten_threads(make):
    vectors, ids = draw(0, 600), np.arange(600)
    index = make()
    index.add(vectors, ids)
    masks = [np.random.default_rng(seed).random(600) < 0.4 for seed in range(20)]
    alone = [index.search(draw(1, 5), 10, mask) for mask in masks]
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda mask: index.search(draw(1, 5), 10, mask), masks))
    for (scores, found), (want_scores, want) in zip(results, alone, strict=True):
        assert np.array_equal(found, want) and np.array_equal(scores, want_scores)


def test_large_ids(make):
    vectors = draw(0, 6)
    ids = np.array([2**62, 2**62 - 1, 0, 2**63 - 1, 2**31, 2**53 + 1], dtype=np.int64)
    index = make()
    index.add(vectors, ids)
    check(index, draw(1, 3), vectors, ids, 4)


def test_inputs_that_are_not_contiguous(make):
    wide, ids = draw(0, 60, 2 * D), np.arange(120)[::2]
    index = make()
    index.add(wide[:, ::2], ids)
    queries = np.asfortranarray(draw(1, 3))
    check(index, queries, wide[:, ::2], ids, 5)
    check(index, draw(1, 6)[::-2], wide[:, ::2], ids, 5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types_are_converted(make, dtype):
    vectors, ids = draw(0, 30).astype(dtype), np.arange(30)
    index = make()
    index.add(vectors, ids)
    check(index, draw(1, 2), vectors.astype(np.float32), ids, 6)
    check(index, draw(1, 2).astype(np.float16).astype(dtype), vectors.astype(np.float32), ids, 6)


@pytest.mark.parametrize(
    ("vectors", "ids", "message"),
    [
        (draw(0, 2, D + 1), [0, 1], r"\(2, 25\).*\(N, 24\)"),
        (draw(0, 2)[0], [0], r"\(24,\)"),
        (np.ones((2, D), np.int64), [0, 1], "int64"),
        (draw(0, 2), [0], r"\(1,\).*\(2,\)"),
        (draw(0, 2), [0.0, 1.0], "float64"),
        (draw(0, 2), [3, -1], "id -1"),
        (draw(0, 2), [3, 3], "id 3 is given twice"),
        (draw(0, 2), [8, 77], "id 77 is already"),
        (draw(0, 2), np.array([1, 2**63], np.uint64), "id 9223372036854775808"),
        (np.where(np.arange(D) == 5, np.nan, draw(0, 2)).astype(np.float32), [0, 1], "row 0 .*NaN"),
        (np.where([[False], [True]], np.inf, draw(0, 2)).astype(np.float32), [0, 1], "row 1 .*infinity"),
        (draw(0, 2).astype(np.float64) * [[1], [1e300]], [0, 1], "row 1"),
    ],
)
def test_add_refuses(make, vectors, ids, message):
    index = make()
    stored, known = draw(9, 3), np.array([77, 5, 6])
    index.add(stored, known)
    with pytest.raises(UsageError, match=message):
        index.add(vectors, np.asarray(ids))
    check(index, draw(1, 2), stored, known, 3)  # as if nothing had been tried


def test_search_refuses(make):
    index = make()
    index.add(draw(0, 3), np.arange(3))
    for k in (0, -1):
        with pytest.raises(UsageError, match=f"k is {k}"):
            index.search(draw(1, 1), k)
    with pytest.raises(UsageError, match=r"\(1, 23\)"):
        index.search(draw(1, 1, D - 1), 2)
    with pytest.raises(UsageError, match="row 2 of the queries"):
        index.search(np.where([[False], [False], [True]], np.nan, draw(1, 3)).astype(np.float32), 2)
    index.add(np.full((1, D), 1e30, np.float32), np.array([50]))
    with pytest.raises(UsageError, match="overflow"):
        index.search(np.full((1, D), 1e30, np.float32), 2)


@pytest.mark.parametrize("count", [0, 1, 300])
def test_save_and_load(cls, make, tmp_path, count):
    vectors, ids = draw(0, count), np.random.default_rng(1).permutation(2 * count)[:count]
    index = make()
    index.add(vectors, ids)
    index.save(tmp_path / "index.bin")
    again = cls.load(tmp_path / "index.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["index.bin"]
    assert len(again) == count
    with pytest.raises(UsageError, match=r"\(1, 23\)"):
        again.search(draw(1, 1, D - 1), 2)
    before, after = index.search(draw(1, 5), 8), again.search(draw(1, 5), 8)
    assert np.array_equal(before[0], after[0]) and np.array_equal(before[1], after[1])
    again.add(draw(2, 2), np.array([10**6, 10**6 + 1]))
    check(again, draw(1, 5), np.concatenate([vectors, draw(2, 2)]), np.append(ids, [10**6, 10**6 + 1]), 4)


def test_save_replaces(cls, make, tmp_path):
    first, second = make(), make()
    first.add(draw(0, 4), np.arange(4))
    second.add(draw(1, 6), np.arange(6))
    first.save(tmp_path / "index.bin")
    loaded = cls.load(tmp_path / "index.bin")
    second.save(tmp_path / "index.bin")
    check(loaded, draw(2, 2), draw(0, 4), np.arange(4), 4)  # what is open keeps what it opened
    check(cls.load(tmp_path / "index.bin"), draw(2, 2), draw(1, 6), np.arange(6), 4)


@pytest.mark.parametrize("keep", [0, 10, 63, 64, 200, -1])
def test_truncated_file(cls, make, tmp_path, keep):
    index = make()
    index.add(draw(0, 20), np.arange(20))
    index.save(tmp_path / "index.bin")
    whole = (tmp_path / "index.bin").read_bytes()
    (tmp_path / "index.bin").write_bytes(whole[:keep])
    with pytest.raises(CollectionDamagedError, match=r"index\.bin"):
        cls.load(tmp_path / "index.bin")


@pytest.mark.parametrize("content", [b"garbage" * 100, b"\0" * 4096, b"PK\3\4" + b"x" * 500])
def test_garbage_file(cls, tmp_path, content):
    (tmp_path / "index.bin").write_bytes(content)
    with pytest.raises(CollectionDamagedError, match=r"index\.bin"):
        cls.load(tmp_path / "index.bin")
    with pytest.raises(CollectionDamagedError, match="missing"):
        cls.load(tmp_path / "missing")


def test_ten_threads(make):
    vectors, ids = draw(0, 600), np.arange(600)
    index = make()
    index.add(vectors, ids)
    queries = draw(1, 20)
    alone = index.search(queries, 10)
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: index.search(queries, 10), range(20)))
    for scores, found in results:
        assert np.array_equal(scores, alone[0]) and np.array_equal(found, alone[1])
