"""A generator that is a table: every conditional is known, so that answers can be enumerated."""

import itertools
import math
import random

import torch

from bifolio import decode, marginal
from bifolio.hypotheses import Mixture, constant
from bifolio.protocols import Kept
from bifolio.segments import segment_ids

EOS = 0


class ToyBranches:
    """K branches over V tokens; p(. | z, prefix) is drawn once from the seed, and EOS is certain at depth ``depth``."""

    def __init__(self, branches: int, vocabulary: int, depth: int, seed: int, impossible: float = 0.0) -> None:
        self.k, self.v, self.depth, self.seed, self.impossible = branches, vocabulary, depth, seed, impossible
        self._live: list[tuple[int, ...]] = [()]

    @property
    def kept(self):
        return ((Kept(1, 1),) * self.k,)

    def conditional(self, z: int, prefix: tuple[int, ...]) -> list[float]:
        """log p(. | z, prefix) as plain floats."""
        if len(prefix) >= self.depth:
            return [0.0 if token == EOS else -math.inf for token in range(self.v)]
        dice = random.Random(repr((self.seed, z, prefix)))
        weights = [0.0 if token and dice.random() < self.impossible else dice.expovariate(1) for token in range(self.v)]
        total = sum(weights)
        return [math.log(weight / total) if weight else -math.inf for weight in weights]

    def _rows(self) -> list[torch.Tensor]:
        rows = [[self.conditional(z, p) for z in range(self.k)] for p in self._live]
        return [torch.tensor(rows, dtype=torch.float64).reshape(len(rows), self.k, self.v)]

    def start(self, after=None) -> list[torch.Tensor]:
        self._live = [tuple(after[0]) if after else ()]
        return self._rows()

    def advance(self, moves) -> list[torch.Tensor]:
        ((parents, tokens),) = moves
        self._live = [(*self._live[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        return self._rows()

    def score(self, answers) -> list[list[torch.Tensor]]:
        return [[self._score(answer) for answer in answers[0]]]

    def _score(self, answer) -> torch.Tensor:
        columns = [
            [self.conditional(z, tuple(answer[:i]))[token] for z in range(self.k)] for i, token in enumerate(answer)
        ]
        return torch.tensor(columns, dtype=torch.float64).T

    def apart(self) -> "Several":
        return Several([OneBranch(self, z) for z in range(self.k)])

    def answers(self) -> list[tuple[int, ...]]:
        """Every answer that ends with EOS."""
        words = range(1, self.v)
        return [(*body, EOS) for length in range(self.depth + 1) for body in itertools.product(words, repeat=length)]


class OneBranch(ToyBranches):
    """Branch z of a toy as a question of its own."""

    def __init__(self, whole: ToyBranches, z: int) -> None:
        super().__init__(1, whole.v, whole.depth, whole.seed, whole.impossible)
        self._whole, self._z = whole, z

    def conditional(self, z: int, prefix: tuple[int, ...]) -> list[float]:
        return self._whole.conditional(self._z, prefix)


class Several:
    """Toys of several questions side by side."""

    def __init__(self, toys: list[ToyBranches]) -> None:
        self.toys = toys

    @property
    def kept(self):
        return tuple(toy.kept[0] for toy in self.toys)

    def start(self, after=None) -> list[torch.Tensor]:
        return [toy.start(after and [after[q]])[0] for q, toy in enumerate(self.toys)]

    def advance(self, moves) -> list[torch.Tensor]:
        return [toy.advance([move])[0] for toy, move in zip(self.toys, moves, strict=True)]

    def score(self, answers) -> list[list[torch.Tensor]]:
        return [toy.score([mine])[0] for toy, mine in zip(self.toys, answers, strict=True)]

    def apart(self) -> "Several":
        return Several([part for toy in self.toys for part in toy.apart().toys])


def mixture(prior, starts) -> Mixture:
    """What is decoded: ``prior`` is (K,), or a function of prefixes."""
    return Mixture(prior if callable(prior) else constant(prior), starts, EOS)


def beam(branches, prior, starts, **options):
    """Beam search of one question."""
    (found,) = decode.run(branches, [decode.beam(mixture(prior, starts), **options)])
    return found


def draw(branches, prior, starts, **options):
    """Samples for one question."""
    (found,) = decode.run(branches, [decode.draw(mixture(prior, starts), **options)])
    return found


def likelihood(branches, answer) -> torch.Tensor:
    """Log p(y_i | x, z, y_<i) of one answer to one question, (K, T)."""
    ((found,),) = branches.score([[answer]])
    return found


def log_p(branches, prior, starts, answer) -> float:
    """log p(y|x) of one answer, by its segments."""
    ids = torch.tensor([segment_ids(answer, starts)])
    return float(marginal.segment_log_likelihood(prior[None], likelihood(branches, answer)[None], ids))


def exact(branches, prior, starts) -> dict[tuple[int, ...], float]:
    """log p(y|x) of every answer."""
    return {answer: log_p(branches, prior, starts, answer) for answer in branches.answers()}


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
