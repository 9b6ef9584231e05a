"""An encoder and a generator without models: deterministic, fast, and easy to predict by hand."""

import hashlib
import math
import re
import time

import numpy as np

from bifolio.errors import UsageError
from bifolio.generators.templates import check_style
from bifolio.protocols import EncoderSpec, GeneratorSpec, Kept

DIMENSION = 32
COPY = 0.9
"""Probability of the passage's next word; the rest is spread over all other tokens."""


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def bag(text: str) -> np.ndarray:
    """Each word adds its own direction, drawn from its hash; the sum has length 1 (an empty text has length 0)."""
    vector = np.zeros(DIMENSION)
    for word in words(text):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
        vector += np.random.default_rng(seed).standard_normal(DIMENSION)
    norm = np.linalg.norm(vector)
    return (vector / norm if norm else vector).astype(np.float32)


class FakeEncoder:
    """Bags of words. ``seen`` has the ids of all passages ever encoded."""

    def __init__(self, name="fake", *, window=64, delay=0.0, no_passage_logit=None, languages=()):
        self.spec = EncoderSpec(
            f"fake-encoder-{name}", f"sha256:{name}", DIMENSION, 10.0, no_passage_logit, window, tuple(languages)
        )
        self.delay = delay
        self.seen: list[str] = []

    def encode_questions(self, questions):
        return np.stack([bag(question) for question in questions])

    def encode_passages(self, passages, on_batch=None):
        rows = []
        for passage in passages:
            time.sleep(self.delay)
            rows.append(bag(passage.text))
            self.seen.append(passage.id)
            if on_batch:
                on_batch(1)
        return np.stack(rows)

    def passage_lengths(self, passages):
        return np.array([len(words(passage.text)) for passage in passages], dtype=np.int64)


class FakeGenerator:
    """Copies the passage word by word, then ends; without a passage it ends at once, or says any word."""

    def __init__(self, vocabulary: str, *, window=1000, languages=()):
        self.words = ["", *sorted(set(vocabulary.split()))]  # 0 is EOS
        self.ids = {word: number for number, word in enumerate(self.words)}
        self.spec = GeneratorSpec("fake-generator", len(self.words), 0, window, tuple(languages))
        self.reads: list[tuple[str, list[str], str, int, bool]] = []

    def read(self, readings):
        groups = []
        for reading in readings:
            check_style(reading.style)
            self.reads.append(
                (
                    reading.question,
                    [p.id for p in reading.passages],
                    reading.style,
                    reading.max_tokens,
                    reading.no_passage,
                )
            )
            room = self.spec.window - len(reading.question.split()) - reading.max_tokens
            if room < 1:
                raise UsageError(f"the window of {self.spec.window} tokens has no room for a passage")
            texts = [[self.ids[w] for w in p.text.split() if w in self.ids] for p in reading.passages]
            kept = tuple(Kept(min(len(text), room), len(text)) for text in texts)
            groups.append(([text[:room] for text in texts] + [[]] * reading.no_passage, kept))
        return FakeBranches(groups, self.spec.vocabulary)

    def answer_ids(self, answer, *, style):
        check_style(style)
        return [*(self.ids[word] for word in answer.split()), self.spec.eos]

    def text(self, ids):
        return "".join(f" {self.words[i]}" for i in ids if i != self.spec.eos)


class FakeBranches:
    """Branch z gives ``COPY`` to the passage's word at the answer's length, and to EOS after the last one."""

    def __init__(self, groups, vocabulary):
        self._groups = groups
        self._vocabulary = vocabulary
        self._live = [[()] for _ in groups]

    @property
    def kept(self):
        return tuple(kept for _, kept in self._groups)

    def conditional(self, text, prefix):
        """log p(. | z, prefix) as plain floats."""
        favourite = text[len(prefix)] if len(prefix) < len(text) else 0
        rest = math.log((1 - COPY) / (self._vocabulary - 1))
        return [math.log(COPY) if token == favourite else rest for token in range(self._vocabulary)]

    def _rows(self):
        import torch  # here, because the encoder alone is also used in processes that must start fast

        return [
            torch.tensor([[self.conditional(text, p) for text in texts] for p in live]).reshape(
                len(live), len(texts), self._vocabulary
            )
            for (texts, _), live in zip(self._groups, self._live, strict=True)
        ]

    def start(self, after=None):
        self._live = [[tuple(after[q]) if after else ()] for q in range(len(self._groups))]
        return self._rows()

    def advance(self, moves):
        self._live = [
            [(*live[parent], token) for parent, token in zip(move.parents, move.tokens, strict=True)]
            for live, move in zip(self._live, moves, strict=True)
        ]
        return self._rows()

    def score(self, answers):
        import torch

        return [
            [
                torch.tensor(
                    [[self.conditional(t, answer[:i])[token] for i, token in enumerate(answer)] for t in texts]
                )
                for answer in mine
            ]
            for (texts, _), mine in zip(self._groups, answers, strict=True)
        ]

    def apart(self):
        parts = []
        for texts, kept in self._groups:
            parts += [([text], kept[z : z + 1]) for z, text in enumerate(texts)]
        return FakeBranches(parts, self._vocabulary)


TEXTS = {
    "pump.md": "# Pump\n\nThe pump P-7 starts when the valve V-12 has closed.\n\n## Oil\n\n"
    "The oil is black and warm.\n",
    "cat.txt": "The cat sat on the mat. It slept there until noon.\n",
    "river.txt": "A river runs under the stone bridge.\n",
}


def write_files(folder, texts=None):
    """Files of these texts (or bytes) in a folder; returns the folder."""
    for name, text in (TEXTS if texts is None else texts).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder
