"""Fusions against values worked out by hand."""

import numpy as np
import pytest

from bifolio import fuse
from bifolio.errors import UsageError


def test_reciprocal_ranks_are_added():
    scores, ids = fuse.reciprocal_rank([[7, 3, 9], [3, 5]])
    assert ids.tolist() == [3, 7, 5, 9]
    assert scores.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63])


def test_a_repeated_id_counts_once_and_takes_the_room_of_one():
    scores, ids = fuse.reciprocal_rank([[4, 4, 4, 2]], k=0)
    assert (ids.tolist(), scores.tolist()) == ([4, 2], [1.0, 0.5])


def test_ties_of_ranks_go_to_the_smaller_id():
    assert fuse.reciprocal_rank([[9, 1], [1, 9]])[1].tolist() == [1, 9]


def test_nothing_to_fuse():
    scores, ids = fuse.reciprocal_rank([[], []])
    assert (len(scores), len(ids)) == (0, 0)
    with pytest.raises(UsageError, match="k -1 of reciprocal rank fusion"):
        fuse.reciprocal_rank([[1]], k=-1)


def test_a_share_of_the_words_adds_its_part_of_the_weight():
    logits = fuse.weighted(np.array([0.5, 0.2, 0.1]), np.array([0.0, 1.0, 1.5]), scale=20.0, weight=10.0)
    assert logits.tolist() == pytest.approx([10.0, 14.0, 17.0])


def test_no_word_match_adds_nothing():
    assert fuse.weighted(np.array([0.5, 0.2]), np.zeros(2), scale=20.0, weight=10.0).tolist() == [10.0, 4.0]
    assert fuse.weighted(np.zeros(0), np.zeros(0), scale=20.0, weight=10.0).tolist() == []


VECTORS = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


def test_relevance_alone_is_the_order_of_relevance():
    assert fuse.mmr(np.array([0.2, 0.9, 0.5]), VECTORS, 3, 1.0).tolist() == [1, 2, 0]


def test_what_is_like_the_chosen_waits():
    # Relevance becomes 1, .9, 0. After 0: 1 has .5 * .9 - .5 * 1 < 0 = .5 * 0 - .5 * 0.
    assert fuse.mmr(np.array([10.0, 9.0, 0.0]), VECTORS, 3, 0.5).tolist() == [0, 2, 1]
    assert fuse.mmr(np.array([10.0, 9.0, 0.0]), VECTORS, 2, 0.9).tolist() == [0, 1]


def test_mmr_of_little():
    assert fuse.mmr(np.zeros(0), np.zeros((0, 2)), 3, 0.5).tolist() == []
    assert fuse.mmr(np.array([1.0, 1.0]), np.zeros((2, 2)), 5, 0.0).tolist() == [0, 1]
    with pytest.raises(UsageError, match="mmr 2"):
        fuse.mmr(np.ones(1), np.ones((1, 2)), 1, 2)


def test_merged_shards_are_in_order_and_have_each_id_once():
    shards = [(np.array([3.0, 1.0]), np.array([5, 8])), (np.array([3.0, 2.0, 1.5]), np.array([4, 8, 9]))]
    scores, ids = fuse.merge(shards, 4)
    assert (scores.tolist(), ids.tolist()) == ([3.0, 3.0, 2.0, 1.5], [4, 5, 8, 9])
    assert fuse.merge([], 3)[1].tolist() == []
    with pytest.raises(UsageError, match="a shard has 2 scores and 1 ids"):
        fuse.merge([(np.zeros(2), np.zeros(1, dtype=np.int64))], 1)


WORDS = [f"w{i}" for i in range(42)]  # 40 triples


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("The pump, it runs.", "the PUMP it   runs", True),
        ("café noir", "Cafe\u0301 noir!", True),
        ("close the valve first", "close the valve last", False),
        ("two words", "two words more", False),
        ("", "", True),
        ("!!", "??", False),
        (" ".join(WORDS), " ".join([*WORDS, "new"]), True),  # 40 of 41
        (" ".join(WORDS), " ".join([*WORDS[:40], "a", "b"]), True),  # 38 of 42: .905
        (" ".join(WORDS), " ".join([*WORDS[:39], "a", "b", "c"]), False),  # 37 of 43: .860
        (" ".join(WORDS), " ".join(WORDS[2:]), True),  # 38 of 40: .95
        (" ".join(WORDS), " ".join(WORDS[5:]), False),  # 35 of 40: .875
        (" ".join(WORDS), " ".join(WORDS[4:]), True),  # 36 of 40: exactly .9
    ],
)
def test_which_texts_say_the_same(a, b, same):
    assert fuse.same_texts([a, b]) == [0, 0 if same else 1]
    assert fuse.same_texts([b, a]) == [0, 0 if same else 1]


def test_texts_are_compared_with_first_ones():
    texts = ["a b c d", "x y z", "A b c d.", "x, y, z", "q"]
    assert fuse.same_texts(texts) == [0, 1, 0, 1, 4]
