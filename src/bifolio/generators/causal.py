"""Decoder-only generators: any Hugging Face causal language model, each passage read on its own.

The passage comes first in a prompt, so that what was read of it is kept and serves every later question.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.generators import attention, templates
from bifolio.generators.ends import NAN, Ends
from bifolio.generators.grid import Grid, Prompts
from bifolio.generators.packed import pack, unpack
from bifolio.generators.passage_cache import CacheStatistics, KeysValues, PassageCache
from bifolio.generators.rows import RowPrompts, teacher_forced
from bifolio.generators.templates import Template
from bifolio.generators.tokenizing import untrusted
from bifolio.generators.tree import Model, TreePrompts
from bifolio.protocols import Branches, GeneratorSpec, Kept, Reading
from bifolio.types import Passage
from bifolio.weights import pick_device, pick_dtype, quiet_load

_LEAST_ROOM = 32  # tokens of a passage under which reading it makes no sense
CACHE_BYTES = 2**29
"""What read passages may take by default: about a hundred passages of 200 tokens for a model of 135 M parameters."""


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
        cache_bytes: int = CACHE_BYTES,
        trainable: bool = False,
    ) -> None:
        """Load the model from a local folder; nothing is downloaded, only safetensors are read, no remote code runs.

        Args:
            folder: As written by ``save_pretrained``.
            model: The id that the folder came from; the folder itself when left out.
            form: ``chat`` (the model's own chat template), ``plain``, or ``auto``: chat if the model has a template.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` ...
            dtype: ``auto`` (float32 if ``trainable``), ``float32``, ``bfloat16``, ``float16`` or ``float64``.
            languages: ISO 639-1 codes that the model is known to handle.
            cache_bytes: What the passages that were read may take, least recently used first out; 0 keeps none.
            trainable: Leave the weights as they are, so that gradients reach them; otherwise they may be packed for
                faster decoding on a CPU.

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
                str(folder), dtype=pick_dtype(dtype, self._device, trainable), use_safetensors=True, **options
            )
        self._model.eval().to(self._device)
        self._untrusted = untrusted(self._tokenizer, folder)
        # Some tokenizers put a blank of their own before every text: the lead of a template would be a second one.
        self._marks_beginnings = self._untrusted.encode("a", add_special_tokens=False).tokens[:1] != ["a"]
        signature = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in signature else "past_key_values"
        self._templates = self._choose(form)
        self._ends = {style: self._ways_to_end(template) for style, template in self._templates.items()}
        self._spec = GeneratorSpec(
            model or str(folder), int(self._model.config.vocab_size), self._eos(), self._window(), tuple(languages)
        )
        self._trainable = trainable
        self._shared = self._share(folder)
        self._tree = Model(self._model, self._cache_name, self._spec.eos)
        self._cache = PassageCache(cache_bytes)

    def _share(self, folder: Path) -> bool:
        """Whether hypotheses can share their prompt, and prompts their passages; raises if the model is of no use.

        Whatever makes the model faster is tried here and kept only if the model says the same. ALiBi counts columns,
        and those of other hypotheses would count, too little to be noticed in a short text: it is not tried.
        """
        before = self._model.config._attn_implementation
        alone = self._alone(folder)
        takes_positions = "position_ids" in inspect.signature(self._model.forward).parameters
        attention.register()
        settings = self._model.config.to_dict()
        alibi = settings.get("alibi") or settings.get("position_embedding_type") == "alibi"
        for name in (attention.NAME, before) if takes_positions and not alibi else ():
            try:
                self._model.set_attn_implementation(name)
                self._check(folder, alone, shared=True)
                break
            except Exception:  # whatever a family raises that does its attention in its own way
                self._model.set_attn_implementation(before)
        else:
            self._check(folder, alone, shared=False)
            return False
        if not self._trainable:
            replaced = pack(self._model)
            try:
                self._check(folder, alone, shared=True)
            except ModelError:
                unpack(replaced)
        return True

    @property
    def spec(self) -> GeneratorSpec:
        """The generator's identity."""
        return self._spec

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

    @property
    def module(self) -> torch.nn.Module:
        """The model itself, for an optimiser; trainable only if it was loaded so."""
        model: torch.nn.Module = self._model
        return model

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

    def _window(self) -> int:
        """Tokens that prompt and answer may have together; within a sliding window, attention is ordinary."""
        config = self._model.config
        sizes = [getattr(config, "max_position_embeddings", None) or self._tokenizer.model_max_length]
        sliding = getattr(config, "sliding_window", None)
        if sliding and getattr(config, "use_sliding_window", True):
            sizes.append(sliding)
        return int(min(sizes))

    def _ways_to_end(self, template: Template) -> Ends:
        named = self._model.generation_config.eos_token_id
        stops = {self._eos(), *(named if isinstance(named, list) else [] if named is None else [named])}
        last: set[int] = set()
        if template.stop:
            for i, piece in enumerate(self._tokenizer.batch_decode([[i] for i in range(len(self._tokenizer))])):
                if piece.lstrip(" \t").startswith(template.stop):
                    stops.add(i)
                elif any(stop in piece for stop in template.stop):
                    last.add(i)
        return Ends(self._eos(), torch.tensor(sorted(stops), device=self._device), frozenset(last - stops))

    def _probe(self) -> tuple[list[list[int]], list[int]]:
        """Two prompts of unequal length, and four tokens to go on with."""
        prompts = [self._ids(text, trusted=False) or [0] for text in ("The valve closes.", "A")]
        return prompts, (prompts[0] * 4)[:4]

    @torch.inference_mode()
    def _alone(self, folder: Path) -> Float[Tensor, " V"]:
        """What the model itself says: one row, no padding, no cache, its own attention and layers.

        Raises:
            ModelError: it does not run.
        """
        if int(self._ends["short"].stops.max()) >= self._spec.vocabulary or self._spec.window < 1:
            raise ModelError(f"{folder}: its tokenizer ends answers with a token that the model does not have")
        prompts, answer = self._probe()
        path = torch.tensor([[*prompts[1], *answer[:3]]], device=self._device)
        try:
            logits = self._model(input_ids=path, use_cache=False).logits[0, -1]
        except Exception as error:  # whatever a model's own code raises
            raise ModelError(f"{folder}: the model does not run ({type(error).__name__}: {error})") from error
        if bool(logits.isnan().any()):
            raise ModelError(f"{folder}: {NAN}")
        return torch.log_softmax(logits.float(), dim=-1)

    @torch.inference_mode()
    def _check(self, folder: Path, alone: Float[Tensor, " V"], *, shared: bool) -> None:
        """Whether the model can be used: a batch that forks must say what one of its rows says alone.

        Models whose state is not a key/value cache, or that read their padding, are found here and not in an answer.

        Raises:
            ModelError: it cannot.
        """
        prompts, answer = self._probe()
        model = Model(self._model, self._cache_name, self._spec.eos)
        try:
            if shared:
                heads = model.read([prompt[:-1] for prompt in prompts])
                forking: Prompts = TreePrompts(model, heads, [prompt[-1:] for prompt in prompts])
            else:
                forking = RowPrompts(self._model, self._cache_name, prompts, self._spec.eos)
            run, _ = forking.open(None)
            run.step([[0, 0], [0, 0]], [[answer[0]] * 2, [answer[1]] * 2])
            run.step([[1, 1], [0, 0]], [[answer[2]] * 2, [answer[1]] * 2])
            mine = torch.log_softmax(run.step([[1, 1]], [[answer[2]] * 2])[0, 1].float(), dim=-1)
        except Exception as error:  # whatever a model's own code raises over a cache that it does not know
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ModelError(f"{folder}: this kind of model cannot be a generator here ({what})") from error
        off = float((mine - alone)[alone.topk(min(50, len(alone))).indices].abs().max())
        if not off < (0.005 if self._model.dtype in (torch.float32, torch.float64) else 1.5):
            raise ModelError(
                f"{folder}: this kind of model cannot be a generator here (in a batch it differs by {off:.2f} nats)"
            )

    def _ids(self, text: str, *, trusted: bool) -> list[int]:
        """Token ids of one part. In untrusted text ``<|im_end|>`` and the like are characters and no commands."""
        if not trusted:
            return list(self._untrusted.encode(text, add_special_tokens=False).ids)
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _head(self, template: Template) -> list[int]:
        """The ids before everything. A chat template writes its own BOS, in the plain form the tokenizer adds it."""
        ids = self._ids(template.before, trusted=True)
        bos = self._tokenizer.bos_token_id
        plain = template.stop != ()
        return [bos, *ids] if plain and bos is not None and self._tokenizer("")["input_ids"][:1] == [bos] else ids

    def read(self, readings: Sequence[Reading]) -> Branches:
        """Read each passage of each question on its own.

        A passage that does not fit into the window beside the question and ``max_tokens`` of answer is cut at the end
        of its text, never the question; ``kept`` of the result says so. What was read before is not read again.

        Raises:
            UsageError: a question alone does not fit, or has no branch at all.
        """
        parts = [self._parts(reading) for reading in readings]
        sizes = [len(prompt.prefixes) for prompt in parts]
        ends = [self._ends[reading.style] for reading in readings]
        prefixes = [prefix for prompt in parts for prefix in prompt.prefixes]
        tails = [prompt.tail for prompt in parts for _ in prompt.prefixes]
        if not self._shared:
            whole = [[*prefix, *tail] for prefix, tail in zip(prefixes, tails, strict=True)]
            prompts = RowPrompts(self._model, self._cache_name, whole, self._spec.eos)
            return Grid(prompts, sizes, ends, tuple(tuple(prompt.kept) for prompt in parts))
        entries, known = self._entries(prefixes)
        kept, place = [], 0
        for prompt in parts:
            kept.append(tuple(one._replace(cached=known[place + i]) for i, one in enumerate(prompt.kept)))
            place += len(prompt.prefixes)
        return Grid(TreePrompts(self._tree, entries, tails), sizes, ends, tuple(kept))

    def _entries(self, prefixes: Sequence[Sequence[int]]) -> tuple[list[KeysValues], list[bool]]:
        """Keys and values of every prefix, and whether they were there; what occurs twice is read once."""
        found: dict[tuple[int, ...], KeysValues] = {}
        known: list[bool] = []
        missing: dict[tuple[int, ...], None] = {}
        state = self._state()
        for prefix in map(tuple, prefixes):
            if prefix in found or prefix in missing:
                known.append(True)
                continue
            entry = self._cache.get((state, prefix))
            known.append(entry is not None)
            if entry is None:
                missing[prefix] = None
            else:
                found[prefix] = entry
        with torch.inference_mode():
            for prefix, entry in zip(missing, self._tree.read(list(missing)) if missing else [], strict=True):
                self._cache.put((state, prefix), entry)
                found[prefix] = entry
        return [found[tuple(prefix)] for prefix in prefixes], known

    def _state(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """What keys and values depend on besides the tokens: the adapter, and which weights, how often changed."""
        weights = self._model.parameters() if self._trainable else ()
        return self._spec.adapter, tuple((weight.data_ptr(), weight._version) for weight in weights)

    def clear_cache(self) -> None:
        """Forget the passages that were read: after weights were changed behind torch's back (``weight.data``)."""
        self._cache.clear()

    def warm(self, passages: Sequence[Passage], *, style: str, max_tokens: int = 0) -> None:
        """Read passages now, so that the first question about them need not; the cache keeps what fits.

        A passage that does not fit the window beside ``max_tokens`` of answer is left out: how it is cut depends on
        the question.
        """
        templates.check_style(style)
        template = self._templates[style]
        head = self._head(template)
        prefixes = []
        for passage in passages:
            ids, kept = self._passage(template, passage, self._spec.window)
            if len(head) + len(ids) + max_tokens < self._spec.window and kept.read == kept.whole:
                prefixes.append([*head, *ids])
        if self._shared:
            self._entries(prefixes)

    @property
    def cache_statistics(self) -> CacheStatistics:
        """What the passage cache has done so far."""
        return self._cache.statistics

    def _parts(self, reading: Reading) -> _Parts:
        """Token ids of one question's prompts."""
        templates.check_style(reading.style)
        template = self._templates[reading.style]
        if not reading.passages and not reading.no_passage:
            raise UsageError("nothing to read: no passage was given and the no-passage branch is off")
        head = self._head(template)
        before, _, after = template.question.partition("{question}")
        tail = [
            *self._ids(before, trusted=True),
            *self._ids(reading.question, trusted=False),
            *self._ids(after + template.after, trusted=True),
        ]
        room = self._spec.window - len(head) - len(tail) - reading.max_tokens
        if room < _LEAST_ROOM:
            raise UsageError(
                f"the question takes {len(tail)} tokens and the answer may take {reading.max_tokens}: that leaves no "
                f"room for a passage in the window of {self._spec.window} tokens; shorten the question or lower "
                "max_tokens"
            )
        read = [self._passage(template, passage, room) for passage in reading.passages]
        prefixes = [[*head, *ids] for ids, _ in read] + [head] * reading.no_passage
        return _Parts(prefixes, tail, [kept for _, kept in read])

    def token_log_probs(
        self, readings: Sequence[Reading], answers: Sequence[Sequence[int]]
    ) -> tuple[Float[Tensor, "B K T"], Bool[Tensor, "B T"]]:
        """Log p(y_i | x, z, y_<i) with gradients, of one answer a question; 0 where an answer has no more tokens.

        Raises:
            UsageError: the readings have different numbers of branches, a question does not fit, an answer is empty,
                or the generator was not loaded with ``trainable``.
        """
        if not self._trainable:
            raise UsageError("this generator was loaded for answering: load it with trainable=True to train it")
        parts = [self._parts(reading) for reading in readings]
        prompts = [[[*prefix, *prompt.tail] for prefix in prompt.prefixes] for prompt in parts]
        return teacher_forced(self._model, prompts, answers, [self._ends[reading.style] for reading in readings])

    def _passage(self, template: Template, passage: Passage, room: int) -> tuple[list[int], Kept]:
        """Ids of a passage in at most ``room`` tokens, and how many of its text's tokens they hold of how many."""
        above, _, below = template.passage.partition("{text}")
        label = self._ids(passage.label, trusted=False)[: min(room, self._spec.window) // 4]
        above_ids: list[int] = []
        if label:  # without a label there is no empty line for it
            before, _, after = above.partition("{label}")
            above_ids = [*self._ids(before, trusted=True), *label, *self._ids(after, trusted=True)]
        below_ids = self._ids(below, trusted=True)
        text = self._ids(passage.text, trusted=False)
        kept = text[: max(0, room - len(above_ids) - len(below_ids))]
        return [*above_ids, *kept, *below_ids], Kept(len(kept), len(text))

    def answer_ids(self, answer: str, *, style: str) -> list[int]:
        """Token ids of an answer as the generator would produce it, EOS at the end."""
        templates.check_style(style)
        template = self._templates[style]
        # A line break would end the answer where one is the stop: its words are what is meant.
        said = " ".join(answer.split()) if template.stop else answer.strip()
        lead = "" if self._marks_beginnings else template.lead
        return [*self._ids(lead + said, trusted=False), self._spec.eos]

    def text(self, ids: Sequence[int]) -> str:
        """Text of answer tokens, as it stands, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


class _Parts(NamedTuple):
    """Token ids of one question: what stands before it in each branch, and the question with what follows."""

    prefixes: list[list[int]]
    tail: list[int]
    kept: list[Kept]
