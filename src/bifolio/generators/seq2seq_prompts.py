"""The decoder of a sequence-to-sequence model over encoded passages: prompts, runs and teacher forcing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bifolio.errors import UsageError
from bifolio.generators.ends import Ends


class Seq2SeqModel:
    """A sequence-to-sequence model of transformers, called with caches of our own making."""

    def __init__(self, model: Any, start: int, shared: bool) -> None:
        """``shared``: the model's attention lets many hypotheses read one row of keys."""
        self.model, self.start, self.shared = model, start, shared
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        device: torch.device = self.model.device
        return device

    def decode(
        self, ids: Int[Tensor, "Q S"], own: Any, cross: Any, states: Float[Tensor, "R L D"], mask: Tensor
    ) -> Float[Tensor, "Q S V"]:
        """Logits after ``ids``; Q is a multiple of R."""
        from transformers.cache_utils import EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        out = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            decoder_input_ids=ids,
            use_cache=True,
            **{self._cache_name: EncoderDecoderCache(own, cross)},
        )
        logits: Tensor = out.logits
        return logits

    def token_log_probs(
        self, ids: Int[Tensor, "R L"], seen: Int[Tensor, "R L"], answers: Sequence[Sequence[int]], ends: Ends
    ) -> tuple[Float[Tensor, "B K T"], Bool[Tensor, "B T"]]:
        """Teacher forcing with gradients: one answer for every R / B neighbouring rows."""
        branches, longest = len(ids) // len(answers), max(map(len, answers))
        target = torch.full((len(answers), longest), ends.eos)
        mask = torch.zeros((len(answers), longest), dtype=torch.bool)
        for b, answer in enumerate(answers):
            target[b, : len(answer)] = torch.tensor(list(answer))
            mask[b, : len(answer)] = True
        target, mask = target.to(self.device), mask.to(self.device)
        inputs = torch.cat([target.new_full((len(answers), 1), self.start), target[:, :-1]], dim=1)
        rows = target.repeat_interleave(branches, 0)
        out = self.model(
            input_ids=ids,
            attention_mask=None if bool(seen.all()) else seen,
            decoder_input_ids=inputs.repeat_interleave(branches, 0),
            use_cache=False,
        )
        log_p = ends.target_log_probs(out.logits, rows).view(len(answers), branches, longest)
        for b, answer in enumerate(answers):
            for i, token in ends.certain(answer).items():
                log_p[b, :, i] = 0.0 if answer[i] == token else -torch.inf
        return torch.where(mask[:, None], log_p, torch.zeros_like(log_p)), mask


class Seq2SeqPrompts:
    """R passages that were encoded, each with its question."""

    def __init__(self, model: Seq2SeqModel, encoded: tuple[Float[Tensor, "R L D"], Bool[Tensor, "R L"]]) -> None:
        """Keys and values of cross-attention come with the first run, and serve all."""
        from transformers import DynamicCache

        self._model = model
        self._states, seen = encoded
        self._mask = _additive(seen, self._states.dtype)
        self._cross = DynamicCache()

    def open(self, after: list[list[int]] | None) -> tuple[Seq2SeqRun, Float[Tensor, "R V"]]:
        """A new run."""
        from transformers import DynamicCache

        own = DynamicCache()
        longest = max(map(len, after)) if after else 0
        if after and any(len(tokens) != longest for tokens in after):
            raise UsageError("answers of different lengths cannot be gone on with together: give equally long ones")
        rows = (
            [[self._model.start, *tokens] for tokens in after] if after else [[self._model.start]] * len(self._states)
        )
        ids = torch.tensor(rows, device=self._model.device)
        logits = self._model.decode(ids, own, self._cross, self._states, self._mask)[:, -1]
        return Seq2SeqRun(self._model, own, _copy(self._cross), self._states, self._mask), logits

    def logits(self, rows: list[int], answer: Sequence[int]) -> Float[Tensor, "R T V"]:
        """Logits of every token of an answer; nothing is encoded again."""
        from transformers import DynamicCache

        if not self._cross.layers:
            self.open(None)
        cross, states, mask = self._cross, self._states, self._mask
        if rows != list(range(len(states))):
            index = slice(rows[0], rows[-1] + 1) if rows == list(range(rows[0], rows[-1] + 1)) else rows
            cross, states, mask = _rows(cross, index), states[index], mask[index]
        inputs = torch.tensor([self._model.start, *answer[:-1]], device=self._model.device).expand(len(rows), -1)
        return self._model.decode(inputs, DynamicCache(), cross, states, mask)


class Seq2SeqRun:
    """Row ``h * R + r`` of the decoder is hypothesis h of branch r."""

    over = False  # runs are independent of each other

    def __init__(self, model: Seq2SeqModel, own: Any, cross: Any, states: Tensor, mask: Tensor) -> None:
        self._model, self._own, self._cross, self._states, self._mask = model, own, cross, states, mask
        self._deep = 1  # hypotheses that the decoder's own cache has
        self._repeated = 1  # and that cross-attention has rows for, where it cannot share them

    def step(self, parents: list[list[int]], tokens: list[list[int]]) -> Float[Tensor, "H R V"]:
        """Feed one token to every row; only the decoder's own cache moves."""
        deep, branches = len(tokens), len(tokens[0])
        rows = [parent * branches + r for row in parents for r, parent in enumerate(row)]
        if rows != list(range(self._deep * branches)):
            self._own.reorder_cache(torch.tensor(rows, device=self._model.device))
        self._deep = deep
        if not self._model.shared and deep != self._repeated:
            index = torch.arange(branches, device=self._model.device).repeat(deep)
            self._cross, self._states, self._mask = _rows(self._cross, index), self._states[index], self._mask[index]
            self._repeated = deep
        ids = torch.tensor(tokens, device=self._model.device).flatten()[:, None]
        logits = self._model.decode(ids, self._own, self._cross, self._states, self._mask)[:, -1]
        return logits.view(deep, branches, -1)

    def keep(self, rows: list[int]) -> None:
        """Give up all other branches."""
        if not rows:
            return
        branches = len(self._states) // self._repeated
        index = torch.tensor(rows, device=self._model.device)
        self._cross, self._states, self._mask = _rows(self._cross, index), self._states[index], self._mask[index]
        self._repeated = 1
        own = [h * branches + r for h in range(self._deep) for r in rows]
        self._own.reorder_cache(torch.tensor(own, device=self._model.device))


def _additive(seen: Bool[Tensor, "R L"], dtype: torch.dtype) -> Float[Tensor, "R 1 1 L"]:
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
    return mask[:, None, None]


def _rows(cache: Any, index: Any) -> Any:
    """Some rows of a cache as a new one; a slice copies nothing."""
    from transformers import DynamicCache

    made = DynamicCache()
    for i, layer in enumerate(cache.layers):
        made.update(layer.keys[index][:0], layer.values[index][:0], i)
        made.layers[i].keys, made.layers[i].values = layer.keys[index], layer.values[index]
    return made


def _copy(cache: Any) -> Any:
    """A cache of the same tensors: to choose rows in one leaves the other as it is."""
    return _rows(cache, slice(None))
