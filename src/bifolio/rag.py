"""Rag: a collection and a generator, asked questions (Lewis et al. 2020).

Retrieve k passages, let the generator read each of them on its own, answer with the mixture, and say of every part of
the answer which passage it came from.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bifolio import text_rag
from bifolio.answer import Answer
from bifolio.answering import notes_on_finding
from bifolio.collection import Collection
from bifolio.errors import UsageError
from bifolio.finding import Finder, Found
from bifolio.language import unfamiliar
from bifolio.loading import load_generator
from bifolio.logit_answers import LogitAnswers
from bifolio.models import DEFAULT_GENERATOR
from bifolio.options import AskOptions, BifolioWarning
from bifolio.protocols import Encoder, LogitGenerator, TextGenerator
from bifolio.retriever import check_question
from bifolio.types import Passage

if TYPE_CHECKING:
    from torch import Tensor

BRANCHES = 64
"""Branches, times hypotheses, that :meth:`Rag.ask_many` has in memory at once."""


_DECODING = frozenset(
    "decoder beam n_best diversity add_thorough temperature top_p seed length_penalty requery_retrieve".split()
)


class Rag:
    """Answers from one collection. Safe to use from many threads; state is only in the models and the collection."""

    def __init__(
        self,
        collection: Collection | None = None,
        *,
        generator: str | LogitGenerator | TextGenerator = DEFAULT_GENERATOR,
        no_passage: bool = True,
        **options: Any,
    ) -> None:
        """Make a model of a collection and a generator.

        Args:
            collection: Where passages come from; its encoder encodes the questions. None where every question brings
                its own passages.
            generator: A model id, ``http://HOST:PORT/v1#MODEL`` for the model of a server, or a generator.
            no_passage: Whether one branch reads no passage, where the encoder has a constant for it; ``support`` and
                ``evidence`` need it.
            **options: Defaults of :class:`AskOptions` for every question, such as ``k=10`` or ``scheme="sequence"``.

        Raises:
            UsageError: an option is unknown or out of range.
            ModelMissingError: the generator is not in the cache.
        """
        if collection is not None and not isinstance(collection, Collection):
            raise UsageError(
                f"collection {collection!r}: expected a Collection, such as Collection.open(path), or None"
            )
        self.collection = collection
        self._given = dict(options)
        self.options = _with(AskOptions(), options)
        self._no_passage = no_passage
        self._encoder()  # missing: told before the generator is loaded
        self.generator = load_generator(generator) if isinstance(generator, str) else generator
        self._finder = Finder(collection, no_passage, self.generator)
        self._logits: LogitAnswers | None = None
        if text_rag.is_text_generator(self.generator):
            self._check_text({})
        else:
            local = text_rag.with_logits(self.generator, "answering")
            self._logits = LogitAnswers(local, self._encoder, self._finder.retriever)
        self._warned = False

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        collection: Collection | str | Path | None = None,
        *,
        passage_encoder: str = "",
        device: str = "auto",
        dtype: str = "auto",
        trainable: bool = False,
        **options: Any,
    ) -> Rag:
        """The paper's own model, from a checkpoint of transformers' ``RagModel`` layout.

        Question encoder, generator, separators, scheme and number of passages are the checkpoint's; the index is a
        collection, whose vectors its passage encoder made.

        Args:
            model: Such as ``facebook/rag-token-nq`` (in the cache: ``bifolio models pull``), or a local folder.
            collection: A collection, or its path; it is opened with the checkpoint's question encoder. None where
                every question brings its own passages.
            passage_encoder: Id of the passage encoder; the collection's own when left out.
            device: Where the models run.
            dtype: What they compute in.
            trainable: Leave the generator's weights as they are, so that gradients reach them.
            **options: As for :class:`Rag`; they win over what the checkpoint says.

        Raises:
            UsageError: the collection's encoder is no pair of question and passage encoder.
            ModelMissingError: the checkpoint or the passage encoder is not in the cache.
            ModelError: the folder is no such checkpoint.
            EncoderMismatchError: the collection was built with another passage encoder.
        """
        from bifolio.pretrained import load_pretrained

        made, generator, found = load_pretrained(
            model, collection, passage_encoder=passage_encoder, device=device, dtype=dtype, trainable=trainable
        )
        return cls(made, generator=generator, **{**found, **options})

    def with_collection(self, collection: Collection) -> Rag:
        """The same generator and options over another collection: knowledge is swapped, nothing is retrained."""
        return Rag(collection, generator=self.generator, no_passage=self._no_passage, **self._given)

    def _encoder(self) -> Encoder | None:
        """The collection's encoder, as it is now."""
        return None if self.collection is None else self.collection.encoder

    # ---- asking ----

    def ask(
        self, question: str, *, passages: Sequence[Passage | Mapping[str, Any]] | None = None, **options: Any
    ) -> Answer:
        """Answer a question; ``options`` are those of :class:`AskOptions`, for this question only.

        Args:
            question: The question.
            passages: Passages to read instead of retrieved ones: :class:`Passage` objects, or mappings with ``text``
                and, if wanted, ``title``, ``id`` and ``score``. Scores are logits of the prior, beside which there is
                no no-passage branch; without them the collection's encoder gives them, and without a collection the
                prior is uniform.
            **options: Such as ``k=10`` or ``scheme="sequence"``.

        Raises:
            UsageError: the question is empty or too long for the generator's window, or an option cannot be used.
            ModelMissingError: the collection's encoder is not in the cache.
        """
        chosen = self._chosen(options)
        found = self._find([question], chosen, passages)
        return next(self._answers(found, chosen, options))

    def ask_many(self, questions: Iterable[str], *, branches: int = BRANCHES, **options: Any) -> Iterator[Answer]:
        """Answer questions in order, several at once; each answer is the one that :meth:`ask` gives, up to rounding.

        In half precision rounding depends on the shape of a batch and may change a word; ``branches=1`` asks one by
        one.

        Questions are taken from the iterable as they are needed: neither questions nor answers pile up.

        Args:
            questions: The questions.
            branches: Branches, times the beam, in memory at once; one question is always read, whatever its size.
            **options: As for :meth:`ask`, for all of them.

        Raises:
            UsageError: as for :meth:`ask`, when its question's turn comes.
        """
        if isinstance(questions, str) or not isinstance(questions, Iterable):
            raise UsageError(f"questions is {questions!r}: expected a list of questions")
        if isinstance(branches, bool) or not isinstance(branches, int) or branches < 1:
            raise UsageError(f"branches {branches!r}: expected a whole number from 1 on")
        return self._stream(iter(questions), branches, self._chosen(options), options)

    def _stream(
        self, questions: Iterator[str], branches: int, chosen: AskOptions, options: Mapping[str, Any]
    ) -> Iterator[Answer]:
        deep = chosen.beam if chosen.temperature is None else chosen.n_best
        width = (chosen.k + self._no_passage) * deep
        together = max(1, branches // width)
        while True:
            batch, failure = _take(questions, together)
            if batch:
                chosen = self._chosen(options)
                yield from self._answers(self._find(batch, chosen), chosen, options)
            if failure is not None:
                raise failure
            if len(batch) < together:
                return

    def warm(self, passages: Iterable[Passage | str], **options: Any) -> None:
        """Read passages, or those of these ids, now: the first question about them then costs as little as a later one.

        Generators that keep nothing (``cache_bytes=0``, encoder-decoder models) do nothing.

        Raises:
            NotFoundError: the collection has no passage of that id.
            UsageError: ids were given and there is no collection, or an option cannot be used.
        """
        if isinstance(passages, str) or not isinstance(passages, Iterable):
            raise UsageError(f"passages is {passages!r}: expected a list of passages, or of their ids")
        chosen = _with(self.options, options)
        warm = getattr(self.generator, "warm", None)
        found = [self._passage(one) for one in passages]
        if warm is not None:
            warm(found, style=chosen.style, max_tokens=chosen.max_tokens)

    def _passage(self, one: Passage | str) -> Passage:
        if isinstance(one, Passage):
            return one
        if not isinstance(one, str):
            raise UsageError(f"passage {one!r}: expected a Passage or an id")
        if self.collection is None:
            raise UsageError(f"passage {one!r}: there is no collection to take it from; give a Passage")
        return self.collection.passage(one)

    def _find(
        self,
        questions: Sequence[str],
        chosen: AskOptions,
        passages: Sequence[Passage | Mapping[str, Any]] | None = None,
    ) -> list[Found]:
        """Passages and prior of each question."""
        for question in questions:
            if not isinstance(question, str):
                raise UsageError(f"question {question!r}: expected a text")
            check_question(question)
            self._warn_of_language(question)
        if passages is not None:
            return [self._finder.given(questions[0], passages)]
        return self._finder.retrieved(questions, chosen)

    def _chosen(self, options: Mapping[str, Any]) -> AskOptions:
        """The options of one question; with a seed where one is needed and none was given."""
        chosen = _with(self.options, options)
        if self._logits is None:
            self._check_text(options)
        elif chosen.decoder == "concatenated":
            raise UsageError(
                "decoder concatenated is for the model of a server: a local one reads passages on their own"
            )
        needs = chosen.temperature is not None and chosen.seed is None
        return replace(chosen, seed=secrets.randbits(31)) if needs else chosen

    def _check_text(self, options: Mapping[str, Any]) -> None:
        """What a generator of text cannot do is told before anything is sent; defaults are not asked for."""
        asked = {**self._given, **options}
        text_rag.check_options(asked)
        text_rag.check_request(asked.get("scheme"), asked.get("decoder"))

    def _answers(self, found: Sequence[Found], chosen: AskOptions, options: Mapping[str, Any]) -> Iterator[Answer]:
        if self._logits is not None:
            return self._logits.answers(found, chosen)
        return (self._from_text(one, chosen, {**self._given, **options}) for one in found)

    def _from_text(self, found: Found, chosen: AskOptions, asked: Mapping[str, Any]) -> Answer:
        """An answer of a generator that returns text."""
        assert text_rag.is_text_generator(self.generator)
        made = text_rag.answer_from_text(
            self.generator,
            found.reading(chosen),
            found.retrieval.hits,
            found.log_prior(),
            candidates=max(chosen.beam, chosen.n_best),
            alternatives=chosen.n_best - 1,
            decoder=asked.get("decoder"),
            scheme=asked.get("scheme"),
        )
        encoder = self._encoder()
        asked_for = notes_on_finding(found.question, found.retrieval.hits, chosen.k, found.own, encoder)
        return replace(
            made,
            notes=(*asked_for, *made.notes),
            generation=found.retrieval.generation,
            timings=replace(made.timings, retrieve_s=found.seconds),
            model={**made.model, "encoder": "" if encoder is None else encoder.spec.model},
        )

    def _local(self, purpose: str) -> LogitAnswers:
        """For what a server cannot do."""
        text_rag.with_logits(self.generator, purpose)
        assert self._logits is not None
        return self._logits

    # ---- scoring and loss ----

    def score(
        self,
        question: str,
        answer: str,
        *,
        passages: Sequence[Passage | Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Answer:
        """How likely a given answer is, and where it comes from: an :class:`Answer` whose decoder is ``given``.

        ``log_prob`` is log p(y|x), ``log_likelihoods`` are log p(y|x,z), ``weights`` is the posterior.

        Raises:
            UsageError: as for :meth:`ask`.
        """
        _not_decoding(options)
        chosen = _with(self.options, options)
        (found,) = self._find([question], chosen, passages)
        return self._local("score").score(found, answer, chosen)

    def loss(
        self,
        questions: Sequence[str],
        answers: Sequence[str],
        *,
        passages: Sequence[Sequence[Passage | Mapping[str, Any]]] | None = None,
        scores: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Mean of -log p(y|x) over questions, nats, with gradients (MATH sections 2 and 4).

        Gradients reach the generator, and ``scores`` where they are given. Every question must have equally many
        passages.

        Args:
            questions: B questions.
            answers: One answer each.
            passages: K passages for each question; retrieved when left out.
            scores: (B, K) scores of the passages, before the prior's scale; the retriever's own when left out.
            **options: ``k``, ``scheme``, ``style`` and ``requery_every`` of :class:`AskOptions`.

        Raises:
            UsageError: as for :meth:`ask`, or the generator cannot be trained.
        """
        if isinstance(questions, str) or isinstance(answers, str) or len(questions) != len(answers) or not questions:
            raise UsageError("expected a list of questions and a list with one answer for each")
        _not_decoding(options)
        local = self._local("loss")
        chosen = _with(self.options, options)
        if passages is None:
            found = self._find(questions, chosen)
        else:
            if len(passages) != len(questions):
                raise UsageError(
                    f"passages for {len(passages)} of {len(questions)} questions: expected a list for each"
                )
            found = [self._find([q], chosen, own)[0] for q, own in zip(questions, passages, strict=True)]
        return local.loss(found, answers, chosen, scores)

    def _warn_of_language(self, question: str) -> None:
        """Once per Rag."""
        if self._warned:
            return
        parts: list[tuple[str, tuple[str, ...], str]] = []
        if self._logits is not None:  # a server would have to be asked
            parts.append(("generator", self.generator.spec.languages, self.generator.spec.model))
        if self.collection is not None:
            spec = self.collection.encoder.spec
            parts.insert(0, ("encoder", spec.languages, spec.model))
        for part, languages, model in parts:
            language = unfamiliar(question, languages)
            if language:
                self._warned = True
                warnings.warn(
                    f"the question looks like {language}, and the {part} {model} was made for "
                    f"{', '.join(languages)}: expect poor answers, or choose another model",
                    BifolioWarning,
                    stacklevel=4,
                )
                return


def _take(questions: Iterator[str], count: int) -> tuple[list[str], Exception | None]:
    """Up to ``count`` questions, and what went wrong with the one after them, if anything did."""
    batch: list[str] = []
    while len(batch) < count:
        try:
            question = next(questions)
            if not isinstance(question, str):
                raise UsageError(f"question {question!r}: expected a text")
            check_question(question)
        except StopIteration:
            break
        except Exception as error:  # also the caller's own: those before it are answered first
            return batch, error
        batch.append(question)
    return batch, None


def _not_decoding(options: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for options that only decoding knows."""
    if idle := sorted(_DECODING.intersection(options)):
        raise UsageError(f"{', '.join(idle)}: an answer that is given is not decoded; leave it out")


def _with(options: AskOptions, changes: Mapping[str, Any]) -> AskOptions:
    return options.changed(changes)
