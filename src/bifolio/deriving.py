"""Indexes: derived from the catalogue and the vectors, disposable, and caught up with by numbers that only grow.

A saved dense index says up to which block of vectors it has them, a lexical index up to which row. The writer lets them
catch up before a generation is made. A dense index is saved anew only when much has come in since; until then readers
search the rest exactly beside it, so a change costs what it changes. Whatever is missing or damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

from bifolio.catalogue import Block, Catalogue
from bifolio.errors import BifolioError, CollectionDamagedError, UsageError
from bifolio.indexes.choosing import choose, measured_recall
from bifolio.indexes.exact import ExactIndex
from bifolio.indexes.lexical import BM25Index
from bifolio.ingest_report import IngestProgress, OnProgress
from bifolio.protocols import DenseIndex, LexicalIndex
from bifolio.registry import resolve
from bifolio.topk import best
from bifolio.types import Passage
from bifolio.vector_files import Vectors, damaged, drop_strangers, verify

_LOG = logging.getLogger("bifolio")
_FEW = 20_000  # vectors that are searched exactly beside a saved index without being felt
_SHARE = 0.1  # of the saved ones: likewise
_LOT = 1000  # passages that the lexical index is given at once


def encoder_spec(catalogue: Catalogue, number: int) -> dict[str, Any]:
    """The facts of an encoder, as its :class:`bifolio.protocols.EncoderSpec` has them."""
    spec: dict[str, Any] = json.loads(catalogue.scalar("SELECT spec FROM encoders WHERE id = ?", [number]))
    return spec


def searchable(passage: Passage) -> str:
    """What the lexical index has of a passage."""
    return f"{passage.label}\n{passage.text}"


# ---- the writer's side ----


def drop_leftovers(catalogue: Catalogue) -> None:
    """Delete files that the catalogue does not name, for the one who holds the write lock.

    They were left by who was killed, or are indexes that a newer one has replaced and that readers still had.
    """
    folder, meta = catalogue.path.parent, catalogue.meta()
    drop_strangers(folder / "vectors", {file for (file,) in catalogue.query("SELECT DISTINCT file FROM blocks")})
    dense = {entry.get("file", "") for entry in meta.get("dense", {}).values()}
    drop_strangers(folder / "index", dense)
    lexical = meta.get("lexical", {}).get("folder", "")
    for one in (folder / "index").glob("lexical-*"):
        if one.name != lexical and one.is_dir():
            shutil.rmtree(one, ignore_errors=True)


def catch_up(catalogue: Catalogue, encoder: int, on_progress: OnProgress, *, anew: bool = False) -> list[str]:
    """Bring the indexes up to everything that the catalogue has; returns what a person should know.

    Args:
        catalogue: The catalogue.
        encoder: Number of the encoder whose vectors are indexed.
        on_progress: Told of every lot.
        anew: Make them again from nothing.

    Raises:
        CollectionDamagedError: vectors are not as they were written.
    """
    (catalogue.path.parent / "index").mkdir(exist_ok=True)
    _catch_up_lexical(catalogue, on_progress, anew)
    return _catch_up_dense(catalogue, encoder, anew)


def _catch_up_lexical(catalogue: Catalogue, on_progress: OnProgress, anew: bool) -> None:
    folder, meta = catalogue.path.parent / "index", catalogue.meta()
    name, end = meta.get("lexical", {}).get("folder", ""), catalogue.rows_end()
    index: BM25Index | None = None
    if name and not anew:
        try:
            index = BM25Index.open(folder / name, write=True)
            if index.upto > int(meta["next_row"]):  # of another history: a backup was put back around it
                index.close()
                index = None
        except CollectionDamagedError as error:
            _LOG.warning("the lexical index cannot be used and is built anew: %s", error)
    if index is None:
        name = f"lexical-{secrets.token_hex(4)}"
        index = BM25Index.create(folder / name)
    first = index.upto
    try:
        for lot in _lots(catalogue.passages_between(first, end)):
            index.add([row for row, _ in lot], [searchable(passage) for _, passage in lot])
            on_progress(IngestProgress("index", lot[-1][0] + 1 - first, end - first))
        index.commit()
    finally:
        index.close()
    if meta.get("lexical", {}).get("folder", "") != name:
        with catalogue.writing():
            catalogue.set_meta({"lexical": {"folder": name}})


def _lots(passages: Iterator[tuple[int, Passage]]) -> Iterator[list[tuple[int, Passage]]]:
    lot: list[tuple[int, Passage]] = []
    for one in passages:
        lot.append(one)
        if len(lot) == _LOT:
            yield lot
            lot = []
    if lot:
        yield lot


def _catch_up_dense(catalogue: Catalogue, encoder: int, anew: bool) -> list[str]:
    meta, blocks = catalogue.meta(), catalogue.blocks(encoder)
    dimension = int(encoder_spec(catalogue, encoder)["dimension"])
    count = sum(block.rows for block in blocks)
    entry = meta.get("dense", {}).get(str(encoder), {})
    wanted, reason = meta["index"], "as asked for"
    if wanted == "auto":
        wanted, reason = choose(count, dimension)
    same = entry.get("index") == wanted and not anew
    if wanted == "exact":  # the vectors are the index
        if not same:
            _name(catalogue, encoder, {"index": wanted, "reason": reason, "count": count, "recall": 1.0})
        return _told(entry, wanted, reason)
    new = [block for block in blocks if block.id > entry.get("block", 0)]
    waiting = sum(block.rows for block in new)
    if same and waiting <= max(_FEW, _SHARE * entry["count"]):
        return []
    folder = catalogue.path.parent
    vectors = Vectors(folder / "vectors", blocks, dimension)
    base = _load(folder / "index", entry) if same else None
    for complaint in verify(folder / "vectors", new if base is not None else blocks, dimension):
        raise damaged(complaint)
    index = base if base is not None else _make(wanted, dimension)
    for part, rows, _ in vectors.parts(entry.get("block", 0) if base is not None else 0):
        index.add(part, rows)
    name = f"dense-{secrets.token_hex(6)}.index"
    index.save(folder / "index" / name)
    facts = {
        "index": wanted,
        "reason": reason,
        "file": name,
        "sha256": sha256_of(folder / "index" / name),
        "count": len(index),
        "block": max(block.id for block in blocks),
        "recall": measured_recall(index, vectors.of, _all_rows(blocks)),
    }
    _name(catalogue, encoder, facts)
    return _told(entry, wanted, f"{reason}; recall@10 against exact search {facts['recall']:.3f}")


def _told(entry: dict[str, Any], wanted: str, reason: str) -> list[str]:
    """A change of index is told; the first choice only where it is not the simplest."""
    if entry.get("index") == wanted or (not entry and wanted == "exact"):
        return []
    return [f"index {wanted}: {reason}"]


def _all_rows(blocks: Sequence[Block]) -> Int64[np.ndarray, " N"]:
    return np.concatenate([np.arange(b.first_row, b.first_row + b.rows, dtype=np.int64) for b in blocks])


def _name(catalogue: Catalogue, encoder: int, entry: dict[str, Any]) -> None:
    with catalogue.writing():
        catalogue.set_meta({"dense": {**catalogue.meta().get("dense", {}), str(encoder): entry}})


def _make(name: str, dimension: int) -> DenseIndex:
    index_class, argument = resolve("index", name)
    index: DenseIndex = index_class(dimension, argument)
    return index


def _load(folder: Path, entry: dict[str, Any]) -> DenseIndex | None:
    """A saved index; None if there is none that can be used."""
    if not entry.get("file"):
        return None
    try:
        index_class, _ = resolve("index", entry["index"])
        index: DenseIndex = index_class.load(folder / entry["file"])
    except Exception as error:  # whatever a third party's class raises: the vectors are there
        _LOG.warning("the saved index cannot be used and is built anew from the vectors: %s", error)
        return None
    if len(index) != entry["count"]:
        _LOG.warning("the saved index has %d vectors, expected %d: it is built anew", len(index), entry["count"])
        return None
    return index


def sha256_of(path: Path) -> str:
    """Of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


# ---- the readers' side ----


class Beside:
    """A saved index, and what has come in since, searched exactly beside it."""

    def __init__(self, base: DenseIndex | None, rest: ExactIndex) -> None:
        """``base`` is None where the vectors are the index."""
        self._base, self._rest = base, rest

    def search(
        self, queries: Float32[np.ndarray, "Q D"], k: int, allowed: Bool[np.ndarray, " R"]
    ) -> tuple[Float32[np.ndarray, "Q k"], Int64[np.ndarray, "Q k"]]:
        """As :meth:`bifolio.protocols.DenseIndex.search`, over both."""
        if self._base is None:
            return self._rest.search(queries, k, allowed)
        found = self._base.search(queries, k, allowed)
        if not len(self._rest):
            return found
        more = self._rest.search(queries, k, allowed)
        rows = [
            best(np.concatenate([a, b]), np.concatenate([i, j]), k)
            for a, b, i, j in zip(found[0], more[0], found[1], more[1], strict=True)
        ]
        return np.stack([scores for scores, _ in rows]), np.stack([ids for _, ids in rows])


class Loaded:
    """Indexes in memory, kept from one generation to the next. Safe to use from many threads."""

    def __init__(self) -> None:
        """Nothing is loaded."""
        self._lock = threading.Lock()
        self._bases: dict[str, DenseIndex] = {}  # by file
        self._dense: tuple[Any, Beside] | None = None
        self._lexical: tuple[Any, LexicalIndex] | None = None

    def dense(self, catalogue: Catalogue, meta: dict[str, Any], vectors: Vectors) -> Beside:
        """The dense index over ``vectors``."""
        entry = meta.get("dense", {}).get(str(meta["encoder_number"]), {})
        wanted = entry.get("file", "") or meta["index"]
        key = (wanted, meta["encoder_number"], vectors.last_block, vectors.names)
        with self._lock:
            if self._dense is None or self._dense[0] != key:
                self._dense = key, self._beside(catalogue.path.parent / "index", meta, entry, vectors)
            return self._dense[1]

    def _beside(self, folder: Path, meta: dict[str, Any], entry: dict[str, Any], vectors: Vectors) -> Beside:
        dimension, name = int(meta["encoder"]["dimension"]), entry.get("file", "")
        base = self._bases.get(name) if name else None
        if base is None and name:
            base = _load(folder, entry)
        after = int(entry["block"]) if base is not None else 0
        if base is None and entry.get("index", "exact") != "exact":  # it was lost
            base, after = self._built(entry["index"], dimension, vectors), vectors.last_block
        self._bases = {name: base} if base is not None and name else {}
        rest = ExactIndex(dimension)
        for part, rows, norm in vectors.parts(after):
            try:
                rest.add(part, rows, norm=norm)
            except UsageError as error:  # the vectors were in order when they were written
                raise damaged(f"{vectors.folder}: {error}") from error
        return Beside(base, rest)

    @staticmethod
    def _built(name: str, dimension: int, vectors: Vectors) -> DenseIndex:
        index = _make(name, dimension)
        for part, rows, _ in vectors.parts():
            try:
                index.add(part, rows)
            except UsageError as error:
                raise damaged(f"{vectors.folder}: {error}") from error
        return index

    def lexical(self, catalogue: Catalogue, meta: dict[str, Any]) -> LexicalIndex:
        """The lexical index, with at least the rows that the catalogue has pinned."""
        name, end = meta.get("lexical", {}).get("folder", ""), catalogue.rows_end()
        with self._lock:
            if self._lexical is None or self._lexical[0] != (name, end):
                self._lexical = (name, end), self._lexical_of(catalogue, name, end)
            return self._lexical[1]

    @staticmethod
    def _lexical_of(catalogue: Catalogue, name: str, end: int) -> LexicalIndex:
        if name:
            try:
                index = BM25Index.open(catalogue.path.parent / "index" / name)
                if index.upto >= end:
                    return index
                _LOG.warning("the lexical index ends at row %d of %d: it is built anew in memory", index.upto, end)
            except BifolioError as error:
                _LOG.warning("the lexical index cannot be used and is built anew in memory: %s", error)
        built = BM25Index.create(None)
        for lot in _lots(catalogue.passages_between(0, end)):
            built.add([row for row, _ in lot], [searchable(passage) for _, passage in lot])
        built.commit()
        return built
