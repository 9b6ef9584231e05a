"""GGUF weights to a folder with safetensors, once.

Stored as float32, the values that dequantising gives. Measured for SmolLM2-135M-Instruct Q4_1 (transformers 5.24,
torch 2.13): bfloat16 would halve the 538 MB but keeps only 18 % of the weights as they are, moves single weights by up
to 0.39 % (0.14 % in norm) and log-probabilities by up to 0.16; float16 moves weights by up to 0.05 % and
log-probabilities by up to 0.04. (A 4-bit weight is scale times step plus offset with two float16 factors, which neither
half format can hold exactly.) Who wants half precision asks for it when loading.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bifolio.errors import MissingExtraError, ModelError

_PACKAGES = ("torch", "transformers", "gguf", "accelerate")
# Pre-tokenizers (GGUF's ``tokenizer.ggml.pre``) that split every digit off before anything else. transformers takes all
# byte-level ones for GPT-2's, which cuts blanks before a number in another way: "\n\n1" would be three tokens, not two.
_DIGITS_APART = ("smollm",)
_UNLIMITED = 10**9  # transformers writes 1e30 where a tokenizer states no length


def require_packages() -> None:
    """Raise ``MissingExtraError`` now rather than after a download if a GGUF file could not be converted here."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "models", "converting GGUF weights")


def gguf_to_safetensors(source: Path, folder: Path) -> None:
    """Convert one causal language model with its tokenizer.

    Args:
        source: The ``.gguf`` file.
        folder: An existing folder that gets ``config.json``, ``model.safetensors``, tokenizer and generation settings.

    Raises:
        MissingExtraError: A package that this takes is not installed.
        ModelError: The file cannot be converted.
    """
    require_packages()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    with _silence():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                source.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **where
            )
            tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
            _split_digits(source, tokenizer)
        except (OSError, ValueError, KeyError, NotImplementedError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(f"{source.name} cannot be converted from GGUF ({reason})") from error
        longest = getattr(model.config, "max_position_embeddings", None)
        if longest and tokenizer.model_max_length > _UNLIMITED:
            tokenizer.model_max_length = longest
        # What ends an answer is the tokenizer's end of sequence (<|im_end|> for a chat model): generation must agree.
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is not None:
                setattr(model.generation_config, name, getattr(tokenizer, name))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _split_digits(source: Path, tokenizer: Any) -> None:
    """Split digits off where the file says that its tokenizer does."""
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(source).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _DIGITS_APART:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep progress bars off stderr; the caller's callback tells what goes on.

    transformers' own switch does not reach the bar of its GGUF reader, which is drawn on ``sys.stderr`` directly.
    """
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
