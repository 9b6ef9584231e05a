"""What an adapter must be able to do. Each protocol has at most four methods and a ready contract test.

Shapes: N texts, D dimensions, Q questions, k results, K branches (passages, plus one for no passage),
H hypotheses, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

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
        self, queries: Float32[np.ndarray, "Q D"], k: int
    ) -> tuple[Float32[np.ndarray, "Q k"], Int64[np.ndarray, "Q k"]]:
        """Scores and ids of the min(k, len(self)) best, best first, ties by smaller id; only ids that were added."""
        ...

    def save(self, path: Path) -> None:
        """Write the index to one file; what was at ``path`` is replaced."""
        ...

    def __len__(self) -> int:
        """How many vectors the index has."""
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


@runtime_checkable
class Branches(Protocol):
    """K prompts that were read, each on its own, and that now continue in lockstep with the same answer tokens."""

    @property
    def kept_tokens(self) -> tuple[tuple[int, int], ...]:
        """For each passage (tokens that were read, tokens that it has): different when the passage was cut."""
        ...

    def start(self) -> Float[Tensor, "1 K V"]:
        """Log p(y_1 | x, z), float32, of the empty hypothesis. Before ``advance``, asking again costs nothing."""
        ...

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Float[Tensor, "H K V"]:
        """Hypothesis h becomes ``parents[h]`` of the step before followed by ``tokens[h]``; log p(next) of each."""
        ...

    def score(self, answer: Sequence[int]) -> Float[Tensor, "K T"]:
        """Log p(y_i | x, z, y_<i) of a given answer, teacher-forced, from the prompts (independent of ``advance``)."""
        ...


@runtime_checkable
class LogitGenerator(Protocol):
    """A generator that gives its next-token distribution, so that every scheme and decoder is exact."""

    @property
    def spec(self) -> GeneratorSpec:
        """The generator's identity."""
        ...

    def read(
        self, question: str, passages: Sequence[Passage], *, style: str, max_tokens: int, no_passage: bool
    ) -> Branches:
        """Read each passage on its own with the question; the question alone is the last branch if ``no_passage``."""
        ...

    def answer_ids(self, answer: str, *, style: str) -> list[int]:
        """Token ids of an answer as the generator would produce it, ``spec.eos`` at the end."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Text of answer tokens, as it stands, without ``spec.eos`` and other special tokens."""
        ...
