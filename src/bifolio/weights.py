"""Loading weights into torch: where, in which type, without noise, and never with a part drawn at random."""

from __future__ import annotations

import importlib
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bifolio.errors import MissingExtraError, ModelError, UsageError

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

_loading = threading.Lock()  # the libraries' verbosity belongs to the process


def pick_device(name: str) -> torch.device:
    """The device by its name; ``auto`` is CUDA where there is one, else the CPU.

    Raises:
        UsageError: it is unknown or absent.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", name):
        raise UsageError(f"unknown device {name!r}: expected auto, cpu, cuda, cuda:N or mps")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise UsageError(f"device {name!r} is not there: torch sees no such GPU; use cpu or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device 'mps' is not there; use cpu or auto")
    return device


def pick_dtype(name: str, device: torch.device, trainable: bool = False) -> torch.dtype:
    """The type that a model computes in.

    ``auto`` is half precision where the hardware multiplies it: bfloat16 on a CPU with AVX512_BF16 or AMX, twice as
    fast there (docs/LOG.md); bfloat16, else float16, on CUDA; float32 anywhere else, and for weights to be trained.

    Raises:
        UsageError: it is unknown.
    """
    if name in DTYPES:
        return DTYPES[name]
    if name != "auto":
        raise UsageError(f"unknown dtype {name!r}: expected auto, {', '.join(DTYPES)}")
    if trainable:
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        has = torch.cpu.get_capabilities()
        if has.get("avx512_bf16") or has.get("amx_bf16"):
            return torch.bfloat16
    return torch.float32


@contextmanager
def quiet_load(folder: Path) -> Iterator[None]:
    """Load without progress bars and warnings, settings as before afterwards; every failure becomes a ModelError.

    Weights that a file lacks are otherwise drawn at random with no more than a warning: here they are an error, apart
    from the ``pooler`` that token pooling does not use.
    """
    transformers_logging = importlib.import_module("transformers.utils.logging")
    report = _MissingWeights()
    with _loading, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
        loader = logging.getLogger("transformers.modeling_utils")
        others = logging.getLogger("sentence_transformers")
        before = (loader.level, loader.propagate, others.level)
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        loader.setLevel(logging.WARNING)
        loader.propagate = False
        loader.addHandler(report)
        others.setLevel(logging.ERROR)
        try:
            yield
        except MissingExtraError:
            raise  # no fault of the model
        except Exception as error:  # whatever a library raises over a damaged folder
            what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            raise ModelError(f"{folder}: the model cannot be loaded ({what})") from error
        finally:
            loader.removeHandler(report)
            loader.level, loader.propagate, others.level = before
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()
    if report.names:
        raise ModelError(f"{folder}: its safetensors lack {', '.join(report.names[:5])}; the file is incomplete")


class _MissingWeights(logging.Handler):
    """Collects the weights that transformers reports as missing when it loads a model."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Read one message."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage())
        for name in re.findall(r"^\s*(\S+)\s*\|\s*MISSING", text, flags=re.MULTILINE):
            if "pooler." not in name:
                self.names.append(name)
