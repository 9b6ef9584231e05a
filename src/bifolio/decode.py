"""Decoding the mixture exactly: one beam search, or one sample, whatever the scheme.

The paper notes that RAG-Sequence's likelihood "does not break into a conventional per-token likelihood" (section 2.5)
and searches every passage on its own. With the weights w of :mod:`bifolio.marginal` it does break: each hypothesis
carries its own log w, its next-token distribution is ``logsumexp_z(log w_z + l_z)``, and Bayes' rule updates w. So
greedy search, beam search and sampling are the ordinary ones, and their scores are exact log-likelihoods. (The same
update was published for visual question answering as BERAG, arXiv:2604.22678.) The scores are exact; the search is
still a search.

Nothing here knows a model: it sees :class:`bifolio.protocols.Branches`, token ids and a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import marginal
from bifolio.errors import UsageError
from bifolio.protocols import Branches
from bifolio.segments import Boundary, segment_ids


@dataclass(frozen=True)
class Decoded:
    """One answer as tokens, with all that its citations need.

    Attributes:
        tokens: T token ids, ``eos`` included when the answer ended by itself.
        log_probs: (T,) log p(y_i | x, y_<i) of the mixture, untempered.
        token_log_probs: (K, T) l_z,i.
        segment_ids: T numbers from 0.
        finished: False when ``max_tokens`` cut the answer.
    """

    tokens: tuple[int, ...]
    log_probs: Float[Tensor, " T"]
    token_log_probs: Float[Tensor, "K T"]
    segment_ids: tuple[int, ...]
    finished: bool

    @property
    def log_prob(self) -> float:
        """Log p(y|x) in nats, EOS included if there is one."""
        return float(self.log_probs.double().sum())


@dataclass(frozen=True)
class _Live:
    """H hypotheses of equal length t that go on."""

    tokens: list[tuple[int, ...]]
    total: Float[Tensor, " H"]  # log p(y_<t | x)
    log_w: Float[Tensor, "H K"]  # already reset where a segment begins
    log_probs: Float[Tensor, "H t"]
    token_log_probs: Float[Tensor, "H K t"]


def _begin(log_prior: Float[Tensor, " K"]) -> _Live:
    empty = log_prior.new_zeros((1, log_prior.shape[0], 0))
    return _Live([()], log_prior.new_zeros(1), log_prior[None], empty[:, 0], empty)


def _extend(
    live: _Live,
    parents: list[int],
    tokens: list[int],
    mixed: Float[Tensor, "H V"],
    log_probs: Float[Tensor, "H K V"],
) -> _Live:
    """Hypothesis ``parents[j]`` followed by ``tokens[j]``, with w after Bayes' rule and before any reset."""
    rows = torch.tensor(parents, device=mixed.device)
    columns = torch.tensor(tokens, device=mixed.device)
    token = mixed[rows, columns]
    likelihood = log_probs[rows, :, columns]
    return _Live(
        [(*live.tokens[parent], token_id) for parent, token_id in zip(parents, tokens, strict=True)],
        live.total[rows] + token,
        marginal.bayes_update(live.log_w[rows], likelihood),
        torch.cat([live.log_probs[rows], token[:, None]], dim=1),
        torch.cat([live.token_log_probs[rows], likelihood[:, :, None]], dim=2),
    )


def _reset(live: _Live, log_prior: Float[Tensor, " K"], starts_segment: Boundary) -> _Live:
    """Restore the prior of the hypotheses that begin a new segment."""
    begins = torch.tensor([starts_segment(tokens) for tokens in live.tokens], device=log_prior.device)
    log_w = torch.where(begins[:, None], log_prior[None], live.log_w)
    return _Live(live.tokens, live.total, log_w, live.log_probs, live.token_log_probs)


def _done(live: _Live, row: int, starts_segment: Boundary, finished: bool) -> Decoded:
    ids = tuple(segment_ids(live.tokens[row], starts_segment))
    return Decoded(live.tokens[row], live.log_probs[row], live.token_log_probs[row], ids, finished)


def rank_score(answer: Decoded, length_penalty: float) -> float:
    """What beam search ranks by: log p(y|x) / T^length_penalty. With 0, the default, it is the log-likelihood."""
    return float(answer.log_prob / max(len(answer.tokens), 1) ** length_penalty)


def _check(max_tokens: int, beams: int, n_best: int) -> None:
    if max_tokens < 1:
        raise UsageError(f"max_tokens {max_tokens}: expected at least 1")
    if beams < 1:
        raise UsageError(f"beam {beams}: expected at least 1")
    if not 1 <= n_best <= beams:
        raise UsageError(f"n_best {n_best}: expected 1 to the beam, {beams}")


def beam_search(
    branches: Branches,
    log_prior: Float[Tensor, " K"],
    starts_segment: Boundary,
    eos: int,
    *,
    max_tokens: int,
    beams: int = 1,
    n_best: int = 1,
    length_penalty: float = 0.0,
) -> list[Decoded]:
    """The best answers found, best first; with one beam it is greedy search.

    A hypothesis that ends with EOS is kept if it is among the ``beams`` best continuations of its step. The search
    stops when no live hypothesis can still overtake the ``n_best``-th finished one, so that what it returns is what
    an unlimited search with these beams would. Answers that ``max_tokens`` cut come after all finished ones.

    Raises:
        UsageError: a count is below 1, or no continuation has any probability.
    """
    _check(max_tokens, beams, n_best)
    live = _begin(log_prior)
    log_probs = branches.start()
    finished: list[Decoded] = []
    for step in range(1, max_tokens + 1):
        mixed = marginal.mixture(live.log_w, log_probs)
        ended, parents, tokens = _select(live.total[:, None] + mixed, beams, eos)
        if ended:
            rows = _extend(live, ended, [eos] * len(ended), mixed, log_probs)
            finished += [_done(rows, j, starts_segment, True) for j in range(len(ended))]
            finished.sort(key=lambda answer: -rank_score(answer, length_penalty))
        if not parents:
            break
        live = _extend(live, parents, tokens, mixed, log_probs)
        if len(finished) >= n_best:
            # Totals only fall, and dividing by a longer length only raises a negative score.
            best = float(live.total.max()) / (max_tokens if length_penalty > 0 else step) ** length_penalty
            if best <= rank_score(finished[n_best - 1], length_penalty):
                break
        if step == max_tokens:
            cut = [_done(live, j, starts_segment, False) for j in range(len(parents))]
            finished += sorted(cut, key=lambda answer: -rank_score(answer, length_penalty))
            break
        live = _reset(live, log_prior, starts_segment)
        log_probs = branches.advance(parents, tokens)
    if not finished:
        raise UsageError("no answer has any probability: every continuation is impossible under every branch")
    return finished[:n_best]


def _select(scores: Float[Tensor, "H V"], beams: int, eos: int) -> tuple[list[int], list[int], list[int]]:
    """The best continuations: rows that end now, and up to ``beams`` (row, token) pairs that go on."""
    width = scores.shape[1]
    # Each row has one EOS, so 2 * beams candidates always hold `beams` that go on.
    best, flat = scores.flatten().topk(min(2 * beams, scores.numel()))
    ended: list[int] = []
    parents: list[int] = []
    tokens: list[int] = []
    for place, (score, index) in enumerate(zip(best.tolist(), flat.tolist(), strict=True)):
        row, token = divmod(index, width)
        if score == -float("inf"):
            break
        if token == eos:
            if place < beams:
                ended.append(row)
        elif len(parents) < beams:
            parents.append(row)
            tokens.append(token)
    return ended, parents, tokens


def sample(
    branches: Branches,
    log_prior: Float[Tensor, " K"],
    starts_segment: Boundary,
    eos: int,
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Decoded:
    """One answer drawn from the mixture; the same seed gives the same answer.

    ``temperature`` and ``top_p`` shape what is drawn; the log-probabilities reported and w stay the model's own.

    Raises:
        UsageError: an option is out of range, or no continuation has any probability.
    """
    _check(max_tokens, 1, 1)
    if not 0 < temperature < float("inf"):
        raise UsageError(
            f"temperature {temperature}: expected a finite number above 0 (leave it out for greedy search)"
        )
    if not 0 < top_p <= 1:
        raise UsageError(f"top_p {top_p}: expected a number above 0 and at most 1")
    dice = torch.Generator(device="cpu").manual_seed(seed)
    live = _begin(log_prior)
    log_probs = branches.start()
    for step in range(1, max_tokens + 1):
        mixed = marginal.mixture(live.log_w, log_probs)
        weights = _truncate(mixed[0].double().cpu(), temperature, top_p)
        if not float(weights.sum()) > 0:
            raise UsageError("no answer has any probability: every continuation is impossible under every branch")
        token = int(torch.multinomial(weights, 1, generator=dice))
        live = _extend(live, [0], [token], mixed, log_probs)
        if token == eos or step == max_tokens:
            break
        live = _reset(live, log_prior, starts_segment)
        log_probs = branches.advance([0], [token])
    return _done(live, 0, starts_segment, live.tokens[0][-1] == eos)


def _truncate(log_p: Float[Tensor, " V"], temperature: float, top_p: float) -> Float[Tensor, " V"]:
    """Weights to draw from: tempered, and only the smallest set of tokens that holds ``top_p`` of the mass."""
    if bool((log_p == -torch.inf).all()):
        return torch.zeros_like(log_p)
    probability = torch.softmax((log_p - log_p.max()) / temperature, dim=0)  # tiny temperatures must not overflow
    if top_p >= 1:
        return probability
    ordered, order = probability.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    return torch.zeros_like(probability).scatter(0, order, torch.where(before < top_p, ordered, 0.0))
