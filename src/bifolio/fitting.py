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

from bifolio.errors import EncoderMismatchError, MissingPathError, UsageError
from bifolio.protocols import EncoderSpec
from bifolio.retrieval_options import MODES, Mode

if TYPE_CHECKING:
    from torch import Tensor

HYBRID_SCALE = 0.6
"""Mode hybrid: what the encoder's own scale is multiplied with. Fitted on wikiqa dev with MiniLM, k = 5."""
HYBRID_WEIGHT = 7.5
"""Mode hybrid: nats for a share of 1 of the question's words. Fitted on the same."""
HYBRID_NO_PASSAGE = 1.0
"""Mode hybrid: the share whose nats b gains over the encoder's own. Fitted on the same and on unanswerable ones."""
LEXICAL_WEIGHT = 12.0
"""Mode lexical: nats for a share of 1. Fitted on wikiqa dev, k = 5."""
LEXICAL_NO_PASSAGE = 10.0
"""Mode lexical: b. Fitted on the same and on unanswerable ones."""


@dataclass(frozen=True)
class Prior:
    """How scores become log pi_z.

    Attributes:
        scale: 1/tau, multiplies the dense scores; 0 where they do not count (mode lexical).
        no_passage_logit: b, the logit of the branch that reads no passage, after the scale; None: no such branch.
        lexical_weight: Nats for saying all words of the question (a share of 1) in modes hybrid and lexical; without
            meaning in mode dense.

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
        self,
        scores: Tensor,
        offsets: Sequence[float] | Sequence[Sequence[float]] | Tensor = (),
        *,
        no_passage: bool = False,
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
        return Prior(0.0, LEXICAL_NO_PASSAGE, LEXICAL_WEIGHT)
    spec = encoder()
    if mode == "dense":
        return Prior(spec.prior_scale, spec.no_passage_logit)
    b = spec.no_passage_logit
    b = None if b is None else HYBRID_SCALE * b + HYBRID_NO_PASSAGE * HYBRID_WEIGHT
    return Prior(HYBRID_SCALE * spec.prior_scale, b, HYBRID_WEIGHT)


@dataclass(frozen=True)
class RetrievalProfile:
    """A fitted prior, and what it was fitted on.

    Attributes:
        encoder: Fingerprint of the encoder whose scores it is for.
        mode: The mode that it is for.
        prior: The prior.
        questions: How many questions it was fitted on.
        loss: Their mean -log p of the right passages (or of no passage), nats.
    """

    encoder: str
    mode: Mode
    prior: Prior
    questions: int = 0
    loss: float = 0.0

    def prior_for(self, encoder: EncoderSpec, mode: Mode) -> Prior:
        """Its prior.

        Raises:
            EncoderMismatchError: it was fitted on another encoder's scores.
            UsageError: it was fitted for another mode.
        """
        if encoder.fingerprint != self.encoder:
            raise EncoderMismatchError(
                f"the profile was fitted with encoder {self.encoder}, and this is {encoder.fingerprint}: fit it again"
            )
        if mode != self.mode:
            raise UsageError(f"the profile was fitted for mode {self.mode}, not {mode}: fit one for that mode")
        return self.prior

    def save(self, path: str | Path) -> None:
        """Write it as JSON; what was at ``path`` is replaced."""
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> RetrievalProfile:
        """Read what :meth:`save` wrote.

        Raises:
            MissingPathError: there is no such file.
            UsageError: it is no profile.
        """
        try:
            facts = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise MissingPathError(f"there is no profile at {path}") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is no profile ({error}): fit it again") from error
        try:
            made = cls(**{**facts, "prior": Prior(**facts["prior"])})
        except (TypeError, KeyError) as error:
            raise UsageError(f"{path} is no profile ({error}): fit it again") from error
        kinds = [isinstance(made.encoder, str), made.mode in MODES, _number(made.prior.scale)]
        b = made.prior.no_passage_logit
        if not all([*kinds, b is None or _number(b), _number(made.prior.lexical_weight)]):
            raise UsageError(f"{path} has a value of a wrong kind: fit it again")
        return made


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Judged:
    """A question's candidates with what is known of them.

    Attributes:
        dense: s of each; not looked at in mode lexical.
        shares: How much of the question each says in its words; not looked at in mode dense.
        right: Which of them answer the question; none where no passage does.
    """

    dense: Float[np.ndarray, " n"]
    shares: Float[np.ndarray, " n"]
    right: Bool[np.ndarray, " n"]


def fit_prior(
    judged: Sequence[Judged],
    mode: Mode,
    *,
    no_passage: bool = False,
    scale: float | None = None,
    ridge: float = 1e-6,
    steps: int = 100,
) -> tuple[Prior, float]:
    """The prior that makes the right passages most likely, by Newton's method with a line search.

    Maximises (concave where each question has one right passage) the mean of log sum_{z right} pi_z, and of log pi_0
    for questions that no passage answers. Questions whose right passages are not among the candidates should be left
    out: they count as unanswerable.

    Args:
        judged: Questions with their candidates, as many as retrieval will read.
        mode: Which constants there are: dense the scale, hybrid the scale and the words' weight, lexical the latter.
        no_passage: Whether b is fitted, too; it needs questions without a right passage.
        scale: Keep the scale as it is.
        ridge: Times half the squared constants, subtracted: without it, separable data have no maximum.
        steps: The most steps to take.

    Returns:
        The prior and the mean of -log p, nats. A words' weight below 0 is set to 0.

    Raises:
        UsageError: there is nothing to fit on, or the scale comes out at 0 or below: the scores say nothing.
    """
    names = [*(["scale"] if mode != "lexical" and scale is None else []), *(["words"] if mode != "dense" else [])]
    names += ["b"] if no_passage else []
    used = [one for one in judged if no_passage or one.right.any()]
    if not used or not names:
        raise UsageError("nothing to fit: expected questions with a right passage among their candidates")
    tables = [_table(one, mode, names, 0.0 if scale is None or mode == "lexical" else scale) for one in used]
    values = np.zeros(len(names))
    loss, gradient, hessian = _derivatives(values, tables, ridge)
    for _ in range(steps):
        move = np.linalg.solve(hessian + 1e-12 * np.eye(len(names)), -gradient)
        if gradient @ move > 0:  # the right passages' own spread can bend it the wrong way, far from the optimum
            move = -gradient
        step = 1.0
        while step > 1e-10:
            fresh = _derivatives(values + step * move, tables, ridge)
            if fresh[0] <= loss + 1e-4 * step * float(gradient @ move):
                break
            step /= 2
        else:
            break
        values = values + step * move
        loss, gradient, hessian = fresh
        if np.abs(gradient).max() < 1e-9:
            break
    found = dict(zip(names, values.tolist(), strict=True))
    fitted_scale = 0.0 if mode == "lexical" else found.get("scale", scale or 0.0)
    if mode != "lexical" and fitted_scale <= 0:
        raise UsageError(f"the scale comes out at {fitted_scale:.3g}: the scores say nothing of these questions")
    prior = Prior(fitted_scale, found.get("b"), max(0.0, found.get("words", 0.0)))
    return prior, float(loss - ridge / 2 * values @ values)


_Table = tuple[Float64[np.ndarray, "m F"], Float64[np.ndarray, " m"], Bool[np.ndarray, " m"]]


def _table(one: Judged, mode: Mode, names: Sequence[str], scale: float) -> _Table:
    """Features of each branch, what its logit has besides, and whether it is right; the last one reads no passage."""
    n = len(one.right)
    words = one.shares.astype(np.float64) if mode != "dense" else np.zeros(n)
    columns = {"scale": one.dense.astype(np.float64), "words": words, "b": np.zeros(n)}
    features = np.stack([columns[name] for name in names], axis=1)
    base = scale * one.dense.astype(np.float64) if scale else np.zeros(n)
    right = one.right.astype(bool)
    if "b" in names:
        features = np.vstack([features, [float(name == "b") for name in names]])
        base, right = np.append(base, 0.0), np.append(right, not right.any())
    return features, base, right


def _derivatives(
    values: Float64[np.ndarray, " F"], tables: Sequence[_Table], ridge: float
) -> tuple[float, Float64[np.ndarray, " F"], Float64[np.ndarray, "F F"]]:
    """Mean of -log sum_{right} pi with the ridge, its gradient and its second derivatives."""
    loss, gradient, hessian = 0.0, np.zeros(len(values)), np.zeros((len(values), len(values)))
    for features, base, right in tables:
        logits = features @ values + base
        all_log = float(np.logaddexp.reduce(logits))
        right_log = float(np.logaddexp.reduce(logits[right]))
        p, q = np.exp(logits - all_log), np.where(right, np.exp(np.minimum(logits - right_log, 0.0)), 0.0)
        mean, mean_right = p @ features, q @ features
        loss += all_log - right_log
        gradient += mean - mean_right
        hessian += (features.T * p) @ features - np.outer(mean, mean)
        hessian -= (features.T * q) @ features - np.outer(mean_right, mean_right)
    n = len(tables)
    penalty = ridge * np.eye(len(values))
    return loss / n + ridge / 2 * float(values @ values), gradient / n + ridge * values, hessian / n + penalty
