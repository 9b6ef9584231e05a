"""The training loss: -log p(y|x), for every scheme one function of priors, likelihoods and segments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bifolio import marginal
from bifolio.errors import UsageError
from bifolio.hypotheses import Mixture
from bifolio.segments import segment_ids


def mean_loss(
    token_log_probs: Float[Tensor, "B K T"],
    mask: Bool[Tensor, "B T"],
    answers: Sequence[Sequence[int]],
    mixtures: Sequence[Mixture],
    log_prior: Float[Tensor, "B K"] | None = None,
) -> Float[Tensor, ""]:
    """Mean of -log p(y|x) over B answers, nats.

    Args:
        token_log_probs: Log p(y_i | x, z, y_<i).
        mask: False for padding.
        answers: Token ids of each answer.
        mixtures: Prior and segments of each question.
        log_prior: A differentiable prior in place of the mixtures' own.

    Raises:
        UsageError: the prior's shape is not (B, K).
    """
    batch, branches, longest = token_log_probs.shape
    ids = torch.zeros((batch, longest), dtype=torch.long, device=token_log_probs.device)
    priors = token_log_probs.new_zeros((batch, longest, branches))
    for b, (answer, mixture) in enumerate(zip(answers, mixtures, strict=True)):
        own = segment_ids(answer, mixture.starts_segment)
        ids[b, : len(own)] = torch.tensor(own)
        if log_prior is not None:
            continue
        starts = [i for i in range(len(own)) if i == 0 or own[i] != own[i - 1]]
        fresh = mixture.prior([tuple(answer[:i]) for i in starts]).to(priors)
        priors[b, : len(own)] = fresh[ids[b, : len(own)]]
    if log_prior is not None and tuple(log_prior.shape) != (batch, branches):
        raise UsageError(f"the prior has shape {tuple(log_prior.shape)}: expected {(batch, branches)}")
    prior = priors if log_prior is None else log_prior.to(token_log_probs)
    if any(mixture.limit is not None for mixture in mixtures):
        limited = [
            marginal.token_log_likelihood(
                prior[b : b + 1], token_log_probs[b : b + 1], ids[b : b + 1], mask[b : b + 1], limit=mixture.limit
            ).sum()
            for b, mixture in enumerate(mixtures)
        ]
        return -torch.stack(limited).mean()
    return -marginal.segment_log_likelihood(prior, token_log_probs, ids, mask).mean()
