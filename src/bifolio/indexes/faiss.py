"""FAISS: flat (exact, faster than numpy), HNSW (a graph that looks at few of the vectors), IVF-PQ (codes in lists).

FAISS proposes candidates, by position. They are scored again with :func:`bifolio.topk.inner_products` and sorted,
so that scores and the order of ties do not depend on how FAISS computed them; what it leaves out or cannot decide (a
tie at the cut, a graph that gives fewer than k) is settled by the exact search over the vectors that FAISS stores.

``hnsw`` is M = 32, efConstruction = 200, efSearch = 256. Recall@10 against the exact index, 10,000 x 384, 200 queries:
1.0 when the vectors lie in 100 clusters, .9965 when noise all but hides the clusters (.9835 with efSearch = 128).

``ivfpq`` (Jegou, Douze and Schmid 2011, IEEE TPAMI 33(1)) has the vectors in 2 sqrt(n) lists, of which a search visits
64, each vector as a code of one byte for 8 of its numbers; the 200 + 10 k best by their codes are scored again. Lists
and codes are learnt from what is there at 10,000 vectors, and again when it is four times as much.

A saved index is not read but mapped: what a search does not touch takes no memory.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import struct
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
_LEARN = 10_000  # vectors that lists and codes are learnt from at least
_GROWTH = 4  # times as many vectors: learnt again
_LISTS = 2.0  # times the root of n
_PROBES = 64  # lists that are visited
_PER_LIST = 40  # vectors that a list is learnt from
_AGAIN = 10  # candidates for each of k, and
_AGAIN_ALWAYS = 200  # candidates, that are scored again after their codes were
_LOT = 65_536  # vectors that are added at once
_TAIL = struct.Struct("<I12s")  # the length of the facts before it, and
_MAGIC = b"bifolio\0tail"
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


def _read_argument(argument: str, dimension: int) -> tuple[str, int]:
    """The kind of index, and the number that follows it or is taken in its place.

    Raises:
        UsageError: there is no such kind, or the number is out of range.
    """
    match = re.fullmatch(r"(|flat|hnsw|ivfpq)(?<=[a-z])([0-9]{1,4})?|", argument)
    kind, number = (match[1] or "flat", match[2]) if match else ("", None)
    if kind == "hnsw" and 4 <= int(number or _DEFAULT_M) <= 512:
        return kind, int(number or _DEFAULT_M)
    if kind == "ivfpq":
        size = int(number or next(m for m in range(max(1, dimension // 8), 0, -1) if dimension % m == 0))
        if size and dimension % size == 0:
            return kind, size
    if kind == "flat" and number is None:
        return kind, 0
    raise UsageError(
        f"unknown faiss index {argument!r}; expected 'flat', 'hnsw' or 'hnsw<M>' with M 4 to 512, 'ivfpq' or "
        f"'ivfpq<M>' with M a divisor of {dimension}"
    )


def _mark(path: Path) -> tuple[int, ...]:
    """What tells a file from another one that took its place; () where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _facts(path: Path) -> dict[str, Any]:
    """What stands behind FAISS's own part of a file.

    Raises:
        CollectionDamagedError: nothing of ours does.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            end = file.tell() - _TAIL.size
            file.seek(max(0, end))
            length, magic = _TAIL.unpack(file.read(_TAIL.size))
            if magic != _MAGIC or length > min(end, 4096):
                raise ValueError("its end is missing")
            file.seek(end - length)
            facts: dict[str, Any] = json.loads(file.read(length))
        if not isinstance(facts["argument"], str) or not 0 <= float(facts["norm"]) < math.inf:
            raise ValueError("its end is damaged")
    except OSError as error:
        raise CollectionDamagedError(f"{path}: the faiss index cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CollectionDamagedError(f"{path}: no faiss index that this version has written ({error})") from error
    return facts


class FaissIndex:
    """Maximum inner product search with FAISS, under the caller's ids (``IndexIDMap2``).

    ``flat`` returns what the exact index returns. ``hnsw`` and ``ivfpq`` are approximate: they may miss a vector, never
    invent one. With more than one OpenMP thread they are not built the same way twice; one built index always answers
    the same. Searches may run in any number of threads, but not while vectors are added. float16 and float64 are
    converted to float32.

    Args:
        dimension: D.
        argument: "" or "flat"; "hnsw" or "hnsw<M>" with M neighbours (32 by default, 4 to 512); "ivfpq" or "ivfpq<M>"
            with codes of M bytes (D / 8 by default, or the next smaller divisor of D).
    """

    def __init__(self, dimension: int, argument: str = "") -> None:
        if dimension < 1:
            raise UsageError(f"dimension is {dimension}; expected at least 1")
        self._kind, self._number = _read_argument(argument, dimension)
        self._argument = argument
        self._used = UsedIds()
        self._letting = Letting()
        self._norm = 0.0
        self._adding = threading.Lock()
        self._mapped: tuple[Path, tuple[int, ...]] | None = None
        faiss = _faiss()
        if self._kind == "hnsw":
            inner = faiss.IndexHNSWFlat(dimension, self._number, faiss.METRIC_INNER_PRODUCT)
            inner.hnsw.efConstruction = _EF_CONSTRUCTION
        else:  # codes are not learnt from nothing: until then ivfpq is flat
            inner = faiss.IndexFlatIP(dimension)
        self._use(faiss.IndexIDMap2(inner), inner)

    def _use(self, index: Any, inner: Any) -> None:
        """Take over a faiss index.

        Raises:
            UsageError: it is none that an object of this class makes.
        """
        faiss = _faiss()
        self._index = index
        self._inner = inner  # the map does not keep alive an inner index that was made here
        self._lists = faiss.downcast_index(inner.base_index) if isinstance(inner, faiss.IndexRefineFlat) else None
        if self._lists is not None:
            self._flat = faiss.downcast_index(inner.refine_index)
        else:
            self._flat = faiss.downcast_index(inner.storage) if isinstance(inner, faiss.IndexHNSWFlat) else inner
        over = {"hnsw": (faiss.IndexHNSWFlat,), "ivfpq": (faiss.IndexFlat, faiss.IndexRefineFlat)}
        fits = isinstance(inner, over.get(self._kind, (faiss.IndexFlat,))) and isinstance(self._flat, faiss.IndexFlat)
        parts = [inner, self._flat]
        if self._lists is not None:
            parts.append(self._lists)
            fits = fits and isinstance(self._lists, faiss.IndexIVFPQ)
        if not fits:
            names = " over ".join(type(one).__name__ for one in (index, *parts))
            raise UsageError(f"a {names}; expected what faiss:{self._kind} has")
        if any(one.metric_type != faiss.METRIC_INNER_PRODUCT for one in parts):
            raise UsageError("its metric is not the inner product")
        self.dimension = int(inner.d)

    def add(self, vectors: Float[np.ndarray, "N D"], ids: Int64[np.ndarray, " N"]) -> None:
        """Add vectors under unused ids >= 0.

        Raises:
            UsageError: a wrong shape or type, a value that is not finite, an id that is negative or in use. Nothing
                has been added then.
        """
        array = as_vectors(vectors, self.dimension, "vectors")
        norm = largest_norm(array, "vectors")
        with self._adding:
            checked = as_ids(ids, len(array), self._used)
            if len(checked):
                self._own()
                if self._kind == "ivfpq":
                    self._learn(array)
                for start in range(0, len(array), _LOT):
                    lot = np.ascontiguousarray(array[start : start + _LOT], dtype=np.float32)
                    self._index.add_with_ids(lot, checked[start : start + _LOT])
                self._used.add(checked)
                self._norm = max(self._norm, norm)

    def _own(self) -> None:
        """Read into memory what was mapped: where a mapped index grows, FAISS ends the process."""
        if self._mapped is None:
            return
        faiss, (path, mark) = _faiss(), self._mapped
        if _mark(path) == mark:
            index = faiss.read_index(str(path))
        else:  # another file has taken its place
            index = faiss.deserialize_index(faiss.serialize_index(self._index))
        self._use(index, faiss.downcast_index(index.index))
        self._mapped = None

    def _learn(self, coming: Float[np.ndarray, "N D"]) -> None:
        """Learn lists and codes from what is there and what is coming, if it is enough, or much more than before."""
        total = len(self) + len(coming)
        learnt = 0 if self._lists is None else int(self._lists.nlist / _LISTS) ** 2  # from about so many
        if total < max(_LEARN, _GROWTH * learnt):
            return
        faiss, count = _faiss(), int(_LISTS * math.sqrt(total))
        lists = faiss.IndexIVFPQ(
            faiss.IndexFlatIP(self.dimension), self.dimension, count, self._number, 8, faiss.METRIC_INNER_PRODUCT
        )
        there = self._vectors()
        sample = np.sort(np.random.default_rng(0).permutation(total)[: max(_LEARN, _PER_LIST * count)])
        mine, yours = sample[sample < len(there)], sample[sample >= len(there)] - len(there)
        lists.train(np.concatenate([there[mine], np.asarray(coming[yours], dtype=np.float32)]))
        inner = faiss.IndexRefineFlat(lists)
        index = faiss.IndexIDMap2(inner)
        ids = self._ids()
        for start in range(0, len(there), _LOT):
            index.add_with_ids(there[start : start + _LOT], ids[start : start + _LOT])
        self._use(index, inner)
        self._lists = lists  # keeps what was made here

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
        looked_at = {"hnsw": _EF_SEARCH, "ivfpq": self._proposed(k)}.get(self._kind, 0)
        if count <= looked_at or count < _FEW * len(self):  # it would visit every vector anyway
            return top_k(array, slack, (part,), k, kept)
        proposed, positions = self._candidates(array, min(self._proposed(k), count), None if kept is None else kept[0])
        exact = self._flat is self._inner
        unsettled = []
        for row, (found, at) in enumerate(zip(proposed, positions, strict=True)):
            at = at[(at >= 0) & (at < len(part.ids))]  # -1 where it found nothing
            again = inner_products(array[row], part.vectors[at])
            if len(at) < k or (
                exact and not self._settled(again, float(found[len(at) - 1]), k, float(slack[row]), len(at) == count)
            ):
                unsettled.append(row)
            else:
                scores[row], ids[row] = best(again, part.ids[at], k)
        if unsettled:
            scores[unsettled], ids[unsettled] = top_k(array[unsettled], slack[unsettled], (part,), k, kept)
        return scores, ids

    def _proposed(self, k: int) -> int:
        """How many candidates are asked for."""
        return k + _SPARE if self._lists is None else _AGAIN_ALWAYS + _AGAIN * k

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
        searched = self._inner
        if self._lists is not None:
            searched, share = self._lists, 1.0 if keep is None else np.count_nonzero(keep) / len(keep)
            params = faiss.SearchParametersIVF(nprobe=min(int(self._lists.nlist), int(_PROBES / share)), **options)
        elif self._kind == "hnsw":
            params = faiss.SearchParametersHNSW(efSearch=max(_EF_SEARCH, 2 * count), **options)
        else:
            params = faiss.SearchParameters(**options) if options else None
        found: tuple[Any, Any] = searched.search(queries, count, params=params)
        return found

    def _vectors(self) -> Float32[np.ndarray, "n D"]:
        """The stored vectors by position, a view into FAISS's memory: valid until the next add."""
        if not len(self):
            return np.empty((0, self.dimension), dtype=np.float32)
        values: Float32[np.ndarray, " nD"] = _faiss().rev_swig_ptr(self._flat.get_xb(), len(self) * self.dimension)
        return values.reshape(len(self), self.dimension)

    def _ids(self) -> Int64[np.ndarray, " n"]:
        """The ids by position, a view into FAISS's memory: valid until the next add."""
        ids: Int64[np.ndarray, " n"] = _faiss().rev_swig_ptr(self._index.id_map.data(), len(self))
        return ids

    def save(self, path: Path) -> None:
        """Write the index to one file, which takes its place only when it is complete.

        It is in FAISS's own format, and behind it what FAISS does not keep: the argument and the largest norm.
        """
        facts = json.dumps({"argument": self._argument, "norm": self._norm}).encode()
        with replacing(path) as temporary:
            _faiss().write_index(self._index, str(temporary))
            with temporary.open("ab") as file:
                file.write(facts + _TAIL.pack(len(facts), _MAGIC))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open a saved index; it stays on the disk, memory-mapped, until vectors are added.

        Raises:
            CollectionDamagedError: the file is missing, cut short, or holds another kind of index.
        """
        faiss = _faiss()
        path = Path(path)
        flag = getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if os.name == "posix" else 0
        try:
            facts = _facts(path)
            mark = _mark(path)
            index = faiss.read_index(str(path), flag)
        except (RuntimeError, MemoryError) as error:
            reason = str(error).strip().splitlines()[-1][-200:] or type(error).__name__
            raise CollectionDamagedError(f"{path}: the faiss index cannot be read ({reason})") from error
        inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap2) else None
        if inner is None:
            raise CollectionDamagedError(f"{path}: a {type(index).__name__}; expected an IndexIDMap2")
        try:
            loaded = cls(int(inner.d), facts["argument"])
            loaded._use(index, inner)
            loaded._check_loaded(faiss.vector_to_array(index.id_map))
        except UsageError as error:
            raise CollectionDamagedError(f"{path}: {error}") from error
        loaded._norm = facts["norm"]
        loaded._mapped = (path, mark) if flag else None
        return loaded

    def _check_loaded(self, ids: Int64[np.ndarray, " N"]) -> None:
        """Take over the ids of a file that was read.

        Raises:
            UsageError: its numbers cannot be right.
        """
        parts = (self._index, self._inner, self._flat, *([] if self._lists is None else [self._lists]))
        counts = len(ids), *(int(part.ntotal) for part in parts)
        if len(set(counts)) > 1:  # views into FAISS's memory rely on it; not every version of it checks
            raise UsageError(f"its parts have {counts} ids and vectors; expected the same number everywhere")
        self._used.add(as_ids(ids, len(ids), self._used))

    def __len__(self) -> int:
        """How many vectors the index has."""
        return int(self._index.ntotal)
