"""What an adapter must be able to do. Each protocol has at most four methods and a ready contract test.

Shapes: N texts, D dimensions, Q questions, k results, K branches (passages, plus one for no passage),
H hypotheses, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int64

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from bifolio.types import Passage


@dataclass(frozen=True)
class EncoderSpec:
    """What an encoder is, apart from its weights.

    Attributes:
        model: The id that loads it again (hub id, folder, ``wheel:...``).
        fingerprint: ``sha256`` over weights, tokenizer, pooling, normalisation, dimension and window: equal means
            that vectors are comparable.
        dimension: D.
        prior_scale: 1/tau, the factor that turns a score into a logit of p(z|x): 1 for DPR's raw products, about 20
            for normalised vectors.
        no_passage_logit: b, the logit of the no-passage branch on the scale of ``prior_scale * score``; None switches
            the branch off.
        window: The longest input in tokens; what is longer is cut at its end.
        languages: ISO 639-1 codes that the model is known to handle; empty when unknown.
    """

    model: str
    fingerprint: str
    dimension: int
    prior_scale: float
    no_passage_logit: float | None
    window: int
    languages: tuple[str, ...] = ()


@runtime_checkable
class Encoder(Protocol):
    """Questions and passages to vectors whose inner product is the score s_z = E_Q(x) . E_P(z)."""

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's identity."""
        ...

    def encode_questions(self, questions: Sequence[str]) -> Float32[np.ndarray, "N D"]:
        """Encode questions, in order."""
        ...

    def encode_passages(
        self, passages: Sequence[Passage], on_batch: Callable[[int], None] | None = None
    ) -> Float32[np.ndarray, "N D"]:
        """Encode passages, in order; ``on_batch(n)`` is told after every n passages."""
        ...

    def passage_lengths(self, passages: Sequence[Passage]) -> Int64[np.ndarray, " N"]:
        """Tokens of each passage, uncut: more than ``spec.window`` means that its end is not searchable."""
        ...


@runtime_checkable
class DenseIndex(Protocol):
    """Maximum inner product search. Ids are the caller's and need not be contiguous.

    Its class is a :class:`DenseIndexClass`: a collection makes an index and reads it back through that. An index may
    be approximate in which vectors it finds, not in their scores and order; among 256 or fewer, and when all are asked
    for, it finds what brute force finds. ``bifolio.topk`` has the checks and the scoring, ready to use.
    """

    def add(self, vectors: Float32[np.ndarray, "N D"], ids: Int64[np.ndarray, " N"]) -> None:
        """Add vectors under unused ids >= 0; ``UsageError``, and nothing added, if that is not what is given."""
        ...

    def search(
        self, queries: Float32[np.ndarray, "Q D"], k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, "Q k"], Int64[np.ndarray, "Q k"]]:
        """Scores and ids of the best, best first, ties by smaller id; only ids that were added.

        ``allowed`` is a mask by id: i may be returned if ``i < len(allowed)`` and ``allowed[i]``. It acts inside the
        search: as many come back as there are allowed ones, up to k.
        """
        ...

    def save(self, path: Path) -> None:
        """Write the index to one file; what was at ``path`` is replaced."""
        ...

    def __len__(self) -> int:
        """How many vectors the index has."""
        ...


@runtime_checkable
class LexicalIndex(Protocol):
    """Passages by the words that they have in common with a question. Rows are the caller's."""

    def add(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        """Add passages under rows that are not used yet."""
        ...

    def search(
        self, question: str, k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """BM25 and rows of the best that have a word of the question (any text), as :meth:`DenseIndex.search`."""
        ...

    def shares(self, question: str, rows: Sequence[int]) -> Float32[np.ndarray, " n"]:
        """How much of the question each of some rows says: 0 where no word matches, about 1 for all of its words."""
        ...


class DenseIndexClass(Protocol):
    """What a collection needs of a dense index's class; ``registry.resolve("index", name)`` gives it.

    ``name`` is ``"<entry>"`` or ``"<entry>:<argument>"``, as in ``faiss:hnsw``.
    """

    def __call__(self, dimension: int, argument: str = "", /) -> DenseIndex:
        """An empty index; cheap, and ``UsageError`` for a dimension below 1 or an argument that it does not know."""
        ...

    def load(self, path: Path, /) -> DenseIndex:
        """The index that ``save`` wrote, ready for more; ``CollectionDamagedError`` if the file is missing or wrong."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """Reads questions together with passages that were found, to order them better."""

    def scores(self, question: str, passages: Sequence[Passage]) -> Float32[np.ndarray, " n"]:
        """What each passage's logit of the prior gains, nats; the larger the better, 0 for one as good as none."""
        ...


@dataclass(frozen=True)
class GeneratorSpec:
    """What a generator is, apart from its weights.

    Attributes:
        model: The id that loads it again.
        vocabulary: V, the width of every row of log-probabilities.
        eos: The one token that ends an answer. Where several tokens or a newline end it, their probability is summed
            here and they are impossible otherwise.
        window: Tokens that prompt and answer may have together.
        languages: ISO 639-1 codes that the model is known to handle; empty when unknown.
        adapter: Id of the adapter on top of the model; "" for none.
    """

    model: str
    vocabulary: int
    eos: int
    window: int
    languages: tuple[str, ...] = ()
    adapter: str = ""


@dataclass(frozen=True)
class Reading:
    """A question and the passages that are read with it, each on its own.

    Attributes:
        question: The question, whole: where something must be cut, it is a passage.
        passages: K passages, or none.
        style: One of ``options.STYLES``.
        max_tokens: Room that is kept for the answer.
        no_passage: Whether one more branch, the last one, reads the question alone.
    """

    question: str
    passages: tuple[Passage, ...]
    style: str
    max_tokens: int
    no_passage: bool = False


class Kept(NamedTuple):
    """What was read of one passage.

    Attributes:
        read: Tokens of its text that were read.
        whole: Tokens that its text has: more than ``read`` when it was cut.
        cached: Whether reading it cost nothing, because it had been read before.
    """

    read: int
    whole: int
    cached: bool = False


class Move(NamedTuple):
    """One step of one question: hypothesis h becomes ``parents[h]`` of the step before followed by ``tokens[h]``.

    Without hypotheses, ``Move([], [])``, the question is done and its branches are given up.
    """

    parents: list[int]
    tokens: list[int]


@runtime_checkable
class Branches(Protocol):
    """Prompts of one or more questions, read each on its own; a question's K branches continue in lockstep.

    Every list below has one entry a question, in the order of the readings; K, and H, may differ between them.
    """

    @property
    def kept(self) -> tuple[tuple[Kept, ...], ...]:
        """For each question and passage what was read of it."""
        ...

    def start(self, after: Sequence[Sequence[int]] | None = None) -> list[Float[Tensor, "1 K V"]]:
        """Log p(next | x, z, after), float32 or wider, of one hypothesis a question: empty, or the tokens ``after``.

        ``after`` has equally many tokens for every question.
        """
        ...

    def advance(self, moves: Sequence[Move]) -> list[Float[Tensor, "H K V"]]:
        """Log p(next) of each hypothesis after the step that ``moves`` describe."""
        ...

    def score(self, answers: Sequence[Sequence[Sequence[int]]]) -> list[list[Float[Tensor, "K T"]]]:
        """Log p(y_i | x, z, y_<i) of given answers, any number a question; independent of ``start`` and ``advance``."""
        ...

    def apart(self) -> Branches:
        """The same prompts, nothing read twice, with every branch a question of its own (K = 1).

        Of the two only the one that was started last can be advanced.
        """
        ...


@runtime_checkable
class LogitGenerator(Protocol):
    """A generator that gives its next-token distribution, so that every scheme and decoder is exact."""

    @property
    def spec(self) -> GeneratorSpec:
        """The generator's identity."""
        ...

    def read(self, readings: Sequence[Reading]) -> Branches:
        """Read each passage of each question on its own.

        Raises:
            UsageError: a question does not fit into the window, or has neither a passage nor the no-passage branch.
        """
        ...

    def answer_ids(self, answer: str, *, style: str) -> list[int]:
        """Token ids of an answer as the generator would produce it, ``spec.eos`` at the end."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Text of answer tokens, as it stands, without ``spec.eos`` and other special tokens."""
        ...


@runtime_checkable
class TrainableGenerator(Protocol):
    """A generator whose likelihoods have gradients."""

    def token_log_probs(
        self, readings: Sequence[Reading], answers: Sequence[Sequence[int]]
    ) -> tuple[Float[Tensor, "B K T"], Bool[Tensor, "B T"]]:
        """Log p(y_i | x, z, y_<i) of one answer a question, with the mask of its tokens; every reading has K branches.

        Raises:
            UsageError: the readings have different numbers of branches, or a question does not fit.
        """
        ...


@dataclass(frozen=True)
class TextGeneratorSpec:
    """What a generator is that returns text.

    Attributes:
        model: Its id, such as ``http://127.0.0.1:8000/v1#name``; never a secret.
        log_probs: Whether the tokens of an answer come with their log-probabilities.
        scores: Whether log-probabilities of a given continuation can be had.
        languages: ISO 639-1 codes that the model is known to handle; empty when unknown.
    """

    model: str
    log_probs: bool
    scores: bool
    languages: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextCandidate:
    """An answer as text.

    Attributes:
        text: The answer; the pieces, joined.
        pieces: Its tokens as text.
        log_probs: Log p of each piece given what is before it, nats; None where the generator does not say.
        end_log_prob: Log p of ending after the last piece; None where it is not known.
        finished: False when ``max_tokens`` cut it.
    """

    text: str
    pieces: tuple[str, ...]
    log_probs: tuple[float, ...] | None
    end_log_prob: float | None
    finished: bool


@runtime_checkable
class TextGenerator(Protocol):
    """A generator that returns text, with log-probabilities or without: some server's model."""

    @property
    def spec(self) -> TextGeneratorSpec:
        """The generator's identity and what it can do."""
        ...

    def generate(self, reading: Reading, *, n: int = 1) -> list[list[TextCandidate]]:
        """For each branch (the passages, then no passage where it is read) up to ``n`` answers, best first."""
        ...

    def score(self, reading: Reading, answers: Sequence[TextCandidate]) -> list[list[TextCandidate]]:
        """For each branch the same answers with their log-probabilities under it; only if ``spec.scores``."""
        ...

    def kept(self, reading: Reading, *, together: bool = False) -> tuple[Kept, ...]:
        """Of each passage the characters of its text that are read; ``together``: with all passages in one prompt."""
        ...

    def concatenated(self, reading: Reading) -> TextCandidate:
        """One answer to all passages in one prompt, numbered from 1: where there are no log-probabilities."""
        ...
