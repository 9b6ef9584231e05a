"""How an answer begins and ends: what a model's own settings say, as one probability.

Several tokens may end an answer (all that the model names, and those that begin with a stop string): their probability
is summed into one, so that the mixture has one EOS. A token that must come first or last has probability 1 there, in
scoring, loss and decoding alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio.errors import ModelError


class _TargetLogProbs(torch.autograd.Function):
    """Logits (N, T, V) and targets (N, T) to log-probabilities: one pass over V forward, one buffer backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        total = torch.logsumexp(logits, dim=-1)
        ctx.save_for_backward(logits, target, total)
        return logits.gather(-1, target[..., None])[..., 0] - total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, target, total = ctx.saved_tensors
        out = torch.sub(logits, total[..., None]).exp_().mul_(-gradient[..., None])
        return out.scatter_add_(-1, target[..., None], gradient[..., None]), None


class Ends(NamedTuple):
    """The rules of one style.

    Attributes:
        eos: The token that stands for all that end an answer.
        stops: All of them, on the model's device.
        last: Tokens with a stop string behind other text, a full stop and a line break: the answer ends after them.
        first: The token that every answer begins with by the model's settings (``forced_bos_token_id``); None if none.
    """

    eos: int
    stops: Tensor
    last: frozenset[int] = frozenset()
    first: int | None = None

    def log_probs(self, logits: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
        """Log-softmax in float32 or wider whatever the model's type, all ways to end summed into EOS.

        Raises:
            ModelError: there is NaN among the logits.
        """
        log_p = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
        if len(self.stops) == 1:
            if bool(log_p[..., self.eos].isnan().any()):  # one NaN among the logits makes the whole row NaN
                raise ModelError(NAN)
            return log_p
        end = torch.logsumexp(log_p[..., self.stops], dim=-1)
        if bool(end.isnan().any()):
            raise ModelError(NAN)
        log_p[..., self.stops] = -torch.inf
        log_p[..., self.eos] = end
        return log_p

    def target_log_probs(self, logits: Float[Tensor, "N T V"], target: Tensor) -> Float[Tensor, "N T"]:
        """:meth:`log_probs` at ``target`` (T,) or (N, T) alone: differentiable, and without a second (N, T, V)."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        index = target.expand(wide.shape[:-1])
        log_p: Tensor = _TargetLogProbs.apply(wide, index)  # type: ignore[no-untyped-call]
        if len(self.stops) > 1:
            is_stop, is_end = torch.isin(index, self.stops), index == self.eos
            log_p = torch.where(is_stop & ~is_end, -torch.inf, log_p)
            if bool(is_end.any()):
                rows = wide[is_end]
                ends = torch.logsumexp(rows[:, self.stops], dim=-1) - torch.logsumexp(rows, dim=-1)
                log_p = log_p.masked_scatter(is_end, ends)
        if bool(log_p.isnan().any()):
            raise ModelError(NAN)
        return log_p

    def only(self, log_p: Float[Tensor, "... V"], token: int) -> None:
        """Make ``token`` certain, in place."""
        log_p.fill_(-torch.inf)
        log_p[..., token] = 0.0

    def certain(self, answer: Sequence[int]) -> dict[int, int]:
        """Positions of an answer at which one token is certain, and that token."""
        known = {i + 1: self.eos for i, token in enumerate(answer[:-1]) if token in self.last}
        return {0: self.first, **known} if self.first is not None else known


NAN = "the generator gave NaN: its weights are damaged, or float16 overflows; try dtype float32"
