"""Rag: a collection and a generator, asked questions (Lewis et al. 2020).

Retrieve k passages, let the generator read each of them on its own, answer with the mixture, and say of every part of
the answer which passage it came from.
"""

from __future__ import annotations

import secrets
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bifolio.answer import Answer, Timings
from bifolio.collection import Collection
from bifolio.errors import UsageError
from bifolio.language import unfamiliar
from bifolio.loading import load_generator
from bifolio.models import DEFAULT_GENERATOR
from bifolio.options import AskOptions, BifolioWarning
from bifolio.protocols import Branches, LogitGenerator
from bifolio.retriever import Retriever, check_question
from bifolio.types import Hit, Passage

if TYPE_CHECKING:
    from torch import Tensor

    from bifolio.decode import Decoded


class Rag:
    """Answers from one collection. Safe to use from many threads; state is only in the models and the collection."""

    def __init__(
        self,
        collection: Collection,
        *,
        generator: str | LogitGenerator = DEFAULT_GENERATOR,
        no_passage: bool = True,
        **options: Any,
    ) -> None:
        """Make a model of a collection and a generator.

        Args:
            collection: Where passages come from; its encoder encodes the questions.
            generator: A model id, or a generator.
            no_passage: Whether one branch reads no passage, where the encoder has a constant for it; ``support`` and
                ``evidence`` need it.
            **options: Defaults of :class:`AskOptions` for every question, such as ``k=10`` or ``scheme="sequence"``.

        Raises:
            UsageError: an option is unknown or out of range.
            ModelMissingError: the generator is not in the cache.
        """
        self.collection = collection
        self.options = _with(AskOptions(), options)
        self._no_passage = no_passage
        collection.encoder  # noqa: B018  a missing one is told before the larger generator is loaded
        self.generator = load_generator(generator) if isinstance(generator, str) else generator
        self._retriever = Retriever(collection)
        self._warned = False

    def with_collection(self, collection: Collection) -> Rag:
        """The same generator and options over another collection: knowledge is swapped, nothing is retrained."""
        other = Rag(collection, generator=self.generator, no_passage=self._no_passage)
        other.options = self.options
        return other

    def ask(self, question: str, **options: Any) -> Answer:
        """Answer a question; ``options`` are those of :class:`AskOptions`, for this question only.

        Raises:
            UsageError: the question is empty or too long for the generator's window, or an option cannot be used.
            ModelMissingError: the collection's encoder is not in the cache.
        """
        chosen = _with(self.options, options)
        if chosen.temperature is not None and chosen.seed is None:
            chosen = replace(chosen, seed=secrets.randbits(31))
        if not isinstance(question, str):
            raise UsageError(f"question {question!r}: expected a text")
        check_question(question)
        self._warn_of_language(question)
        started = time.perf_counter()
        found = self._retriever.retrieval(question, chosen.k)
        hits = found.hits
        retrieved = time.perf_counter()
        no_passage = self._no_passage and self._retriever.prior.no_passage_logit is not None
        branches = self.generator.read(
            question,
            [hit.passage for hit in hits],
            style=chosen.style,
            max_tokens=chosen.max_tokens,
            no_passage=no_passage,
        )
        device = branches.start().device
        read = time.perf_counter()
        log_prior = self._retriever.prior.log_prior([hit.score for hit in hits], no_passage=no_passage).to(device)
        decoded = self._decode(branches, log_prior, chosen)
        decoding = time.perf_counter()
        timings = Timings(retrieved - started, read - retrieved, decoding - read)
        answer = self._answer(question, chosen, hits, branches, log_prior, decoded, no_passage, timings)
        return replace(answer, generation=found.generation)

    def _decode(self, branches: Branches, log_prior: Tensor, chosen: AskOptions) -> Decoded:
        from bifolio import decode
        from bifolio.segments import boundary

        starts_segment = boundary(chosen.scheme, self.generator.text)
        eos = self.generator.spec.eos
        if chosen.temperature is not None:
            return decode.sample(
                branches,
                log_prior,
                starts_segment,
                eos,
                max_tokens=chosen.max_tokens,
                temperature=chosen.temperature,
                top_p=1.0 if chosen.top_p is None else chosen.top_p,
                seed=0 if chosen.seed is None else chosen.seed,
            )
        (best,) = decode.beam_search(
            branches,
            log_prior,
            starts_segment,
            eos,
            max_tokens=chosen.max_tokens,
            beams=chosen.beam,
            length_penalty=chosen.length_penalty,
        )
        return best

    def _answer(
        self,
        question: str,
        chosen: AskOptions,
        hits: tuple[Hit, ...],
        branches: Branches,
        log_prior: Tensor,
        decoded: Decoded,
        no_passage: bool,
        timings: Timings,
    ) -> Answer:
        from bifolio.cite import cite

        rows = cite(decoded, log_prior, chosen.scheme, self.generator.text, no_passage=no_passage)
        log_priors = log_prior.tolist()
        truncated = tuple(kept < whole for kept, whole in branches.kept_tokens)
        return Answer(
            question=question,
            text=rows.text,
            hits=tuple(replace(hit, log_prior=log_pi) for hit, log_pi in zip(hits, log_priors, strict=False)),
            weights=rows.row,
            no_passage=rows.no_passage,
            no_passage_log_prior=log_priors[-1] if no_passage else None,
            sentences=rows.sentences,
            tokens=rows.tokens,
            truncated=truncated,
            log_prob=decoded.log_prob,
            eos_log_prob=float(decoded.log_probs[-1]) if decoded.finished else None,
            scheme=chosen.scheme,
            support=None if rows.no_passage is None else 1 - rows.no_passage,
            evidence=rows.evidence,
            notes=tuple(self._notes(question, chosen, hits, branches, decoded)),
            timings=timings,
            model={
                "generator": self.generator.spec.model,
                "encoder": self.collection.encoder.spec.model,
                "adapter": self.generator.spec.adapter,
            },
        )

    def _notes(
        self, question: str, chosen: AskOptions, hits: tuple[Hit, ...], branches: Branches, decoded: Decoded
    ) -> list[str]:
        notes = []
        window = self.collection.encoder.spec.window
        length = int(self.collection.encoder.passage_lengths([Passage("", question)])[0])
        if length > window:
            notes.append(f"the question has {length} tokens: only the first {window} were used to find passages")
        if chosen.temperature is not None:
            notes.append(f"sampled with seed {chosen.seed}")
        if len(hits) < chosen.k:
            notes.append(f"{chosen.k} passages were asked for and the collection has {len(hits)}: all were read")
        for hit, (kept, whole) in zip(hits, branches.kept_tokens, strict=True):
            if kept < whole:
                notes.append(
                    f"{hit.passage.place}: {kept} of {whole} tokens were read, the rest did not fit the window"
                )
        if not decoded.finished:
            notes.append(f"the answer was cut after {chosen.max_tokens} tokens")
        return notes

    def _warn_of_language(self, question: str) -> None:
        """Once per Rag."""
        if self._warned:
            return
        for part, spec in (("encoder", self.collection.encoder.spec), ("generator", self.generator.spec)):
            language = unfamiliar(question, spec.languages)
            if language:
                self._warned = True
                warnings.warn(
                    f"the question looks like {language}, and the {part} {spec.model} was made for "
                    f"{', '.join(spec.languages)}: expect poor answers, or choose another model",
                    BifolioWarning,
                    stacklevel=3,
                )
                return


def _with(options: AskOptions, changes: dict[str, Any]) -> AskOptions:
    unknown = sorted(set(changes) - set(AskOptions.known()))
    if unknown:
        raise UsageError(f"unknown option {', '.join(unknown)}: expected one of {', '.join(AskOptions.known())}")
    return replace(options, **changes)
