"""A FAISS index that was made elsewhere, as the vectors that are in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from bifolio.errors import DocumentError, MissingExtraError, MissingPathError


class FaissFile:
    """The vectors of an index that keeps them whole, flat or HNSW, in the order in which they were added.

    The index is read into memory. What its vectors are compared by there does not matter.

    Args:
        path: What ``faiss.write_index`` wrote, also by way of ``Dataset.save_faiss_index``.

    Raises:
        MissingPathError: There is no such file.
        DocumentError: It cannot be read, keeps no whole vectors, or has ids of its own.
        MissingExtraError: faiss is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import faiss
        except ImportError:
            raise MissingExtraError("faiss-cpu", "faiss", "reading a FAISS index") from None
        if not path.is_file():
            raise MissingPathError(f"no such file: {path}")
        try:
            whole: Any = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            reason = str(error).strip().splitlines()[-1][-200:] or type(error).__name__
            raise DocumentError(f"{path} cannot be read as a FAISS index ({reason})") from error
        index = whole
        if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
            ids = faiss.vector_to_array(index.id_map)
            if not np.array_equal(ids, np.arange(len(ids))):
                raise DocumentError(
                    f"{path} has ids of its own, so which vector is whose cannot be told from the order"
                )
            index = faiss.downcast_index(index.index)
        storage = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSWFlat) else index
        if not isinstance(storage, faiss.IndexFlat):
            raise DocumentError(
                f"{path} is a {type(index).__name__}, which keeps no whole vectors; expected a flat or an HNSW index"
            )
        if len({int(part.ntotal) for part in (whole, index, storage)}) > 1:  # not every version of FAISS checks
            raise DocumentError(f"{path}: its parts have different numbers of vectors; it is damaged")
        self._whole, self._storage = whole, storage  # the first one owns the memory of the second
        self.dimension = int(storage.d)
        """D."""

    def __len__(self) -> int:
        """How many vectors there are."""
        return int(self._storage.ntotal)

    def read(self, first: int, count: int) -> Float32[np.ndarray, "n D"]:
        """A copy of ``count`` vectors from number ``first`` on."""
        vectors: Float32[np.ndarray, "n D"] = self._storage.reconstruct_n(first, count)
        return vectors
