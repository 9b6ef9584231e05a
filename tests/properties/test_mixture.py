"""MATH section 4: what must hold for every prior, every generator and every scheme."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import marginal
from bifolio.errors import UsageError
from bifolio.segments import SCHEMES, boundary, segment_ids
from toy import EOS, ToyBranches, likelihood, recursion, text

SEEDS = st.integers(0, 10**6)


def tensors(seed, b=2, k=3, t=5, segments="random", impossible=0.0, dtype=torch.float64):
    """A random problem: normalised priors, arbitrary token log-probabilities and monotone segment ids."""
    dice = torch.Generator().manual_seed(seed)
    prior = torch.log_softmax(torch.randn(b, k, generator=dice, dtype=dtype) * 2, dim=1)
    tokens = torch.log(torch.rand(b, k, t, generator=dice, dtype=dtype))
    if impossible:
        tokens = torch.where(torch.rand(b, k, t, generator=dice) < impossible, -torch.inf, tokens)
    ids = {
        "random": (torch.rand(b, t, generator=dice) < 0.4).long().cumsum(1),
        "one": torch.zeros(b, t, dtype=torch.long),
        "each": torch.arange(t).expand(b, t),
    }[segments]
    return prior, tokens, ids


def resets(ids):
    return [i == 0 or ids[i] != ids[i - 1] for i in range(len(ids))]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(seed=SEEDS, k=st.integers(1, 3), impossible=st.sampled_from([0.0, 0.3]))
@settings(max_examples=25)
def test_probabilities_of_all_answers_sum_to_one(scheme, seed, k, impossible):
    toy = ToyBranches(k, 5, 3, seed, impossible)
    starts = boundary(scheme, text)
    prior = marginal.log_prior(torch.randn(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    total = 0.0
    for answer in toy.answers():
        ids = torch.tensor([segment_ids(answer, starts)])
        log_p = marginal.segment_log_likelihood(prior[None], likelihood(toy, answer)[None], ids)
        total += math.exp(float(log_p))
    assert total == pytest.approx(1, abs=1e-12)


@given(seed=SEEDS)
def test_sequence_is_the_papers_formula(seed):
    prior, tokens, ids = tensors(seed, segments="one")
    direct = (prior.exp() * tokens.exp().prod(2)).sum(1).log()
    torch.testing.assert_close(marginal.segment_log_likelihood(prior, tokens, ids), direct)


@given(seed=SEEDS)
def test_token_is_the_papers_formula(seed):
    prior, tokens, ids = tensors(seed, segments="each")
    direct = (prior.exp()[:, :, None] * tokens.exp()).sum(1).prod(1).log()
    torch.testing.assert_close(marginal.segment_log_likelihood(prior, tokens, ids), direct)


@given(seed=SEEDS, k=st.integers(1, 4), t=st.integers(1, 7), impossible=st.sampled_from([0.0, 0.2]))
def test_tensors_equal_the_recursion_in_plain_floats(seed, k, t, impossible):
    prior, tokens, ids = tensors(seed, 2, k, t, impossible=impossible)
    log_p = marginal.segment_log_likelihood(prior, tokens, ids)
    blame = marginal.blame(prior, tokens, ids)
    row = marginal.posterior(prior, tokens, ids)
    rows = marginal.segment_posteriors(prior, tokens, ids)
    for b in range(2):
        total, blames, ends = recursion(prior[b].tolist(), tokens[b].tolist(), resets(ids[b].tolist()))
        if math.isinf(total):  # the recursion stops weighing at an impossible token; only the likelihood is defined
            assert float(log_p[b]) == -math.inf
            continue
        assert float(log_p[b]) == pytest.approx(total, abs=1e-10)
        torch.testing.assert_close(blame[b].T, torch.tensor(blames, dtype=torch.float64))
        expected = [sum(w[z] * size / t for w, size in ends) for z in range(k)]
        assert row[b].tolist() == pytest.approx(expected, abs=1e-10)
        for column, (w, _) in enumerate(ends):
            assert rows[b, :, column].tolist() == pytest.approx(w, abs=1e-10)
        assert float(rows[b, :, len(ends) :].sum()) == 0


@pytest.mark.parametrize("scheme", SCHEMES)
@given(seed=SEEDS)
def test_schemes_agree_on_one_token(scheme, seed):
    prior, tokens, _ = tensors(seed, t=1)
    ids = torch.tensor([segment_ids((EOS,), boundary(scheme, text))] * 2)
    expected = (prior.exp() * tokens[:, :, 0].exp()).sum(1).log()
    torch.testing.assert_close(marginal.segment_log_likelihood(prior, tokens, ids), expected)


@given(seed=SEEDS, scale=st.floats(0.05, 30), segments=st.sampled_from(["random", "one", "each"]))
def test_gradient_to_a_score_is_scale_times_posterior_minus_prior(seed, scale, segments):
    _, tokens, ids = tensors(seed, segments=segments)
    scores = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
    prior = marginal.log_prior(scores, scale)
    marginal.segment_log_likelihood(prior, tokens, ids).sum().backward()
    rows = marginal.segment_posteriors(prior.detach(), tokens, ids)
    used = (rows.sum(1) > 0).sum(1, keepdim=True)
    torch.testing.assert_close(scores.grad, scale * (rows.sum(2) - used * prior.detach().exp()))


@given(seed=SEEDS, impossible=st.sampled_from([0.3, 1.0]))
def test_impossible_tokens_and_padded_rows_give_no_nan(seed, impossible):
    prior, tokens, ids = tensors(seed, impossible=impossible)
    prior = torch.where(torch.rand(prior.shape, generator=torch.Generator().manual_seed(seed)) < 0.3, -torch.inf, prior)
    mask = torch.tensor([[True, True, False, True, False], [False] * 5])
    tokens = torch.where(mask[:, None, :], tokens, torch.nan)  # padding may hold anything
    prior.requires_grad_(), tokens.requires_grad_()
    log_p = marginal.segment_log_likelihood(prior, tokens, ids, mask)
    assert not log_p.isnan().any()
    assert log_p.tolist()[1] == 0  # nothing was said
    log_p.sum().backward()
    assert not prior.grad.isnan().any()
    assert not tokens.grad.isnan().any()
    assert float(tokens.grad[1].abs().sum()) == 0
    blame = marginal.blame(prior.detach(), tokens.detach(), ids, mask)
    assert not blame.isnan().any() or bool((prior == -torch.inf).all(1).any())
    assert float(blame[1].sum()) == 0


@given(seed=SEEDS, left=st.integers(0, 3), hole=st.integers(0, 3), right=st.integers(0, 3))
def test_padding_and_neighbours_never_change_a_value(seed, left, hole, right):
    prior, tokens, ids = tensors(seed, b=1)
    padded = torch.full((2, 3, 5 + left + hole + right), torch.nan, dtype=torch.float64)
    padded_ids = torch.full((2, padded.shape[2]), 99)
    mask = torch.zeros(2, padded.shape[2], dtype=torch.bool)
    places = [left, left + 1, *(left + 2 + hole + i for i in range(3))]
    padded[0, :, places], padded_ids[0, places], mask[0, places] = tokens[0], ids[0], True
    padded[1], mask[1], padded_ids[1] = -3.0, True, 0
    both = torch.cat([prior, prior.flip(1)])
    alone = marginal.segment_log_likelihood(prior, tokens, ids)
    torch.testing.assert_close(marginal.segment_log_likelihood(both, padded, padded_ids, mask)[:1], alone)
    torch.testing.assert_close(
        marginal.blame(both, padded, padded_ids, mask)[:1, :, places], marginal.blame(prior, tokens, ids)
    )
    torch.testing.assert_close(
        marginal.posterior(both, padded, padded_ids, mask)[:1], marginal.posterior(prior, tokens, ids)
    )


@given(seed=SEEDS)
def test_one_branch_is_the_plain_language_model(seed):
    prior, tokens, ids = tensors(seed, k=1)
    torch.testing.assert_close(marginal.segment_log_likelihood(prior, tokens, ids), tokens[:, 0].sum(1))
    torch.testing.assert_close(marginal.blame(prior, tokens, ids), torch.ones_like(tokens))


@given(seed=SEEDS, order=st.permutations(range(3)))
def test_permuting_passages_permutes_blame_and_nothing_else(seed, order):
    prior, tokens, ids = tensors(seed)
    moved = (prior[:, order], tokens[:, order], ids)
    torch.testing.assert_close(
        marginal.segment_log_likelihood(*moved), marginal.segment_log_likelihood(prior, tokens, ids)
    )
    torch.testing.assert_close(marginal.blame(*moved), marginal.blame(prior, tokens, ids)[:, order])
    torch.testing.assert_close(marginal.posterior(*moved), marginal.posterior(prior, tokens, ids)[:, order])


@given(seed=SEEDS)
def test_a_prior_per_token_counts_at_the_start_of_its_segment(seed):
    _, tokens, ids = tensors(seed, b=1)
    dice = torch.Generator().manual_seed(seed)
    renewed = torch.log_softmax(torch.randn(1, 5, 3, generator=dice, dtype=torch.float64), dim=2)
    total = 0.0
    starts = [i for i, reset in enumerate(resets(ids[0].tolist())) if reset]
    for start, end in zip(starts, [*starts[1:], 5], strict=True):
        total += float((renewed[0, start].exp() * tokens[0, :, start:end].exp().prod(1)).sum().log())
    assert float(marginal.segment_log_likelihood(renewed, tokens, ids)) == pytest.approx(total, abs=1e-10)
    same = renewed[:, :1].expand(1, 5, 3)
    torch.testing.assert_close(marginal.blame(same, tokens, ids), marginal.blame(renewed[:, 0], tokens, ids))


@given(seed=SEEDS, no_passage=st.floats(-5, 5), scale=st.floats(0.1, 20))
def test_prior_is_a_softmax_with_the_no_passage_logit_beside_the_scaled_scores(seed, no_passage, scale):
    scores = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = [math.exp(scale * s) for s in scores.tolist()] + [math.exp(no_passage)]
    expected = [w / sum(weights) for w in weights]
    assert marginal.log_prior(scores, scale, no_passage).exp().tolist() == pytest.approx(expected, rel=1e-9)
    more = marginal.log_prior(torch.cat([scores, scores]), scale, no_passage)
    assert float(more[-1]) < float(marginal.log_prior(scores, scale, no_passage)[-1])  # pi_0 falls as k grows


def test_evidence_is_the_gain_per_token_over_the_closed_book():
    prior = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log()
    tokens = torch.tensor([[[0.5, 0.5], [0.25, 1.0], [0.1, 0.2]]], dtype=torch.float64).log()
    ids = torch.zeros(1, 2, dtype=torch.long)
    read = math.log(0.4 * 0.25 + 0.6 * 0.25)
    assert float(marginal.evidence(prior, tokens, ids)) == pytest.approx((read - math.log(0.02)) / 2)
    mask = torch.tensor([[True, False]])
    first = math.log(0.4 * 0.5 + 0.6 * 0.25) - math.log(0.1)
    assert float(marginal.evidence(prior, tokens, ids, mask)) == pytest.approx(first)
    never = torch.full_like(tokens, -torch.inf)
    assert float(marginal.evidence(prior, never, ids)) == 0
    same = tokens[:, :1].expand(1, 3, 2)
    assert float(marginal.evidence(prior, same, ids)) == pytest.approx(0, abs=1e-12)


def test_shapes_that_would_broadcast_are_refused():
    prior, tokens, ids = tensors(0)
    for bad in [(prior[:1], tokens, ids), (prior, tokens, ids[:1]), (prior[:, :1], tokens, ids)]:
        with pytest.raises((UsageError, TypeError)):
            marginal.segment_log_likelihood(*bad)
    with pytest.raises(UsageError, match="prior scale"):
        marginal.log_prior(prior, 0.0)


def test_an_answer_of_nothing_leaves_the_prior():
    prior = torch.tensor([[0.2, 0.8]]).log()
    nothing = torch.zeros(1, 2, 0)
    ids = torch.zeros(1, 0, dtype=torch.long)
    assert float(marginal.segment_log_likelihood(prior, nothing, ids)) == 0
    assert marginal.posterior(prior, nothing, ids)[0].tolist() == pytest.approx([0.2, 0.8])
    assert marginal.blame(prior, nothing, ids).shape == (1, 2, 0)


def test_eos_after_a_closed_sentence_is_a_segment_of_its_own():
    assert segment_ids((2, 1, EOS), boundary("sentence", text)) == [0, 0, 1]
    assert segment_ids((2, 3, 2, EOS), boundary("sentence", text)) == [0, 0, 0, 1]  # "Valve 3. Valve": seen at the word
    assert segment_ids((2, 4, 2, EOS), boundary("sentence", text)) == [0, 0, 0, 0]  # "Dr. Valve"
