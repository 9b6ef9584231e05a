"""Fusions against slow ones, on anything."""

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import fuse

IDS = st.lists(st.integers(0, 30), max_size=12)


@given(st.lists(IDS, max_size=4), st.integers(0, 100))
def test_reciprocal_rank_is_the_sum_over_rankings(rankings, k):
    scores, ids = fuse.reciprocal_rank(rankings, k=k)
    slow = {}
    for one in {i for ranking in rankings for i in ranking}:
        unique = [list(dict.fromkeys(ranking)) for ranking in rankings]
        slow[one] = sum(1 / (k + r.index(one) + 1) for r in unique if one in r)
    assert sorted(ids.tolist()) == sorted(slow)
    np.testing.assert_allclose(scores, [slow[one] for one in ids.tolist()], rtol=1e-12)
    assert (np.diff(scores) <= 0).all()


@given(
    st.dictionaries(st.integers(0, 40), st.integers(-3, 3).map(float), max_size=30),
    st.lists(st.integers(0, 3), min_size=41, max_size=41),
    st.integers(1, 12),
)
def test_merging_the_best_of_shards_gives_the_best_of_the_whole(scores, shard_of, k):
    def best(ids):
        order = sorted(ids, key=lambda i: (-scores[i], i))[:k]
        return np.array([scores[i] for i in order], dtype=float), np.array(order, dtype=np.int64)

    shards = [best([i for i in scores if shard_of[i] == shard]) for shard in range(4)]
    found, whole = fuse.merge(shards, k), best(scores)
    assert (found[0].tolist(), found[1].tolist()) == (whole[0].tolist(), whole[1].tolist())


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=14).map(" ".join), max_size=8))
@settings(max_examples=200)
def test_same_texts_are_those_of_comparing_all_pairs(texts):
    def triples(text):
        words = re.findall(r"\w+", text)
        return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}

    first = []
    for i, text in enumerate(texts):
        for j in sorted(set(first)):
            a, b = triples(text), triples(texts[j])
            if text == texts[j] or (a and b and len(a & b) / len(a | b) >= 0.9):
                first.append(j)
                break
        else:
            first.append(i)
    found = fuse.same_texts(texts)
    assert [one == i for i, one in enumerate(found)] == [one == i for i, one in enumerate(first)]
    for i, one in enumerate(found):
        a, b = triples(texts[i]), triples(texts[one])
        assert texts[i] == texts[one] or len(a & b) / len(a | b) >= 0.9 or first[i] == one


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-3, 3), st.integers(-3, 3)), max_size=9),
    st.integers(1, 9),
    st.floats(0, 1),
)
def test_mmr_chooses_each_place_once_and_begins_with_the_most_relevant(rows, k, balance):
    relevance = np.array([row[0] for row in rows], dtype=float)
    vectors = np.array([row[1:] for row in rows], dtype=float).reshape(-1, 2)
    chosen = fuse.mmr(relevance, vectors, k, balance).tolist()
    assert len(chosen) == len(set(chosen)) == min(k, len(rows))
    if chosen:
        assert chosen[0] == int(relevance.argmax())
