"""Thorough and fast decoding, scoring and diverse beams, compared with enumeration."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import decode, marginal, passagewise
from bifolio.errors import UsageError
from bifolio.hypotheses import Mixture, constant
from bifolio.segments import boundary
from toy import EOS, Several, ToyBranches, text

SEEDS = st.integers(0, 10**6)
SCHEME = st.sampled_from(["token", "sentence", "sequence"])


def problem(seed, scheme="sequence", k=3, vocabulary=4, depth=3):
    toy = ToyBranches(k, vocabulary, depth, seed)
    prior = marginal.log_prior(torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return toy, Mixture(constant(prior), boundary(scheme, text), EOS)


@given(seed=SEEDS, scheme=SCHEME, beams=st.integers(1, 3))
@settings(max_examples=40)
def test_thorough_ranks_every_branch_s_answers_by_their_exact_likelihood(seed, scheme, beams):
    toy, mixture = problem(seed, scheme)
    (found,) = passagewise.thorough(toy, [mixture], max_tokens=9, beams=beams)
    (scored,) = passagewise.score(toy, [mixture], [toy.answers()])
    exact = {answer.tokens: answer.log_prob for answer in scored}
    assert [answer.log_prob for answer in found] == pytest.approx([exact[answer.tokens] for answer in found], abs=1e-9)
    assert [answer.log_prob for answer in found] == sorted((a.log_prob for a in found), reverse=True)
    alone = Mixture(constant(torch.zeros(1)), boundary("sequence", text), EOS)
    for part in toy.apart().toys:  # what every branch finds by itself is among the candidates
        (own,) = decode.run(Several([part]), [decode.beam(alone, max_tokens=9, beams=beams)])
        assert own[0].tokens in {answer.tokens for answer in found}


@given(seed=SEEDS, beams=st.integers(1, 3))
@settings(max_examples=40)
def test_fast_is_a_lower_bound_of_the_same_candidates(seed, beams):
    toy, mixture = problem(seed)
    (thorough,) = passagewise.thorough(toy, [mixture], max_tokens=9, beams=beams)
    (fast,) = passagewise.fast(toy, [mixture], max_tokens=9, beams=beams)
    exact = {answer.tokens: answer.log_prob for answer in thorough}
    assert set(exact) == {answer.tokens for answer in fast}
    assert all(answer.log_prob <= exact[answer.tokens] + 1e-9 for answer in fast)


class Dead(ToyBranches):
    """Branches of which some can say nothing at all."""

    def __init__(self, dead, *arguments):
        super().__init__(*arguments)
        self.dead = dead

    def conditional(self, z, prefix):
        return [-math.inf] * self.v if z in self.dead else super().conditional(z, prefix)


@pytest.mark.parametrize("search", [passagewise.thorough, passagewise.fast])
def test_a_branch_that_can_say_nothing_leaves_the_answer_to_the_others(search):
    toy, mixture = Dead({1}, 3, 4, 3, 7), problem(7)[1]
    (exact,) = decode.run(toy, [decode.beam(mixture, max_tokens=9, beams=60)])
    (found,) = search(toy, [mixture], max_tokens=9, beams=3)
    assert found[0].tokens == exact[0].tokens
    with pytest.raises(UsageError, match="no answer has any probability"):
        search(Dead({0, 1, 2}, 3, 4, 3, 7), [mixture], max_tokens=9, beams=3)


@given(seed=SEEDS, groups=st.integers(2, 3), diversity=st.sampled_from([0.0, 0.05, 1.0, 50.0]))
@settings(max_examples=40)
def test_diverse_beams_find_as_many_different_answers_as_asked(seed, groups, diversity):
    toy, mixture = problem(seed)
    (found,) = decode.run(
        toy,
        [decode.beam(mixture, max_tokens=9, beams=2 * groups, n_best=groups, groups=groups, diversity=diversity)],
    )
    different = len({answer.tokens for answer in found})
    assert different == len(found) == groups or (diversity < 50 and different >= 2)  # groups may find the same
    (scored,) = passagewise.score(toy, [mixture], [[answer.tokens for answer in found]])
    assert [a.log_prob for a in found] == pytest.approx([a.log_prob for a in scored], abs=1e-9)
    (plain,) = decode.run(toy, [decode.beam(mixture, max_tokens=9, beams=2)])
    assert plain[0].tokens in {answer.tokens for answer in found}  # the first group is not discouraged


def test_with_great_diversity_every_group_begins_otherwise():
    toy, mixture = problem(3, vocabulary=6)
    (found,) = decode.run(toy, [decode.beam(mixture, max_tokens=9, beams=3, n_best=3, groups=3, diversity=1e6)])
    begins = [answer.tokens[0] for answer in found if answer.tokens[0] != EOS]
    assert len(set(begins)) == len(begins)


@given(seeds=st.lists(SEEDS, min_size=1, max_size=4), beams=st.integers(1, 3))
@settings(max_examples=30)
def test_questions_together_are_questions_alone(seeds, beams):
    parts = [problem(seed, k=1 + seed % 4) for seed in seeds]
    searches = [decode.beam(mixture, max_tokens=9, beams=beams, n_best=beams) for _, mixture in parts]
    together = decode.run(Several([toy for toy, _ in parts]), searches)
    for (toy, mixture), found in zip(parts, together, strict=True):
        (alone,) = decode.run(toy, [decode.beam(mixture, max_tokens=9, beams=beams, n_best=beams)])
        assert [a.tokens for a in found] == [a.tokens for a in alone]
        assert [a.log_prob for a in found] == [a.log_prob for a in alone]
