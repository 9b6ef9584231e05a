"""Decoder-only prompts as whole batch rows: for training, and for models that cannot be given a mask of our own.

As a way of decoding, a row for every hypothesis, it is slower than :mod:`bifolio.generators.tree`, with a copy of the
cache when beams change places, and with every passage read anew. Some families (ALiBi positions, their own kinds of
cache) need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bifolio.errors import UsageError
from bifolio.generators.ends import Ends


class RowPrompts:
    """R whole prompts, padded on the left, so that all continue at the same column."""

    def __init__(self, model: Any, cache_name: str, prompts: Sequence[Sequence[int]], pad: int) -> None:
        """Read nothing yet."""
        self._model, self._cache_name, self._prompts, self._pad = model, cache_name, prompts, pad

    def open(self, after: list[list[int]] | None) -> tuple[RowRun, Float[Tensor, "R V"]]:
        """Read the prompts."""
        more = after or [[] for _ in self._prompts]
        ids, mask = self._batch([[*prompt, *tail] for prompt, tail in zip(self._prompts, more, strict=True)])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
        run = RowRun(self._model, self._cache_name, out[self._cache_name], mask, mask.sum(1), len(self._prompts))
        return run, out.logits[:, -1]

    def _batch(self, rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "R L"], Int[Tensor, "R L"]]:
        ids, seen = pad_left(rows, self._pad)
        return ids.to(self._model.device), seen.to(self._model.device)

    def logits(self, rows: list[int], answer: Sequence[int]) -> Float[Tensor, "R T V"]:
        """One pass over prompts and answer."""
        ids, mask = self._batch([[*self._prompts[row], *answer[:-1]] for row in rows])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=len(answer)
        )
        result: Tensor = out.logits[:, -len(answer) :]
        return result


class RowRun:
    """Row ``h * R + r`` is hypothesis h of branch r."""

    over = False  # runs are independent of each other

    def __init__(self, model: Any, cache_name: str, cache: Any, mask: Tensor, position: Tensor, branches: int) -> None:
        self._model, self._cache_name, self._cache = model, cache_name, cache
        self._mask, self._position, self._branches = mask, position, branches

    def _select(self, rows: Sequence[int]) -> None:
        if list(rows) != list(range(len(self._mask))):
            index = torch.tensor(list(rows), dtype=torch.long, device=self._mask.device)
            self._cache.reorder_cache(index)
            self._mask, self._position = self._mask[index], self._position[index]

    def step(self, parents: list[list[int]], tokens: list[list[int]]) -> Float[Tensor, "H R V"]:
        """Feed one token to every row."""
        self._select([parent * self._branches + r for row in parents for r, parent in enumerate(row)])
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self._mask), 1))], dim=1)
        out = self._model(
            input_ids=torch.tensor(tokens, device=self._mask.device).flatten()[:, None],
            attention_mask=self._mask,
            position_ids=self._position[:, None],
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        self._position = self._position + 1
        logits: Tensor = out.logits[:, -1].unflatten(0, (len(tokens), self._branches))
        return logits

    def keep(self, rows: list[int]) -> None:
        """Give up all other branches."""
        if rows:
            deep = len(self._mask) // self._branches
            self._select([h * self._branches + r for h in range(deep) for r in rows])
        self._branches = len(rows)


def teacher_forced(
    model: Any,
    prompts: Sequence[Sequence[Sequence[int]]],
    answers: Sequence[Sequence[int]],
    ends: Sequence[Ends],
) -> tuple[Float[Tensor, "B K T"], Bool[Tensor, "B T"]]:
    """Log-probabilities of one answer under the K prompts of each question, with gradients, and the answers' mask.

    Raises:
        UsageError: questions have different numbers of prompts, or an answer is empty.
    """
    branches = {len(mine) for mine in prompts}
    if len(branches) != 1 or len(answers) != len(prompts) or not all(answers):
        raise UsageError("expected readings with equally many branches and an answer with tokens for each")
    longest = max(map(len, answers))
    target = torch.full((len(prompts), longest), ends[0].eos)
    mask = torch.zeros((len(prompts), longest), dtype=torch.bool)
    rows = []
    for b, (mine, answer) in enumerate(zip(prompts, answers, strict=True)):
        target[b, : len(answer)] = torch.tensor(list(answer))
        mask[b, : len(answer)] = True
        spare = [ends[b].eos] * (longest - len(answer))  # behind a causal model's tokens, where none of them sees it
        rows += [[*prompt, *answer[:-1], *spare] for prompt in mine]
    target, mask = target.to(model.device), mask.to(model.device)
    ids, seen = pad_left(rows, ends[0].eos)
    out = model(
        input_ids=ids.to(model.device),
        attention_mask=seen.to(model.device),
        position_ids=(seen.cumsum(1) - 1).clamp(min=0).to(model.device),
        use_cache=False,
        logits_to_keep=longest,
    )
    logits = out.logits[:, -longest:]
    logits = logits.view(len(prompts), branches.pop(), longest, -1)
    log_p = torch.stack([one.target_log_probs(logits[b], target[b]) for b, one in enumerate(ends)])
    for b, answer in enumerate(answers):
        for i, token in ends[b].certain(answer).items():
            log_p[b, :, i] = 0.0 if answer[i] == token else -torch.inf
    return torch.where(mask[:, None], log_p, torch.zeros_like(log_p)), mask


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Int[Tensor, "R L"], Int[Tensor, "R L"]]:
    """Token ids side by side, all ending at the same column, and which of them are real."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    seen = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(list(row), dtype=torch.long)
        seen[i, width - len(row) :] = 1
    return ids, seen
