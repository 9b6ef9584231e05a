"""FAISS: the flat index (exact, faster than numpy) and HNSW, a graph that looks at a small part of the vectors.

FAISS proposes candidates, by position. They are scored again with :func:`bifolio.topk.inner_products` and sorted,
so that scores and the order of ties do not depend on how FAISS computed them; what it leaves out or cannot decide (a
tie at the cut, a graph that gives fewer than k) is settled by the exact search over the vectors that FAISS stores.

``hnsw`` is M = 32, efConstruction = 200, efSearch = 256. Recall@10 against the exact index, 10,000 x 384, 200 queries:
1.0 when the vectors lie in 100 clusters, .9965 when noise all but hides the clusters (.9835 with efSearch = 128).
"""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from bifolio.errors import CollectionDamagedError, MissingExtraError, UsageError
from bifolio.indexes.replacing import replacing
from bifolio.topk import (
    Letting,
    Part,
    UsedIds,
    as_ids,
    as_queries,
    as_vectors,
    best,
    inner_products,
    largest_norm,
    top_k,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_EF_CONSTRUCTION = 200
_EF_SEARCH = 256
_DEFAULT_M = 32
_FEW = 0.1  # of the vectors: among so few allowed ones a graph loses its way, and looking at all of them is quicker
_SPARE = 16  # candidates beyond k: enough that ordinary near-ties at the cut are decided without the exact search


def _faiss() -> Any:
    """The faiss library.

    Raises:
        MissingExtraError: it is not installed.
    """
    with warnings.catch_warnings():  # its SWIG wrappers warn at import from Python 3.12 on
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("faiss")
        except ImportError as error:
            raise MissingExtraError("faiss-cpu", "faiss", "the faiss index") from error


def _nothing(dimension: int) -> Part:
    return Part(np.empty((0, dimension), np.float32), np.empty(0, np.int64), 0.0)


class FaissIndex:
    """Maximum inner product search with FAISS, under the caller's ids (``IndexIDMap2``).

    ``flat`` returns what the exact index returns. ``hnsw`` is approximate: it may miss a vector, never invents one.
    With more than one OpenMP thread its graph is not built the same way twice; one built index always answers the
    same. Searches may run in any number of threads, but not while vectors are added. float16 and float64 are
    converted to float32.

    Args:
        dimension: D.
        argument: "" or "flat"; "hnsw" or "hnsw<M>" with M neighbours (32 by default, 4 to 512).
    """

    def __init__(self, dimension: int, argument: str = "") -> None:
        if dimension < 1:
            raise UsageError(f"dimension is {dimension}; expected at least 1")
        match = re.fullmatch(r"hnsw([0-9]{1,3})?", argument)
        neighbours = int(match[1] or _DEFAULT_M) if match else 0
        if argument not in ("", "flat") and not 4 <= neighbours <= 512:
            raise UsageError(f"unknown faiss index {argument!r}; expected 'flat', 'hnsw' or 'hnsw<M>' with M 4 to 512")
        faiss = _faiss()
        if neighbours:
            inner = faiss.IndexHNSWFlat(dimension, neighbours, faiss.METRIC_INNER_PRODUCT)
            inner.hnsw.efConstruction = _EF_CONSTRUCTION
        else:
            inner = faiss.IndexFlatIP(dimension)
        self._use(faiss.IndexIDMap2(inner), inner, graph=bool(neighbours))

    def _use(self, index: Any, inner: Any, *, graph: bool) -> None:
        """Take over a faiss index and what is kept beside it."""
        self.dimension = int(inner.d)
        self._index = index
        self._inner = inner  # the map does not keep alive an inner index that was made here
        self._graph = graph
        self._used = UsedIds()
        self._letting = Letting()
        self._norm = 0.0
        self._adding = threading.Lock()

    def add(self, vectors: Float[np.ndarray, "N D"], ids: Int64[np.ndarray, " N"]) -> None:
        """Add vectors under unused ids >= 0.

        Raises:
            UsageError: a wrong shape or type, a value that is not finite, an id that is negative or in use. Nothing
                has been added then.
        """
        array = np.ascontiguousarray(as_vectors(vectors, self.dimension, "vectors"), dtype=np.float32)
        norm = largest_norm(array, "vectors")
        with self._adding:
            checked = as_ids(ids, len(array), self._used)
            if len(checked):
                self._index.add_with_ids(array, checked)
                self._used.add(checked)
                self._norm = max(self._norm, norm)

    def search(
        self, queries: Float[np.ndarray, "Q D"], k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, "Q k"], Int64[np.ndarray, "Q k"]]:
        """Scores and ids of the best, best first, ties by smaller id: as many as there are, up to k.

        With ``allowed`` only of those whose id i is below its length and has ``allowed[i]``; do not change it later.

        Raises:
            UsageError: k < 1, a wrong shape or type, or a value that is not finite.
        """
        array, slack = as_queries(queries, self.dimension, k, self._norm)
        part = Part(self._vectors(), self._ids(), self._norm) if len(self) else _nothing(self.dimension)
        kept, count = self._letting.through((part,), allowed)
        k = min(k, count)
        scores = np.empty((len(array), k), dtype=np.float32)
        ids = np.empty((len(array), k), dtype=np.int64)
        if not k or not len(array):
            return scores, ids
        if (self._graph and count <= _EF_SEARCH) or count < _FEW * len(self):  # it would visit every vector anyway
            return top_k(array, slack, (part,), k, kept)
        proposed, positions = self._candidates(array, min(k + _SPARE, count), None if kept is None else kept[0])
        unsettled = []
        for row, (found, at) in enumerate(zip(proposed, positions, strict=True)):
            at = at[at >= 0]
            again = inner_products(array[row], part.vectors[at])
            if len(at) < k or (
                not self._graph
                and not self._settled(again, float(found[len(at) - 1]), k, float(slack[row]), len(at) == count)
            ):
                unsettled.append(row)
            else:
                scores[row], ids[row] = best(again, part.ids[at], k)
        if unsettled:
            scores[unsettled], ids[unsettled] = top_k(array[unsettled], slack[unsettled], (part,), k, kept)
        return scores, ids

    @staticmethod
    def _settled(scores: Float32[np.ndarray, " n"], last: float, k: int, slack: float, all_of_them: bool) -> bool:
        """Whether no vector beyond the candidates, the worst of which scored ``last``, can reach the k best."""
        return all_of_them or float(np.partition(scores, -k)[-k]) - last > slack

    def _candidates(
        self, queries: Float32[np.ndarray, "Q D"], count: int, keep: Bool[np.ndarray, " n"] | None
    ) -> tuple[Float32[np.ndarray, "Q n"], Int64[np.ndarray, "Q n"]]:
        """What FAISS proposes among those to keep: scores and positions, -1 where it found nothing."""
        faiss = _faiss()
        options: dict[str, Any] = {}
        if keep is not None:
            bits = np.packbits(keep, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(len(keep), faiss.swig_ptr(bits))
        if self._graph:
            params = faiss.SearchParametersHNSW(efSearch=max(_EF_SEARCH, 2 * count), **options)
        else:
            params = faiss.SearchParameters(**options) if options else None
        found: tuple[Any, Any] = self._inner.search(queries, count, params=params)
        return found

    def _vectors(self) -> Float32[np.ndarray, "n D"]:
        """The stored vectors by position, a view into FAISS's memory: valid until the next add."""
        faiss = _faiss()
        flat = faiss.downcast_index(self._inner.storage) if self._graph else self._inner
        values: Float32[np.ndarray, " nD"] = faiss.rev_swig_ptr(flat.get_xb(), int(flat.ntotal) * self.dimension)
        return values.reshape(int(flat.ntotal), self.dimension)

    def _ids(self) -> Int64[np.ndarray, " n"]:
        """The ids by position, a view into FAISS's memory: valid until the next add."""
        ids: Int64[np.ndarray, " n"] = _faiss().rev_swig_ptr(self._index.id_map.data(), len(self))
        return ids

    def save(self, path: Path) -> None:
        """Write the index in FAISS's own format to one file, which takes its place only when it is complete."""
        with replacing(path) as temporary:
            _faiss().write_index(self._index, str(temporary))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a saved index into memory.

        Raises:
            CollectionDamagedError: the file is missing, cut short, or holds another kind of index.
        """
        faiss = _faiss()
        path = Path(path)
        try:
            index = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            reason = str(error).strip().splitlines()[-1][-200:] or type(error).__name__
            raise CollectionDamagedError(f"{path}: the faiss index cannot be read ({reason})") from error
        inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap2) else None
        graph = isinstance(inner, faiss.IndexHNSWFlat)
        if inner is None or not (graph or type(inner) in (faiss.IndexFlatIP, faiss.IndexFlat)):
            kind = type(index if inner is None else inner).__name__
            raise CollectionDamagedError(f"{path}: a {kind}; expected an IndexIDMap2 over IndexFlatIP or IndexHNSWFlat")
        if inner.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise CollectionDamagedError(f"{path}: its metric is not the inner product")
        loaded = cls.__new__(cls)
        loaded._use(index, inner, graph=graph)
        try:
            loaded._check_loaded(faiss.vector_to_array(index.id_map))
        except UsageError as error:
            raise CollectionDamagedError(f"{path}: {error}") from error
        return loaded

    def _check_loaded(self, ids: Int64[np.ndarray, " N"]) -> None:
        """Take over the ids of a file that was read.

        Raises:
            UsageError: its numbers or values cannot be right.
        """
        faiss = _faiss()
        storage = faiss.downcast_index(self._inner.storage) if self._graph else self._inner
        counts = len(ids), int(self._index.ntotal), int(self._inner.ntotal), int(storage.ntotal)
        if len(set(counts)) > 1:  # views into FAISS's memory rely on it; not every version of it checks
            raise UsageError(f"its parts have {counts} ids and vectors; expected the same number everywhere")
        vectors = self._vectors() if len(ids) else np.empty((0, self.dimension), dtype=np.float32)
        self._used.add(as_ids(ids, len(vectors), self._used))
        self._norm = largest_norm(vectors, "vectors")

    def __len__(self) -> int:
        """How many vectors the index has."""
        return int(self._index.ntotal)
