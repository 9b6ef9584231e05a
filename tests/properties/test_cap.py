"""The cap on a source's weight: a distribution of its own, the same in scoring, decoding and loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import decode, marginal, passagewise
from bifolio.hypotheses import Mixture, constant
from bifolio.loss import mean_loss
from bifolio.segments import boundary
from toy import EOS, ToyBranches, text

SEEDS = st.integers(0, 10**6)


def weights(seed, k):
    return torch.log_softmax(
        3 * torch.randn(2, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), 1
    )


def shares(log_w, sources):
    return [[float(row.exp()[sources == s].sum()) for s in range(int(sources.max()) + 1)] for row in log_w]


@given(seed=SEEDS, cap=st.floats(0.05, 0.95), sources=st.lists(st.integers(0, 3), min_size=1, max_size=6))
@settings(max_examples=80)
def test_no_source_is_above_the_cap_and_the_rest_keep_their_proportions(seed, cap, sources):
    numbers = torch.tensor([sorted(set(sources)).index(s) for s in sources])
    log_w = weights(seed, len(sources))
    limited = marginal.capped(log_w, numbers, cap)
    assert limited.exp().sum(1).tolist() == pytest.approx([1, 1])
    most = max(cap, 1 / len(set(sources)))
    for before, after in zip(shares(log_w, numbers), shares(limited, numbers), strict=True):
        assert max(after) <= most + 1e-9
        free = [i for i, share in enumerate(after) if share < most - 1e-6]
        for i, j in zip(free, free[1:], strict=False):
            assert after[i] * before[j] == pytest.approx(after[j] * before[i], rel=1e-6, abs=1e-12)
    for s in numbers.unique():  # within a source too
        gain = (limited - log_w)[:, numbers == s]
        torch.testing.assert_close(gain, gain[:, :1].expand_as(gain))


def test_by_hand():
    log_w = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
    apart = torch.tensor([0, 1, 2])
    assert marginal.capped(log_w, apart, 0.5).exp()[0].tolist() == pytest.approx([0.5, 1 / 3, 1 / 6])
    assert marginal.capped(log_w, apart, 0.4).exp()[0].tolist() == pytest.approx([0.4, 0.4, 0.2])
    assert marginal.capped(log_w, apart, 0.1).exp()[0].tolist() == pytest.approx([1 / 3] * 3)
    assert marginal.capped(log_w, torch.tensor([0, 0, 1]), 0.6).exp()[0].tolist() == pytest.approx(
        [0.6 * 7 / 9, 0.6 * 2 / 9, 0.4]
    )
    gone = torch.tensor([[0.9, 0.1, 0.0]], dtype=torch.float64).log()
    assert marginal.capped(gone, apart, 0.2).exp()[0].tolist() == pytest.approx([0.5, 0.5, 0])


def problem(seed, scheme, cap):
    toy = ToyBranches(3, 4, 3, seed)
    log_prior = marginal.log_prior(torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    sources = torch.tensor([0, 0, 1])
    limit = None if cap is None else lambda log_w: marginal.capped(log_w, sources, cap)
    return toy, Mixture(constant(log_prior), boundary(scheme, text), EOS, limit)


@given(seed=SEEDS, scheme=st.sampled_from(["token", "sentence", "sequence"]), cap=st.floats(0.1, 0.9))
@settings(max_examples=25)
def test_all_answers_sum_to_one_and_decoding_is_scoring(seed, scheme, cap):
    toy, mixture = problem(seed, scheme, cap)
    (scored,) = passagewise.score(toy, [mixture], [toy.answers()])
    assert sum(math.exp(answer.log_prob) for answer in scored) == pytest.approx(1, abs=1e-9)
    (found,) = decode.run(toy, [decode.beam(mixture, max_tokens=9, beams=60, n_best=2)])
    best = sorted((answer.log_prob for answer in scored), reverse=True)
    assert [answer.log_prob for answer in found] == pytest.approx(best[:2], abs=1e-9)
    likelihood = found[0].token_log_probs[None]
    mask = torch.ones(1, likelihood.shape[2], dtype=torch.bool)
    assert float(mean_loss(likelihood, mask, [found[0].tokens], [mixture])) == pytest.approx(-best[0], abs=1e-9)


@given(seed=SEEDS, scheme=st.sampled_from(["token", "sentence", "sequence"]))
@settings(max_examples=25)
def test_a_cap_that_never_binds_is_the_paper_s_model(seed, scheme):
    toy, capped = problem(seed, scheme, 1 - 1e-12)
    _, plain = problem(seed, scheme, None)
    (mine,), (theirs,) = (passagewise.score(toy, [mixture], [toy.answers()]) for mixture in (capped, plain))
    for one, other in zip(mine, theirs, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [10.0, 50.0, 90.0, 104.0, 200.0, 800.0])
def test_the_cap_holds_however_confident_a_source_is(dtype, gap):
    two = marginal.capped(torch.tensor([[0.0, -gap]], dtype=dtype), torch.tensor([0, 1]), 0.5)
    assert two.exp()[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    three = marginal.capped(torch.tensor([[0.0, -gap, -gap - 2]], dtype=dtype), torch.tensor([0, 1, 2]), 0.5)
    rest = 1 + math.exp(-2)
    assert three.exp()[0].tolist() == pytest.approx([0.5, 0.5 / rest, 0.5 * math.exp(-2) / rest], abs=1e-4)


def test_gradients_pass_through_the_cap():
    log_w = torch.tensor([[0.7, 0.2, 0.1, 0.0]], dtype=torch.float64).log().requires_grad_(True)
    marginal.capped(log_w, torch.tensor([0, 1, 2, 3]), 0.5)[:, :3].sum().backward()
    assert torch.isfinite(log_w.grad[:, :3]).all()
