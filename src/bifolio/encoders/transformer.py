"""Questions and passages to vectors with a sentence-transformers folder, or a pair of DPR encoders.

What the model was trained with is read from its folder and becomes part of the fingerprint: pooling, normalisation,
prompts, window, and how a passage's title and text are joined. Only safetensors are read, nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float32, Int64

from bifolio.encoders.towers import (
    DPR_KINDS,
    Tower,
    check_kinds,
    fingerprint,
    load_dpr,
    load_sentence_transformer,
)
from bifolio.errors import ModelError, UsageError
from bifolio.protocols import EncoderSpec
from bifolio.types import Passage
from bifolio.weights import pick_device, pick_dtype

NORMALISED_PRIOR_SCALE = 20.0
"""1/tau for cosines, whose softmax is nearly uniform without it (MATH section 4); refitted on dev."""

NO_PASSAGE_SIMILARITY = 0.4
"""The cosine that a passage must beat to be likelier than no passage: a constant until it is fitted on dev.

Measured with all-MiniLM-L6-v2 over the 1,200 passages of wikiqa-mini: the best cosine of a question whose passage is
there is .445, .641, .786 (1st, 5th and 9th decile, n = 200), of a question whose article is not there .281, .365, .501
(n = 400). 0.4 lies between: with five passages and the scale above, no passage has a mean prior of .06 and .44.
"""

_TITLE_FORMAT = "{label}\n{text}"  # "title. text" finds as many passages within noise, the text alone fewer
_TOKENS_A_ROW = 256  # a batch has at most batch_size rows of this length, or fewer longer ones
_CHUNK = 4096  # texts that are tokenised and sorted by length together

_Text: TypeAlias = "str | tuple[str, str]"


class TransformerEncoder:
    """A sentence-transformers folder, or DPR's question and passage encoders.

    Vectors are float32 whatever the model computes in; normalisation is done in float32. In bfloat16 values are within
    1e-2 of float32. A text's vector does not depend on its batch neighbours (1e-5 in float32).

    Args:
        folder: A folder with ``modules.json`` (sentence-transformers), or DPR's question encoder.
        passage_folder: DPR's passage encoder; only with a DPR question encoder.
        model: The id that loads the encoder again; the folder if empty.
        device: "auto" (CUDA if there is one), "cpu", "cuda", "cuda:N" or "mps".
        dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 where the hardware multiplies it (on a CPU with
            AVX512_BF16 or AMX it is about twice as fast), float16 on older GPUs, otherwise float32.
        batch_size: Texts at once; fewer when they are long.
        languages: ISO 639-1 codes for the spec.

    Raises:
        UsageError: device, dtype or batch size cannot be used, or the folders do not belong together.
        ModelError: a folder is no encoder that can be loaded safely.
    """

    def __init__(
        self,
        folder: Path,
        *,
        passage_folder: Path | None = None,
        model: str = "",
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int = 32,
        languages: tuple[str, ...] = (),
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; expected at least 1")
        folder = Path(folder)
        passage_folder = None if passage_folder is None else Path(passage_folder)
        self._dpr = check_kinds(folder, passage_folder) == "dpr"
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        self.batch_size = batch_size
        if passage_folder is None:
            self._questions = self._passages = load_sentence_transformer(folder, self.device, self.dtype)
        else:
            self._questions = load_dpr(folder, DPR_KINDS[0], self.device, self.dtype)
            self._passages = load_dpr(passage_folder, DPR_KINDS[1], self.device, self.dtype)
            if self._questions.dimension != self._passages.dimension:
                raise ModelError(
                    f"{folder} gives {self._questions.dimension} dimensions, {passage_folder} "
                    f"{self._passages.dimension}; expected two encoders that were trained together"
                )
        normalised = self._questions.normalise
        scale = NORMALISED_PRIOR_SCALE if normalised else 1.0
        self._spec = EncoderSpec(
            model=model or str(folder),
            fingerprint=self._fingerprint([folder] if passage_folder is None else [folder, passage_folder]),
            dimension=self._questions.dimension,
            prior_scale=scale,
            # Raw products have no scale of their own, so no constant fits: off until it is fitted.
            no_passage_logit=NO_PASSAGE_SIMILARITY * scale if normalised else None,
            window=self._passages.window,
            languages=languages,
        )
        self.passage_fingerprint = self._spec.fingerprint
        """As ``spec.fingerprint``, of what passages' vectors depend on: for a pair, of its passage encoder alone."""
        if passage_folder is not None:
            facts = {"towers": [self._passages.facts], "dimension": self._passages.dimension, "passage": "pair"}
            digest = fingerprint([passage_folder], facts)
            self.passage_fingerprint = f"{DPR_KINDS[1]}-{self._passages.dimension}:{digest[:16]}"

    def _fingerprint(self, folders: Sequence[Path]) -> str:
        """Equal means comparable vectors, so its readable part is made of content too, not of where the model lies."""
        towers = [self._questions] if self._questions is self._passages else [self._questions, self._passages]
        facts = {
            "towers": [tower.facts for tower in towers],
            "dimension": self._questions.dimension,
            "passage": "pair" if self._dpr else _TITLE_FORMAT,
        }
        name = str(self._questions.facts["config"]["model_type"])
        return f"{name}-{self._questions.dimension}:{fingerprint(folders, facts)[:16]}"

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's identity; ``fingerprint`` is ``<model type>-<D>:<16 hex digits>``, made of content alone."""
        return self._spec

    def encode_questions(self, questions: Sequence[str]) -> Float32[np.ndarray, "N D"]:
        """Encode questions, in order.

        Raises:
            ModelError: the model gave NaN or infinity.
        """
        return self._encode(self._questions, [self._questions.question_prompt + text for text in questions], None)

    def encode_passages(
        self, passages: Sequence[Passage], on_batch: Callable[[int], None] | None = None
    ) -> Float32[np.ndarray, "N D"]:
        """Encode passages, in order; ``on_batch(n)`` is told after every n passages.

        Raises:
            ModelError: the model gave NaN or infinity.
        """
        return self._encode(self._passages, [self._passage_input(passage) for passage in passages], on_batch)

    def passage_lengths(self, passages: Sequence[Passage]) -> Int64[np.ndarray, " N"]:
        """Tokens of each passage, uncut, with prompt and special tokens: what is compared with ``spec.window``."""
        lengths = np.zeros(len(passages), dtype=np.int64)
        for start in range(0, len(passages), _CHUNK):
            texts = [self._passage_input(passage) for passage in passages[start : start + _CHUNK]]
            ids, _ = _tokenise(self._passages, texts, cut=False)
            lengths[start : start + len(ids)] = [len(row) for row in ids]
        return lengths

    def _passage_input(self, passage: Passage) -> _Text:
        """What the model reads: a pair for DPR, title above text for the others; the text alone without a title."""
        if not passage.label:
            return self._passages.passage_prompt + passage.text
        if self._dpr:
            return passage.label, passage.text
        return self._passages.passage_prompt + _TITLE_FORMAT.format(label=passage.label, text=passage.text)

    def _encode(
        self, tower: Tower, texts: Sequence[_Text], on_batch: Callable[[int], None] | None
    ) -> Float32[np.ndarray, "N D"]:
        """Vectors of all texts, in order, computed in batches of similar length."""
        vectors = np.empty((len(texts), tower.dimension), dtype=np.float32)
        for start in range(0, len(texts), _CHUNK):
            ids, types = _tokenise(tower, texts[start : start + _CHUNK], cut=True)
            for batch in _batches([len(row) for row in ids], self.batch_size):
                inputs = _pad(tower, [ids[at] for at in batch], [types[at] for at in batch] if types else None)
                with torch.inference_mode():
                    out = tower.run(inputs).float()
                    if tower.normalise:
                        out = torch.nn.functional.normalize(out, dim=-1)
                    if not bool(torch.isfinite(out).all()):
                        row = start + batch[int(torch.nonzero(~torch.isfinite(out))[0, 0])]
                        raise ModelError(
                            f"{self._spec.model}: NaN or infinity in the vector of text {row}, computed in "
                            f"{self.dtype}; try dtype='float32', and check the weights if it stays"
                        )
                    vectors[[start + at for at in batch]] = out.cpu().numpy()
                if on_batch is not None:
                    on_batch(len(batch))
        return vectors


def _batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Positions, longest first (so that memory shows at once), in batches bounded in rows and in padded tokens."""
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        rows = max(1, min(batch_size, batch_size * _TOKENS_A_ROW // longest))
        yield order[start : start + rows]
        start += rows


def _tokenise(tower: Tower, texts: Sequence[_Text], *, cut: bool) -> tuple[list[list[int]], list[list[int]] | None]:
    """Token ids and, if the model has them, token types of each text; both tokenised once, not padded."""
    options: dict[str, Any] = {"padding": False, "return_attention_mask": False, "verbose": False}
    options |= {"truncation": True, "max_length": tower.window} if cut else {"truncation": False}
    ids: list[list[int]] = [[] for _ in texts]
    types: list[list[int]] = [[] for _ in texts]
    pairs = [at for at, text in enumerate(texts) if isinstance(text, tuple)]
    singles = [at for at, text in enumerate(texts) if isinstance(text, str)]
    for rows in (pairs, singles):
        if not rows:
            continue
        # A tuple becomes two arguments, a text one.
        columns = zip(*(_clean(texts[at]) for at in rows), strict=True)
        with tower.tokenizing:
            found = tower.tokenizer(*(list(column) for column in columns), **options)
        for offset, at in enumerate(rows):
            ids[at] = found["input_ids"][offset]
            types[at] = found["token_type_ids"][offset] if "token_type_ids" in found else []
    return ids, types if any(types) else None


def _clean(text: _Text) -> tuple[str, ...]:
    """The text's parts, lone surrogates (not text, refused by tokenizers) replaced by "?"."""
    parts = text if isinstance(text, tuple) else (text,)
    return tuple(part.encode("utf-8", "replace").decode("utf-8") for part in parts)


def _pad(tower: Tower, ids: list[list[int]], types: list[list[int]] | None) -> dict[str, torch.Tensor]:
    """Tensors of one batch, padded to its longest row at the side that the tokenizer says."""
    tokenizer = tower.tokenizer
    ids = [row or [tokenizer.pad_token_id] for row in ids]  # no special tokens and no text: still one token to read
    longest = max(len(row) for row in ids)
    left = tokenizer.padding_side == "left"

    def tensor(rows: list[list[int]], fill: int) -> torch.Tensor:
        filled = [[fill] * (longest - len(row)) + row if left else row + [fill] * (longest - len(row)) for row in rows]
        return torch.tensor(filled, dtype=torch.long, device=tower.device)

    inputs = {
        "input_ids": tensor(ids, tokenizer.pad_token_id),
        "attention_mask": tensor([[1] * len(row) for row in ids], 0),
    }
    if types is not None:
        inputs["token_type_ids"] = tensor(types, tokenizer.pad_token_type_id)
    return inputs
