"""The parts of :meth:`bifolio.Rag.from_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bifolio.collection import Collection
from bifolio.errors import UsageError
from bifolio.loading import load_encoder
from bifolio.options import AskOptions
from bifolio.protocols import LogitGenerator
from bifolio.rag_checkpoint import RagCheckpoint, read_rag_checkpoint


def load_pretrained(
    model: str | Path,
    collection: Collection | str | Path | None,
    *,
    passage_encoder: str,
    device: str,
    dtype: str,
    trainable: bool,
) -> tuple[Collection | None, LogitGenerator, dict[str, Any]]:
    """The collection under the checkpoint's question encoder, its generator, and the options that it states.

    Raises:
        UsageError: the collection's encoder is no pair of question and passage encoder.
        ModelMissingError: the checkpoint or the passage encoder is not in the cache.
        ModelError: the folder is no such checkpoint.
        EncoderMismatchError: the collection was built with another passage encoder.
    """
    from bifolio.generators.seq2seq import Layout, Seq2SeqGenerator

    checkpoint = read_rag_checkpoint(model)
    opened = None
    if collection is not None:
        opened = _opened(collection, checkpoint, passage_encoder, device, dtype)
    layout = Layout(
        checkpoint.title_sep, checkpoint.doc_sep, checkpoint.prefix, max_length=checkpoint.max_combined_length
    )
    generator = Seq2SeqGenerator(
        checkpoint.generator,
        model=f"{checkpoint.model}#generator",
        layout=layout,
        device=device,
        dtype=dtype,
        trainable=trainable,
    )
    options: dict[str, Any] = {"k": checkpoint.n_docs, "mode": "dense", "collapse": False}
    if checkpoint.scheme is not None:
        options["scheme"] = checkpoint.scheme
    lengths = (checkpoint.max_answer_length or AskOptions().max_tokens, generator.longest_answer)
    options["max_tokens"] = min(length for length in lengths if length is not None)
    return opened, generator, options


def _opened(
    collection: Collection | str | Path, checkpoint: RagCheckpoint, passage_encoder: str, device: str, dtype: str
) -> Collection:
    """The collection with the checkpoint's question encoder beside its own passage encoder."""
    path = collection.path if isinstance(collection, Collection) else collection
    if not passage_encoder:
        with Collection.open(path) as looked_at:
            own = str(looked_at.snapshot().meta["encoder"]["model"])
        _, _, passage_encoder = own.partition(",")
        if not passage_encoder:
            raise UsageError(
                f"{path} was built with {own}, which is no pair QUESTION,PASSAGE: a checkpoint's question encoder "
                "needs a collection of its passage encoder; ingest with --encoder "
                f"{checkpoint.model}#question_encoder,PASSAGE_ENCODER"
            )
    encoder = load_encoder(checkpoint.encoder_id(passage_encoder), device=device, dtype=dtype)
    return Collection.open(path, encoder=encoder)
