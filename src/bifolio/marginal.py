"""The mixture p(y|x) = sum_z p(z|x) p(y|x,z): likelihood, blame and posterior of every scheme, as one recursion.

Start with ``log w = log pi``. At token i:

    mixture   log p(y_i | x, y_<i) = logsumexp_z( log w_z + l_z,i )
    blame     r_z,i = exp( log w_z + l_z,i - log p(y_i | x, y_<i) )
    update    log w <- log r                       (Bayes' rule: the posterior after seeing y_i)
    reset     log w <- log pi                      (where a new segment begins)

The scheme is nothing but where the segments begin: at every token it is the paper's RAG-Token (Lewis et al. 2020,
arXiv:2005.11401, section 2.1), never it is RAG-Sequence exactly, after every sentence it gives one posterior per
sentence. Everything here is a pure function of

    log_prior        (B, K), or (B, T, K) where the prior is renewed within the answer: log pi_z = log p(z | x)
    token_log_probs  (B, K, T): l_z,i = log p(y_i | x, z, y_<i)
    segment_ids      (B, T): a segment is a maximal run of equal ids
    mask             (B, T): False for padding, which may hold anything, also NaN

with B questions, K branches (passages, and one for no passage where it is used) and T tokens. Zero probabilities
(-inf) are legal and give no NaN, neither in values nor in gradients, as long as each prior leaves one branch possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bifolio.errors import UsageError


def log_prior(scores: Float[Tensor, "*B K"], scale: float = 1.0, no_passage_logit: float | None = None) -> Tensor:
    """Scores of the retrieved passages to log pi_z = log_softmax(scale * s)_z, over these passages alone.

    Args:
        scores: s_z = E_Q(x) . E_P(z), shape (..., K); -inf for a branch that does not take part.
        scale: 1/tau (``EncoderSpec.prior_scale``).
        no_passage_logit: b, the logit of one more branch, the last one, which reads no passage. It is on the scale
            of ``scale * s``, so that pi_0 falls as K grows. None for no such branch.

    Returns:
        Shape (..., K), or (..., K + 1) with the no-passage branch. The exponentials sum to 1.

    Raises:
        UsageError: ``scale`` is not a finite number above 0.
    """
    if not 0 < scale < float("inf"):
        raise UsageError(f"prior scale {scale!r}: expected a finite number above 0")
    logits = scale * scores
    if no_passage_logit is not None:
        logits = torch.cat([logits, logits.new_full((*logits.shape[:-1], 1), no_passage_logit)], dim=-1)
    return torch.log_softmax(logits, dim=-1)


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """``torch.logsumexp`` whose gradient is 0, and not NaN, where every term is -inf."""
    possible = (x > -torch.inf).any(dim, keepdim=True)
    # The inner where keeps exp and log away from -inf - (-inf); the outer one restores the value.
    total = torch.logsumexp(torch.where(possible, x, torch.zeros_like(x)), dim)
    return torch.where(possible.squeeze(dim), total, torch.full_like(total, -torch.inf))


def mixture(log_w: Float[Tensor, "H K"], log_probs: Float[Tensor, "H K V"]) -> Float[Tensor, "H V"]:
    """Next-token distribution of the mixture, log p(y_i | x, y_<i), for H hypotheses over V tokens."""
    return torch.logsumexp(log_w[:, :, None] + log_probs, dim=1)


def bayes_update(log_w: Float[Tensor, "H K"], log_likelihood: Float[Tensor, "H K"]) -> Float[Tensor, "H K"]:
    """Log blame: the posterior log weights after one token. A token that no branch can produce leaves w as it was."""
    joint = log_w + log_likelihood
    total = logsumexp(joint, dim=1)[:, None]
    possible = total > -torch.inf
    return torch.where(possible, joint - torch.where(possible, total, torch.zeros_like(total)), log_w)


Limit = Callable[[Tensor], Tensor]
"""What is done to log w (H, K) before a token: nothing, or :func:`capped`."""


def capped(log_w: Float[Tensor, "H K"], sources: Int[Tensor, " K"], cap: float) -> Float[Tensor, "H K"]:
    """Log w with no source above ``cap``: what it has more goes to the others, in proportion to what they have.

    Passages of one source share a number in ``sources``. Where fewer than 1 / cap sources have any weight, the cap is
    the equal share of those that have. A recursion with it is another model (MATH section 8), in which a confident
    passage cannot win the whole of the update.
    """
    sources = sources.to(log_w.device)
    inside = sources == torch.arange(int(sources.max()) + 1, device=sources.device)[:, None]  # (S, K)
    # In logarithms throughout: the weights of others are what a confident source leaves, down to e^-100 and below.
    total = logsumexp(torch.where(inside, log_w[:, None], -torch.inf), dim=2)  # (H, S)
    alive = (total > -torch.inf).sum(1, keepdim=True).clamp(min=1)
    most = torch.maximum(total.new_full((1, 1), cap), 1 / alive.to(total))
    fixed = torch.zeros_like(total, dtype=torch.bool)
    scaled = total
    for _ in range(total.shape[1]):  # each round fixes at least one more source, or is the last
        rest = logsumexp(torch.where(fixed, -torch.inf, total), dim=1)[:, None]
        room = (1 - most * fixed.sum(1, keepdim=True)).clamp(min=0)
        scaled = torch.where(fixed, most.log(), total - torch.where(rest > -torch.inf, rest, 0.0) + room.log())
        over = ~fixed & (scaled > most.log() + 1e-6)
        if not bool(over.any()):
            break
        fixed = fixed | over
    gain = torch.where(total > -torch.inf, scaled - torch.where(total > -torch.inf, total, 0.0), 0.0)
    return torch.log_softmax(log_w + gain[:, sources], dim=1)  # what rounding took away from large logarithms


class _Runs(NamedTuple):
    """Segments as maximal runs of equal ids over the tokens that are not padding."""

    mask: Bool[Tensor, "B T"]
    starts: Bool[Tensor, "B T"]  # the first token of its run
    run: Int[Tensor, "B T"]  # number of the run, from 0; padding is counted to a neighbouring run


def _runs(segment_ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None) -> _Runs:
    """Find the runs; padding in any place neither opens nor breaks one."""
    if mask is None:
        mask = torch.ones_like(segment_ids, dtype=torch.bool)
    position = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    latest = torch.where(mask, position, -1).cummax(dim=1).values if segment_ids.shape[1] else position
    previous = torch.cat([latest.new_full((latest.shape[0], 1), -1), latest[:, :-1]], dim=1)[:, : latest.shape[1]]
    previous_id = segment_ids.gather(1, previous.clamp(min=0))
    starts = mask & ((previous < 0) | (previous_id != segment_ids))
    return _Runs(mask, starts, (starts.cumsum(dim=1) - 1).clamp(min=0))


def _prior_per_token(log_prior: Tensor, token_log_probs: Float[Tensor, "B K T"]) -> Float[Tensor, "B K T"]:
    if log_prior.ndim == 2:
        return log_prior[:, :, None].expand_as(token_log_probs)
    if log_prior.ndim == 3:
        return log_prior.transpose(1, 2)
    raise UsageError(f"log_prior has shape {tuple(log_prior.shape)}: expected (B, K) or (B, T, K)")


def _check(log_prior: Tensor, token_log_probs: Tensor, segment_ids: Tensor, mask: Tensor | None) -> None:
    """Broadcasting would accept some wrong shapes and answer with wrong numbers."""
    if token_log_probs.ndim != 3:
        raise UsageError(f"token_log_probs has shape {tuple(token_log_probs.shape)}: expected (B, K, T)")
    b, k, t = token_log_probs.shape
    expected: dict[str, tuple[Tensor | None, list[tuple[int, ...]]]] = {
        "log_prior": (log_prior, [(b, k), (b, t, k)]),
        "segment_ids": (segment_ids, [(b, t)]),
        "mask": (mask, [(b, t)]),
    }
    for name, (tensor, shapes) in expected.items():
        if tensor is not None and tuple(tensor.shape) not in shapes:
            allowed = " or ".join(str(shape) for shape in shapes)
            raise UsageError(
                f"{name} has shape {tuple(tensor.shape)}: expected {allowed} beside token_log_probs {(b, k, t)}"
            )
    if k == 0:
        raise UsageError("token_log_probs has no branch (K = 0): there is nothing to mix")


def _segment_joint(
    log_prior: Tensor, token_log_probs: Float[Tensor, "B K T"], runs: _Runs
) -> tuple[Float[Tensor, "B K T"], Int[Tensor, "B T"]]:
    """Log pi_z + sum_{i in S} l_z,i per segment S (at most T of them), and how many tokens each has (0: unused)."""
    index = runs.run[:, None, :].expand_as(token_log_probs)
    nothing = torch.zeros_like(token_log_probs)
    likelihood = torch.where(runs.mask[:, None, :], token_log_probs, nothing)
    # A segment's prior is the one at its first token; the (B, K) prior is the same at every token.
    prior = torch.where(runs.starts[:, None, :], _prior_per_token(log_prior, token_log_probs), nothing)
    joint = nothing.scatter_add(2, index, likelihood) + nothing.scatter_add(2, index, prior)
    size = torch.zeros_like(runs.run).scatter_add(1, runs.run, runs.mask.to(runs.run.dtype))
    return joint, size


def segment_log_likelihood(
    log_prior: Float[Tensor, "B *T K"],
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, " B"]:
    """Log p(y|x) = sum_S logsumexp_z( log pi_z + sum_{i in S} l_z,i ), nats.

    With one segment per token this is RAG-Token, with a single segment RAG-Sequence (Lewis et al. 2020, section 2.1).
    Its gradient to a score is MATH section 4: (1/tau) sum_S (r_S,z - pi_z). An answer without tokens has log p = 0.

    Args:
        log_prior: (B, K), or (B, T, K) of which the row at each segment's first token counts.
        token_log_probs: (B, K, T).
        segment_ids: (B, T), maximal runs of equal ids are the segments.
        mask: (B, T), False for padding; None for no padding.

    Raises:
        UsageError: the shapes do not fit together.
    """
    _check(log_prior, token_log_probs, segment_ids, mask)
    joint, size = _segment_joint(log_prior, token_log_probs, _runs(segment_ids, mask))
    used = size > 0
    # Unused columns hold neither token nor prior: they count as log 1.
    per_segment = logsumexp(torch.where(used[:, None, :], joint, torch.zeros_like(joint)), dim=1)
    return torch.where(used, per_segment, torch.zeros_like(per_segment)).sum(1)


def segment_posteriors(
    log_prior: Float[Tensor, "B *T K"],
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B K T"]:
    """r_S,z, proportional to pi_z exp(sum_{i in S} l_z,i): the posterior at the end of segment S, in column S.

    Segments are numbered from 0 in order; each used column sums to 1 over branches, columns after the last segment are
    0. A segment that no branch can produce keeps its prior.

    Raises:
        UsageError: the shapes do not fit together.
    """
    _check(log_prior, token_log_probs, segment_ids, mask)
    runs = _runs(segment_ids, mask)
    joint, size = _segment_joint(log_prior, token_log_probs, runs)
    prior_only, _ = _segment_joint(log_prior, torch.zeros_like(token_log_probs), runs)
    possible = (joint > -torch.inf).any(dim=1, keepdim=True)
    rows = torch.softmax(torch.where(possible, joint, prior_only), dim=1)
    return torch.where(size[:, None, :] > 0, rows, torch.zeros_like(rows))


def posterior(
    log_prior: Float[Tensor, "B *T K"],
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B K"]:
    """The answer's row of citations, sum_S |S|/T r_S,z (MATH section 3): sums to 1 over the branches.

    For a single segment this is p(z | x, y) itself. An answer without tokens has told nothing: its row is the prior.

    Raises:
        UsageError: the shapes do not fit together.
    """
    rows = segment_posteriors(log_prior, token_log_probs, segment_ids, mask)
    if not token_log_probs.shape[2] and log_prior.ndim == 3:
        raise UsageError("an answer without tokens has no (B, T, K) prior: give a (B, K) one")
    _, size = _segment_joint(log_prior, token_log_probs, _runs(segment_ids, mask))
    length = size.sum(1, keepdim=True)
    share = size.to(rows.dtype) / length.clamp(min=1).to(rows.dtype)
    answer = (rows * share[:, None, :]).sum(2)
    prior = log_prior if log_prior.ndim == 2 else log_prior[:, 0]
    return torch.where(length > 0, answer, torch.softmax(prior, dim=-1))


def _filter(
    log_prior: Tensor,
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Tensor | None,
    limit: Limit | None,
) -> tuple[Float[Tensor, "B K T"], Float[Tensor, "B T"]]:
    """The recursion of the module's head, token by token: log blame, and log p(y_i | x, y_<i); 0 for padding."""
    _check(log_prior, token_log_probs, segment_ids, mask)
    runs = _runs(segment_ids, mask)
    prior = _prior_per_token(log_prior, token_log_probs)
    weights, totals = [], []
    log_w = torch.zeros_like(prior[:, :, 0]) if prior.shape[2] else prior.new_zeros(prior.shape[:2])
    for i in range(token_log_probs.shape[2]):
        log_w = torch.where(runs.starts[:, i, None], torch.log_softmax(prior[:, :, i], dim=1), log_w)
        log_w = log_w if limit is None else limit(log_w)
        present = runs.mask[:, i, None]
        token = torch.where(present, token_log_probs[:, :, i], torch.zeros_like(log_w))
        total = logsumexp(log_w + token, dim=1)
        totals.append(torch.where(runs.mask[:, i], total, torch.zeros_like(total)))
        log_w = torch.where(present, bayes_update(log_w, token), log_w)
        weights.append(log_w)
    if not weights:
        return torch.zeros_like(token_log_probs), token_log_probs.new_zeros(token_log_probs.shape[0], 0)
    return torch.stack(weights, dim=2), torch.stack(totals, dim=1)


def blame(
    log_prior: Float[Tensor, "B *T K"],
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
    limit: Limit | None = None,
) -> Float[Tensor, "B K T"]:
    """r_z,i = p(z | x, y_<=i since the last reset): the recursion of the module's head, token by token.

    Each column sums to 1 over the branches; columns of padding are 0. A token that no branch can produce leaves the
    weights as they were.

    Raises:
        UsageError: the shapes do not fit together.
    """
    log_w, _ = _filter(log_prior, token_log_probs, segment_ids, mask, limit)
    present = torch.ones_like(segment_ids, dtype=torch.bool) if mask is None else mask
    return torch.where(present[:, None, :], log_w.exp(), torch.zeros_like(log_w))


def token_log_likelihood(
    log_prior: Float[Tensor, "B *T K"],
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
    limit: Limit | None = None,
) -> Float[Tensor, "B T"]:
    """Log p(y_i | x, y_<i) of every token, nats, 0 for padding.

    Without ``limit``, and with a prior that sums to 1, their sum is :func:`segment_log_likelihood`.

    Raises:
        UsageError: the shapes do not fit together.
    """
    return _filter(log_prior, token_log_probs, segment_ids, mask, limit)[1]


def evidence(
    log_prior: Float[Tensor, "B *T K"],
    token_log_probs: Float[Tensor, "B K T"],
    segment_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, " B"]:
    """( log p(y | passages only) - log p(y | no passage) ) / T, nats per token; the last branch read no passage.

    Support alone is not use: a model that ignores its passages leaves the posterior at the prior, and this at 0
    (MATH section 3).

    Raises:
        UsageError: the shapes do not fit together, or there is no passage beside the no-passage branch.
    """
    _check(log_prior, token_log_probs, segment_ids, mask)
    if token_log_probs.shape[1] < 2:
        raise UsageError("evidence compares passages with the no-passage branch: expected at least two branches")
    passages = torch.log_softmax(log_prior[..., :-1], dim=-1)
    read = segment_log_likelihood(passages, token_log_probs[:, :-1], segment_ids, mask)
    nothing = torch.zeros_like(log_prior[..., -1:])
    unread = segment_log_likelihood(nothing, token_log_probs[:, -1:], segment_ids, mask)
    length = max(1, token_log_probs.shape[2]) if mask is None else mask.sum(1).clamp(min=1)
    gain = torch.where(read == unread, torch.zeros_like(read), read - unread)  # equal, also where both are impossible
    return gain / length
