"""Device and dtype as options, one meaning for encoders and generators, and loading without noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bifolio.errors import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU.

    Raises:
        UsageError: an unknown device, or CUDA asked for and absent.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"unknown device {device!r}: expected auto, cpu, cuda or cuda:N") from error
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {device!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu or auto"
        )
    return picked


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 where the hardware multiplies it (CUDA, or a CPU with AMX), else float32.

    Raises:
        UsageError: an unknown dtype.
    """
    if dtype == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.bfloat16 if torch.cpu.get_capabilities().get("amx_bf16") else torch.float32
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}: expected auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars and no advice from transformers while a model is loaded; its settings are restored."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
