"""Decoder-only prompts whose hypotheses are a tree over one key/value cache.

A batch row is a branch. The keys and values of its passage come from the passage cache, those of the question are added
behind them, and each step appends one column for every hypothesis, which a mask shows only to its descendants. So
nothing is copied when a beam is reordered, and hypotheses share their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bifolio.generators.passage_cache import KeysValues

_SLACK = 64  # columns for the answer at first; more are made when they are needed


class Columns:
    """Keys and values of one layer in a buffer with room for more columns."""

    def __init__(self, keys: Float[Tensor, "R n C d"], values: Float[Tensor, "R n C d"], length: int) -> None:
        self.keys, self.values, self.length = keys, values, length

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add columns; all that are there now."""
        end = self.length + keys.shape[2]
        if end > self.keys.shape[2]:
            room = max(_SLACK, end // 2)
            self.keys = torch.cat([self.keys[:, :, : self.length], _room(keys, room)], dim=2)
            self.values = torch.cat([self.values[:, :, : self.length], _room(values, room)], dim=2)
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """What ``append`` would give, with nothing changed."""
        return (
            torch.cat([self.keys[:, :, : self.length], keys], dim=2),
            torch.cat([self.values[:, :, : self.length], values], dim=2),
        )

    def rows(self, index: Tensor) -> Columns:
        """A copy of some rows."""
        return Columns(self.keys[index], self.values[index], self.length)


def _room(like: Tensor, columns: int) -> Tensor:
    rows, heads, _, width = like.shape
    return like.new_empty((rows, heads, max(columns, like.shape[2]), width))


class Model:
    """A causal language model of transformers, called with masks, positions and columns of our own."""

    def __init__(self, model: Any, cache_name: str, pad: int) -> None:
        """``pad`` may be any token: what is padded is masked."""
        self.model, self._cache_name, self.pad = model, cache_name, pad

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        device: torch.device = self.model.device
        return device

    def __call__(
        self,
        ids: Int[Tensor, "R S"],
        positions: Int[Tensor, "R S"],
        visible: Bool[Tensor, "R S L"],
        layers: Sequence[Columns],
        *,
        keep: bool,
        logits: int,
    ) -> Float[Tensor, "R s V"]:
        """Logits of the last ``logits`` tokens; their columns are added to ``layers`` if ``keep``."""
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=ids.device)
        mask.masked_fill_(~visible, torch.finfo(dtype).min)
        cache = _cache(layers, keep)
        out = self.model(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=positions,
            use_cache=True,
            logits_to_keep=logits,
            **{self._cache_name: cache},
        )
        result: Tensor = out.logits[:, -logits:]
        return result

    def read(self, prefixes: Sequence[Sequence[int]]) -> list[KeysValues]:
        """Keys and values of token ids, each read on its own.

        One after the other, not as one batch: in half precision a row depends, by rounding, on the shape of its batch,
        and what is kept would depend on what else was read at that time. Passages are long enough to fill a processor.
        """
        return [self._read(prefix) for prefix in prefixes]

    def _read(self, prefix: Sequence[int]) -> KeysValues:
        from transformers import DynamicCache

        if not prefix:
            return tuple((keys[:, :0], values[:, :0]) for keys, values in self._read([self.pad]))
        cache = DynamicCache()
        self.model(
            input_ids=torch.tensor([list(prefix)], device=self.device),
            position_ids=torch.arange(len(prefix), device=self.device)[None],
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        return tuple((layer.keys[0].contiguous(), layer.values[0].contiguous()) for layer in cache.layers)


def _cache(layers: Sequence[Columns], keep: bool) -> Any:
    """Our columns as a cache of transformers."""
    from transformers.cache_utils import Cache, DynamicLayer

    class Layer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
        """One layer that reads and writes our columns."""

        def __init__(self, columns: Columns) -> None:
            super().__init__()
            self._columns = columns
            self.keys, self.values = columns.keys, columns.values
            self.is_initialized = True

        def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            return (self._columns.append if keep else self._columns.joined)(keys, values)

        def get_seq_length(self) -> int:
            return self._columns.length

    return Cache(layers=[Layer(columns) for columns in layers])


class TreePrompts:
    """R prompts: a kept prefix each (what stands before the question, with the passage), then a tail (the question)."""

    def __init__(self, model: Model, prefixes: Sequence[KeysValues], tails: Sequence[Sequence[int]]) -> None:
        """Read nothing yet."""
        self._model, self._prefixes, self._tails = model, prefixes, tails
        self._layers: list[Columns] = []
        self._valid = torch.zeros(0)  # (R, P): columns of the prompt that are no padding
        self._next = torch.zeros(0)  # (R,): position of the first answer token
        self._first: Tensor | None = None  # (R, V) logits
        self._width = 0
        self._latest: TreeRun | None = None

    def _read(self) -> Float[Tensor, "R V"]:
        if self._first is not None:
            return self._first
        device = self._model.device
        lengths = torch.tensor([entry[0][0].shape[1] for entry in self._prefixes], device=device)
        sizes = torch.tensor([len(tail) for tail in self._tails], device=device)
        before, width = int(lengths.max()), int(sizes.max())
        self._width = before + width
        self._layers = [self._assemble(layer, before, self._width) for layer in range(len(self._prefixes[0]))]
        ids = torch.full((len(self._tails), width), self._model.pad)
        for row, tail in enumerate(self._tails):
            ids[row, width - len(tail) :] = torch.tensor(list(tail), dtype=torch.long)
        columns = torch.arange(width, device=device)
        in_tail = columns >= (width - sizes)[:, None]
        in_prefix = torch.arange(before, device=device) >= (before - lengths)[:, None]
        self._valid = torch.cat([in_prefix, in_tail], dim=1)
        positions = (lengths[:, None] + columns - (width - sizes)[:, None]).clamp(min=0)
        causal = columns[None, :] <= columns[:, None]
        # Padding sees itself: a row of a softmax that sees nothing would be NaN, and spread.
        own = (causal & in_tail[:, None, :]) | torch.eye(width, dtype=torch.bool, device=device)
        visible = torch.cat([in_prefix[:, None].expand(-1, width, -1), own], dim=2)
        self._next = lengths + sizes
        self._first = self._model(ids.to(device), positions, visible, self._layers, keep=True, logits=1)[:, -1]
        return self._first

    def _assemble(self, layer: int, before: int, width: int) -> Columns:
        """One layer's prefixes side by side, padded with zeros on the left."""
        keys, values = self._prefixes[0][layer]
        shape = (len(self._prefixes), keys.shape[0], width + _SLACK)
        columns = Columns(keys.new_zeros((*shape, keys.shape[2])), values.new_zeros((*shape, values.shape[2])), before)
        for row, entry in enumerate(self._prefixes):
            keys, values = entry[layer]
            columns.keys[row, :, before - keys.shape[1] : before] = keys
            columns.values[row, :, before - values.shape[1] : before] = values
        return columns

    def open(self, after: list[list[int]] | None) -> tuple[TreeRun, Float[Tensor, "R V"]]:
        """A new run; the columns behind the prompt are its own until the next one."""
        if after is not None and any(after):
            tails = [[*tail, *more] for tail, more in zip(self._tails, after, strict=True)]
            return TreePrompts(self._model, self._prefixes, tails).open(None)
        first = self._read()
        for layer in self._layers:
            layer.length = self._width
        if self._latest is not None:
            self._latest.over = True
        self._latest = TreeRun(self._model, self._layers, self._valid, self._next)
        return self._latest, first

    def logits(self, rows: list[int], answer: Sequence[int]) -> Float[Tensor, "R T V"]:
        """Logits of every token of an answer; the prompt is not read again."""
        first = self._read()[rows][:, None]
        if len(answer) == 1:
            return first
        device = self._model.device
        index = torch.tensor(rows, device=device)
        steps = torch.arange(len(answer) - 1, device=device)
        prompt = [Columns(layer.keys, layer.values, self._width) for layer in self._layers]
        layers = prompt if rows == list(range(len(self._tails))) else [layer.rows(index) for layer in prompt]
        visible = torch.cat(
            [
                self._valid[index][:, None].expand(-1, len(steps), -1),
                (steps[None, :] <= steps[:, None]).expand(len(rows), -1, -1),
            ],
            dim=2,
        )
        ids = torch.tensor(list(answer[:-1]), device=device).expand(len(rows), -1)
        positions = self._next[index][:, None] + steps
        rest = self._model(ids, positions, visible, layers, keep=False, logits=len(steps))
        return torch.cat([first, rest], dim=1)


class TreeRun:
    """H hypotheses of every branch as paths in one tree of columns."""

    def __init__(self, model: Model, layers: list[Columns], valid: Tensor, position: Tensor) -> None:
        self._model, self._layers, self._valid, self._position = model, layers, valid, position
        self._seen = torch.zeros((len(valid), 1, 0), dtype=torch.bool, device=valid.device)  # (R, H, S) ancestors
        self.over = False  # a later run has taken the columns

    def step(self, parents: list[list[int]], tokens: list[list[int]]) -> Float[Tensor, "H R V"]:
        """One more column a hypothesis.

        Raises:
            RuntimeError: the same prompts were opened again since.
        """
        if self.over:
            raise RuntimeError("these branches were started again since, or their apart(): only the latest goes on")
        device, rows, deep = self._valid.device, len(self._valid), len(tokens)
        ids = torch.tensor(tokens, device=device).T  # (R, H)
        chosen = torch.tensor(parents, device=device).T[:, :, None].expand(-1, -1, self._seen.shape[2])
        own = torch.eye(deep, dtype=torch.bool, device=device).expand(rows, -1, -1)
        self._seen = torch.cat([self._seen.gather(1, chosen), own], dim=2)
        visible = torch.cat([self._valid[:, None].expand(-1, deep, -1), self._seen], dim=2)
        positions = self._position[:, None].expand(-1, deep)
        logits = self._model(ids, positions, visible, self._layers, keep=True, logits=deep)
        self._position = self._position + 1
        return logits.transpose(0, 1)

    def keep(self, rows: list[int]) -> None:
        """Copy what goes on."""
        index = torch.tensor(rows, dtype=torch.long, device=self._valid.device)
        if rows and not self.over:
            self._layers = [layer.rows(index) for layer in self._layers]
        self._valid, self._position, self._seen = self._valid[index], self._position[index], self._seen[index]
