"""Branches of many questions as one grid: R branches beside each other, H hypotheses deep.

What a model family must be able to do is a :class:`Prompts`, which was read once, and a :class:`Run`, which continues
it; :class:`Grid` makes a :class:`bifolio.protocols.Branches` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio.generators.ends import Ends
from bifolio.protocols import Branches, Kept, Move


@runtime_checkable
class Run(Protocol):
    """A continuation of R prompts by H hypotheses each."""

    def step(self, parents: list[list[int]], tokens: list[list[int]]) -> Float[Tensor, "H R V"]:
        """Logits after hypothesis h of branch r became ``parents[h][r]`` followed by ``tokens[h][r]``."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Give up all other branches."""
        ...

    @property
    def over(self) -> bool:
        """Whether a later run of the same prompts has ended this one."""
        ...


@runtime_checkable
class Prompts(Protocol):
    """R prompts that were read, each on its own."""

    def open(self, after: list[list[int]] | None) -> tuple[Run, Float[Tensor, "R V"]]:
        """A new run with the logits of its first token; an earlier run of the same prompts ends with it."""
        ...

    def logits(self, rows: list[int], answer: Sequence[int]) -> Float[Tensor, "R T V"]:
        """Logits of every token of an answer under some of the branches, teacher-forced."""
        ...


class Grid:
    """R branches of several questions as :class:`bifolio.protocols.Branches`."""

    def __init__(
        self, prompts: Prompts, sizes: Sequence[int], ends: Sequence[Ends], kept: tuple[tuple[Kept, ...], ...]
    ) -> None:
        """Branches of question q are ``sizes[q]`` neighbours, and its answers end as ``ends[q]`` says."""
        self._prompts = prompts
        self._sizes = list(sizes)
        self._ends = list(ends)
        self._kept = kept
        self._run: Run | None = None
        self._first: list[Float[Tensor, "1 K V"]] | None = None
        self._alive: list[int] = []

    @property
    def kept(self) -> tuple[tuple[Kept, ...], ...]:
        """For each question and passage what was read of it."""
        return self._kept

    def _spans(self, questions: Sequence[int]) -> list[tuple[int, int]]:
        """Columns of each of these questions, when they alone are in the grid."""
        spans, start = [], 0
        for q in questions:
            spans.append((start, start + self._sizes[q]))
            start += self._sizes[q]
        return spans

    @torch.inference_mode()
    def start(self, after: Sequence[Sequence[int]] | None = None) -> list[Float[Tensor, "1 K V"]]:
        """Log p(next | x, z, after). Asked again before ``advance``, nothing is read twice."""
        if self._first is not None and after is None and self._run is not None and not self._run.over:
            return self._first
        rows = None if after is None else [list(after[q]) for q, size in enumerate(self._sizes) for _ in range(size)]
        self._run, logits = self._prompts.open(rows)
        self._alive = list(range(len(self._sizes)))
        first = []
        for q, (a, b) in enumerate(self._spans(self._alive)):
            ends = self._ends[q]
            log_p = ends.log_probs(logits[None, a:b])
            if after is None or not after[q]:
                if ends.first is not None:
                    ends.only(log_p, ends.first)
            elif after[q][-1] in ends.last:
                ends.only(log_p, ends.eos)
            first.append(log_p)
        self._first = first if after is None else None
        return first

    @torch.inference_mode()
    def advance(self, moves: Sequence[Move]) -> list[Float[Tensor, "H K V"]]:
        """Feed one token to every branch of every hypothesis; questions without hypotheses leave the grid."""
        if self._run is None:
            self.start()
        assert self._run is not None
        self._first = None
        going = [q for q in self._alive if moves[q].parents]
        if going != self._alive:
            spans = dict(zip(self._alive, self._spans(self._alive), strict=True))
            self._run.keep([row for q in going for row in range(*spans[q])])
            self._alive = going
        deep = max((len(moves[q].parents) for q in going), default=0)
        out = [torch.zeros((0, size, 0)) for size in self._sizes]
        if not going:
            return out
        parents: list[list[int]] = [[] for _ in range(deep)]
        tokens: list[list[int]] = [[] for _ in range(deep)]
        for q in going:
            move, size = moves[q], self._sizes[q]
            for h in range(deep):
                source = h if h < len(move.parents) else 0  # a question with fewer hypotheses repeats its first
                parents[h] += [move.parents[source]] * size
                tokens[h] += [move.tokens[source]] * size
        logits = self._run.step(parents, tokens)
        for q, (a, b) in zip(going, self._spans(going), strict=True):
            ends, move = self._ends[q], moves[q]
            log_p = ends.log_probs(logits[: len(move.tokens), a:b])
            for h, token in enumerate(move.tokens):
                if token in ends.last:
                    ends.only(log_p[h], ends.eos)
            out[q] = log_p
        return out

    @torch.inference_mode()
    def score(self, answers: Sequence[Sequence[Sequence[int]]]) -> list[list[Float[Tensor, "K T"]]]:
        """Log p(y_i | x, z, y_<i) of given answers, one forward pass an answer."""
        spans = self._spans(range(len(self._sizes)))
        scored = []
        for (a, b), ends, mine in zip(spans, self._ends, answers, strict=True):
            scored.append([self._score(list(range(a, b)), ends, answer) for answer in mine])
        return scored

    def _score(self, rows: list[int], ends: Ends, answer: Sequence[int]) -> Float[Tensor, "K T"]:
        if not answer:
            return torch.zeros((len(rows), 0))
        logits = self._prompts.logits(rows, answer)
        log_p = ends.target_log_probs(logits, torch.tensor(list(answer), device=logits.device))
        for i, token in ends.certain(answer).items():
            log_p[:, i] = 0.0 if answer[i] == token else -torch.inf
        return log_p

    def apart(self) -> Branches:
        """Every branch a question of its own; the prompts are shared: what was started last goes on."""
        ends = [end for end, size in zip(self._ends, self._sizes, strict=True) for _ in range(size)]
        kept: list[tuple[Kept, ...]] = []
        for mine, size in zip(self._kept, self._sizes, strict=True):
            kept += [(one,) for one in mine] + [()] * (size - len(mine))
        return Grid(self._prompts, [1] * len(ends), ends, tuple(kept))
