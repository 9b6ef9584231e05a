"""What a search works on: the mixture that is decoded, its live hypotheses, and the answers that they become.

Each hypothesis carries its own log w (MATH section 2), so that every scheme is searched in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import marginal
from bifolio.segments import Boundary, segment_ids

Prior = Callable[[Sequence[tuple[int, ...]]], Float[Tensor, "H K"]]
"""Log pi of the segment that begins after each of H prefixes."""


@dataclass(frozen=True)
class Mixture:
    """What is decoded, apart from the branches: prior, scheme, and the token that ends an answer.

    Attributes:
        prior: Log pi after each prefix; ``constant(log_prior)`` for every scheme but ``requery``.
        starts_segment: Where w returns to the prior.
        eos: The token that ends an answer.
        limit: What is done to log w before each token; None for the paper's model.
    """

    prior: Prior
    starts_segment: Boundary
    eos: int
    limit: marginal.Limit | None = None

    def limited(self, log_w: Float[Tensor, "H K"]) -> Float[Tensor, "H K"]:
        """Log w as it is used for the next token."""
        return log_w if self.limit is None else self.limit(log_w)


def constant(log_prior: Float[Tensor, " K"]) -> Prior:
    """The prior that is the same wherever a segment begins."""
    return lambda prefixes: log_prior.expand(len(prefixes), -1)


@dataclass(frozen=True)
class Decoded:
    """One answer as tokens, with all that its citations need.

    Attributes:
        tokens: T token ids, ``eos`` included when the answer ended by itself.
        log_probs: (T,) log p(y_i | x, y_<i) of the mixture, untempered.
        token_log_probs: (K, T) l_z,i.
        log_priors: (T, K) the prior of the segment that each token is in.
        segment_ids: T numbers from 0.
        finished: False when ``max_tokens`` cut the answer.
        limit: The mixture's.
    """

    tokens: tuple[int, ...]
    log_probs: Float[Tensor, " T"]
    token_log_probs: Float[Tensor, "K T"]
    log_priors: Float[Tensor, "T K"]
    segment_ids: tuple[int, ...]
    finished: bool
    limit: marginal.Limit | None = None

    @property
    def log_prob(self) -> float:
        """Log p(y|x) in nats, EOS included if there is one."""
        return float(self.log_probs.cpu().double().sum())  # not every device has doubles


@dataclass(frozen=True)
class Live:
    """H hypotheses of equal length t that go on."""

    tokens: list[tuple[int, ...]]
    total: Float[Tensor, " H"]  # log p(y_<t | x)
    log_w: Float[Tensor, "H K"]  # already reset where a segment begins, and limited
    log_pi: Float[Tensor, "H K"]  # the prior of the segment that the next token is in
    log_probs: Float[Tensor, "H t"]
    token_log_probs: Float[Tensor, "H K t"]
    log_priors: Float[Tensor, "H t K"]


def begin(mixture: Mixture) -> Live:
    """The empty hypothesis."""
    log_pi = mixture.prior([()])
    empty = log_pi.new_zeros((1, log_pi.shape[1], 0))
    return Live([()], log_pi.new_zeros(1), mixture.limited(log_pi), log_pi, empty[:, 0], empty, empty.transpose(1, 2))


def extend(
    live: Live,
    parents: list[int],
    tokens: list[int],
    mixed: Float[Tensor, "H V"],
    log_probs: Float[Tensor, "H K V"],
) -> Live:
    """Hypothesis ``parents[j]`` followed by ``tokens[j]``, with w after Bayes' rule and before any reset."""
    rows = torch.tensor(parents, device=mixed.device)
    columns = torch.tensor(tokens, device=mixed.device)
    token = mixed[rows, columns]
    likelihood = log_probs[rows, :, columns]
    log_pi = live.log_pi[rows]
    return Live(
        [(*live.tokens[parent], token_id) for parent, token_id in zip(parents, tokens, strict=True)],
        live.total[rows] + token,
        marginal.bayes_update(live.log_w[rows], likelihood),
        log_pi,
        torch.cat([live.log_probs[rows], token[:, None]], dim=1),
        torch.cat([live.token_log_probs[rows], likelihood[:, :, None]], dim=2),
        torch.cat([live.log_priors[rows], log_pi[:, None]], dim=1),
    )


def reset(live: Live, mixture: Mixture) -> Live:
    """Restore the prior of the hypotheses that begin a new segment, and limit w."""
    log_w, log_pi = live.log_w, live.log_pi
    begins = [h for h, tokens in enumerate(live.tokens) if mixture.starts_segment(tokens)]
    if begins:
        rows = torch.tensor(begins, device=log_w.device)
        fresh = mixture.prior([live.tokens[h] for h in begins]).to(log_w)
        log_w, log_pi = log_w.index_copy(0, rows, fresh), log_pi.index_copy(0, rows, fresh)
    return replace(live, log_w=mixture.limited(log_w), log_pi=log_pi)


def done(live: Live, row: int, mixture: Mixture, finished: bool) -> Decoded:
    """Hypothesis ``row`` as an answer."""
    ids = tuple(segment_ids(live.tokens[row], mixture.starts_segment))
    return Decoded(
        live.tokens[row],
        live.log_probs[row],
        live.token_log_probs[row],
        live.log_priors[row],
        ids,
        finished,
        mixture.limit,
    )


def pick(live: Live, rows: list[int]) -> Live:
    """Only these hypotheses."""
    index = torch.tensor(rows, device=live.total.device)
    return Live(
        [live.tokens[j] for j in rows],
        live.total[index],
        live.log_w[index],
        live.log_pi[index],
        live.log_probs[index],
        live.token_log_probs[index],
        live.log_priors[index],
    )
