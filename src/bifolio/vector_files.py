"""Vectors of passages: files of raw little-endian float32 rows, written once, read memory-mapped."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float32, Int64

from bifolio.catalogue import Segment
from bifolio.errors import CollectionDamagedError
from bifolio.staging import sync_folder

_DTYPE = np.dtype("<f4")


class SegmentWriter:
    """Appends rows to a new file. Unless :meth:`finish` was reached the file is deleted on leaving."""

    def __init__(self, folder: Path, first_row: int) -> None:
        """Begin a segment whose first vector has number ``first_row``."""
        folder.mkdir(exist_ok=True)
        # The random part keeps a file left by a killed writer from ever being taken for this one.
        self._path = folder / f"{first_row:012d}-{secrets.token_hex(4)}.f32"
        self._first_row = first_row
        self._rows = 0
        self._hash = hashlib.sha256()
        self._file = self._path.open("xb")
        self._finished = False

    def __enter__(self) -> SegmentWriter:
        return self

    def append(self, vectors: Float32[np.ndarray, "N D"]) -> None:
        """Write more rows."""
        data = np.ascontiguousarray(vectors, dtype=_DTYPE).tobytes()
        self._file.write(data)
        self._hash.update(data)
        self._rows += len(vectors)

    def finish(self) -> Segment | None:
        """Flush to the disk; None, and no file, if nothing was written. It counts once the catalogue names it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self._rows:
            return None
        sync_folder(self._path.parent)
        self._finished = True
        return Segment(self._path.name, self._first_row, self._rows, self._hash.hexdigest())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if not self._finished or kind is not None:
            self._path.unlink(missing_ok=True)


def drop_strangers(folder: Path, named: Collection[str]) -> None:
    """Delete what no generation names: left by an ingest that was killed or failed.

    Only for the one who holds the write lock: what another writer has begun is not named yet either.
    """
    for file in folder.glob("*"):
        if file.name not in named and not file.is_dir():
            file.unlink(missing_ok=True)


def live_blocks(
    folder: Path, segments: Sequence[Segment], dimension: int, live: Int64[np.ndarray, " N"]
) -> Iterator[tuple[Float32[np.ndarray, "n D"], Int64[np.ndarray, " n"]]]:
    """Vectors and rows of all passages as memory-mapped blocks: nothing is copied, dead rows are passed over.

    Args:
        folder: Where the segment files are.
        segments: By ``first_row``.
        dimension: D.
        live: Rows that have a passage, ascending.

    Raises:
        CollectionDamagedError: a file is missing or has the wrong size, or a passage has no vector.
    """
    seen = 0
    for segment in segments:
        vectors = _map(folder / segment.name, segment, dimension)
        inside = live[
            np.searchsorted(live, segment.first_row) : np.searchsorted(live, segment.first_row + segment.rows)
        ]
        for run in np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1):
            if len(run):
                start = int(run[0]) - segment.first_row
                seen += len(run)
                yield vectors[start : start + len(run)], run
    if seen != len(live):
        raise CollectionDamagedError(
            f"{folder}: {len(live) - seen} passages have no vector. Restore it from a backup or ingest again"
        )


def _map(path: Path, segment: Segment, dimension: int) -> Float32[np.ndarray, "n D"]:
    expected = segment.rows * dimension * _DTYPE.itemsize
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CollectionDamagedError(f"{path} is missing. Restore it from a backup or ingest again") from error
    if size != expected:
        raise CollectionDamagedError(
            f"{path} has {size} bytes, expected {expected}. Restore it from a backup or ingest again"
        )
    return np.memmap(path, dtype=_DTYPE, mode="r", shape=(segment.rows, dimension))
