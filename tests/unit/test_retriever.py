"""Retrieval over a store of a few lines, whose every number can be computed again; and over a collection."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bifolio import Collection, Retriever
from bifolio.errors import ModelError, UsageError
from bifolio.fitting import HYBRID_NO_PASSAGE, HYBRID_SCALE, HYBRID_WEIGHT, LEXICAL_NO_PASSAGE, LEXICAL_WEIGHT, Prior
from bifolio.retrieval_options import RetrievalOptions
from bifolio.types import Passage
from fakes import FakeEncoder, bag, words, write_files

TEXTS = [
    "the cat sat on the mat",
    "the dog ran to the park",
    "a wide sea of salt",
    "the cat ran to the sea",
    "salt and pepper for the dog",
    "P-7 starts when V-12 has closed",
]
QUESTION = "where sat the cat"


class Snapshot:
    """Brute force; a text says as much of a question as the number of its words that it has."""

    generation = "7"

    def __init__(self, texts, encoder, alive=None):
        self.texts, self.encoder = texts, encoder
        self.alive = np.ones(len(texts), dtype=bool) if alive is None else alive
        self.wheres = []

    def allowed(self, where=None):
        self.wheres.append(where)
        return self.alive & np.array([not where or where in text for text in self.texts])

    def row_vectors(self, rows):
        return np.stack([bag(self.texts[row]) for row in rows]) if len(rows) else np.zeros((0, 32), np.float32)

    def dense_scores(self, query, rows):
        return (self.row_vectors(rows) @ query).astype(np.float32)

    def lexical_shares(self, question, rows):
        return np.array([len(set(words(question)) & set(words(self.texts[r]))) for r in rows], dtype=np.float32)

    def _best(self, scores, rows, k):
        order = np.lexsort((rows, -scores))[:k]
        return scores[order], rows[order]

    def nearest(self, query, k, allowed=None):
        rows = np.flatnonzero(allowed)
        return self._best(self.dense_scores(query, rows), rows, k)

    def matching(self, question, k, allowed=None):
        rows = np.flatnonzero(allowed)
        rows = rows[self.lexical_shares(question, rows) > 0]
        return self._best(self.lexical_shares(question, rows), rows, k)

    def passages_of(self, rows):
        return [Passage(f"p{row}", self.texts[row], source=f"s{row}") for row in rows]


class Store:
    def __init__(self, texts=TEXTS, alive=None, **encoder):
        self.now = Snapshot(list(texts), FakeEncoder(**{"no_passage_logit": 1.5, **encoder}), alive)

    def snapshot(self):
        return self.now


def rows(hits):
    return [int(hit.passage.id[1:]) for hit in hits]


def parts(texts=TEXTS):
    store = Snapshot(list(texts), None)
    everything = np.arange(len(texts))
    return store.dense_scores(bag(QUESTION), everything), store.lexical_shares(QUESTION, everything)


def softmax(logits):
    return np.exp(logits - np.logaddexp.reduce(logits))


def test_dense_is_the_softmax_of_the_encoders_scores():
    found = Retriever(Store()).retrieval(QUESTION, 3, mode="dense")
    s, _ = parts()
    order = np.argsort(-s)[:3]
    assert rows(found.hits) == order.tolist()
    assert [hit.score for hit in found.hits] == pytest.approx(s[order].tolist())
    assert np.exp([hit.log_prior for hit in found.hits]) == pytest.approx(softmax(10 * s[order]), abs=1e-6)
    assert (found.offsets, found.generation) == ((), "7")
    assert found.scores == tuple(hit.score for hit in found.hits)
    np.testing.assert_array_equal(found.vectors(), np.stack([bag(TEXTS[row]) for row in order]))


def test_hybrid_adds_what_the_words_say():
    found = Retriever(Store()).retrieval(QUESTION, 4)
    s, b = parts()
    logits = 10 * HYBRID_SCALE * s + HYBRID_WEIGHT * b
    order = np.argsort(-logits)[:4]
    assert rows(found.hits) == order.tolist()
    assert [hit.score for hit in found.hits] == pytest.approx(logits[order].tolist(), rel=1e-5)
    assert found.scores == pytest.approx(s[order].tolist())
    assert found.offsets == pytest.approx((HYBRID_WEIGHT * b)[order].tolist(), abs=1e-5)
    assert np.exp([hit.log_prior for hit in found.hits]) == pytest.approx(softmax(logits[order]), abs=1e-6)
    assert found.prior == Prior(
        10 * HYBRID_SCALE, 1.5 * HYBRID_SCALE + HYBRID_NO_PASSAGE * HYBRID_WEIGHT, HYBRID_WEIGHT
    )
    beside = found.log_prior(no_passage=True).exp().tolist()
    expected = softmax(np.append(logits[order], found.prior.no_passage_logit))
    assert beside == pytest.approx(expected.tolist(), abs=1e-6)


def test_what_one_side_proposes_gets_the_other_sides_score():
    """With one candidate a side, the union has the numbers that all candidates would have."""
    question = "P-7 salt"
    everything = Retriever(Store()).retrieve(question, 6)
    all_of_them = dict(zip(rows(everything), everything, strict=True))
    for hit in Retriever(Store()).retrieve(question, 2, candidates=2):
        assert hit.score == pytest.approx(all_of_them[int(hit.passage.id[1:])].score, rel=1e-6)


def test_lexical_finds_passages_with_a_word_and_asks_no_encoder():
    store = Store()
    store.now.encoder = None
    found = Retriever(store).retrieval("salt dog pepper", 5, mode="lexical")
    assert rows(found.hits) == [4, 1, 2]
    assert [hit.score for hit in found.hits] == pytest.approx([3 * LEXICAL_WEIGHT, LEXICAL_WEIGHT, LEXICAL_WEIGHT])
    assert found.scores == (0.0, 0.0, 0.0)
    assert found.prior == Prior(0.0, LEXICAL_NO_PASSAGE, LEXICAL_WEIGHT)
    assert math.fsum(math.exp(hit.log_prior) for hit in found.hits) == pytest.approx(1, abs=1e-6)
    assert Retriever(store).retrieve("zebra", 5, mode="lexical") == ()


def test_rrf_orders_by_ranks_and_keeps_the_scores_prior():
    found = Retriever(Store()).retrieval(QUESTION, 6, fusion="rrf")
    s, b = parts()
    by_s = np.lexsort((np.arange(6), -s)).tolist()
    by_b = [row for row in np.lexsort((np.arange(6), -b)).tolist() if b[row] > 0]
    ranks = {r: sum(1 / (61 + side.index(r)) for side in (by_s, by_b) if r in side) for r in range(6)}
    assert rows(found.hits) == sorted(ranks, key=lambda r: (-ranks[r], r))
    logits = 10 * HYBRID_SCALE * s + HYBRID_WEIGHT * b
    assert [hit.score for hit in found.hits] == pytest.approx([logits[r] for r in rows(found.hits)], rel=1e-5)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
@pytest.mark.parametrize("k", [1, 3, 5, 6, 99])
def test_k_come_back_whenever_k_exist(mode, k):
    alive = np.array([True, False, True, True, True, True])
    found = Retriever(Store(alive=alive)).retrieve(QUESTION, k, mode=mode, candidates=1)
    assert len(found) == min(k, 5)
    assert 1 not in rows(found)
    kept = Retriever(Store(alive=alive)).retrieve(QUESTION, k, mode=mode, candidates=1, where="the")
    assert sorted(rows(kept)) == [0, 3, 4][: len(kept)] or len(kept) < 3
    assert len(kept) == min(k, 3)


def test_texts_that_say_the_same_are_shown_once_and_their_sources_kept():
    texts = ["The cat sat on the mat.", *TEXTS, "the CAT sat -- on the mat"]
    hits = Retriever(Store(texts)).retrieve(QUESTION, 3)
    first = next(hit for hit in hits if hit.passage.text.lower().startswith("the cat sat"))
    assert len(first.duplicates) == 2
    assert {first.passage.id, *(one.id for one in first.duplicates)} == {"p0", "p1", "p7"}
    assert len(hits) == 3
    assert len(Retriever(Store(texts)).retrieve(QUESTION, 8)) == 6
    together = Retriever(Store(texts)).retrieve(QUESTION, 8, collapse=False)
    assert len(together) == 8
    assert all(hit.duplicates == () for hit in together)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_thousand_copies_hide_nothing(mode):
    texts = ["the cat sat"] * 1000 + ["the cat sat on the mat", "the cat sat there", "where is the dog"]
    hits = Retriever(Store(texts)).retrieve(QUESTION, 4, mode=mode, candidates=5)
    assert len(hits) == 4
    assert {hit.passage.text for hit in hits} == set(texts)


class ByLength:
    """Prefers long texts; what it read is in ``read``."""

    def __init__(self, gain=100.0):
        self.gain, self.read = gain, []

    def scores(self, question, passages):
        self.read.append((question, [int(passage.id[1:]) for passage in passages]))
        return np.array([self.gain * len(passage.text) for passage in passages], dtype=np.float32)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_reranker_orders_the_best_again_and_adds_to_their_logits(mode):
    before = Retriever(Store()).retrieval(QUESTION, 4, mode=mode)
    scale = before.prior.scale
    reranker = ByLength()
    found = Retriever(Store(), reranker=reranker).retrieval(QUESTION, 2, mode=mode, rerank=4)
    assert reranker.read == [(QUESTION, rows(before.hits))]
    best = sorted(rows(before.hits), key=lambda row: -len(TEXTS[row]))
    assert rows(found.hits)[0] == best[0]
    parts_before = zip(before.scores, before.offsets or [0.0] * 4, strict=True)
    old = dict(zip(rows(before.hits), parts_before, strict=True))
    for row, hit, s, offset in zip(rows(found.hits), found.hits, found.scores, found.offsets, strict=True):
        assert s == pytest.approx(old[row][0])
        assert offset == pytest.approx(old[row][1] + 100 * len(TEXTS[row]), rel=1e-5)
        assert hit.score == pytest.approx(scale * s + offset)


def test_a_reranker_reads_k_passages_where_k_is_larger():
    reranker = ByLength()
    assert len(Retriever(Store(), reranker=reranker).retrieve(QUESTION, 5, rerank=2)) == 5
    assert len(reranker.read[0][1]) == 5


@pytest.mark.parametrize("wrong", [[1.0], [math.nan] * 6, [[1.0]] * 6])
def test_a_reranker_that_does_not_score_each(wrong):
    class Wrong:
        def scores(self, question, passages):
            return wrong

    with pytest.raises(ModelError, match="Wrong scored 6 passages"):
        Retriever(Store(), reranker=Wrong()).retrieve(QUESTION, 6)


def test_mmr_puts_a_passage_that_differs_before_one_like_the_first():
    texts = ["cat sat where", "the cat sat where", "cat dog park"]
    plain = Retriever(Store(texts)).retrieve(QUESTION, 3, collapse=False)
    spread = Retriever(Store(texts)).retrieve(QUESTION, 3, collapse=False, mmr=0.3)
    assert (rows(plain)[0], rows(spread)[0]) == (1, 1)
    assert (rows(plain)[1], rows(spread)[1]) == (0, 2)
    assert rows(Retriever(Store(texts)).retrieve(QUESTION, 3, mmr=1.0)) == rows(plain)


def test_the_state_is_taken_before_the_question_is_encoded():
    """A swap to another encoder in between: vectors and question stay of one encoder."""
    log = []

    class Swapping(Store):
        def snapshot(self):
            log.append("snapshot")
            return self.now

        @property
        def encoder(self):
            raise AssertionError("the store's encoder may be another one by now")

    store = Swapping()
    encode = store.now.encoder.encode_questions
    store.now.encoder.encode_questions = lambda questions: log.append("encode") or encode(questions)
    Retriever(store).retrievals([QUESTION, "salt"], 2)
    assert log == ["snapshot", "encode"]


def test_several_questions_are_those_asked_alone():
    questions = [QUESTION, "salt", "P-7"]
    together = Retriever(Store()).retrievals(questions, 3)
    for question, found in zip(questions, together, strict=True):
        assert found.hits == Retriever(Store()).retrieve(question, 3)


def test_within_reads_the_same_state_with_the_same_options():
    store = Store()
    retriever = Retriever(store)
    found = retriever.retrieval(QUESTION, 2, where="the")
    store.now = Snapshot(["other"], store.now.encoder)
    later = retriever.within(found, "salt", 3)
    assert set(rows(later.hits)) <= {0, 1, 3, 4}
    assert later.snapshot is found.snapshot
    assert later.options == replace(found.options, k=3)


def test_a_prior_of_ones_own():
    own = Prior(3.0, -1.0, 2.0)
    found = Retriever(Store(), prior=own).retrieval(QUESTION, 6)
    s, b = parts()
    logits = 3 * s + 2 * b
    assert sorted(hit.score for hit in found.hits) == pytest.approx(sorted(logits.tolist()), rel=1e-5)
    assert Retriever(Store(), prior=own).retrieval(QUESTION, 6, mode="lexical").prior == Prior(0.0, -1.0, 2.0)


def test_options_of_the_retriever_and_of_one_question():
    retriever = Retriever(Store(), RetrievalOptions(k=2, mode="dense"))
    assert len(retriever.retrieve(QUESTION)) == 2
    assert len(retriever.retrieve(QUESTION, 3)) == 3
    assert retriever.retrieval(QUESTION, mode="hybrid").offsets != ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k 0"),
        ({"k": True}, "k True"),
        ({"mode": "both"}, "unknown mode 'both': expected one of dense, lexical, hybrid"),
        ({"fusion": "sum"}, "unknown fusion 'sum'"),
        ({"fusion": "rrf", "mode": "dense"}, "fusion rrf is for mode hybrid, not dense"),
        ({"candidates": 0}, "candidates 0"),
        ({"rerank": 1.5}, "rerank 1.5"),
        ({"mmr": 1.1}, "mmr 1.1"),
        ({"mmr": True}, "mmr True"),
        ({"mmr": math.nan}, "mmr nan"),
        ({"mmr": "1"}, "mmr '1'"),
        ({"where": 7}, "where 7"),
        ({"collapse": 1}, "collapse 1"),
        ({"reranker": None}, "reranker None"),
        ({"reranker": "magic:x"}, "unknown reranker 'magic:x'"),
        ({"reranker": "cross-encoder"}, "expected cross-encoder:MODEL"),
        ({"speed": 1}, "unknown option speed: expected one of k, mode"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=message):
        Retriever(Store()).retrieve(QUESTION, **options)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("question", ["C++ (foo", "a:b AND", "\u4f60\u597d", "\x00cat", "x" * 5000, "'\"*?~^[]{}"])
def test_any_text_is_a_question(tmp_path, mode, question):
    docs = write_files(tmp_path / "docs")
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder(no_passage_logit=1.5)) as collection:
        hits = Retriever(collection).retrieve(question, 3, mode=mode)
        assert len(hits) <= 3
        if mode != "lexical":
            assert len(hits) == 3


def test_a_collection_is_searched_both_ways(tmp_path):
    docs = write_files(tmp_path / "docs")
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder(no_passage_logit=1.5)) as collection:
        count = len(collection)
        best = collection.retrieve("when does P-7 start", 1)[0]
        assert "P-7" in best.passage.text
        for mode in ("dense", "hybrid"):
            hits = collection.retrieve("oil cat river", 99, mode=mode)
            assert len({hit.passage.id for hit in hits}) == count
            assert sum(math.exp(hit.log_prior) for hit in hits) == pytest.approx(1, abs=1e-5)
        found = Retriever(collection).retrieval("the black oil", 3)
        now = collection.snapshot()
        query = collection.encoder.encode_questions(["the black oil"])[0]
        assert found.scores == pytest.approx((found.vectors() @ query).tolist(), abs=1e-6)
        assert found.generation == now.generation
