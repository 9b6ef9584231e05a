"""From a question to passages with p(z|x): the one place where scores become a prior.

Whatever ranks the passages, pi is the softmax of the dense encoder's scores over the passages retrieved (MATH
section 1), because that is what training differentiates and what the posterior starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Float32

from bifolio.errors import UsageError
from bifolio.protocols import Encoder
from bifolio.types import Hit, Passage

if TYPE_CHECKING:
    from torch import Tensor


class PassageSnapshot(Protocol):
    """One state of a collection, which does not change while it is read."""

    @property
    def generation(self) -> str:
        """Name of the state."""
        ...

    def nearest(self, query: Float32[np.ndarray, " D"], k: int) -> list[tuple[Passage, float]]:
        """The min(k, size) passages with the largest inner product, best first, with it."""
        ...


class PassageStore(Protocol):
    """What a retriever needs of a collection."""

    @property
    def encoder(self) -> Encoder:
        """The encoder that the collection's vectors were made with."""
        ...

    def snapshot(self) -> PassageSnapshot:
        """The state that the collection has now."""
        ...


@dataclass(frozen=True)
class Retrieval:
    """What was found, and where.

    Attributes:
        hits: Passages, best first; their ``log_prior`` sums to 1 over them.
        generation: State of the collection that was read.
    """

    hits: tuple[Hit, ...]
    generation: str


@dataclass(frozen=True)
class Prior:
    """How scores become log pi_z.

    Attributes:
        scale: 1/tau, multiplies the scores.
        no_passage_logit: b, the logit of the branch that reads no passage, after the scale; None: no such branch.
    """

    scale: float
    no_passage_logit: float | None

    def log_prior(self, scores: list[float], *, no_passage: bool = False) -> Tensor:
        """Log pi_z, (K,) float32, or (K + 1,) with the no-passage branch at its end (MATH sections 1 and 3)."""
        import torch

        from bifolio import marginal

        bias = self.no_passage_logit if no_passage else None
        return marginal.log_prior(torch.tensor(scores, dtype=torch.float32), self.scale, bias)


class Retriever:
    """Dense retrieval over one collection."""

    def __init__(self, store: PassageStore, *, prior: Prior | None = None) -> None:
        """Retrieve from ``store``, by default with the prior of its encoder."""
        self._store = store
        self._prior = prior

    @property
    def prior(self) -> Prior:
        """How this retriever's scores become log pi_z."""
        if self._prior is None:
            spec = self._store.encoder.spec
            self._prior = Prior(spec.prior_scale, spec.no_passage_logit)
        return self._prior

    def retrieve(self, question: str, k: int = 5) -> tuple[Hit, ...]:
        """The hits of :meth:`retrieval`."""
        return self.retrieval(question, k).hits

    def retrieval(self, question: str, k: int = 5) -> Retrieval:
        """The min(k, size of the collection) best passages, all from one generation, whatever an ingest does.

        Raises:
            UsageError: the question is empty, or k is below 1.
            ModelMissingError: the collection's encoder is not in the cache.
            EncoderMismatchError: the encoder is not the one that the collection was built with.
        """
        check_question(question)
        if k < 1:
            raise UsageError(f"k {k}: expected at least 1 passage")
        query = self._store.encoder.encode_questions([question])[0]
        now = self._store.snapshot()
        found = now.nearest(query, k)
        if not found:
            return Retrieval((), now.generation)
        log_prior = self.prior.log_prior([score for _, score in found]).tolist()
        hits = (Hit(passage, score, log_pi) for (passage, score), log_pi in zip(found, log_prior, strict=True))
        return Retrieval(tuple(hits), now.generation)


def check_question(question: str) -> None:
    """Raise ``UsageError`` for a question that has nothing to see in it, or bytes that are no text."""
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the question is no text from character {error.start + 1} on: expected UTF-8 (and a locale that uses it)"
        ) from error
    if not any(character.isprintable() and not character.isspace() for character in question):
        raise UsageError("the question is empty: expected some text")
