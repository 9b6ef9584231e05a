"""A generator that is a table: every conditional is known, so that answers can be enumerated."""

import itertools
import math
import random

import torch

EOS = 0


class ToyBranches:
    """K branches over V tokens; p(. | z, prefix) is drawn once from the seed, and EOS is certain at depth ``depth``."""

    def __init__(self, branches: int, vocabulary: int, depth: int, seed: int, impossible: float = 0.0) -> None:
        self.k, self.v, self.depth, self.seed, self.impossible = branches, vocabulary, depth, seed, impossible
        self._live: list[tuple[int, ...]] = [()]

    @property
    def kept_tokens(self) -> tuple[tuple[int, int], ...]:
        return ((1, 1),) * self.k

    def conditional(self, z: int, prefix: tuple[int, ...]) -> list[float]:
        """log p(. | z, prefix) as plain floats."""
        if len(prefix) >= self.depth:
            return [0.0 if token == EOS else -math.inf for token in range(self.v)]
        dice = random.Random(repr((self.seed, z, prefix)))
        weights = [0.0 if token and dice.random() < self.impossible else dice.expovariate(1) for token in range(self.v)]
        total = sum(weights)
        return [math.log(weight / total) if weight else -math.inf for weight in weights]

    def _rows(self) -> torch.Tensor:
        return torch.tensor([[self.conditional(z, p) for z in range(self.k)] for p in self._live], dtype=torch.float64)

    def start(self) -> torch.Tensor:
        self._live = [()]
        return self._rows()

    def advance(self, parents, tokens) -> torch.Tensor:
        self._live = [(*self._live[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        return self._rows()

    def score(self, answer) -> torch.Tensor:
        columns = [
            [self.conditional(z, tuple(answer[:i]))[token] for z in range(self.k)] for i, token in enumerate(answer)
        ]
        return torch.tensor(columns, dtype=torch.float64).T

    def answers(self) -> list[tuple[int, ...]]:
        """Every answer that ends with EOS."""
        words = range(1, self.v)
        return [(*body, EOS) for length in range(self.depth + 1) for body in itertools.product(words, repeat=length)]


TEXTS = {0: "", 1: " Close it.", 2: " Valve", 3: " 3.", 4: " Dr."}


def text(ids) -> str:
    """Text of toy tokens: some end a sentence, some only may."""
    return "".join(TEXTS[i] for i in ids)


def recursion(log_prior, log_likelihood, resets):
    """MATH section 2 in plain floats, one answer: (log p, blame per token, rows at segment ends with their sizes)."""
    k, t = len(log_likelihood), len(log_likelihood[0]) if log_likelihood else 0
    prior = [math.exp(value) for value in log_prior]
    w, total, blames, rows, size = list(prior), 0.0, [], [], 0
    for i in range(t):
        if i and resets[i]:
            rows.append((w, size))
            w, size = list(prior), 0
        joint = [w[z] * math.exp(log_likelihood[z][i]) for z in range(k)]
        mixed = sum(joint)
        total += math.log(mixed) if mixed else -math.inf
        w = [value / mixed for value in joint] if mixed else w
        size += 1
        blames.append(w)
    rows.append((w, size))
    return total, blames, rows
