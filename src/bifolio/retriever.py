"""From a question to passages with p(z|x): the one place where scores become a prior.

Whatever ranks the passages, pi is the softmax of the dense encoder's scores over the passages retrieved (MATH
section 1), because that is what training differentiates and what the posterior starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def vectors(self, passage_ids: Sequence[str]) -> Float32[np.ndarray, "K D"]:
        """E_P(z) of passages that it has, as stored."""
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
        generation: State of the collection that was read; "" for passages of the caller's own.
        vectors: E_P(z) of the hits, made when they are asked for; None where there is no encoder.
        snapshot: That state itself; None for passages of the caller's own.
    """

    hits: tuple[Hit, ...]
    generation: str
    vectors: Callable[[], Float32[np.ndarray, "K D"]] | None = None
    snapshot: PassageSnapshot | None = None


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

        # In double precision: scores of a caller's own may be of any size.
        return self.differentiable(torch.tensor(scores, dtype=torch.float64), no_passage=no_passage).float()

    def differentiable(self, scores: Tensor, *, no_passage: bool = False) -> Tensor:
        """Log pi_z of scores (..., K) with their gradients."""
        from bifolio import marginal

        return marginal.log_prior(scores, self.scale, self.no_passage_logit if no_passage else None)


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
        return self.retrievals([question], k)[0]

    def retrievals(self, questions: Sequence[str], k: int = 5) -> list[Retrieval]:
        """:meth:`retrieval` of several questions, encoded together, all from one generation."""
        for question in questions:
            check_question(question)
        if k < 1:
            raise UsageError(f"k {k}: expected at least 1 passage")
        queries = self._store.encoder.encode_questions(list(questions))
        now = self._store.snapshot()
        return [self._retrieval(now, query, k) for query in queries]

    def _retrieval(self, now: PassageSnapshot, query: Float32[np.ndarray, " D"], k: int) -> Retrieval:
        found = now.nearest(query, k)
        if not found:
            return Retrieval((), now.generation, snapshot=now)
        ids = [passage.id for passage, _ in found]
        return Retrieval(self._hits(found), now.generation, lambda: now.vectors(ids), now)

    def within(self, earlier: Retrieval, question: str, k: int) -> Retrieval:
        """As :meth:`retrieval`, in the state that an earlier retrieval read."""
        query = self._store.encoder.encode_questions([question])[0]
        return self._retrieval(earlier.snapshot or self._store.snapshot(), query, k)

    def _hits(self, found: Sequence[tuple[Passage, float]]) -> tuple[Hit, ...]:
        log_prior = self.prior.log_prior([score for _, score in found]).tolist()
        return tuple(Hit(passage, score, log_pi) for (passage, score), log_pi in zip(found, log_prior, strict=True))

    def given(self, question: str, passages: Sequence[Passage]) -> Retrieval:
        """The caller's own passages, in their order, with the scores that the encoder gives them."""
        check_question(question)
        query = self._store.encoder.encode_questions([question])[0]
        vectors = self._store.encoder.encode_passages(passages)
        found = [(passage, float(vector @ query)) for passage, vector in zip(passages, vectors, strict=True)]
        return Retrieval(self._hits(found), "", lambda: vectors)


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
