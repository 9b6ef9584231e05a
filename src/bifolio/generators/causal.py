"""Decoder-only generators: any Hugging Face causal language model, each passage read on its own.

K branches times H hypotheses are one batch; row ``h * K + z`` is hypothesis h under branch z. Prompts are padded on
the left, so that all branches continue at the same column.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.generators import templates
from bifolio.generators.templates import Template
from bifolio.protocols import Branches, GeneratorSpec
from bifolio.types import Passage
from bifolio.weights import pick_device, pick_dtype, quiet_load


class CausalGenerator:
    """A causal language model as a :class:`bifolio.protocols.LogitGenerator`."""

    def __init__(
        self,
        folder: Path,
        *,
        model: str = "",
        form: str = "auto",
        device: str = "auto",
        dtype: str = "auto",
        languages: tuple[str, ...] = (),
    ) -> None:
        """Load the model from a local folder; nothing is downloaded, only safetensors are read, no remote code runs.

        Args:
            folder: As written by ``save_pretrained``.
            model: The id that the folder came from; the folder itself when left out.
            form: ``chat`` (the model's own chat template), ``plain``, or ``auto``: chat if the model has a template.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` ...
            dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
            languages: ISO 639-1 codes that the model is known to handle.

        Raises:
            ModelError: the folder holds no causal language model that can be loaded safely.
            UsageError: an option is unknown, or CUDA is asked for and absent.
            MissingExtraError: transformers is not installed.
        """
        try:
            import transformers
        except ImportError as error:
            raise MissingExtraError("transformers", "models", "a generator") from error
        self._device = pick_device(device)
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with quiet_load(folder):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=pick_dtype(dtype, self._device), use_safetensors=True, **options
            )
        self._model.eval().to(self._device)
        self._cache_name = (
            "cache" if "cache" in inspect.signature(self._model.forward).parameters else "past_key_values"
        )
        self._templates = self._choose(form)
        self._stops = {style: self._stop_ids(template) for style, template in self._templates.items()}
        window = getattr(self._model.config, "max_position_embeddings", None) or self._tokenizer.model_max_length
        self._spec = GeneratorSpec(
            model or str(folder), int(self._model.config.vocab_size), self._eos(), int(window), tuple(languages)
        )

    @property
    def spec(self) -> GeneratorSpec:
        """The generator's identity."""
        return self._spec

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

    def _choose(self, form: str) -> Mapping[str, Template]:
        if form not in ("auto", "chat", "plain"):
            raise UsageError(f"unknown prompt form {form!r}: expected auto, chat or plain")
        if form == "plain" or (form == "auto" and not self._tokenizer.chat_template):
            return templates.PLAIN
        if not self._tokenizer.chat_template:
            raise UsageError("prompt form 'chat': this model has no chat template; use plain")
        return templates.chat(
            lambda messages: str(
                self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        )

    def _eos(self) -> int:
        if self._tokenizer.eos_token_id is not None:
            return int(self._tokenizer.eos_token_id)
        ids = self._model.generation_config.eos_token_id
        if ids is None:
            raise ModelError(f"{self._tokenizer.name_or_path}: neither the tokenizer nor the model names an EOS token")
        return int(ids[0] if isinstance(ids, list) else ids)

    def _stop_ids(self, template: Template) -> list[int]:
        """All tokens that end an answer: every EOS that the model names, and tokens that begin with a stop string."""
        named = self._model.generation_config.eos_token_id
        stops = {self._eos(), *(named if isinstance(named, list) else [] if named is None else [named])}
        if template.stop:
            pieces = self._tokenizer.batch_decode([[i] for i in range(len(self._tokenizer))])
            stops.update(i for i, piece in enumerate(pieces) if piece.lstrip(" \t").startswith(template.stop))
        return sorted(stops)

    def _ids(self, text: str, *, trusted: bool) -> list[int]:
        """Token ids of one part. In untrusted text ``<|im_end|>`` and the like are characters and no commands."""
        return list(self._tokenizer(text, add_special_tokens=False, split_special_tokens=not trusted)["input_ids"])

    def _head(self, template: Template) -> list[int]:
        """The ids before everything; the model's own BOS comes first unless the template wrote it."""
        ids = self._ids(template.before, trusted=True)
        bos = self._tokenizer.bos_token_id
        adds_bos = bos is not None and self._tokenizer("")["input_ids"][:1] == [bos]
        return ids if not adds_bos or ids[:1] == [bos] else [bos, *ids]

    def read(
        self, question: str, passages: Sequence[Passage], *, style: str, max_tokens: int, no_passage: bool
    ) -> Branches:
        """Read each passage on its own with the question; the question alone is the last branch if ``no_passage``.

        A passage that does not fit into the window beside the question and ``max_tokens`` of answer is cut at its
        end, never the question; ``kept_tokens`` of the result says so.

        Raises:
            UsageError: the question alone does not fit, or there is no branch at all.
        """
        templates.check_style(style)
        template = self._templates[style]
        if not passages and not no_passage:
            raise UsageError("nothing to read: no passage was given and the no-passage branch is off")
        head = self._head(template)
        before, _, rest = template.question.partition("{question}")
        tail = [
            *self._ids(before, trusted=True),
            *self._ids(question, trusted=False),
            *self._ids(rest + template.after, trusted=True),
        ]
        room = self._spec.window - len(head) - len(tail) - max_tokens
        if room < 1:
            raise UsageError(
                f"the question takes {len(tail)} tokens and the answer may take {max_tokens}: that leaves no room for "
                f"a passage in the window of {self._spec.window} tokens; shorten the question or lower max_tokens"
            )
        parts = [self._ids(_fill(template.passage, passage), trusted=False) for passage in passages]
        prompts = [[*head, *part[:room], *tail] for part in parts]
        if no_passage:
            prompts.append([*head, *tail])
        kept = tuple((min(len(part), room), len(part)) for part in parts)
        return _CausalBranches(self._model, self._cache_name, prompts, kept, self._stops[style], self._spec)

    def answer_ids(self, answer: str, *, style: str) -> list[int]:
        """Token ids of an answer as the generator would produce it, EOS at the end."""
        templates.check_style(style)
        return [*self._ids(self._templates[style].lead + answer.strip(), trusted=False), self._spec.eos]

    def text(self, ids: Sequence[int]) -> str:
        """Text of answer tokens, as it stands, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _fill(template: str, passage: Passage) -> str:
    """Not ``str.format``: braces in a passage are text. A passage without a label gets no empty line for it."""
    if not passage.label:
        template = template.replace("{label}\n", "")
    before, _, after = template.partition("{text}")
    return before.replace("{label}", passage.label) + passage.text + after


class _CausalBranches:
    """The batch of K prompts and its key/value cache."""

    def __init__(
        self,
        model: Any,
        cache_name: str,
        prompts: Sequence[Sequence[int]],
        kept_tokens: tuple[tuple[int, int], ...],
        stops: Sequence[int],
        spec: GeneratorSpec,
    ) -> None:
        self._model = model
        self._cache_name = cache_name
        self._prompts = prompts
        self._kept_tokens = kept_tokens
        self._spec = spec
        self._stops = torch.tensor(list(stops), device=model.device)
        self._cache: Any = None
        self._first: Tensor | None = None
        self._mask = torch.zeros(0)
        self._next_position = torch.zeros(0)

    @property
    def kept_tokens(self) -> tuple[tuple[int, int], ...]:
        """For each passage (tokens that were read, tokens that it has)."""
        return self._kept_tokens

    def _pad(self, rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "K L"], Int[Tensor, "K L"]]:
        """Ids and attention mask, padded on the left with EOS, which the mask hides."""
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), self._spec.eos, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, width - len(row) :] = torch.tensor(list(row))
            mask[i, width - len(row) :] = 1
        return ids.to(self._model.device), mask.to(self._model.device)

    def _log_probs(self, logits: Tensor) -> Float[Tensor, "... V"]:
        """Log-softmax in float32 whatever the model's type, with all ways to end the answer summed into EOS."""
        log_p = torch.log_softmax(logits.float(), dim=-1)
        end = torch.logsumexp(log_p[..., self._stops], dim=-1)
        log_p[..., self._stops] = -torch.inf
        log_p[..., self._spec.eos] = end
        return log_p

    @torch.inference_mode()
    def start(self) -> Float[Tensor, "1 K V"]:
        """Read the prompts; log p(y_1 | x, z). Asked again before the first ``advance``, nothing is read twice."""
        if self._first is not None:
            return self._first
        ids, self._mask = self._pad(self._prompts)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(
            input_ids=ids, attention_mask=self._mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        self._cache = out[self._cache_name]
        self._next_position = self._mask.sum(1)
        self._first = self._log_probs(out.logits[:, -1])[None]
        return self._first

    @torch.inference_mode()
    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Float[Tensor, "H K V"]:
        """Feed one token to every branch of every hypothesis."""
        self._first = None
        branches, device = len(self._prompts), self._model.device
        if list(parents) != list(range(self._mask.shape[0] // branches)):
            hypotheses = torch.tensor(list(parents), device=device)
            rows = (hypotheses[:, None] * branches + torch.arange(branches, device=device)).flatten()
            self._cache.batch_select_indices(rows)
            self._mask, self._next_position = self._mask[rows], self._next_position[rows]
        self._mask = torch.cat([self._mask, self._mask.new_ones((self._mask.shape[0], 1))], dim=1)
        out = self._model(
            input_ids=torch.tensor(list(tokens), device=device).repeat_interleave(branches)[:, None],
            attention_mask=self._mask,
            position_ids=self._next_position[:, None],
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        self._next_position = self._next_position + 1
        return self._log_probs(out.logits[:, -1]).reshape(len(parents), branches, -1)

    @torch.inference_mode()
    def score(self, answer: Sequence[int]) -> Float[Tensor, "K T"]:
        """Log p(y_i | x, z, y_<i) of a given answer in one pass over prompt and answer."""
        if not answer:
            return torch.zeros((len(self._prompts), 0), device=self._model.device)
        ids, mask = self._pad([[*prompt, *answer[:-1]] for prompt in self._prompts])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=len(answer)
        )
        target = torch.tensor(list(answer), device=self._model.device)
        rows = [
            self._log_probs(logits).gather(1, target[:, None])[:, 0] for logits in out.logits
        ]  # one branch at a time: T x V in float32 is the largest thing here
        return torch.stack(rows)
