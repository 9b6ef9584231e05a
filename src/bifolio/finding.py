"""Questions with the passages that are to be read for them, retrieved or the caller's own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bifolio.errors import UsageError
from bifolio.fitting import Prior
from bifolio.options import AskOptions
from bifolio.own_passages import own_passages
from bifolio.protocols import LogitGenerator, Reading, TextGenerator
from bifolio.rerankers import GeneratorReranker
from bifolio.retriever import PassageStore, Retrieval, Retriever, check_question
from bifolio.types import Hit, Passage

if TYPE_CHECKING:
    from torch import Tensor

_UNIFORM = Prior(1.0, None)


@dataclass(frozen=True)
class Found:
    """A question with its passages and the prior over them.

    Attributes:
        question: As asked.
        retrieval: Its passages, and how their scores become log pi.
        no_passage: Whether one more branch reads no passage.
        seconds: What finding them took.
        own: Whether the passages are the caller's.
    """

    question: str
    retrieval: Retrieval
    no_passage: bool
    seconds: float
    own: bool = False

    def log_prior(self) -> Tensor:
        """Log pi_z, (K,), with the no-passage branch at its end."""
        return self.retrieval.log_prior(no_passage=self.no_passage)

    def reading(self, chosen: AskOptions) -> Reading:
        """What the generator is to read."""
        passages = tuple(hit.passage for hit in self.retrieval.hits)
        return Reading(self.question, passages, chosen.style, chosen.max_tokens, self.no_passage)


class Finder:
    """Finds passages in a collection, or takes the caller's."""

    def __init__(
        self, store: PassageStore | None, no_passage: bool, generator: LogitGenerator | TextGenerator | None = None
    ) -> None:
        """``store`` may be None where every question brings passages; ``generator`` is the reranker of that name."""
        self.retriever = None if store is None else Retriever(store)
        self._generator = generator
        self._no_passage = no_passage

    def retrieved(self, questions: Sequence[str], chosen: AskOptions) -> list[Found]:
        """Passages of the collection for each question, all from one generation.

        Raises:
            UsageError: there is no collection, or a question is empty.
        """
        started = time.perf_counter()
        if self.retriever is None:
            raise UsageError("there is no collection to retrieve from: give passages=[...], or make a Rag of one")
        if chosen.reranker == "generator" and self._generator is not None:
            self.retriever.rerankers.setdefault("generator", GeneratorReranker(self._generator))
        found = self.retriever.found(questions, chosen)
        seconds = (time.perf_counter() - started) / len(questions)
        return [Found(q, one, self._reads_none(one), seconds) for q, one in zip(questions, found, strict=True)]

    def _reads_none(self, found: Retrieval) -> bool:
        """Whether one more branch reads no passage."""
        return self._no_passage and found.prior.no_passage_logit is not None

    def given(self, question: str, passages: Sequence[Passage | Mapping[str, Any]]) -> Found:
        """The caller's passages; see :meth:`bifolio.Rag.ask` for their prior.

        Raises:
            UsageError: they cannot be used, or the question is empty.
        """
        check_question(question)
        started = time.perf_counter()
        own, scores = own_passages(passages)
        if scores is None and self.retriever is not None:
            found = self.retriever.given(question, own)
            return Found(question, found, self._reads_none(found), time.perf_counter() - started, own=True)
        logits = scores or [0.0] * len(own)
        log_pi = _UNIFORM.log_prior(logits).tolist()
        hits = tuple(Hit(*one) for one in zip(own, logits, log_pi, strict=True))
        found = Retrieval(hits, "", tuple(logits), (0.0,) * len(own), _UNIFORM)
        return Found(question, found, False, time.perf_counter() - started, own=True)
