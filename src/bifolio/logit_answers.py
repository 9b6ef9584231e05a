"""Answers, scores and losses of a generator that gives its next-token distribution."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bifolio.answer import Answer, Timings
from bifolio.answering import Asked, answer, notes
from bifolio.errors import UsageError
from bifolio.finding import Found
from bifolio.options import AskOptions
from bifolio.own_passages import checked_text
from bifolio.protocols import Encoder, Kept, LogitGenerator, TrainableGenerator
from bifolio.retriever import Retriever

if TYPE_CHECKING:
    from torch import Tensor

    from bifolio.hypotheses import Decoded, Mixture


class LogitAnswers:
    """One generator over one collection, or over passages that questions bring along."""

    def __init__(
        self, generator: LogitGenerator, encoder: Callable[[], Encoder | None], retriever: Retriever | None
    ) -> None:
        """``encoder()`` and the retriever are the collection's; None where there is none."""
        self._generator, self._encoder, self._retriever = generator, encoder, retriever

    def answers(self, found: Sequence[Found], chosen: AskOptions) -> Iterator[Answer]:
        """Answer questions together, in order.

        Raises:
            UsageError: a question does not fit into the generator's window, when its turn comes.
        """
        if chosen.requery_retrieve:
            yield from (self._refetched(one, chosen) for one in found)
            return
        from bifolio.decoders import decode_all

        started = time.perf_counter()
        try:
            branches = self._generator.read([one.reading(chosen) for one in found])
            first = branches.start()
            read = time.perf_counter()
            mixtures = [self._mixture(one, chosen, like) for one, like in zip(found, first, strict=True)]
            decoded = decode_all(branches, mixtures, chosen)
        except UsageError:
            if len(found) == 1:
                raise
            for one in found:  # those before the one that cannot be answered are answered
                yield from self.answers([one], chosen)
            return
        done = time.perf_counter()
        share = len(found)
        for one, answers, kept in zip(found, decoded, branches.kept, strict=True):
            timings = Timings(one.seconds, (read - started) / share, (done - read) / share)
            yield self._answer(one, chosen, answers, kept, timings)

    def _answer(
        self, found: Found, chosen: AskOptions, decoded: Sequence[Decoded], kept: Sequence[Kept], timings: Timings
    ) -> Answer:
        asked = replace(self._asked(found, chosen), found=len(decoded))
        told = notes(asked, kept, decoded[0].finished, self._encoder_of(found))
        return answer(asked, decoded, kept, self._generator.text, told, timings)

    def _asked(self, found: Found, chosen: AskOptions) -> Asked:
        spec = self._generator.spec
        used = self._encoder_of(found)
        encoder = "" if used is None else used.spec.model
        model = {"generator": spec.model, "encoder": encoder, "adapter": spec.adapter}
        hits, generation = found.retrieval.hits, found.retrieval.generation
        return Asked(found.question, chosen, hits, generation, found.no_passage, model, found.own)

    def _encoder_of(self, found: Found) -> Encoder | None:
        """The encoder of the state that was read; of the collection as it is where none was."""
        snapshot = found.retrieval.snapshot
        return self._encoder() if snapshot is None else snapshot.encoder

    def _mixture(self, found: Found, chosen: AskOptions, like: Tensor | None = None) -> Mixture:
        """What is decoded, with priors of the type and on the device of ``like`` (scoring moves them itself)."""
        from bifolio import requery
        from bifolio.hypotheses import Mixture, constant
        from bifolio.segments import boundary

        eos, text = self._generator.spec.eos, self._generator.text
        limit = None if chosen.cap is None else _limit(found, chosen.cap)
        if chosen.scheme != "requery":
            log_prior = found.log_prior()
            log_prior = log_prior if like is None else log_prior.to(like)
            return Mixture(constant(log_prior), boundary(chosen.scheme, text), eos, limit)
        encoder = self._encoder_of(found)
        if encoder is None:
            raise UsageError("scheme requery needs an encoder: make the Rag of a collection, or take another scheme")
        prior = requery.renewed(
            found.question,
            found.retrieval,
            encoder,
            text,
            no_passage=found.no_passage,
            like=like,
        )
        return Mixture(prior, boundary(chosen.scheme, text, chosen.requery_every), eos, limit)

    def _refetched(self, found: Found, chosen: AskOptions) -> Answer:
        from bifolio import requery

        if self._retriever is None or found.own:
            raise UsageError("requery_retrieve fetches passages from a collection: leave out passages, or the option")
        started = time.perf_counter()
        made = requery.refetch(self._generator, self._retriever, found.reading(chosen), found.retrieval, chosen.k)
        retrieval = replace(found.retrieval, hits=made.hits)
        timings = Timings(found.seconds, 0.0, time.perf_counter() - started)
        return self._answer(replace(found, retrieval=retrieval), chosen, [made.decoded], made.kept, timings)

    def score(self, found: Found, given: str, chosen: AskOptions) -> Answer:
        """A given answer with its log-probabilities and rows.

        Raises:
            UsageError: the options decode, or the question does not fit.
        """
        from bifolio import passagewise

        if chosen.requery_retrieve:
            raise UsageError("requery_retrieve decodes: an answer cannot be scored with it")
        ids = self._generator.answer_ids(_answer_text(given), style=chosen.style)
        started = time.perf_counter()
        # As much room as decoding would have: passages are cut alike, whatever the answer.
        room = replace(chosen, max_tokens=max(chosen.max_tokens, len(ids)))
        branches = self._generator.read([found.reading(room)])
        read = time.perf_counter()
        ((scored,),) = passagewise.score(branches, [self._mixture(found, chosen)], [[ids]])
        timings = Timings(found.seconds, read - started, time.perf_counter() - read)
        # How answers are decoded by default is nothing to a given one.
        chosen = replace(chosen, decoder="exact", temperature=None, top_p=None, seed=None, n_best=1)
        return replace(self._answer(found, chosen, [scored], branches.kept[0], timings), decoder="given")

    def loss(self, found: Sequence[Found], answers: Sequence[str], chosen: AskOptions, scores: Tensor | None) -> Tensor:
        """Mean of -log p(y|x), nats; see :meth:`bifolio.Rag.loss`.

        Raises:
            UsageError: the generator cannot be trained, or the numbers of passages differ.
        """
        from bifolio.loss import mean_loss

        if not isinstance(self._generator, TrainableGenerator):
            raise UsageError(f"{self._generator.spec.model} has no gradients: it cannot be trained")
        if chosen.requery_retrieve:
            raise UsageError("requery_retrieve decodes: there is no loss of it")
        ids = [self._generator.answer_ids(_answer_text(one), style=chosen.style) for one in answers]
        rooms = [max(chosen.max_tokens, len(y)) for y in ids]
        readings = [replace(f.reading(chosen), max_tokens=room) for f, room in zip(found, rooms, strict=True)]
        log_probs, mask = self._generator.token_log_probs(readings, ids)
        if scores is not None and chosen.scheme == "requery":
            raise UsageError("scheme requery asks its encoder for the scores: leave scores out, or take another scheme")
        mixtures = [self._mixture(one, chosen) for one in found]
        if scores is None:
            return mean_loss(log_probs, mask, ids, mixtures)
        log_prior = _differentiable(found, scores)
        return mean_loss(log_probs, mask, ids, mixtures, log_prior)


def _differentiable(found: Sequence[Found], scores: Tensor) -> Tensor:
    """Log pi of dense scores (B, K) with gradients; what else the passages' logits have is constant."""
    prior, offsets = found[0].retrieval.prior, [one.retrieval.offsets for one in found]
    return prior.differentiable(scores, offsets if all(offsets) else (), no_passage=found[0].no_passage)


def _answer_text(answer: object) -> str:
    """An answer that is a text.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(answer, str):
        raise UsageError(f"answer {answer!r}: expected a text")
    return checked_text("the answer", answer)


def _limit(found: Found, cap: float) -> Callable[[Tensor], Tensor]:
    """The cap over documents; passages of a file of ready-made passages belong together by their title."""
    import torch

    from bifolio.marginal import capped

    names = [(hit.passage.source or hit.passage.id, hit.passage.title) for hit in found.retrieval.hits]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    sources = [numbers[name] for name in names] + [len(numbers)] * found.no_passage
    return partial(capped, sources=torch.tensor(sources), cap=cap)
