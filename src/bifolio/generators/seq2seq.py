"""Encoder-decoder generators: BART, T5 and what else transformers loads as such, each passage encoded on its own.

Each passage is encoded once for a question, whatever the beam. Cross-attention's keys and values are computed once and
shared by all hypotheses; only the decoder's own cache, a few answer tokens long, moves when beams change places.

How an answer begins and ends is the family's: the decoder starts with ``decoder_start_token_id`` and its answers are
what the tokenizer makes of a target text (BART: ``<s> x </s>``, T5: ``x </s>``), in training and generation alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.generators import attention, templates
from bifolio.generators.ends import NAN, Ends
from bifolio.generators.grid import Grid
from bifolio.generators.packed import pack, unpack
from bifolio.generators.seq2seq_prompts import Seq2SeqModel, Seq2SeqPrompts
from bifolio.generators.tokenizing import untrusted
from bifolio.protocols import Branches, GeneratorSpec, Kept, Reading
from bifolio.types import Passage
from bifolio.weights import pick_device, pick_dtype, quiet_load

_OPEN_WINDOW = 512  # tokens, for models with relative positions
_LEAST_ROOM = 8  # tokens of a passage under which reading it makes no sense
_ENCODED_AT_ONCE = 8192  # tokens, padding included


@dataclass(frozen=True)
class Layout:
    """How passage and question become one input: ``prefix title title_sep text doc_sep question``.

    The defaults are those of the paper's checkpoints (``RagConfig``), apart from the window.

    Attributes:
        title_sep: Between title and text; left out with the title.
        doc_sep: Between passage and question.
        prefix: Before everything.
        max_length: Tokens of the whole; the model's own window if None.
    """

    title_sep: str = " / "
    doc_sep: str = " // "
    prefix: str = ""
    max_length: int | None = None

    def join(self, label: str, text: str, question: str) -> str:
        """One input. Double blanks become single ones, as in the reference."""
        if label.startswith('"') and label.endswith('"') and len(label) > 1:
            label = label[1:-1]
        above = f"{label}{self.title_sep}" if label else ""
        return f"{self.prefix}{above}{text}{self.doc_sep}{question}".replace("  ", " ")


class Seq2SeqGenerator:
    """A sequence-to-sequence model as a :class:`bifolio.protocols.LogitGenerator`.

    It takes no instructions: an answer's style is that of its training, and ``style`` changes nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str = "",
        layout: Layout | None = None,
        device: str = "auto",
        dtype: str = "auto",
        languages: tuple[str, ...] = (),
        trainable: bool = False,
    ) -> None:
        """Load the model from a local folder; nothing is downloaded, only safetensors are read, no remote code runs.

        Args:
            folder: As written by ``save_pretrained``.
            model: The id that the folder came from; the folder itself when left out.
            layout: How passage and question are joined.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` ...
            dtype: ``auto`` (float32 if ``trainable``), ``float32``, ``bfloat16``, ``float16`` or ``float64``.
            languages: ISO 639-1 codes that the model is known to handle.
            trainable: Leave the weights as they are, so that gradients reach them; otherwise they may be packed for
                faster decoding on a CPU.

        Raises:
            ModelError: the folder holds no sequence-to-sequence model that can be loaded safely.
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
            self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                str(folder), dtype=pick_dtype(dtype, self._device, trainable), use_safetensors=True, **options
            )
        self._model.eval().to(self._device)
        self._layout = layout or Layout()
        self._trainable = trainable
        self._words = untrusted(self._tokenizer, folder)
        self._eos, self._start = self._special_tokens(folder)
        named = self._model.generation_config.eos_token_id
        stops = {self._eos, *(named if isinstance(named, list) else [])}
        forced = getattr(self._model.generation_config, "forced_bos_token_id", None)
        self._ends = Ends(self._eos, torch.tensor(sorted(stops), device=self._device), first=forced)
        vocabulary = int(self._model.get_output_embeddings().weight.shape[0])
        self._spec = GeneratorSpec(model or str(folder), vocabulary, self._eos, self._window(), tuple(languages))
        if max(stops) >= vocabulary or self._start >= vocabulary:
            raise ModelError(f"{folder}: its tokenizer ends answers with a token that the model does not have")
        self._seq2seq = self._prepare(folder)

    @property
    def spec(self) -> GeneratorSpec:
        """The generator's identity."""
        return self._spec

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

    @property
    def longest_answer(self) -> int | None:
        """Tokens that the decoder has positions for; None where they are relative."""
        config = self._model.config
        positions = getattr(config, "max_decoder_position_embeddings", None)
        return positions or getattr(config, "max_position_embeddings", None)

    @property
    def module(self) -> torch.nn.Module:
        """The model itself, for an optimiser; trainable only if it was loaded so."""
        model: torch.nn.Module = self._model
        return model

    def _special_tokens(self, folder: Path) -> tuple[int, int]:
        """EOS and the decoder's start."""
        generation = self._model.generation_config
        eos = generation.eos_token_id
        eos = self._tokenizer.eos_token_id if eos is None else eos[0] if isinstance(eos, list) else eos
        start = generation.decoder_start_token_id
        start = getattr(self._model.config, "decoder_start_token_id", None) if start is None else start
        start = start[0] if isinstance(start, list) else start
        if eos is None or start is None:
            raise ModelError(f"{folder}: the model names no EOS or no token to start the decoder with")
        return int(eos), int(start)

    def _window(self) -> int:
        positions = getattr(self._model.config, "max_position_embeddings", None) or _OPEN_WINDOW
        return int(min(positions, self._layout.max_length or positions))

    def _prepare(self, folder: Path) -> Seq2SeqModel:
        """The model with the fastest way of running it that says the same as the plain one.

        Raises:
            ModelError: none does.
        """
        before = self._model.config._attn_implementation
        attention.register()
        failure = ""
        try:
            alone = self._alone()
        except Exception as error:  # whatever a model's own code raises
            raise ModelError(f"{folder}: the model does not run ({type(error).__name__}: {error})") from error
        if bool(alone.isnan().any()):
            raise ModelError(f"{folder}: {NAN}")
        for name, shared in ((attention.NAME, True), (before, False)):
            try:
                self._model.set_attn_implementation(name)
                made = Seq2SeqModel(self._model, self._start, shared)
                self._check(made, alone)
            except Exception as error:  # whatever a family raises that is built otherwise
                failure = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if not self._trainable:
                replaced = pack(self._model)
                try:
                    self._check(made, alone)
                except Exception:  # whatever a family does with the weights of its layers
                    unpack(replaced)
            return made
        raise ModelError(f"{folder}: this kind of model cannot be a generator here ({failure})")

    def _probe(self) -> tuple[list[list[int]], list[int]]:
        """Two inputs of unequal length, and three tokens of an answer."""
        prompts = [self._words.encode(text).ids for text in ("The valve closes at noon.", "A")]
        return prompts, (prompts[0] * 3)[:3]

    @torch.inference_mode()
    def _alone(self) -> Float[Tensor, " V"]:
        """What the model itself says: one row, no padding, no cache, its own attention and layers."""
        prompts, answer = self._probe()
        path = torch.tensor([[self._start, answer[1], answer[2]]], device=self._device)
        source = torch.tensor([prompts[1]], device=self._device)
        logits = self._model(input_ids=source, decoder_input_ids=path, use_cache=False).logits[0, -1]
        return torch.log_softmax(logits.float(), dim=-1)

    @torch.inference_mode()
    def _check(self, made: Seq2SeqModel, alone: Float[Tensor, " V"]) -> None:
        """A batch that forks must say what one of its rows says alone."""
        prompts, answer = self._probe()
        run, _ = Seq2SeqPrompts(made, self._encode(prompts)).open(None)
        run.step([[0, 0], [0, 0]], [[answer[0]] * 2, [answer[1]] * 2])
        mine = torch.log_softmax(run.step([[1, 1]], [[answer[2]] * 2])[0, 1].float(), dim=-1)
        off = float((mine - alone)[alone.topk(min(50, len(alone))).indices].abs().max())
        if not off < (0.005 if self._model.dtype in (torch.float32, torch.float64) else 1.5):
            raise ModelError(f"in a batch it differs by {off:.2f} nats")

    # ---- reading ----

    def read(self, readings: Sequence[Reading]) -> Branches:
        """Encode each passage of each question on its own, with the question.

        A passage that does not fit into the window beside the question is cut at the end of its text, never the
        question; ``kept`` of the result says so.

        Raises:
            UsageError: a question alone does not fit, has no branch at all, or asks for a longer answer than the
                decoder has positions for.
        """
        inputs = [self._inputs(reading) for reading in readings]
        encoded = self._encode([ids for prompts, _ in inputs for ids in prompts])
        sizes = [len(prompts) for prompts, _ in inputs]
        kept = tuple(tuple(one) for _, one in inputs)
        return Grid(Seq2SeqPrompts(self._seq2seq, encoded), sizes, [self._ends] * len(sizes), kept)

    def _inputs(self, reading: Reading) -> tuple[list[list[int]], list[Kept]]:
        """Encoder inputs of one question's branches, and what they hold of each passage."""
        templates.check_style(reading.style)
        if not reading.passages and not reading.no_passage:
            raise UsageError("nothing to read: no passage was given and the no-passage branch is off")
        if self.longest_answer is not None and reading.max_tokens > self.longest_answer:
            raise UsageError(
                f"an answer of {reading.max_tokens} tokens: this model's decoder has {self.longest_answer} positions; "
                "lower max_tokens"
            )
        alone = self._ids(self._layout.join("", "", reading.question))
        if self._spec.window - len(alone) < _LEAST_ROOM:
            raise UsageError(
                f"the question takes {len(alone)} tokens: that leaves no room for a passage in the window of "
                f"{self._spec.window} tokens; shorten the question"
            )
        read = [self._input(passage, reading.question) for passage in reading.passages]
        return [ids for ids, _ in read] + [alone] * reading.no_passage, [kept for _, kept in read]

    def _ids(self, text: str) -> list[int]:
        return list(self._words.encode(text).ids)

    def _input(self, passage: Passage, question: str) -> tuple[list[int], Kept]:
        """Ids of a passage with the question; where they must be cut, first a long label, then the text's end."""
        window, label = self._spec.window, passage.label
        whole = self._words.encode(passage.text, add_special_tokens=False)
        ids = self._ids(self._layout.join(label, passage.text, question))
        if len(ids) <= window:
            return ids, Kept(len(whole), len(whole))
        head = self._words.encode(label, add_special_tokens=False)
        spare = max(0, window - len(self._ids(self._layout.join("", "", question))))
        label = self._cut(label, head, spare // 4)
        room = len(whole)
        ids = self._ids(self._layout.join(label, passage.text, question))
        while len(ids) > window and room > 0:
            room = max(0, room - (len(ids) - window))
            ids = self._ids(self._layout.join(label, self._cut(passage.text, whole, room), question))
        if len(ids) > window:  # separators and a tokenizer's seams may take more than was spared
            ids = self._ids(self._layout.join("", "", question))
        return ids, Kept(room, len(whole))

    @staticmethod
    def _cut(text: str, encoded: Any, tokens: int) -> str:
        """The text of the first ``tokens`` tokens."""
        return text if tokens >= len(encoded) else text[: encoded.offsets[tokens][0]].rstrip()

    def _encode(self, prompts: Sequence[Sequence[int]]) -> tuple[Float[Tensor, "R L D"], Bool[Tensor, "R L"]]:
        """Encoder states, padded on the right to the longest; similar lengths are encoded together."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        width = len(prompts[order[-1]])
        states: Tensor | None = None
        mask = torch.zeros((len(prompts), width), dtype=torch.bool, device=self._device)
        while order:
            longest = len(prompts[order[-1]])
            rows = max(1, _ENCODED_AT_ONCE // longest)
            batch, order = order[-rows:], order[:-rows]
            ids, seen = self._pad([prompts[i] for i in batch])
            with torch.inference_mode():
                out = self._model.get_encoder()(
                    input_ids=ids, attention_mask=None if bool(seen.all()) else seen
                ).last_hidden_state
                if states is None:
                    states = out.new_zeros((len(prompts), width, out.shape[2]))
                index = torch.tensor(batch, device=self._device)
                states[index, :longest] = out
                mask[index, :longest] = seen.bool()
        assert states is not None
        return states, mask

    def _pad(self, rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "R L"], Int[Tensor, "R L"]]:
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), int(self._tokenizer.pad_token_id or 0), dtype=torch.long)
        seen = torch.zeros((len(rows), width), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(list(row))
            seen[i, : len(row)] = 1
        return ids.to(self._device), seen.to(self._device)

    # ---- answers ----

    def answer_ids(self, answer: str, *, style: str) -> list[int]:
        """Token ids of an answer as the tokenizer makes a target of it, EOS at the end."""
        templates.check_style(style)
        ids = self._ids(answer.strip())
        ids = [*(ids[: ids.index(self._eos)] if self._eos in ids else ids), self._eos]  # mBART has its language behind
        forced = self._ends.first
        if forced is not None and ids[0] != forced:
            before = self._ids("")  # what the tokenizer puts before an answer: BOS, or another language
            ids = [forced, *ids[before.index(self._eos) if self._eos in before else 0 :]]
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """Text of answer tokens, as it stands, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

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
        inputs = [self._inputs(reading)[0] for reading in readings]
        if len({len(prompts) for prompts in inputs}) != 1 or len(answers) != len(inputs) or not all(answers):
            raise UsageError("expected readings with equally many branches and an answer with tokens for each")
        ids, seen = self._pad([row for prompts in inputs for row in prompts])
        return self._seq2seq.token_log_probs(ids, seen, answers, self._ends)
