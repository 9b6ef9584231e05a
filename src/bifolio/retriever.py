"""From a question to passages with p(z|x); :class:`Prior` is the one place where scores become log pi.

pi is the softmax of logits over the passages retrieved: ``scale * s + offset``, where s is the dense encoder's score,
which training differentiates and scheme ``requery`` renews, and the offset is what other stages add (MATH section 1):
nothing in mode dense, the words' share in the others, and what a reranker says. Reciprocal ranks are no
log-probabilities: they choose passages and order them, and the prior stays that of the scores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from bifolio import fuse
from bifolio.errors import ModelError, UsageError
from bifolio.fitting import Prior, default_prior
from bifolio.protocols import Encoder, EncoderSpec, Reranker
from bifolio.retrieval_options import Mode, RetrievalOptions
from bifolio.types import Hit, Passage

if TYPE_CHECKING:
    from torch import Tensor

_MARGIN = 16  # passages beyond those wanted that are looked at for duplicates
_Rows = Int64[np.ndarray, " n"]


class PassageSnapshot(Protocol):
    """One state of a collection, which does not change while it is read; rows are numbers of its passages."""

    @property
    def generation(self) -> str:
        """Name of the state."""
        ...

    @property
    def encoder(self) -> Encoder:
        """The encoder that its vectors were made with."""
        ...

    def allowed(self, where: str | None = None) -> Bool[np.ndarray, " R"]:
        """Which rows the reader may see and a filter expression lets through."""
        ...

    def nearest(
        self, query: Float32[np.ndarray, " D"], k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, " n"], _Rows]:
        """Scores and rows of the best allowed passages by inner product, as many as there are up to k."""
        ...

    def matching(
        self, question: str, k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, " n"], _Rows]:
        """BM25 and rows of the best allowed passages with a word of the question, up to k of them."""
        ...

    def dense_scores(self, query: Float32[np.ndarray, " D"], rows: _Rows) -> Float32[np.ndarray, " n"]:
        """Inner products with the vectors of rows."""
        ...

    def lexical_shares(self, question: str, rows: _Rows) -> Float32[np.ndarray, " n"]:
        """How much of the question rows say in its words: 0 where no word matches, about 1 for all of its words."""
        ...

    def row_vectors(self, rows: _Rows) -> Float32[np.ndarray, "n D"]:
        """E_P(z) of rows, as stored."""
        ...

    def passages_of(self, rows: _Rows) -> list[Passage]:
        """Passages of rows, in their order."""
        ...


class PassageStore(Protocol):
    """What a retriever needs of a collection."""

    def snapshot(self) -> PassageSnapshot:
        """The state that the collection has now."""
        ...


@dataclass(frozen=True)
class Retrieval:
    """What was found, and where.

    Attributes:
        hits: Passages, best first; their ``log_prior`` sums to 1 over them.
        generation: State of the collection that was read; "" for passages of the caller's own.
        scores: s of the hits: the part of their logits that has gradients and that scheme ``requery`` renews.
        offsets: What else their logits have, constants in nats; () for nothing.
        prior: How these became log pi.
        vectors: E_P(z) of the hits, made when they are asked for; None where there is no encoder.
        snapshot: That state itself; None for passages of the caller's own.
        options: How they were found; None for passages of the caller's own.
    """

    hits: tuple[Hit, ...]
    generation: str
    scores: tuple[float, ...]
    offsets: tuple[float, ...]
    prior: Prior
    vectors: Callable[[], Float32[np.ndarray, "K D"]] | None = None
    snapshot: PassageSnapshot | None = None
    options: RetrievalOptions | None = None

    def log_prior(self, *, no_passage: bool = False) -> Tensor:
        """Log pi_z of the hits, (K,), or (K + 1,) with the no-passage branch at its end."""
        return self.prior.log_prior(self.scores, self.offsets, no_passage=no_passage)


class _Pool(NamedTuple):
    """Candidates in the order of their ranking."""

    rows: _Rows
    dense: Float64[np.ndarray, " n"]
    logits: Float64[np.ndarray, " n"]
    complete: bool  # whether there are no others

    def at(self, places: Sequence[int] | Int64[np.ndarray, " m"]) -> _Pool:
        chosen = np.asarray(places, dtype=np.int64)
        return _Pool(self.rows[chosen], self.dense[chosen], self.logits[chosen], self.complete)


class Retriever:
    """Retrieval over one collection: dense, lexical or both. Safe to use from many threads."""

    def __init__(
        self,
        store: PassageStore,
        options: RetrievalOptions | None = None,
        prior: Prior | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        """Retrieve from ``store``.

        Args:
            store: A collection.
            options: How; each retrieval may change them.
            prior: How scores become log pi, for every mode; by default :func:`default_prior` of the mode.
            reranker: Reads the best again where the options name no other.
        """
        self.options = options or RetrievalOptions()
        self.rerankers: dict[str, Reranker] = {} if reranker is None else {"": reranker}
        """Those that are loaded, by the name that options give them."""
        self._store = store
        self._prior = prior
        self._loading = threading.Lock()

    def retrieve(self, question: str, k: int | None = None, **options: Any) -> tuple[Hit, ...]:
        """The hits of :meth:`retrieval`."""
        return self.retrieval(question, k, **options).hits

    def retrieval(self, question: str, k: int | None = None, **options: Any) -> Retrieval:
        """The best k passages, or as many as there are, all from one generation, whatever an ingest does.

        Mode lexical finds only passages with a word of the question.

        Args:
            question: The question.
            k: How many passages; 5, or what the retriever's own options say, when left out.
            **options: Such as ``mode="dense"``, of :class:`RetrievalOptions`, for this question only.

        Raises:
            UsageError: the question is empty, k is below 1, or an option or the filter cannot be used.
            ModelMissingError: the collection's encoder is not in the cache.
            EncoderMismatchError: the encoder is not the one that the collection was built with.
        """
        return self.retrievals([question], k, **options)[0]

    def retrievals(self, questions: Sequence[str], k: int | None = None, **options: Any) -> list[Retrieval]:
        """:meth:`retrieval` of several questions, encoded together, all from one generation."""
        return self.found(questions, self.options.changed(options if k is None else {**options, "k": k}))

    def found(self, questions: Sequence[str], chosen: RetrievalOptions) -> list[Retrieval]:
        """:meth:`retrievals` with all options given."""
        for question in questions:
            check_question(question)
        # The state comes before anything is encoded: only its own encoder can be compared with its vectors.
        return self._found(self._store.snapshot(), questions, chosen)

    def _found(self, now: PassageSnapshot, questions: Sequence[str], chosen: RetrievalOptions) -> list[Retrieval]:
        allowed = now.allowed(chosen.where)
        prior = self._prior_of(chosen.mode, lambda: now.encoder.spec)
        if chosen.mode == "lexical":
            return [_Search(now, question, None, allowed, chosen, prior, self)() for question in questions]
        queries = now.encoder.encode_questions(list(questions))
        pairs = zip(questions, queries, strict=True)
        return [_Search(now, question, query, allowed, chosen, prior, self)() for question, query in pairs]

    def _prior_of(self, mode: Mode, encoder: Callable[[], EncoderSpec]) -> Prior:
        if self._prior is None:
            return default_prior(mode, encoder)
        return replace(self._prior, scale=0.0) if mode == "lexical" else self._prior

    def within(self, earlier: Retrieval, question: str, k: int) -> Retrieval:
        """As :meth:`retrieval`, in the state that an earlier retrieval read, and with its options."""
        now = earlier.snapshot or self._store.snapshot()
        return self._found(now, [question], replace(earlier.options or self.options, k=k))[0]

    def given(self, question: str, passages: Sequence[Passage]) -> Retrieval:
        """The caller's own passages, in their order, with the scores that the encoder gives them (mode dense)."""
        check_question(question)
        encoder = self._store.snapshot().encoder
        query = encoder.encode_questions([question])[0]
        vectors = encoder.encode_passages(passages)
        dense = tuple(float(vector @ query) for vector in vectors)
        prior = self._prior_of("dense", lambda: encoder.spec)
        return Retrieval(_hits(passages, dense, dense, (), prior), "", dense, (), prior, lambda: vectors)

    def reranker(self, chosen: RetrievalOptions) -> Reranker | None:
        """The one that the options name, loaded on first use, or this retriever's own; None if there is none."""
        with self._loading:
            if chosen.reranker and chosen.reranker not in self.rerankers:
                self.rerankers[chosen.reranker] = load_reranker(chosen.reranker)
            return self.rerankers.get(chosen.reranker)


class _Search(NamedTuple):
    """One question asked of one state."""

    now: PassageSnapshot
    question: str
    query: Float32[np.ndarray, " D"] | None  # None in mode lexical
    allowed: Bool[np.ndarray, " R"]
    chosen: RetrievalOptions
    prior: Prior
    retriever: Retriever

    def __call__(self) -> Retrieval:
        """The best k: propose, collapse, read again, spread."""
        chosen, prior, reranker = self.chosen, self.prior, self.retriever.reranker(self.chosen)
        want = k = chosen.k
        if reranker is not None:
            want = max(k, chosen.rerank)
        elif chosen.mmr is not None:
            want = max(k, chosen.candidates)
        width = max(want, chosen.candidates)
        while True:
            pool = self._propose(width)
            places, passages, doubles = self._distinct(pool, want)
            if len(places) >= k or pool.complete:
                break
            width *= 2
        pool = pool.at(places)
        order = np.arange(len(places))
        if reranker is not None and len(places):
            pool = pool._replace(logits=pool.logits + _gains(reranker, self.question, passages))
            order = np.argsort(-pool.logits, kind="stable")
        if chosen.mmr is not None:
            order = order[fuse.mmr(pool.logits[order], self.now.row_vectors(pool.rows[order]), k, chosen.mmr)]
        order = order[:k]
        pool = pool.at(order)
        dense = tuple(pool.dense.tolist())
        plain = chosen.mode == "dense" and reranker is None
        offsets = () if plain else tuple((pool.logits - prior.scale * pool.dense).tolist())
        scores = dense if plain else tuple(pool.logits.tolist())
        hits = _hits([passages[i] for i in order], scores, dense, offsets, prior, [doubles[i] for i in order])
        now, rows = self.now, pool.rows
        return Retrieval(hits, now.generation, dense, offsets, prior, lambda: now.row_vectors(rows), now, chosen)

    def _propose(self, width: int) -> _Pool:
        """The best of each side, ranked together; what one side lacks of the other's is computed."""
        now, prior, mode = self.now, self.prior, self.chosen.mode
        by_words = _NONE if mode == "dense" else now.matching(self.question, width, self.allowed)[1]
        if self.query is None:
            shares = now.lexical_shares(self.question, by_words)
            order = np.lexsort((by_words, -shares))
            logits = fuse.weighted(np.zeros(len(shares)), shares, scale=0.0, weight=prior.lexical_weight)
            return _Pool(by_words, np.zeros(len(logits)), logits, len(logits) < width).at(order)
        by_meaning = now.nearest(self.query, width, self.allowed)
        complete = len(by_meaning[1]) < width
        if mode == "dense":
            dense = by_meaning[0].astype(np.float64)
            return _Pool(by_meaning[1], dense, prior.scale * dense, complete)
        rows = np.union1d(by_meaning[1], by_words)
        dense = now.dense_scores(self.query, rows).astype(np.float64)
        shares = now.lexical_shares(self.question, rows)
        logits = fuse.weighted(dense, shares, scale=prior.scale, weight=prior.lexical_weight)
        if self.chosen.fusion == "rrf":
            mine = shares[np.searchsorted(rows, by_words)]
            _, ranked = fuse.reciprocal_rank([by_meaning[1], by_words[np.lexsort((by_words, -mine))]])
            order = np.searchsorted(rows, ranked)
        else:
            order = np.argsort(-logits, kind="stable")  # rows ascend: ties go to the smaller one
        return _Pool(rows, dense, logits, complete).at(order)

    def _distinct(self, pool: _Pool, want: int) -> tuple[list[int], list[Passage], list[tuple[Passage, ...]]]:
        """Places of the first ``want`` passages that say different things, these passages, and what repeats them."""
        if not self.chosen.collapse:
            passages = self.now.passages_of(pool.rows[:want])
            return list(range(len(passages))), passages, [()] * len(passages)
        look = max(2 * want, want + _MARGIN)
        while True:
            passages = self.now.passages_of(pool.rows[:look])
            first = fuse.same_texts([passage.text for passage in passages])
            places = [place for place, one in enumerate(first) if place == one][:want]
            if len(places) == want or look >= len(pool.rows):
                break
            look *= 2
        doubles: dict[int, list[Passage]] = {place: [] for place in places}
        for place, one in enumerate(first):
            if place != one and one in doubles:
                doubles[one].append(passages[place])
        return places, [passages[place] for place in places], [tuple(doubles[place]) for place in places]


_NONE = np.zeros(0, dtype=np.int64)


def _hits(
    passages: Sequence[Passage],
    scores: Sequence[float],
    dense: Sequence[float],
    offsets: Sequence[float],
    prior: Prior,
    doubles: Sequence[tuple[Passage, ...]] | None = None,
) -> tuple[Hit, ...]:
    if not passages:
        return ()
    log_prior = prior.log_prior(dense, offsets).tolist()
    facts = zip(passages, scores, log_prior, doubles or [()] * len(passages), strict=True)
    return tuple(Hit(*fact) for fact in facts)


def _gains(reranker: Reranker, question: str, passages: Sequence[Passage]) -> Float64[np.ndarray, " n"]:
    gains: Float64[np.ndarray, " n"] = np.asarray(reranker.scores(question, passages), dtype=np.float64)
    if gains.shape != (len(passages),) or not np.isfinite(gains).all():
        raise ModelError(
            f"{type(reranker).__name__} scored {len(passages)} passages with an array of shape {gains.shape}: "
            "expected one finite number for each"
        )
    return gains


def load_reranker(name: str) -> Reranker:
    """The reranker of a name: ``cross-encoder:MODEL``, ``generator``, ``generator:MODEL`` or a third party's.

    Raises:
        UsageError: there is no such reranker, or the generator is a server's.
        ModelMissingError: its model is not in the cache.
        ModelError: its model cannot be used.
    """
    from bifolio import models
    from bifolio.loading import load_generator
    from bifolio.registry import resolve

    argument: Any
    reranker_class, argument = resolve("reranker", name)
    kind = name.partition(":")[0]
    if kind == "cross-encoder":
        if not argument:
            raise UsageError("reranker cross-encoder: expected cross-encoder:MODEL, with the id or folder of a model")
        argument = models.resolve(argument)
    elif kind == "generator":
        argument = load_generator(argument or models.DEFAULT_GENERATOR)
    made: Reranker = reranker_class(argument)
    return made


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
