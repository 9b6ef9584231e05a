"""The oracle: every vector is compared with every question. Other indexes are tested against it, in values and order.

It needs numpy alone, keeps what it is given (memory-mapped or not) without a copy, and is fast enough up to some
hundred thousand vectors. See :mod:`bifolio.topk` for how ties stay exact.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.indexes.replacing import replacing
from bifolio.topk import Letting, Part, UsedIds, as_ids, as_queries, as_vectors, largest_norm, top_k

if TYPE_CHECKING:
    from typing_extensions import Self

_HEADER = struct.Struct(
    "<16sIIQQ24x"
)  # magic, version, bytes a value, dimension, count; 64 bytes keep the rest aligned
_MAGIC = b"bifolio exact\0\0\0"
_VERSION = 1


class ExactIndex:
    """Exact maximum inner product search.

    Vectors in float32 and float16 are kept as they are and not copied: do not change them afterwards. float64 is
    rounded to float32. Searches may run in any number of threads, also while vectors are added.

    Args:
        dimension: D.
        argument: Must be "": the index has no options.
    """

    def __init__(self, dimension: int, argument: str = "") -> None:
        if dimension < 1:
            raise UsageError(f"dimension is {dimension}; expected at least 1")
        if argument:
            raise UsageError(f"the exact index has no options; got {argument!r}. Write index='exact'")
        self.dimension = dimension
        self._parts: list[Part] = []  # grows at its end only: a running search has its own tuple of them
        self._used = UsedIds()
        self._letting = Letting()
        self._count = 0
        self._adding = threading.Lock()

    def add(
        self, vectors: Float[np.ndarray, "N D"], ids: Int64[np.ndarray, " N"], *, norm: float | None = None
    ) -> None:
        """Add vectors under unused ids >= 0.

        Who knows the largest ``norm`` of them, and that all are finite, says so: then they are not read now.

        Raises:
            UsageError: a wrong shape or type, a value that is not finite, an id that is negative or in use. Nothing
                has been added then.
        """
        array = as_vectors(vectors, self.dimension, "vectors")
        if norm is None:
            norm = largest_norm(array, "vectors")
        with self._adding:
            part = Part(array, as_ids(ids, len(array), self._used), norm)
            if len(part.ids):
                self._used.add(part.ids)
                self._parts.append(part)
                self._count += len(part.ids)

    def search(
        self, queries: Float[np.ndarray, "Q D"], k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, "Q k"], Int64[np.ndarray, "Q k"]]:
        """Scores and ids of the best, best first, ties by smaller id: as many as there are, up to k.

        With ``allowed`` only of those whose id i is below its length and has ``allowed[i]``; do not change it later.

        Raises:
            UsageError: k < 1, a wrong shape or type, or a value that is not finite.
        """
        parts = tuple(self._parts)
        array, slack = as_queries(queries, self.dimension, k, max((part.norm for part in parts), default=0.0))
        kept, _ = self._letting.through(parts, allowed)
        return top_k(array, slack, parts, k, kept)

    def save(self, path: Path) -> None:
        """Write header, ids and vectors to one file, which takes its place only when it is complete.

        Vectors are written in float16 if all of them are, otherwise in float32.
        """
        parts = tuple(self._parts)
        half = bool(parts) and all(part.vectors.dtype == np.float16 for part in parts)
        kind = np.dtype("<f2" if half else "<f4")
        count = sum(len(part.ids) for part in parts)
        with replacing(path) as temporary, temporary.open("xb") as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, kind.itemsize, self.dimension, count))
            for part in parts:
                file.write(part.ids.astype("<i8").tobytes())
            for part in parts:
                for start in range(0, len(part.ids), 4096):
                    file.write(part.vectors[start : start + 4096].astype(kind).tobytes())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open a saved index; the vectors stay on disk, memory-mapped.

        Raises:
            CollectionDamagedError: the file is missing, cut short, or something else.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                header = file.read(_HEADER.size)
            size = path.stat().st_size
        except OSError as error:
            raise CollectionDamagedError(f"{path}: the exact index cannot be read ({error.strerror})") from error
        if len(header) < _HEADER.size:
            raise CollectionDamagedError(f"{path}: no exact index: {len(header)} bytes, the header alone has 64")
        magic, version, width, dimension, count = _HEADER.unpack(header)
        if magic != _MAGIC or version != _VERSION or width not in (2, 4) or dimension < 1:
            raise CollectionDamagedError(f"{path}: no exact index of version {_VERSION}: its header is {header[:24]!r}")
        expected = _HEADER.size + count * (8 + width * dimension)
        if size != expected:
            raise CollectionDamagedError(f"{path}: {size} bytes, expected {expected} for {count} vectors")
        index = cls(dimension)
        if count:
            at = _HEADER.size + 8 * count
            ids = np.fromfile(path, dtype="<i8", count=count, offset=_HEADER.size)
            vectors = np.memmap(path, dtype=f"<f{width}", mode="r", offset=at, shape=(count, dimension))
            try:
                index.add(vectors, ids)
            except UsageError as error:
                raise CollectionDamagedError(f"{path}: {error}") from error
        return index

    def __len__(self) -> int:
        """How many vectors the index has."""
        return self._count
