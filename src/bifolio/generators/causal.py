"""Decoder-only generators: any Hugging Face causal language model, each passage read on its own.

K branches times H hypotheses are one batch; row ``h * K + z`` is hypothesis h under branch z. Prompts are padded on
the left, so that all branches continue at the same column.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.generators import templates
from bifolio.generators.templates import Template
from bifolio.protocols import Branches, GeneratorSpec
from bifolio.types import Passage
from bifolio.weights import pick_device, pick_dtype, quiet_load

_LEAST_ROOM = 32  # tokens of a passage under which reading it makes no sense


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
        self._untrusted = _without_special_tokens(self._tokenizer, folder)
        self._cache_name = (
            "cache" if "cache" in inspect.signature(self._model.forward).parameters else "past_key_values"
        )
        self._templates = self._choose(form)
        self._ends = {style: self._ways_to_end(template) for style, template in self._templates.items()}
        window = getattr(self._model.config, "max_position_embeddings", None) or self._tokenizer.model_max_length
        self._spec = GeneratorSpec(
            model or str(folder), int(self._model.config.vocab_size), self._eos(), int(window), tuple(languages)
        )
        self._check(folder)

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

    def _ways_to_end(self, template: Template) -> _Ends:
        named = self._model.generation_config.eos_token_id
        stops = {self._eos(), *(named if isinstance(named, list) else [] if named is None else [named])}
        last: set[int] = set()
        if template.stop:
            for i, piece in enumerate(self._tokenizer.batch_decode([[i] for i in range(len(self._tokenizer))])):
                if piece.lstrip(" \t").startswith(template.stop):
                    stops.add(i)
                elif any(stop in piece for stop in template.stop):
                    last.add(i)
        return _Ends(self._eos(), torch.tensor(sorted(stops), device=self._device), frozenset(last - stops))

    def _check(self, folder: Path) -> None:
        """Whether the model can be used: a batch that forks must say what each of its rows says alone.

        Models whose state is not a key/value cache, or that read their padding, are found here and not in an answer.

        Raises:
            ModelError: it cannot.
        """
        if int(self._ends["short"].stops.max()) >= self._spec.vocabulary or self._spec.window < 1:
            raise ModelError(f"{folder}: its tokenizer ends answers with a token that the model does not have")
        texts = ("The valve closes.", "A")
        prompts = [self._ids(text, trusted=False) or [0] for text in texts]
        answer = (prompts[0] * 4)[:4]
        ends = self._ends["short"]._replace(last=frozenset())
        try:
            branches = _CausalBranches(self._model, self._cache_name, prompts, (), ends)
            branches.start()
            branches.advance([0, 0], answer[:2])
            branches.advance([1, 0], [answer[2], answer[1]])
            mine = branches.advance([1], answer[2:3])[0]
            alone = _CausalBranches(self._model, self._cache_name, prompts[1:], (), ends)
            path = [answer[0], answer[1], answer[2]]
            expected = alone.score([*path, answer[3]])[0, -1]
        except ModelError:
            raise
        except Exception as error:  # whatever a model's own code raises over a cache that it does not know
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ModelError(f"{folder}: this kind of model cannot be a generator here ({what})") from error
        off = float((mine[1, answer[3]] - expected).abs())
        if answer[3] not in ends.stops.tolist() and not off < (0.05 if self._model.dtype == torch.float32 else 1.5):
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

    def read(
        self, question: str, passages: Sequence[Passage], *, style: str, max_tokens: int, no_passage: bool
    ) -> Branches:
        """Read each passage on its own with the question; the question alone is the last branch if ``no_passage``.

        A passage that does not fit into the window beside the question and ``max_tokens`` of answer is cut at the end
        of its text, never the question; ``kept_tokens`` of the result says so.

        Raises:
            UsageError: the question alone does not fit, or there is no branch at all.
        """
        templates.check_style(style)
        template = self._templates[style]
        if not passages and not no_passage:
            raise UsageError("nothing to read: no passage was given and the no-passage branch is off")
        head = self._head(template)
        before, _, after = template.question.partition("{question}")
        tail = [
            *self._ids(before, trusted=True),
            *self._ids(question, trusted=False),
            *self._ids(after + template.after, trusted=True),
        ]
        room = self._spec.window - len(head) - len(tail) - max_tokens
        if room < _LEAST_ROOM:
            raise UsageError(
                f"the question takes {len(tail)} tokens and the answer may take {max_tokens}: that leaves no room for "
                f"a passage in the window of {self._spec.window} tokens; shorten the question or lower max_tokens"
            )
        read = [self._passage(template, passage, room) for passage in passages]
        prompts = [[*head, *ids, *tail] for ids, _ in read]
        if no_passage:
            prompts.append([*head, *tail])
        kept = tuple(counts for _, counts in read)
        return _CausalBranches(self._model, self._cache_name, prompts, kept, self._ends[style])

    def _passage(self, template: Template, passage: Passage, room: int) -> tuple[list[int], tuple[int, int]]:
        """Ids of a passage in at most ``room`` tokens, and how many of its text's tokens they hold of how many."""
        above, _, below = template.passage.partition("{text}")
        label = self._ids(passage.label, trusted=False)[: room // 4]
        above_ids: list[int] = []
        if label:  # without a label there is no empty line for it
            before, _, after = above.partition("{label}")
            above_ids = [*self._ids(before, trusted=True), *label, *self._ids(after, trusted=True)]
        below_ids = self._ids(below, trusted=True)
        text = self._ids(passage.text, trusted=False)
        kept = text[: max(0, room - len(above_ids) - len(below_ids))]
        return [*above_ids, *kept, *below_ids], (len(kept), len(text))

    def answer_ids(self, answer: str, *, style: str) -> list[int]:
        """Token ids of an answer as the generator would produce it, EOS at the end."""
        templates.check_style(style)
        return [*self._ids(self._templates[style].lead + answer.strip(), trusted=False), self._spec.eos]

    def text(self, ids: Sequence[int]) -> str:
        """Text of answer tokens, as it stands, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _without_special_tokens(tokenizer: Any, folder: Path) -> Tokenizer:
    """A tokenizer of the same model to which ``<|im_end|>`` is ten characters.

    Of its own and without state: an option of the shared one (``split_special_tokens``) would be switched to and fro
    under the feet of other threads, and it spares added tokens that are not flagged as special.

    Raises:
        ModelError: the tokenizer has no fast form.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{folder}: its tokenizer has no tokenizer.json (no fast form), which is needed here")
    made: Tokenizer = Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), "added_tokens": []}))
    made.no_truncation()
    made.no_padding()
    return made


class _Ends(NamedTuple):
    """How an answer ends.

    Attributes:
        eos: The token that stands for all of them.
        stops: Tokens that end the answer: every EOS that the model names, and tokens that begin with a stop string.
        last: Tokens with a stop string behind other text, a full stop and a line break: the answer ends after them.
    """

    eos: int
    stops: Tensor
    last: frozenset[int]


class _CausalBranches:
    """The batch of K prompts and its key/value cache."""

    def __init__(
        self,
        model: Any,
        cache_name: str,
        prompts: Sequence[Sequence[int]],
        kept_tokens: tuple[tuple[int, int], ...],
        ends: _Ends,
    ) -> None:
        self._model = model
        self._cache_name = cache_name
        self._prompts = prompts
        self._kept_tokens = kept_tokens
        self._ends = ends
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
        ids = torch.full((len(rows), width), self._ends.eos, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, width - len(row) :] = torch.tensor(list(row))
            mask[i, width - len(row) :] = 1
        return ids.to(self._model.device), mask.to(self._model.device)

    def _log_probs(self, logits: Tensor) -> Float[Tensor, "... V"]:
        """Log-softmax in float32 whatever the model's type, with all ways to end the answer summed into EOS."""
        log_p = torch.log_softmax(logits.float(), dim=-1)
        end = torch.logsumexp(log_p[..., self._ends.stops], dim=-1)
        if bool(end.isnan().any()):  # one NaN among the logits makes the whole row NaN
            raise ModelError("the generator gave NaN: its weights are damaged, or float16 overflows; try dtype float32")
        log_p[..., self._ends.stops] = -torch.inf
        log_p[..., self._ends.eos] = end
        return log_p

    def _certain_end(self, log_p: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
        """After a token that holds a stop string nothing but the end can come."""
        log_p.fill_(-torch.inf)
        log_p[..., self._ends.eos] = 0.0
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
            self._cache.reorder_cache(rows)
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
        log_p = self._log_probs(out.logits[:, -1]).reshape(len(parents), branches, -1)
        for h, token in enumerate(tokens):
            if token in self._ends.last:
                self._certain_end(log_p[h])
        return log_p

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
        rows = []
        for logits in out.logits[:, -len(answer) :]:  # one branch at a time: T x V in float32 is the largest thing here
            log_p = self._log_probs(logits)
            for i, token in enumerate(answer[:-1]):
                if token in self._ends.last:
                    self._certain_end(log_p[i + 1])
            rows.append(log_p.gather(1, target[:, None])[:, 0])
        return torch.stack(rows)
