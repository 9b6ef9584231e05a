"""One state of a collection: the facts, the passages and the dense index that belong together.

A snapshot never changes. A reader takes one and asks it everything, so that an ingest in between cannot give it rows
of one state and passages of another; its connection is closed when nobody holds it any more.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from bifolio.catalogue import Catalogue, Segment
from bifolio.errors import CollectionDamagedError, NotFoundError, UsageError
from bifolio.protocols import DenseIndex
from bifolio.registry import resolve
from bifolio.types import Passage
from bifolio.vector_files import live_blocks, vectors_of, verify

_LOG = logging.getLogger("bifolio")


def _facts(catalogue: Catalogue) -> dict[str, Any]:
    """The collection's own facts, those that everything else stands on being there."""
    meta = catalogue.meta()
    try:
        encoder = meta["encoder"]
        numbers = (encoder["dimension"], meta["generation"], meta["next_row"])
        names = (encoder["model"], encoder["fingerprint"], meta["index"])
    except (KeyError, TypeError) as error:
        raise CollectionDamagedError(f"{catalogue.path} lacks {error}: restore it from a backup") from error
    if not all(isinstance(n, int) for n in numbers) or not all(isinstance(n, str) for n in names):
        raise CollectionDamagedError(f"{catalogue.path} has facts of a wrong kind: restore it from a backup")
    return meta


class Snapshot:
    """One generation of a collection, for reading. Safe to use from many threads."""

    def __init__(self, path: Path, catalogue: Catalogue) -> None:
        """Read what ``catalogue`` has pinned; ``path`` is how people know the collection."""
        self.path = path
        self.catalogue = catalogue
        self.meta = _facts(catalogue)
        self._vectors = catalogue.path.parent / "vectors"
        self._indexes = catalogue.path.parent / "index"
        self._index: DenseIndex | None = None
        self._lock = threading.Lock()

    @property
    def generation(self) -> str:
        """Name of the state."""
        return str(self.meta["generation"])

    @property
    def _dimension(self) -> int:
        return int(self.meta["encoder"]["dimension"])

    # ---- passages ----

    def nearest(self, query: Float32[np.ndarray, " D"], k: int) -> list[tuple[Passage, float]]:
        """The min(k, size) passages with the largest inner product with ``query``, best first, with it."""
        scores, rows = self._dense_index().search(query[None], k)
        passages = self.catalogue.by_rows(rows[0].tolist())
        if missing := [row for row in rows[0].tolist() if row not in passages]:
            raise CollectionDamagedError(f"{self.path}: the index names rows {missing} that have no passage")
        return [(passages[row], score) for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True)]

    def vectors(self, passage_ids: Sequence[str]) -> Float32[np.ndarray, "K D"]:
        """E_P(z) of passages, as stored, in the order of their ids.

        Raises:
            NotFoundError: there is no such passage.
        """
        rows = self.catalogue.rows_by_id(passage_ids)
        if missing := [name for name in passage_ids if name not in rows]:
            raise NotFoundError(f"no passage {missing[0]!r} in {self.path}")
        wanted = np.array([rows[name] for name in passage_ids], dtype=np.int64)
        return vectors_of(self._vectors, self.catalogue.segments(), self._dimension, wanted)

    def passage(self, passage_id: str) -> Passage:
        """A passage by its id.

        Raises:
            NotFoundError: there is none.
        """
        found = self.catalogue.by_id(passage_id)
        if found is None:
            raise NotFoundError(f"no passage {passage_id!r} in {self.path}; ids are in the output of search and ask")
        return found

    def passages(self) -> Iterator[Passage]:
        """All passages, in the order in which they came in."""
        return self.catalogue.passages_between(0, int(self.meta["next_row"]))

    def context(self, passage_id: str, characters: int) -> tuple[str, str]:
        """What stands before and after a passage in its document, up to ``characters`` each."""
        start, end = self.passage(passage_id).span
        text = self.catalogue.document_text(passage_id)
        return text[max(0, start - characters) : start], text[end : end + characters]

    def __len__(self) -> int:
        """How many passages there are."""
        return self.catalogue.counts()[1]

    # ---- the dense index: derived from the vectors, never the truth ----

    def _dense_index(self) -> DenseIndex:
        with self._lock:
            if self._index is None:
                saved = self._load_index()
                self._index = saved if saved is not None and len(saved) == len(self) else self._build_index()
            return self._index

    def _load_index(self) -> DenseIndex | None:
        """The saved index of this state; None if there is none that can be used."""
        name = self.catalogue.meta().get("index_file")
        index_class, _ = resolve("index", self.meta["index"])
        load = getattr(index_class, "load", None)
        if not name or load is None:
            return None
        try:
            index: DenseIndex = load(self._indexes / name)
        except Exception as error:  # whatever a third party's class raises: the vectors are there
            _LOG.warning("the saved index cannot be used and is built anew from the vectors: %s", error)
            return None
        return index

    def _build_index(self) -> DenseIndex:
        index_class, argument = resolve("index", self.meta["index"])
        index: DenseIndex = index_class(self._dimension, argument)
        live = self.catalogue.live_row_array()
        self._add(index, self.catalogue.segments(), live)
        return index

    def _add(self, index: DenseIndex, segments: Sequence[Segment], rows: Int64[np.ndarray, " N"]) -> None:
        for vectors, ids in live_blocks(self._vectors, segments, self._dimension, rows):
            try:
                index.add(vectors, ids)
            except UsageError as error:  # the vectors were in order when they were written
                raise CollectionDamagedError(
                    f"{self._vectors}: {error}. Restore it from a backup, or delete the folder and ingest again"
                ) from error

    def save_index(self, segments: Sequence[Segment], removed: bool) -> None:
        """Inside an ingest's transaction: save the index of the state that is about to be committed.

        Args:
            segments: The vectors that the ingest added.
            removed: Whether passages were removed: no index can forget, so it is built anew.
        """
        if self.meta["index"] == "exact":  # the vectors are the index
            return
        index = None if removed else self._load_index()
        if index is not None:
            for segment in segments:
                rows = np.arange(segment.first_row, segment.first_row + segment.rows, dtype=np.int64)
                self._add(index, [segment], rows)
        if index is None or len(index) != len(self):
            verify(self._vectors, self.catalogue.segments())  # what goes into a saved index is read for long
            index = self._build_index()
        self._indexes.mkdir(exist_ok=True)
        name = f"{self.catalogue.meta()['generation']}-{secrets.token_hex(4)}.index"
        index.save(self._indexes / name)
        self.catalogue.set_meta({"index_file": name})
