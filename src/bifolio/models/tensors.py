"""Safetensors files as bytes: which tensors are where, and new files of some of them, without a tensor in memory.

A file is eight bytes with the header's length, the header (JSON: type, shape and place of each tensor), and the
tensors' bytes one after the other. Copying bytes keeps every value whatever its type, and takes no memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from bifolio.errors import MissingExtraError, ModelError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_CHUNK = 1 << 22
_ALIGNED = 8


@dataclass(frozen=True)
class Tensor:
    """A tensor that can be written.

    Attributes:
        dtype: As safetensors calls it: ``F32``, ``BF16`` ...
        shape: Its shape.
        size: Bytes.
        read: Gives the bytes, little-endian and row by row, in pieces.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    read: Callable[[], Iterable[bytes]]


def files_of(folder: Path) -> list[Path]:
    """The files that hold a model's weights: the parts that its index names, or the one file.

    Raises:
        ModelError: There are none, the index cannot be read, or a part of it is missing.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} cannot be read ({type(error).__name__}: {error})") from error
        for name in names:
            if not isinstance(name, str) or PurePath(name).name != name or not (folder / name).is_file():
                raise ModelError(f"{index} names {name!r}, which is no file beside it: the model is incomplete")
        return [folder / name for name in names]
    found = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise ModelError(f"{folder} has {len(found)} .safetensors and no {INDEX}; expected {WEIGHTS}")
    return found


def read_all(files: Iterable[Path]) -> dict[str, Tensor]:
    """The tensors of some files, by name; their bytes are read when they are asked for.

    Raises:
        ModelError: A file is cut short or is none, or two have a tensor of the same name.
        MissingExtraError: safetensors is not installed.
    """
    found: dict[str, Tensor] = {}
    for path in files:
        for name, tensor in _read(path).items():
            if name in found:
                raise ModelError(f"{path} has a tensor {name} that another file of the model has, too")
            found[name] = tensor
    return found


def _read(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingExtraError("safetensors", "models", "reading weights") from None
    try:
        with safe_open(
            str(path), framework="numpy"
        ):  # checks all of the header, and that the file is as long as it says
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is not a whole safetensors file ({error}); fetch or save it again") from error
    header.pop("__metadata__", None)
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        place = (8 + length + start, end - start)
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), end - start, partial(_pieces, path, *place))
    return tensors


def _pieces(path: Path, start: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while size:
            piece = file.read(min(size, _CHUNK))
            if not piece:
                raise ModelError(f"{path} became shorter while it was read")
            size -= len(piece)
            yield piece


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a new safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers wants it said that this is for torch
    at = 0
    # Wide types first keep all of them aligned, as the library's own writer does.
    order = sorted(tensors, key=lambda name: (-_width(tensors[name]), name))
    for name in order:
        tensor = tensors[name]
        end = at + tensor.size
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            written = sum(file.write(piece) for piece in tensors[name].read())
            if written != tensors[name].size:
                raise ModelError(f"tensor {name} has {written} bytes, expected {tensors[name].size}")
        file.flush()
        os.fsync(file.fileno())


def _width(tensor: Tensor) -> int:
    """Bytes of a value; 0 for a tensor without any."""
    count = 1
    for length in tensor.shape:
        count *= length
    return tensor.size // count if count else 0
