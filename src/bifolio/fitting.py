"""The prior over retrieved passages: how scores become log pi_z, and how its constants are fitted.

The logit of a passage is ``scale * s + offset``: s is the dense encoder's score, the offset what other stages add, and
pi is the softmax over the passages retrieved (MATH sections 1 and 4). Constants are fitted by maximum likelihood on
questions whose passages are known, and on questions that no passage answers for the no-passage branch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float64

from bifolio.errors import CollectionDamagedError, EncoderMismatchError, UsageError
from bifolio.protocols import EncoderSpec
from bifolio.retrieval_options import MODES, Mode

if TYPE_CHECKING:
    from torch import Tensor

LEXICAL_WEIGHT = 10.0
"""Mode hybrid: nats that the best word match adds. Chosen on wikiqa dev with MiniLM (scale 20)."""
LEXICAL_SCALE = 0.3
"""Mode lexical: nats for one unit of BM25. Fitted on wikiqa dev."""
HYBRID_NO_PASSAGE = 0.9
"""Mode hybrid: share of the words' weight that b gains over mode dense. Fitted on wikiqa dev and unanswerable."""
LEXICAL_NO_PASSAGE = 8.0
"""Mode lexical: b. Fitted on the same."""



@dataclass(frozen=True)
class Prior:
    """How scores become log pi_z.

    Attributes:
        scale: 1/tau, multiplies the dense scores; 0 where they do not count (mode lexical).
        no_passage_logit: b, the logit of the branch that reads no passage, after the scale; None: no such branch.
        lexical_weight: Nats that the best word match adds in mode hybrid, and nats for one unit of BM25 in mode
            lexical; without meaning in mode dense.

    Raises:
        UsageError: ``lexical_weight`` is negative or not finite.
    """

    scale: float
    no_passage_logit: float | None
    lexical_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.lexical_weight < math.inf:
            raise UsageError(f"lexical_weight {self.lexical_weight!r}: expected a finite number from 0 on")

    def log_prior(self, scores: Sequence[float], offsets: Sequence[float] = (), *, no_passage: bool = False) -> Tensor:
        """Log pi_z, (K,) float32, or (K + 1,) with the no-passage branch at its end (MATH sections 1 and 3)."""
        import torch

        # In double precision: scores of a caller's own may be of any size.
        dense = torch.tensor(scores, dtype=torch.float64)
        return self.differentiable(dense, offsets, no_passage=no_passage).float()

    def differentiable(
        self, scores: Tensor, offsets: Sequence[float] | Sequence[Sequence[float]] | Tensor = (), *, no_passage: bool = False
    ) -> Tensor:
        """Log pi_z of dense scores (..., K) with their gradients; offsets (..., K) are constants, () for none."""
        import torch

        from bifolio import marginal

        b = self.no_passage_logit if no_passage else None
        if not len(offsets):
            return marginal.log_prior(scores, self.scale, b)
        return marginal.log_prior(self.scale * scores + torch.as_tensor(offsets).to(scores), 1.0, b)


def default_prior(mode: Mode, encoder: Callable[[], EncoderSpec]) -> Prior:
    """The prior of a mode before anything is fitted; ``encoder`` is asked for only where its scores count."""
    if mode == "lexical":
        return Prior(0.0, LEXICAL_NO_PASSAGE, LEXICAL_SCALE)
    spec = encoder()
    if mode == "dense":
        return Prior(spec.prior_scale, spec.no_passage_logit)
    b = spec.no_passage_logit
    return Prior(spec.prior_scale, None if b is None else b + HYBRID_NO_PASSAGE * LEXICAL_WEIGHT, LEXICAL_WEIGHT)


