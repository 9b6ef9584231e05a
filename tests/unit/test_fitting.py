"""The prior's values and gradients, and fitting it to what made the data."""

import json
import math

import numpy as np
import pytest
import torch

from bifolio.errors import EncoderMismatchError, MissingPathError, UsageError
from bifolio.fitting import Judged, Prior, RetrievalProfile, default_prior, fit_prior
from bifolio.protocols import EncoderSpec

SPEC = EncoderSpec("m", "sha256:m", 4, 20.0, 8.0, 64)


def test_the_prior_is_the_softmax_of_scaled_scores_and_offsets():
    found = Prior(2.0, 0.5).log_prior([1.0, 0.0], [0.0, 3.0], no_passage=True).exp().tolist()
    whole = math.exp(2) + math.exp(3) + math.exp(0.5)
    assert found == pytest.approx([math.exp(2) / whole, math.exp(3) / whole, math.exp(0.5) / whole])


def test_offsets_of_zero_change_nothing():
    prior = Prior(3.0, 1.0)
    assert torch.equal(prior.log_prior([0.3, 0.1], [0.0, 0.0]), prior.log_prior([0.3, 0.1]))


def test_gradients_reach_dense_scores_and_offsets_are_constants():
    scores = torch.tensor([[0.4, 0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    pi = Prior(5.0, None).differentiable(scores, [[0.0, 1.0, 2.0]])
    (-pi[0, 1]).backward()
    expected = 5 * pi[0].exp().detach()
    expected[1] -= 5
    assert scores.grad[0].tolist() == pytest.approx(expected.tolist())


def test_default_priors_of_the_modes():
    assert default_prior("dense", lambda: SPEC) == Prior(20.0, 8.0)
    assert default_prior("hybrid", lambda: SPEC) == Prior(12.0, 0.6 * 8.0 + 7.5, 7.5)
    bare = EncoderSpec("m", "sha256:m", 4, 1.0, None, 64)
    assert default_prior("hybrid", lambda: bare).no_passage_logit is None
    asked = []
    assert default_prior("lexical", lambda: asked.append(1)).scale == 0.0
    assert asked == []


def test_a_weight_of_words_that_cannot_be():
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="lexical_weight"):
            Prior(1.0, None, weight)


def drawn(count, scale, weight, b=None, seed=0, n=6):
    """Questions whose right passage is drawn from the prior itself."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        dense, shares = rng.normal(size=n), rng.uniform(0, 1.5, size=n)
        logits = scale * dense + weight * shares
        logits = logits if b is None else np.append(logits, b)
        p = np.exp(logits - np.logaddexp.reduce(logits))
        chosen = rng.choice(len(p), p=p)
        made.append(Judged(dense, shares, np.arange(n) == chosen))
    return made


def test_the_constants_that_made_the_data_come_back():
    prior, loss = fit_prior(drawn(4000, 1.5, 3.0, 2.0), "hybrid", no_passage=True)
    assert prior.scale == pytest.approx(1.5, abs=0.1)
    assert prior.lexical_weight == pytest.approx(3.0, abs=0.3)
    assert prior.no_passage_logit == pytest.approx(2.0, abs=0.25)
    assert 0 < loss < math.log(7)


def test_the_maximum_is_one():
    """No neighbour does better, by a slow count of the likelihood."""
    judged = drawn(60, 1.0, 2.0, seed=3)
    prior, loss = fit_prior(judged, "hybrid", ridge=0.0)

    def slow(scale, weight):
        total = 0.0
        for one in judged:
            logits = scale * one.dense + weight * one.shares
            total += np.logaddexp.reduce(logits) - logits[one.right][0]
        return total / len(judged)

    assert slow(prior.scale, prior.lexical_weight) == pytest.approx(loss, abs=1e-9)
    for ds, dw in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
        assert slow(prior.scale + ds, prior.lexical_weight + dw) > loss


def test_a_scale_that_is_kept():
    prior, _ = fit_prior(drawn(500, 1.5, 3.0), "hybrid", scale=1.5)
    assert prior.scale == 1.5
    assert prior.lexical_weight == pytest.approx(3.0, abs=0.5)


def test_separable_data_have_a_finite_fit():
    judged = [Judged(np.array([1.0, 0.0]), np.zeros(2), np.array([True, False]))] * 5
    prior, loss = fit_prior(judged, "dense", ridge=1e-3)
    assert 1 < prior.scale < 100
    assert loss < 0.1


def test_several_right_passages():
    judged = [Judged(np.array([2.0, 1.0, 0.0, 1.5]), np.zeros(4), np.array([True, True, False, False]))]
    judged += [Judged(np.array([0.5, 2.0, 0.0, 1.5]), np.zeros(4), np.array([True, False, False, True]))]
    prior, loss = fit_prior(judged, "dense", ridge=0.01)
    assert prior.scale > 0
    assert math.isfinite(loss)


def test_what_cannot_be_fitted():
    with pytest.raises(UsageError, match="nothing to fit"):
        fit_prior([], "hybrid")
    nothing_right = Judged(np.ones(2), np.ones(2), np.zeros(2, dtype=bool))
    with pytest.raises(UsageError, match="nothing to fit"):
        fit_prior([nothing_right], "dense")
    wrong = Judged(np.array([0.0, 1.0]), np.zeros(2), np.array([True, False]))
    with pytest.raises(UsageError, match="scores say nothing"):
        fit_prior([wrong] * 3, "dense", ridge=0.1)


def test_a_profile_comes_back(tmp_path):
    profile = RetrievalProfile("sha256:m", "hybrid", Prior(9.5, 12.25, 8.75), 100, 0.5)
    profile.save(tmp_path / "p.json")
    again = RetrievalProfile.load(tmp_path / "p.json")
    assert again == profile
    assert again.prior_for(SPEC, "hybrid") == profile.prior
    with pytest.raises(UsageError, match="fitted for mode hybrid, not dense"):
        again.prior_for(SPEC, "dense")
    with pytest.raises(EncoderMismatchError, match="sha256:m"):
        again.prior_for(EncoderSpec("o", "sha256:o", 4, 1.0, None, 64), "hybrid")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"encoder": "x"}', "null", '{"encoder": 1, "mode": "dense", "prior": {"scale": 1, '
     '"no_passage_logit": null}}',
     '{"encoder": "x", "mode": "dense", "prior": {"scale": "1", "no_passage_logit": null}}',
     '{"encoder": "x", "mode": "dense", "prior": {"scale": 1, "no_passage_logit": null, "lexical_weight": "7"}}',
     '{"encoder": "x", "mode": "dense", "prior": {"scale": NaN, "no_passage_logit": null}}', "\ud83d".join("{}")],
)  # fmt: skip
def test_what_is_no_profile(tmp_path, content):
    (tmp_path / "p.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match=r"p\.json"):
        RetrievalProfile.load(tmp_path / "p.json")
    with pytest.raises(MissingPathError, match="no profile at"):
        RetrievalProfile.load(tmp_path / "q.json")


def test_a_profile_is_plain_json(tmp_path):
    RetrievalProfile("f", "dense", Prior(1.0, None)).save(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["prior"] == {
        "scale": 1.0, "no_passage_logit": None, "lexical_weight": 0.0,
    }  # fmt: skip
