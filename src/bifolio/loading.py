"""Model ids to encoders and generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bifolio import models
from bifolio.registry import resolve

if TYPE_CHECKING:
    from bifolio.protocols import Encoder, LogitGenerator


def load_encoder(model: str = models.DEFAULT_ENCODER, *, device: str = "auto", dtype: str = "auto") -> Encoder:
    """The encoder of a model id; ``QUESTION_ID,PASSAGE_ID`` for a DPR pair.

    Raises:
        ModelMissingError: the model is not in the cache; the message names the command that fetches it.
        ModelError: the model cannot be used as an encoder.
    """
    encoder_class, _ = resolve("encoder", "transformer")
    question, _, passage = model.partition(",")
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
    model: str = models.DEFAULT_GENERATOR, *, form: str = "auto", device: str = "auto", dtype: str = "auto"
) -> LogitGenerator:
    """The generator of a model id.

    Raises:
        ModelMissingError: the model is not in the cache; the message names the command that fetches it.
        ModelError: the model cannot be used as a generator.
    """
    generator_class, _ = resolve("generator", "causal")
    generator: LogitGenerator = generator_class(
        models.resolve(model),
        model=model,
        form=form,
        device=device,
        dtype=dtype,
        languages=models.languages(model),
    )
    return generator
