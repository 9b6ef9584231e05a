"""Vectors of passages: files of raw little-endian float32 rows, written once, read memory-mapped."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float32, Int64

from bifolio.catalogue import Segment
from bifolio.errors import CollectionDamagedError
from bifolio.staging import sync_folder

_REMEDY = "Restore it from a backup, or delete the folder and ingest again"
_DTYPE = np.dtype("<f4")
_SMALL = 8 << 20
"""Bytes of a run of vectors that is worth a block of its own; shorter ones are copied together."""
_BLOCK = 64 << 20
"""Bytes of a block of copies."""


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
    """Vectors and rows of all passages in few blocks, dead rows passed over.

    Long runs are memory-mapped and not copied. Short ones, such as many small updates leave behind, are copied into
    blocks of up to 64 MB: an index is given few blocks, and no thousand files stay open.

    Args:
        folder: Where the segment files are.
        segments: By ``first_row``.
        dimension: D.
        live: Rows that have a passage, ascending.

    Raises:
        CollectionDamagedError: a file is missing or has the wrong size, or a passage has no vector.
    """
    seen, width = 0, dimension * _DTYPE.itemsize
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for segment in segments:
        first = segment.first_row
        vectors = _map(folder / segment.name, segment, dimension)
        inside = live[np.searchsorted(live, first) : np.searchsorted(live, first + segment.rows)]
        seen += len(inside)
        starts = np.flatnonzero(np.diff(inside, prepend=-2) > 1)
        lengths = np.diff(starts, append=len(inside))
        long = lengths * width >= _SMALL
        for start, length in zip(starts[long], lengths[long], strict=True):
            run = inside[start : start + length]
            yield vectors[run[0] - first : run[-1] - first + 1], run
        short = inside[np.repeat(~long, lengths)]
        while len(short):
            room = max(1, _BLOCK // width - sum(len(rows) for _, rows in waiting))
            waiting.append((vectors[short[:room] - first], short[:room]))
            short = short[room:]
            if sum(len(rows) for _, rows in waiting) * width + width > _BLOCK:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)
    if seen != len(live):
        raise CollectionDamagedError(f"{folder}: {len(live) - seen} passages have no vector. {_REMEDY}")


def _joined(blocks: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(blocks) == 1:
        return blocks[0]
    vectors, rows = zip(*blocks, strict=True)
    return np.concatenate(vectors), np.concatenate(rows)


def vectors_of(
    folder: Path, segments: Sequence[Segment], dimension: int, rows: Int64[np.ndarray, " N"]
) -> Float32[np.ndarray, "N D"]:
    """A copy of the vectors of some rows, in the order of ``rows``; errors as for :func:`live_blocks`."""
    wanted = np.unique(rows)
    found = np.empty((len(wanted), dimension), dtype=np.float32)
    holding = [s for s in segments if _inside(s, wanted)]
    for vectors, block in live_blocks(folder, holding, dimension, wanted):
        found[np.searchsorted(wanted, block)] = vectors
    return found[np.searchsorted(wanted, rows)]


def _inside(segment: Segment, rows: Int64[np.ndarray, " N"]) -> int:
    """How many of the rows, ascending, a segment has."""
    first, end = np.searchsorted(rows, [segment.first_row, segment.first_row + segment.rows])
    return int(end - first)


def worth_copying(segments: Sequence[Segment], count: Callable[[int, int], int]) -> list[Segment]:
    """Segments from which vectors are better copied than made anew.

    ``count(first, end)`` says how many vectors of rows ``first`` to before ``end`` are wanted.

    A segment is read from end to end before anything is copied from it (:func:`verify`). Encoding one passage takes
    as long as checking some thousands of vectors, so one in a thousand is enough.
    """
    counts = ((segment, count(segment.first_row, segment.first_row + segment.rows)) for segment in segments)
    return [segment for segment, wanted in counts if wanted and wanted * 1000 >= segment.rows]


def verify(folder: Path, segments: Sequence[Segment]) -> None:
    """Compare files of vectors with their checksums, which reads all of them.

    Raises:
        CollectionDamagedError: a file is missing or is not the one that was written.
    """
    for segment in segments:
        path, digest = folder / segment.name, hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except FileNotFoundError as error:
            raise _missing(path) from error
        if digest.hexdigest() != segment.sha256:
            raise CollectionDamagedError(f"{path} is not as it was written: its sha256 is another. {_REMEDY}")


def _missing(path: Path) -> CollectionDamagedError:
    return CollectionDamagedError(f"{path} is missing. {_REMEDY}")


def _map(path: Path, segment: Segment, dimension: int) -> Float32[np.ndarray, "n D"]:
    expected = segment.rows * dimension * _DTYPE.itemsize
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise _missing(path) from error
    if size != expected:
        raise CollectionDamagedError(f"{path} has {size} bytes, expected {expected}. {_REMEDY}")
    return np.memmap(path, dtype=_DTYPE, mode="r", shape=(segment.rows, dimension))
