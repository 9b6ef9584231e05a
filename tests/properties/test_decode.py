"""Decoding compared with the enumeration of every answer."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import decode, marginal
from bifolio.errors import UsageError
from bifolio.segments import SCHEMES, boundary, segment_ids
from toy import EOS, ToyBranches, beam, draw, exact, likelihood, log_p, text

SEEDS = st.integers(0, 10**6)
SCHEME = st.sampled_from(SCHEMES)


def problem(seed, scheme, k=3, vocabulary=4, depth=3, impossible=0.0):
    toy = ToyBranches(k, vocabulary, depth, seed, impossible)
    prior = marginal.log_prior(torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return toy, prior, boundary(scheme, text)


def sample(toy, prior, starts, **options):
    (drawn,) = draw(toy, prior, starts, **options)
    return drawn


@given(seed=SEEDS, scheme=SCHEME, impossible=st.sampled_from([0.0, 0.4]))
@settings(max_examples=30)
def test_a_wide_beam_finds_the_best_answers_in_order(seed, scheme, impossible):
    toy, prior, starts = problem(seed, scheme, impossible=impossible)
    scores = exact(toy, prior, starts)
    best = sorted(scores.values(), reverse=True)
    found = beam(toy, prior, starts, max_tokens=9, beams=60, n_best=3)
    assert [answer.log_prob for answer in found] == pytest.approx(best[:3], abs=1e-9)
    assert all(answer.log_prob == pytest.approx(scores[answer.tokens], abs=1e-9) for answer in found)


@given(seed=SEEDS, scheme=SCHEME, beams=st.integers(1, 4))
@settings(max_examples=50)
def test_what_is_returned_is_what_rescoring_gives(seed, scheme, beams):
    toy, prior, starts = problem(seed, scheme)
    for answer in beam(toy, prior, starts, max_tokens=5, beams=beams, n_best=beams):
        assert answer.finished
        torch.testing.assert_close(answer.token_log_probs, likelihood(toy, answer.tokens))
        assert list(answer.segment_ids) == segment_ids(answer.tokens, starts)
        assert answer.log_prob == pytest.approx(exact(toy, prior, starts)[answer.tokens], abs=1e-9)


@given(seed=SEEDS, scheme=SCHEME)
@settings(max_examples=50)
def test_one_beam_is_greedy(seed, scheme):
    toy, prior, starts = problem(seed, scheme)
    prefix: tuple[int, ...] = ()
    while not prefix or prefix[-1] != EOS:
        scores = [log_p(toy, prior, starts, (*prefix, token)) for token in range(4)]
        prefix = (*prefix, scores.index(max(scores)))
    (found,) = beam(toy, prior, starts, max_tokens=9)
    assert found.tokens == prefix


@given(seed=SEEDS, scheme=SCHEME)
@settings(max_examples=30)
def test_one_step_at_a_time_is_the_likelihood_of_the_whole(seed, scheme):
    toy, prior, starts = problem(seed, scheme)
    (found,) = beam(toy, prior, starts, max_tokens=9)
    for length in range(1, len(found.tokens) + 1):
        ids = torch.tensor([found.segment_ids[:length]])
        log_p = marginal.segment_log_likelihood(prior[None], found.token_log_probs[None, :, :length], ids)
        assert float(log_p) == pytest.approx(float(found.log_probs[:length].sum()), abs=1e-9)


def test_samples_of_many_seeds_follow_the_mixture():
    toy, prior, starts = problem(5, "sequence", depth=2)
    expected = {answer: math.exp(value) for answer, value in exact(toy, prior, starts).items()}
    draws = 4000
    seen = Counter(sample(toy, prior, starts, max_tokens=5, seed=seed).tokens for seed in range(draws))
    assert set(seen) <= set(expected)
    for answer, p in expected.items():
        # five standard deviations of a binomial
        assert abs(seen[answer] / draws - p) < 5 * math.sqrt(p * (1 - p) / draws) + 1e-9


def test_sampling_options():
    toy, prior, starts = problem(11, "sequence")
    (greedy,) = beam(toy, prior, starts, max_tokens=9)
    cold = sample(toy, prior, starts, max_tokens=9, temperature=1e-4, seed=3)
    narrow = sample(toy, prior, starts, max_tokens=9, top_p=1e-9, seed=3)
    assert cold.tokens == narrow.tokens == greedy.tokens
    assert cold.log_prob == pytest.approx(greedy.log_prob)  # reported untempered
    same = [sample(toy, prior, starts, max_tokens=9, seed=8).tokens for _ in range(3)]
    assert same[0] == same[1] == same[2]


def test_nucleus_keeps_the_smallest_set_that_holds_top_p():
    log_p = torch.tensor([0.1, 0.5, 0.25, 0.15], dtype=torch.float64).log()
    assert decode._truncate(log_p, 1.0, 0.6).tolist() == pytest.approx([0, 0.5, 0.25, 0])
    assert decode._truncate(log_p, 1.0, 0.5).tolist() == pytest.approx([0, 0.5, 0, 0])
    assert decode._truncate(log_p, 0.5, 1.0).tolist() == pytest.approx([p * p / 0.345 for p in (0.1, 0.5, 0.25, 0.15)])


def test_an_answer_that_is_cut_says_so_and_ranks_behind_finished_ones():
    toy, prior, starts = problem(2, "token", depth=6)
    found = beam(toy, prior, starts, max_tokens=2, beams=8, n_best=8)
    flags = [answer.finished for answer in found]
    assert flags == sorted(flags, reverse=True)
    assert False in flags
    assert all((answer.tokens[-1] == EOS) == answer.finished for answer in found)
    assert all(len(answer.tokens) == 2 for answer in found if not answer.finished)


def test_length_penalty_changes_the_ranking_and_not_the_likelihood():
    toy, prior, starts = problem(4, "sequence", depth=4)
    scores = exact(toy, prior, starts)
    found = beam(toy, prior, starts, max_tokens=9, beams=200, n_best=5, length_penalty=1.0)
    expected = sorted((value / len(answer) for answer, value in scores.items()), reverse=True)[:5]
    assert [decode.rank_score(answer, 1.0) for answer in found] == pytest.approx(expected, abs=1e-9)
    assert found[0].log_prob == pytest.approx(scores[found[0].tokens], abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"beams": 0}, "beam 0"), ({"max_tokens": 0}, "max_tokens 0"), ({"beams": 2, "n_best": 3}, "n_best 3")],
)
def test_counts_out_of_range(options, message):
    toy, prior, starts = problem(1, "token")
    with pytest.raises(UsageError, match=message):
        beam(toy, prior, starts, **{"max_tokens": 3, **options})


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"temperature": math.inf}])
def test_sampling_options_out_of_range(options):
    toy, prior, starts = problem(1, "token")
    with pytest.raises(UsageError, match=next(iter(options))):
        sample(toy, prior, starts, max_tokens=3, **options)


@given(seed=SEEDS, penalty=st.floats(0.2, 2), beams=st.integers(1, 4))
@settings(max_examples=40)
def test_stopping_early_finds_what_an_unlimited_search_finds(seed, penalty, beams):
    toy, prior, starts = problem(seed, "sequence", depth=4)
    found = beam(toy, prior, starts, max_tokens=9, beams=beams, length_penalty=penalty)
    # n_best = beams keeps the search going until that many are finished, the first of which must be the same.
    longer = beam(toy, prior, starts, max_tokens=9, beams=beams, n_best=beams, length_penalty=penalty)
    assert decode.rank_score(found[0], penalty) == pytest.approx(decode.rank_score(longer[0], penalty), abs=1e-9)


def test_a_vanishing_temperature_is_greedy():
    toy, prior, starts = problem(11, "sequence")
    (greedy,) = beam(toy, prior, starts, max_tokens=9)
    assert sample(toy, prior, starts, max_tokens=9, temperature=5e-324).tokens == greedy.tokens


def test_nothing_possible_is_an_error_and_not_a_hang():
    toy, prior, starts = problem(1, "token")
    dead = torch.full_like(prior, -torch.inf)
    with pytest.raises(UsageError, match="no answer has any probability"):
        beam(toy, dead, starts, max_tokens=3)
    with pytest.raises(UsageError, match="no answer has any probability"):
        sample(toy, dead, starts, max_tokens=3)
