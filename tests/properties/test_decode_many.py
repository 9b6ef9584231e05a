"""Many questions at once, many samples at once, groups of beams that avoid each other."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import decode, marginal
from bifolio.errors import UsageError
from bifolio.protocols import Branches, Move
from bifolio.segments import SCHEMES, boundary
from toy import EOS, Several, ToyBranches, beam, draw, exact, likelihood, log_p, mixture, text

SEEDS = st.integers(0, 10**6)
SCHEME = st.sampled_from(SCHEMES)


def problem(seed, scheme, k=3, vocabulary=4, depth=3):
    toy = ToyBranches(k, vocabulary, depth, seed)
    prior = marginal.log_prior(torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return toy, prior, boundary(scheme, text)


class Watched:
    """Branches that remember the moves that were asked of them."""

    def __init__(self, branches):
        self._branches, self.moves = branches, []

    def advance(self, moves):
        self.moves.append(list(moves))
        return self._branches.advance(moves)

    def __getattr__(self, name):
        return getattr(self._branches, name)


def test_toys_are_branches():
    assert isinstance(ToyBranches(1, 2, 1, 0), Branches)
    assert isinstance(Several([ToyBranches(1, 2, 1, 0)]), Branches)


@given(seed=SEEDS, schemes=st.lists(SCHEME, min_size=1, max_size=4))
@settings(max_examples=25)
def test_searches_of_different_kinds_run_in_lockstep_and_change_nothing(seed, schemes):
    problems = [
        problem(seed + q, scheme, k=1 + q, depth=1 + (seed + q) % 4, vocabulary=3 + q % 2)
        for q, scheme in enumerate(schemes)
    ]
    made = [
        lambda m: decode.beam(m, max_tokens=5, beams=3, n_best=2),
        lambda m: decode.draw(m, max_tokens=5, n_best=2, seed=seed),
        lambda m: decode.beam(m, max_tokens=2),
        lambda m: decode.beam(m, max_tokens=5, beams=4, n_best=2, groups=2, diversity=1.0),
    ]
    wanted = [mixture(prior, starts) for _, prior, starts in problems]
    branches = Watched(Several([toy for toy, *_ in problems]))
    together = decode.run(branches, [made[q % 4](one) for q, one in enumerate(wanted)])
    for q, (toy, *_) in enumerate(problems):
        (alone,) = decode.run(toy, [made[q % 4](wanted[q])])
        assert [answer.tokens for answer in together[q]] == [answer.tokens for answer in alone]
        assert [answer.log_prob for answer in together[q]] == [answer.log_prob for answer in alone]
        over = [not moves[q].parents for moves in branches.moves]
        assert over == sorted(over)  # who is done stays done
        assert all(moves[q] == Move([], []) for moves in branches.moves if not moves[q].parents)
    assert all(any(move.parents for move in moves) for moves in branches.moves)  # no step for nobody


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_samples_of_one_draw_follow_the_mixture(scheme):
    toy, prior, starts = problem(5, scheme, depth=2)
    expected = {answer: math.exp(value) for answer, value in exact(toy, prior, starts).items()}
    draws = 8000
    found = draw(toy, prior, starts, max_tokens=5, n_best=draws, seed=1)
    seen = Counter(answer.tokens for answer in found)
    assert set(seen) <= set(expected)
    for answer, p in expected.items():
        assert abs(seen[answer] / draws - p) < 5 * math.sqrt(p * (1 - p) / draws) + 1e-9
    for answer in found[:50]:
        assert answer.log_prob == pytest.approx(math.log(expected[answer.tokens]), abs=1e-9)


@given(seed=SEEDS, scheme=SCHEME)
@settings(max_examples=30)
def test_samples_come_finished_first_and_best_first(seed, scheme):
    toy, prior, starts = problem(seed, scheme, depth=4)
    found = draw(toy, prior, starts, max_tokens=3, n_best=6, seed=seed)
    assert len(found) == 6
    keys = [(not answer.finished, -answer.log_prob) for answer in found]
    assert keys == sorted(keys)
    assert [a.tokens for a in draw(toy, prior, starts, max_tokens=3, n_best=6, seed=seed)] == [a.tokens for a in found]
    for answer in found:
        assert (answer.tokens[-1] == EOS) == answer.finished
        torch.testing.assert_close(answer.token_log_probs, likelihood(toy, answer.tokens))


def penalised_greedy(toy, prior, starts, groups, diversity, max_tokens):
    """Groups of one beam in plain steps: log p of every prefix by enumeration of the next token."""
    live, finished = {g: () for g in range(groups)}, {g: [] for g in range(groups)}
    for _ in range(max_tokens):
        taken = Counter()
        for g in sorted(live):
            scores = {t: log_p(toy, prior, starts, (*live[g], t)) - diversity * taken[t] for t in range(toy.v)}
            order = sorted(scores, key=lambda token: -scores[token])
            if order[0] == EOS:
                finished[g].append((*live[g], EOS))
            going = next((token for token in order if token != EOS and scores[token] > -math.inf), None)
            ended = sorted((log_p(toy, prior, starts, y) for y in finished[g]), reverse=True)
            done = ended[groups - 1] if len(ended) >= groups else -math.inf  # as many as are asked for
            if going is None:
                del live[g]
                continue
            live[g] = (*live[g], going)
            taken[going] += 1
            if done >= log_p(toy, prior, starts, live[g]):
                del live[g]
    return {answer for mine in finished.values() for answer in mine}


@given(seed=SEEDS, scheme=SCHEME, groups=st.integers(2, 3), diversity=st.sampled_from([0.3, 1.0, 5.0]))
@settings(max_examples=30)
def test_groups_of_one_beam_are_greedy_searches_that_avoid_each_others_tokens(seed, scheme, groups, diversity):
    toy, prior, starts = problem(seed, scheme, vocabulary=5)
    options = {"beams": groups, "n_best": groups, "groups": groups, "diversity": diversity}
    found = beam(toy, prior, starts, max_tokens=9, **options)
    assert {answer.tokens for answer in found} <= penalised_greedy(toy, prior, starts, groups, diversity, 9)
    (greedy,) = beam(toy, prior, starts, max_tokens=9)
    assert greedy.tokens in {answer.tokens for answer in found}
    for answer in found:  # diversity changes what is chosen, and no score
        torch.testing.assert_close(answer.token_log_probs, likelihood(toy, answer.tokens))


@given(seed=SEEDS, scheme=SCHEME, beams=st.sampled_from([2, 4]))
@settings(max_examples=30)
def test_one_group_is_the_ordinary_search(seed, scheme, beams):
    toy, prior, starts = problem(seed, scheme)
    plain = beam(toy, prior, starts, max_tokens=9, beams=beams, n_best=2)
    grouped = beam(toy, prior, starts, max_tokens=9, beams=beams, n_best=2, groups=1, diversity=3.0)
    assert [answer.tokens for answer in plain] == [answer.tokens for answer in grouped]


def test_much_diversity_gives_answers_that_begin_otherwise():
    toy, prior, starts = problem(7, "token", vocabulary=6, depth=2)
    options = {"max_tokens": 9, "beams": 4, "n_best": 4, "groups": 4}
    found = beam(toy, prior, starts, diversity=100.0, **options)
    firsts = [answer.tokens[0] for answer in found if answer.tokens[0] != EOS]
    assert len(firsts) == len(set(firsts)) >= 3
    with pytest.raises(UsageError, match="3 groups: expected a number that divides the beam, 4"):
        beam(toy, prior, starts, **{**options, "groups": 3})


def test_an_impossible_question_is_an_error_or_an_empty_result_where_that_is_wanted():
    toy, prior, starts = problem(1, "token")
    dead = torch.full_like(prior, -torch.inf)
    with pytest.raises(UsageError, match="no answer has any probability"):
        beam(toy, dead, starts, max_tokens=3, beams=2)
    assert beam(toy, dead, starts, max_tokens=3, beams=2, may_fail=True) == []
