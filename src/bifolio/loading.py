"""Model ids to encoders and generators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bifolio import models
from bifolio.errors import UsageError
from bifolio.registry import resolve

if TYPE_CHECKING:
    from bifolio.protocols import Encoder, LogitGenerator, TextGenerator

# Families whose saved settings leave out is_encoder_decoder where it is their default.
_ENCODER_DECODER = frozenset(
    "bart mbart t5 mt5 umt5 longt5 pegasus blenderbot marian m2m_100 led bigbird_pegasus".split()
)


def load_encoder(model: str = models.DEFAULT_ENCODER, *, device: str = "auto", dtype: str = "auto") -> Encoder:
    """The encoder of a model id; ``QUESTION_ID,PASSAGE_ID`` for a DPR pair.

    The question encoder of a RAG checkpoint is ``CHECKPOINT#question_encoder``.

    Raises:
        UsageError: the model encodes questions only, and no passage encoder is given.
        ModelMissingError: the model is not in the cache; the message names the command that fetches it.
        ModelError: the model cannot be used as an encoder.
    """
    encoder_class, _ = resolve("encoder", "transformer")
    question, _, passage = model.partition(",")
    if not passage and (partners := models.passage_encoders(question)):
        if question.startswith("facebook/rag-") and "#" not in question:
            question += "#question_encoder"
        pairs = " or ".join(f"{question},{partner}" for partner in partners)
        raise UsageError(f"{model} encodes questions only; with its passage encoder it is {pairs}")
    encoder: Encoder = encoder_class(
        models.resolve(question),
        passage_folder=models.resolve(passage) if passage else None,
        model=model,
        device=device,
        dtype=dtype,
        languages=models.languages(question),
    )
    return encoder


def load_generator(
    model: str = models.DEFAULT_GENERATOR,
    *,
    form: str = "auto",
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> LogitGenerator | TextGenerator:
    """The generator of a model id; ``http://HOST:PORT/v1#MODEL`` or ``https://...`` for the model of a server.

    Args:
        model: A decoder-only or encoder-decoder model, or a server's.
        form: For decoder-only models ``chat``, ``plain`` or ``auto``.
        device: Where it runs.
        dtype: What it computes in.
        **options: Others of the generator's class, such as ``trainable=True`` or ``cache_bytes=0``.

    Raises:
        UsageError: a device or dtype is given for a server's model, or its address cannot be used.
        ModelMissingError: the model is not in the cache; the message names the command that fetches it.
        ModelError: the model cannot be used as a generator.
    """
    if model.startswith(("http://", "https://")):
        return _load_remote(model, form=form, device=device, dtype=dtype)
    folder = models.resolve(model)
    kind = _generator_kind(folder)
    how: dict[str, Any] = {"model": model, "device": device, "dtype": dtype, "languages": models.languages(model)}
    if kind == "causal":
        how["form"] = form
    elif form != "auto":
        raise UsageError(f"prompt form {form!r} is for decoder-only models, and {model} has an encoder: leave it out")
    generator_class, _ = resolve("generator", kind)
    generator: LogitGenerator = generator_class(folder, **how, **options)
    return generator


def _generator_kind(folder: Path) -> str:
    """Which of the generators a folder is for; one that cannot be told is left to the loader, which says why."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "causal"
    if not isinstance(config, dict):
        return "causal"
    if config.get("model_type") == "rag":
        raise UsageError(f"{folder} is a whole RAG model, not a generator: load it with Rag.from_pretrained")
    return "seq2seq" if config.get("is_encoder_decoder") or config.get("model_type") in _ENCODER_DECODER else "causal"


def _load_remote(model: str, *, form: str, device: str, dtype: str) -> TextGenerator:
    """The model of a server; nothing is sent yet."""
    for name, value in (("device", device), ("dtype", dtype)):
        if value != "auto":
            raise UsageError(f"{name} {value!r} has no effect on the model of a server: leave it out")
    apis = {"auto": "auto", "chat": "chat", "plain": "completions"}
    if form not in apis:
        raise UsageError(f"unknown form {form!r}: expected one of {', '.join(apis)}")
    generator_class, _ = resolve("generator", "remote")
    generator: TextGenerator = generator_class(model, api=apis[form])
    return generator
