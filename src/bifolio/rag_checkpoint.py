"""A RAG checkpoint of transformers: what its settings say, and its two models as ordinary folders.

The question encoder goes into an encoder id with the passage encoder that made the collection's vectors,
``facebook/rag-token-nq#question_encoder,facebook/dpr-ctx_encoder-single-nq-base``; the checkpoint's index, its data set
and its own retriever are not looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bifolio import models
from bifolio.errors import ModelError, UsageError
from bifolio.models.parts import read_config, read_generation

_SCHEMES: dict[str, Literal["token", "sequence"]] = {
    "RagTokenForGeneration": "token",
    "RagSequenceForGeneration": "sequence",
}


@dataclass(frozen=True)
class RagCheckpoint:
    """A checkpoint's settings and models (MATH section 5 has the names that they go by).

    Attributes:
        model: The checkpoint's id.
        scheme: What it was trained as: ``token`` or ``sequence``; None for a bare ``RagModel``, which is neither.
        n_docs: How many passages are retrieved.
        title_sep: Between a passage's title and its text.
        doc_sep: Between a passage's text and the question.
        prefix: What the generator reads before the title; "" for nothing.
        max_combined_length: Tokens that prefix, passage and question have together at most.
        max_answer_length: Tokens of an answer at most, as the checkpoint states it; None where it states nothing.
        question_encoder: Folder of its ``DPRQuestionEncoder`` with tokenizer.
        generator: Folder of its ``BartForConditionalGeneration`` or ``T5ForConditionalGeneration`` with tokenizer.
        passage_encoders: Ids of the passage encoders that it is known to go with, the likeliest first; empty for a
            checkpoint that is not known.
    """

    model: str
    scheme: Literal["token", "sequence"] | None
    n_docs: int
    title_sep: str
    doc_sep: str
    prefix: str
    max_combined_length: int
    max_answer_length: int | None
    question_encoder: Path
    generator: Path
    passage_encoders: tuple[str, ...]

    def encoder_id(self, passage_encoder: str = "") -> str:
        """The encoder id of its question encoder with a passage encoder.

        Args:
            passage_encoder: The passage encoder's id; the known one where it is left out.

        Raises:
            UsageError: It is left out, and none is known.
        """
        passage_encoder = passage_encoder or next(iter(self.passage_encoders), "")
        if not passage_encoder:
            raise UsageError(
                f"which passage encoder goes with {self.model} is not known: give the one that encoded, or is to "
                "encode, the passages, such as facebook/dpr-ctx_encoder-single-nq-base"
            )
        return f"{self.model}#question_encoder,{passage_encoder}"


def read_rag_checkpoint(model: str | os.PathLike[str]) -> RagCheckpoint:
    """Read a checkpoint that ``RagTokenForGeneration`` or ``RagSequenceForGeneration`` saved, with ``RagTokenizer``.

    The first time, its two models are copied into the cache, each into a folder of its own; nothing is loaded or
    downloaded. The folders are named after the content: a local checkpoint is hashed each time.

    Args:
        model: A model id in the cache, or a folder.

    Raises:
        UsageError: It is neither.
        ModelMissingError: It is not in the cache, or there is no such folder.
        ModelError: It is no RAG checkpoint, is damaged, lacks weights or a tokenizer, or has settings of a wrong kind.
    """
    name = model if isinstance(model, str) else os.path.join(os.curdir, model)
    folder = models.resolve(name)
    config = read_config(folder)
    architectures = config.get("architectures") or []
    found = [_SCHEMES[known] for known in map(str, architectures) if known in _SCHEMES]
    return RagCheckpoint(
        model=name,
        scheme=found[0] if found else None,
        n_docs=_number(folder, config, "n_docs", 5),
        title_sep=_text(folder, config, "title_sep", " / "),
        doc_sep=_text(folder, config, "doc_sep", " // "),
        prefix=_text(folder, config["generator"], "prefix", ""),
        max_combined_length=_number(folder, config, "max_combined_length", 300),
        max_answer_length=_max_answer_length(folder, config),
        question_encoder=models.resolve(f"{name}#question_encoder"),
        generator=models.resolve(f"{name}#generator"),
        passage_encoders=models.passage_encoders(name),
    )


def _max_answer_length(folder: Path, config: dict[str, Any]) -> int | None:
    """What the checkpoint states about the length of answers; what was written last counts."""
    places = (read_generation(folder), config, config["generator"])
    for place, name in ((place, name) for place in places for name in ("max_new_tokens", "max_length")):
        if place.get(name) is not None:
            return _number(folder, place, name, 1)
    return None


def _number(folder: Path, settings: dict[str, Any], name: str, default: int) -> int:
    value = settings.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{folder}: its settings have {name} {value!r}; expected a whole number from 1 on")
    return value


def _text(folder: Path, settings: dict[str, Any], name: str, default: str) -> str:
    value = settings.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise ModelError(f"{folder}: its settings have {name} {value!r}; expected a text")
    return value
