"""The mixture over texts: what must hold for every prior, every generator and every way to cut a text into tokens."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bifolio import text_mixture
from bifolio.protocols import TextCandidate

WORDS = st.lists(st.sampled_from(["Paris", " is", " it", ".", " No", " é", " 日本", "!", "\n"]), min_size=0, max_size=7)
LOG_P = st.one_of(st.floats(-9.0, 0.0), st.just(-math.inf))


def log_softmax(values):
    return torch.log_softmax(torch.tensor(values, dtype=torch.float64), 0)


@st.composite
def scored(draw, least=1, most=4, text=None):
    """One text under K branches, each with its own pieces, its own log-probabilities and an end."""
    text = "".join(draw(WORDS)) if text is None else text
    branches = draw(st.integers(least, most))
    made = []
    for _ in range(branches):
        cuts = sorted(draw(st.sets(st.integers(1, len(text) - 1)))) if len(text) > 1 else []
        edges = [0, *cuts, len(text)] if text else []
        pieces = tuple(text[a:b] for a, b in zip(edges, edges[1:], strict=False))
        log_probs = tuple(draw(st.lists(LOG_P, min_size=len(pieces), max_size=len(pieces))))
        made.append(TextCandidate(text, pieces, log_probs, draw(LOG_P), True))
    return made


def log_p(candidate, end=True):
    return sum(candidate.log_probs) + (candidate.end_log_prob if end else 0.0)


def by_hand(prior, likelihoods):
    """Log p(y|x) and posterior by their formulas, with nothing of the package."""
    joint = [math.exp(pi + ll) for pi, ll in zip(prior, likelihoods, strict=True)]
    total = sum(joint)
    return (math.log(total), [j / total for j in joint]) if total else (-math.inf, [math.exp(pi) for pi in prior])


PRIOR = st.lists(st.floats(-4, 4), min_size=4, max_size=4)


@given(scored(), PRIOR)
@settings(max_examples=40)
def test_likelihood_and_posterior_are_those_of_rag_sequence(candidates, scores):
    prior = log_softmax(scores[: len(candidates)])
    (one,) = text_mixture.thorough(prior, [[c] for c in candidates])
    total, posterior = by_hand(prior.tolist(), [log_p(c) for c in candidates])
    assert one.ends
    assert one.decoded.log_prob == pytest.approx(total, abs=1e-9)
    assert one.at_least == pytest.approx(total, abs=1e-9)
    rows = one.cited(no_passage=False)
    assert list(rows.row) == pytest.approx(posterior, abs=1e-9)
    assert rows.text == "".join(candidates[0].pieces).strip()


@given(scored(least=2), PRIOR)
@settings(max_examples=40)
def test_every_row_sums_to_one_and_the_tokens_tile_the_text(candidates, scores):
    prior = log_softmax(scores[: len(candidates)])
    (one,) = text_mixture.thorough(prior, [[c] for c in candidates])
    rows = one.cited(no_passage=True)
    for row in (rows, *rows.sentences, *rows.tokens):
        weights = row.row if row is rows else row.weights
        assert sum(weights) + row.no_passage == pytest.approx(1.0)
        assert all(0 <= weight <= 1 for weight in weights)
    assert "".join(token.text for token in rows.tokens) == rows.text
    assert [rows.text[slice(*sentence.span)] for sentence in rows.sentences] == [s.text for s in rows.sentences]
    assert {sentence.basis for sentence in rows.sentences} <= {"evidence"}
    if one.decoded.log_prob > -math.inf and rows.tokens:  # the tokens' probabilities are the answer's
        ending = float(one.decoded.log_probs[-1])
        assert sum(token.log_prob for token in rows.tokens) + ending == pytest.approx(one.decoded.log_prob)


@given(scored(least=2), PRIOR, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_permuting_passages_permutes_rows_and_nothing_else(candidates, scores, dice):
    k = len(candidates)
    order = list(range(k))
    dice.shuffle(order)
    prior = log_softmax(scores[:k])
    (one,) = text_mixture.thorough(prior, [[c] for c in candidates])
    (other,) = text_mixture.thorough(prior[order], [[candidates[z]] for z in order])
    assert other.decoded.log_prob == pytest.approx(one.decoded.log_prob)
    mine, theirs = one.cited(no_passage=False), other.cited(no_passage=False)
    assert list(theirs.row) == pytest.approx([mine.row[z] for z in order])
    for before, after in zip([*mine.sentences, *mine.tokens], [*theirs.sentences, *theirs.tokens], strict=True):
        assert before.span == after.span
        assert list(after.weights) == pytest.approx([before.weights[z] for z in order])


@given(scored(most=1))
@settings(max_examples=40)
def test_one_passage_is_the_plain_language_model(candidates):
    (candidate,) = candidates
    prior = torch.zeros(1)
    for (one,) in (text_mixture.thorough(prior, [[candidate]]), text_mixture.fast(prior, [[candidate]])):
        assert one.decoded.log_prob == pytest.approx(log_p(candidate))
        assert one.cited(no_passage=False).row == (1.0,)


@given(scored(least=2), PRIOR)
@settings(max_examples=40)
def test_how_a_branch_cuts_the_text_changes_only_the_tokens(candidates, scores):
    """Cutting more finely, with the same sum, leaves the answer's figures as they are."""
    prior = log_softmax(scores[: len(candidates)])
    joined = [
        TextCandidate(c.text, (c.text,) if c.text else (), (sum(c.log_probs),) if c.text else (), c.end_log_prob, True)
        for c in candidates
    ]
    (fine,) = text_mixture.thorough(prior, [[c] for c in candidates])
    (coarse,) = text_mixture.thorough(prior, [[c] for c in joined])
    assert coarse.decoded.log_prob == pytest.approx(fine.decoded.log_prob)
    assert list(coarse.cited(no_passage=False).row) == pytest.approx(list(fine.cited(no_passage=False).row))
    shared = set.intersection(*(set(accumulate(map(len, c.pieces))) for c in candidates))
    assert set(accumulate(map(len, fine.pieces))) == shared
    assert "".join(fine.pieces) == fine.text


@given(st.lists(scored(least=3, most=3), min_size=1, max_size=3), PRIOR, st.data())
@settings(max_examples=40)
def test_fast_is_a_lower_bound_of_thorough(texts, scores, data):
    assume(len({candidates[0].text for candidates in texts}) == len(texts))
    prior = log_softmax(scores[:3])
    thorough = {one.text: one for one in text_mixture.thorough(prior, [[t[z] for t in texts] for z in range(3)])}
    found = [[t[z] for t in texts if data.draw(st.booleans())] for z in range(3)]
    for one in text_mixture.fast(prior, found):
        assert one.decoded.log_prob <= thorough[one.text].decoded.log_prob + 1e-9
        row = one.cited(no_passage=False).row
        finders = {z for z in range(3) if any(c.text == one.text for c in found[z])}
        if one.decoded.log_prob > -math.inf:
            assert all(row[z] == 0 for z in range(3) if z not in finders)
        assert sum(row) == pytest.approx(1.0)


@given(scored(least=2), PRIOR, st.data())
@settings(max_examples=40)
def test_unknown_ends_count_in_no_row_and_only_lower_the_bound(candidates, scores, data):
    k = len(candidates)
    prior = log_softmax(scores[:k])
    hidden = data.draw(st.sets(st.integers(0, k - 1), min_size=1))
    given_ = [
        TextCandidate(c.text, c.pieces, c.log_probs, None if z in hidden else c.end_log_prob, True)
        for z, c in enumerate(candidates)
    ]
    (one,) = text_mixture.thorough(prior, [[c] for c in given_])
    assert not one.ends and not one.decoded.finished and one.finished
    total, posterior = by_hand(prior.tolist(), [log_p(c, end=False) for c in candidates])
    assert one.decoded.log_prob == pytest.approx(total, abs=1e-9)
    assert list(one.cited(no_passage=False).row) == pytest.approx(posterior, abs=1e-9)
    known = [log_p(c) if z not in hidden else -math.inf for z, c in enumerate(candidates)]
    assert one.at_least == pytest.approx(by_hand(prior.tolist(), known)[0], abs=1e-9)
