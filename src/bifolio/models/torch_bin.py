"""Weights from before safetensors, ``pytorch_model.bin``: converted once, and only when the user says so.

A pickle is a program. torch's restricted reader (``weights_only=True``) runs none: it knows tensors and plain
containers and refuses everything else, so what comes out of it is tensors. What is kept is safetensors; nothing here
ever loads a pickle to use it.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from bifolio.errors import MissingExtraError, ModelError
from bifolio.models import tensors
from bifolio.models.progress import OnProgress, Progress
from bifolio.models.tensors import Tensor

FLAG = "--convert-bin"
_NAME = re.compile(r"pytorch_model(?P<part>-\d+-of-\d+)?\.bin")
_INDEX = "pytorch_model.bin.index.json"
_MOST_ALIASES = 8  # times the file's size: names of one tensor are written once each


def convertible(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of a model's files, as relative paths with ``/``, that are weights and have no safetensors beside them."""
    all_paths = list(map(PurePosixPath, paths))
    safe = {path.parent for path in all_paths if path.suffix == ".safetensors"}
    return tuple(str(path) for path in all_paths if _NAME.fullmatch(path.name) and path.parent not in safe)


def convert(folder: Path, names: Iterable[str], on_progress: OnProgress) -> None:
    """Write safetensors beside the named files of a folder, each complete or not there; the files themselves stay.

    Raises:
        ModelError: A file is damaged, or holds anything but named tensors.
        MissingExtraError: torch is not installed.
    """
    names = list(names)
    total, done = sum((folder / name).stat().st_size for name in names), 0
    for name in names:
        source = folder / name
        on_progress(Progress("convert", done, total, f"converting {name} to safetensors, once; no code of it is run"))
        target = source.with_name(f"model{_NAME.fullmatch(source.name)['part'] or ''}.safetensors")  # type: ignore[index]
        partial = source.with_name(f".{target.name}.partial-{os.getpid()}")
        try:
            partial.unlink(missing_ok=True)
            tensors.write(partial, _tensors(source))
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        done += source.stat().st_size
    for place in {(folder / name).parent for name in names}:
        _convert_index(place)
    on_progress(Progress("convert", total, total))


def _convert_index(folder: Path) -> None:
    """The index of a model in several files, with their new names."""
    old = folder / _INDEX
    if not old.is_file():
        return
    try:
        index = json.loads(old.read_text(encoding="utf-8"))
        index["weight_map"] = {
            name: _NAME.sub(lambda found: f"model{found['part'] or ''}.safetensors", file)
            for name, file in index["weight_map"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{old} cannot be read ({type(error).__name__}: {error})") from error
    (folder / tensors.INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _tensors(source: Path) -> dict[str, Tensor]:
    """The named tensors of one file."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "models", f"models pull {FLAG}") from None
    try:
        found = torch.load(source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source))
    except Exception as error:  # whatever a damaged or hostile file makes of the reader
        first = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"{source.name} cannot be converted: torch's reader, which runs no code, refuses it "
            f"({type(error).__name__}: {first}). It is damaged, or holds more than tensors"
        ) from error
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{source.name} holds {_kind(found)}; expected tensors by name")
    strange = [name for name, value in found.items() if not (isinstance(name, str) and isinstance(value, torch.Tensor))]
    if strange:
        name = strange[0]
        raise ModelError(f"{source.name} has {_kind(found[name])} under {name!r}; expected a tensor")
    named = {name: _tensor(source, name, value) for name, value in found.items()}
    if sum(tensor.size for tensor in named.values()) > _MOST_ALIASES * source.stat().st_size:
        raise ModelError(f"{source.name} has tensors far larger than the file: it is not a model's weights")
    return named


def _tensor(source: Path, name: str, value: Any) -> Tensor:
    import torch

    kinds = {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
    if value.dtype not in kinds or value.layout != torch.strided or value.device.type != "cpu":
        raise ModelError(f"{source.name} has {name} as {value.dtype} ({value.layout}), which is not converted")

    def read() -> Iterator[bytes]:
        yield value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    return Tensor(kinds[value.dtype], tuple(value.shape), value.numel() * value.element_size(), read)


def _kind(value: object) -> str:
    return "nothing" if value == {} else f"a {type(value).__name__}"
