"""Vectors of passages: raw little-endian rows, appended to a file and never changed, read memory-mapped.

The catalogue names blocks of them, each with its checksum. What a file has behind its last block was written by
someone who was killed before the catalogue knew of it: the next writer overwrites it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from bifolio.catalogue import Block
from bifolio.errors import CollectionDamagedError
from bifolio.staging import sync_folder
from bifolio.topk import largest_norm

Precision = Literal["float32", "float16"]
"""How vectors are stored."""

_REMEDY = "Restore it from a backup, or delete the folder and ingest again"
_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
_SUFFIXES = {"float32": ".f32", "float16": ".f16"}
_AT_ONCE = 4 << 20
"""Bytes of vectors that are converted at once."""


def new_file(precision: Precision) -> str:
    """A name that no file has."""
    return f"{secrets.token_hex(6)}{_SUFFIXES[precision]}"


def _type_of(file: str) -> np.dtype[Any]:
    return _TYPES["float16" if file.endswith(_SUFFIXES["float16"]) else "float32"]


class BlockWriter:
    """Appends blocks to a file. Unless :meth:`finish` was reached, the file ends where it ended before."""

    def __init__(self, folder: Path, file: str, offset: int, dimension: int) -> None:
        """Begin behind the ``offset`` vectors that the catalogue names in that file."""
        folder.mkdir(exist_ok=True)
        self._path = folder / file
        self._type = _type_of(file)
        self._start = offset * dimension * self._type.itemsize
        self._end = offset
        self._blocks: list[Block] = []
        self._hash = hashlib.sha256()
        self._new = not self._path.exists()
        self._file = self._path.open("xb" if self._new else "r+b")
        self._file.truncate(self._start)
        self._file.seek(self._start)
        self._finished = False

    def __enter__(self) -> BlockWriter:
        return self

    def append(self, first_row: int, vectors: Float[np.ndarray, "N D"]) -> None:
        """Write vectors, all finite, of ``first_row`` and the rows after it.

        Raises:
            UsageError: a value is beyond what the file's type can hold.
        """
        if not len(vectors):
            return
        with np.errstate(over="ignore"):  # becomes infinity, which largest_norm tells
            stored = np.ascontiguousarray(vectors, dtype=self._type)
        norm, data = largest_norm(stored, "vectors"), stored.tobytes()
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.first_row + last.rows != first_row:
            self._hash = hashlib.sha256()
            self._blocks.append(last := Block(first_row, 0, self._path.name, self._end, 0.0, ""))
        self._file.write(data)
        self._hash.update(data)
        self._end += len(stored)
        self._blocks[-1] = replace(
            last, rows=last.rows + len(stored), norm=max(last.norm, norm), sha256=self._hash.hexdigest()
        )

    def finish(self) -> list[Block]:
        """Flush to the disk. The blocks count once the catalogue names them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._new:
            sync_folder(self._path.parent)
        self._finished = bool(self._blocks)
        return self._blocks

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        undone = not self._finished or kind is not None
        if undone and not self._new:
            self._file.truncate(self._start)
        self._file.close()
        if undone and self._new:
            self._path.unlink(missing_ok=True)


def damaged(complaint: object) -> CollectionDamagedError:
    """A complaint with what to do about it."""
    return CollectionDamagedError(f"{complaint}. {_REMEDY}")


def end_of(blocks: Sequence[Block], precision: Precision) -> tuple[str, int]:
    """Where the next block goes: behind the last one of its kind, or into a new file."""
    last = max((b for b in blocks if _type_of(b.file) == _TYPES[precision]), key=lambda b: b.id, default=None)
    if last is None:
        return new_file(precision), 0
    return last.file, max(b.offset + b.rows for b in blocks if b.file == last.file)


def drop_strangers(folder: Path, named: Collection[str]) -> None:
    """Delete what the catalogue does not name: left by a writer that was killed or failed.

    Only for the one who holds the write lock: what another writer has begun is not named yet either.
    """
    for file in folder.glob("*"):
        if file.name not in named and not file.is_dir():
            file.unlink(missing_ok=True)


class Vectors:
    """The vectors of one encoder, memory-mapped. Files are opened at once and stay readable when they are deleted."""

    def __init__(self, folder: Path, blocks: Sequence[Block], dimension: int) -> None:
        """Open what ``blocks`` name.

        Raises:
            CollectionDamagedError: a file is missing or too short.
        """
        self.folder = folder
        self._dimension = dimension
        self._blocks = sorted(blocks, key=lambda block: block.first_row)
        self._first = np.array([block.first_row for block in self._blocks], dtype=np.int64)
        self._rows = np.array([block.rows for block in self._blocks], dtype=np.int64)
        self._offset = np.array([block.offset for block in self._blocks], dtype=np.int64)
        names = list(dict.fromkeys(block.file for block in self._blocks))
        self._file = np.array([names.index(block.file) for block in self._blocks], dtype=np.int64)
        ends = (max(b.offset + b.rows for b in self._blocks if b.file == name) for name in names)
        self.names = tuple(names)
        """Their files."""
        self.last_block = max((block.id for block in self._blocks), default=0)
        """The largest id of a block."""
        self._maps = [_map(folder / name, end, dimension) for name, end in zip(names, ends, strict=True)]

    def __len__(self) -> int:
        """How many vectors there are."""
        return int(self._rows.sum())

    def has(self, rows: Int64[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Which rows have a vector."""
        if not self._blocks:
            return np.zeros(len(rows), dtype=bool)
        at = np.maximum(np.searchsorted(self._first, rows, side="right") - 1, 0)
        inside: Bool[np.ndarray, " N"] = (rows >= self._first[at]) & (rows < self._first[at] + self._rows[at])
        return inside

    def of(self, rows: Int64[np.ndarray, " N"]) -> Float32[np.ndarray, "N D"]:
        """A copy of the vectors of some rows, in their order.

        Raises:
            CollectionDamagedError: a row has none.
        """
        found = np.empty((len(rows), self._dimension), dtype=np.float32)
        if not len(rows):
            return found
        if not (there := self.has(rows)).all():
            lost = int(rows[~there][0])
            raise CollectionDamagedError(f"{self.folder}: the passage of row {lost} has no vector. {_REMEDY}")
        at = np.searchsorted(self._first, rows, side="right") - 1
        places, files = self._offset[at] + rows - self._first[at], self._file[at]
        for file in np.unique(files):
            mine = files == file
            found[mine] = self._maps[file][places[mine]]
        return found

    def parts(self, after: int = 0) -> Iterator[tuple[Float[np.ndarray, "n D"], Int64[np.ndarray, " n"], float]]:
        """Memory-mapped vectors with their rows and a bound on their norms, in few parts.

        Args:
            after: Only blocks with a larger id.
        """
        for number, vectors in enumerate(self._maps):
            mine = sorted(
                (b for b, file in zip(self._blocks, self._file, strict=True) if file == number and b.id > after),
                key=lambda block: block.offset,
            )
            runs: list[list[Block]] = []
            for block in mine:  # blocks that follow each other in the file are one part
                if runs and runs[-1][-1].offset + runs[-1][-1].rows == block.offset:
                    runs[-1].append(block)
                else:
                    runs.append([block])
            for run in runs:
                rows = np.concatenate([np.arange(b.first_row, b.first_row + b.rows, dtype=np.int64) for b in run])
                start = run[0].offset
                yield vectors[start : start + len(rows)], rows, max(block.norm for block in run)


def verify(folder: Path, blocks: Sequence[Block], dimension: int) -> Iterator[str]:
    """Compare vectors with their checksums, which reads all of them; says of each block what is wrong with it."""
    for block in blocks:
        path, width = folder / block.file, dimension * _type_of(block.file).itemsize
        digest, left = hashlib.sha256(), block.rows * width
        try:
            with path.open("rb") as file:
                file.seek(block.offset * width)
                while left and (data := file.read(min(left, _AT_ONCE))):
                    digest.update(data)
                    left -= len(data)
        except OSError as error:
            yield f"{path}: {error.strerror}"
            continue
        if digest.hexdigest() != block.sha256:
            yield (
                f"{path}: vectors {block.offset} to {block.offset + block.rows - 1} (rows {block.first_row} to "
                f"{block.first_row + block.rows - 1}) are not as they were written"
            )


def _map(path: Path, rows: int, dimension: int) -> Float[np.ndarray, "n D"]:
    kind = _type_of(path.name)
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CollectionDamagedError(f"{path} is missing. {_REMEDY}") from error
    if size < (expected := rows * dimension * kind.itemsize):
        raise CollectionDamagedError(f"{path} has {size} bytes, expected {expected}. {_REMEDY}")
    return np.memmap(path, dtype=kind, mode="r", shape=(rows, dimension))
