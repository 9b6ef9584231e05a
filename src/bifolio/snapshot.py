"""One generation of a collection: the passages, vectors and indexes that belong together.

A snapshot never changes. A reader takes one and asks it everything, so that a change in between cannot give it rows of
one state and passages of another; its connection is closed when nobody holds it any more.

Indexes have the rows of every generation, so that one serves all: which rows are this generation's, which of them the
reader may see and which a filter lets through is one mask, and every search is told of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

from bifolio import attributes, deriving, filters, history
from bifolio.catalogue import Catalogue, FileRow
from bifolio.deriving import Beside, Loaded
from bifolio.errors import CollectionDamagedError, CollectionMissingError, NotFoundError
from bifolio.protocols import Encoder, LexicalIndex
from bifolio.types import Passage
from bifolio.vector_files import Vectors

_FILTERS = 16  # masks of filter expressions that are kept


def facts(catalogue: Catalogue, generation: int) -> dict[str, Any]:
    """The collection's own facts, those that everything else stands on being there.

    Raises:
        CollectionDamagedError: one is missing or of a wrong kind.
    """
    meta = catalogue.meta()
    try:
        if generation not in {number for (number,) in catalogue.query("SELECT id FROM generations")}:
            raise KeyError(f"generation {generation}")
        number = history.encoder_of(catalogue, generation)
        meta["encoder"] = encoder = deriving.encoder_spec(catalogue, number)
        meta["encoder_number"] = number
        meta["passage_encoder"] = catalogue.scalar("SELECT passages FROM encoders WHERE id = ?", [number])
        numbers = (encoder["dimension"], meta["live"], meta["next_row"])
        names = (encoder["model"], encoder["fingerprint"], meta["index"], meta["precision"])
    except (KeyError, TypeError, IndexError) as error:
        raise CollectionDamagedError(f"{catalogue.path} lacks {error}: restore it from a backup") from error
    if not all(isinstance(n, int) for n in numbers) or not all(isinstance(n, str) for n in names):
        raise CollectionDamagedError(f"{catalogue.path} has facts of a wrong kind: restore it from a backup")
    return meta


class Snapshot:
    """One generation of a collection, for reading. Safe to use from many threads."""

    def __init__(
        self,
        path: Path,
        catalogue: Catalogue,
        generation: int | None = None,
        *,
        labels: Collection[str] | None = None,
        loaded: Loaded | None = None,
        encoder: Callable[[Snapshot], Encoder] | None = None,
    ) -> None:
        """Read what ``catalogue`` has pinned.

        Args:
            path: How people know the collection.
            catalogue: Its catalogue.
            generation: Which generation; the live one when left out.
            labels: What the reader may see: documents without access labels, and those with one of these. None:
                everything.
            loaded: Indexes that are in memory already, and will be.
            encoder: Gives the encoder of its vectors.

        Raises:
            CollectionMissingError: there is no generation yet.
        """
        self.path = path
        self.catalogue = catalogue
        self.number = history.live(catalogue) if generation is None else generation
        if not self.number:
            raise CollectionMissingError(
                f"the collection at {path} was begun and has no generation yet: run the same ingest again to finish it"
            )
        self.meta = facts(catalogue, self.number)
        self.labels = labels
        self._loaded = loaded or Loaded()
        self._lock = threading.Lock()
        self._encoder = encoder
        self._masks: dict[str, Bool[np.ndarray, " R"]] = {}
        self._failure: CollectionDamagedError | None = None
        try:  # at once: a compaction may delete the files, and what is open stays readable
            self._vectors: Vectors | None = Vectors(
                catalogue.path.parent / "vectors", catalogue.blocks(self.meta["encoder_number"]), self._dimension
            )
        except CollectionDamagedError as error:  # whoever needs no vectors need not know
            self._vectors, self._failure = None, error

    @property
    def generation(self) -> str:
        """Name of the state."""
        return str(self.number)

    @property
    def encoder(self) -> Encoder:
        """The encoder that its vectors were made with."""
        assert self._encoder is not None, "a snapshot for looking at passages alone"
        return self._encoder(self)

    @property
    def _dimension(self) -> int:
        return int(self.meta["encoder"]["dimension"])

    @property
    def _stored(self) -> Vectors:
        if self._vectors is None:
            assert self._failure is not None
            raise self._failure
        return self._vectors

    # ---- which rows ----

    @cached_property
    def visible(self) -> Bool[np.ndarray, " R"]:
        """Which rows the reader may see in this generation."""
        rows = int(self.meta["next_row"])
        alive = history.mask(self.catalogue, self.number, rows)
        if self.labels is not None:
            alive &= ~history.hidden(self.catalogue, self.labels, rows)
        return alive

    def allowed(self, where: str | None = None) -> Bool[np.ndarray, " R"]:
        """Which rows the reader may see and a filter expression lets through.

        Raises:
            UsageError: the expression cannot be read.
        """
        if not where:
            return self.visible
        with self._lock:
            known = self._masks.get(where)
        if known is None:
            parsed = filters.parse(where)
            store = attributes.SqlStore(self.catalogue.query)
            known = self.visible & self._rows_of_documents(filters.evaluate(parsed, store))
            with self._lock:
                if len(self._masks) >= _FILTERS:
                    self._masks.pop(next(iter(self._masks)))
                self._masks[where] = known
        return known

    def _rows_of_documents(self, documents: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " R"]:
        """The mask of the rows of some documents, whose numbers are ascending."""
        table = np.array(
            self.catalogue.query("SELECT id, first_row, rows FROM documents WHERE rows > 0 ORDER BY id"), dtype=np.int64
        ).reshape(-1, 3)
        chosen = table[np.isin(table[:, 0], documents, assume_unique=True)]
        steps = np.zeros(int(self.meta["next_row"]) + 1, dtype=np.int8)
        np.add.at(steps, chosen[:, 1], 1)
        np.add.at(steps, chosen[:, 1] + chosen[:, 2], -1)
        return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)

    def __len__(self) -> int:
        """How many passages there are."""
        return int(np.count_nonzero(self.visible))

    # ---- retrieval ----

    def nearest(
        self, query: Float32[np.ndarray, " D"], k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The best allowed passages by inner product with ``query``, as many as there are up to k: scores and rows."""
        scores, rows = self._dense.search(query[None], k, self.visible if allowed is None else allowed)
        return scores[0], rows[0]

    def matching(
        self, question: str, k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The best allowed passages with a word of ``question`` by BM25, up to k of them: scores and rows."""
        return self._lexical.search(question, k, self.visible if allowed is None else allowed)

    def lexical_shares(self, question: str, rows: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, " n"]:
        """How much of ``question`` each of given rows says, see :meth:`bifolio.indexes.lexical.BM25Index.shares`."""
        return self._lexical.shares(question, rows.tolist())

    @cached_property
    def _dense(self) -> Beside:
        return self._loaded.dense(self.catalogue, self.meta, self._stored)

    @cached_property
    def _lexical(self) -> LexicalIndex:
        return self._loaded.lexical(self.catalogue, self.meta)

    def warm(self) -> None:
        """Load the indexes now, and which rows may be seen."""
        self.visible  # noqa: B018
        self._dense  # noqa: B018
        self._lexical  # noqa: B018

    def dense_scores(
        self, query: Float32[np.ndarray, " D"], rows: Int64[np.ndarray, " n"]
    ) -> Float32[np.ndarray, " n"]:
        """Inner products of ``query`` with the vectors of rows."""
        products = self.row_vectors(rows).astype(np.float64) @ query.astype(np.float64)
        scores: Float32[np.ndarray, " n"] = products.astype(np.float32)
        return scores

    def row_vectors(self, rows: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n D"]:
        """E_P(z) of rows, as stored."""
        return self._stored.of(rows)

    def passages_of(self, rows: Int64[np.ndarray, " n"]) -> list[Passage]:
        """Passages of rows, in their order.

        Raises:
            CollectionDamagedError: an index named a row that has no passage.
        """
        found = self.catalogue.by_rows(rows.tolist())
        if missing := [row for row in rows.tolist() if row not in found]:
            raise CollectionDamagedError(f"{self.path}: the index names rows {missing} that have no passage")
        return [found[row] for row in rows.tolist()]

    # ---- passages ----

    def _row(self, passage_id: str) -> int:
        rows = [row for _, row in self.catalogue.rows_by_id([passage_id]) if self.visible[row]]
        if not rows:
            raise NotFoundError(f"no passage {passage_id!r} in {self.path}; ids are in the output of search and ask")
        return rows[0]

    def passage(self, passage_id: str) -> Passage:
        """A passage by its id.

        Raises:
            NotFoundError: there is none.
        """
        return self.passages_of(np.array([self._row(passage_id)]))[0]

    def vectors(self, passage_ids: Sequence[str]) -> Float32[np.ndarray, "K D"]:
        """E_P(z) of passages, as stored, in the order of their ids.

        Raises:
            NotFoundError: there is no such passage.
        """
        rows = {name: row for name, row in self.catalogue.rows_by_id(passage_ids) if self.visible[row]}
        if missing := [name for name in passage_ids if name not in rows]:
            raise NotFoundError(f"no passage {missing[0]!r} in {self.path}")
        return self.row_vectors(np.array([rows[name] for name in passage_ids], dtype=np.int64))

    def passages(self) -> Iterator[Passage]:
        """All passages, in the order in which they came in."""
        for row, passage in self.catalogue.passages_between(0, int(self.meta["next_row"])):
            if self.visible[row]:
                yield passage

    def context(self, passage_id: str, characters: int) -> tuple[str, str]:
        """What stands before and after a passage in its document, up to ``characters`` each."""
        row = self._row(passage_id)
        start, end = self.passages_of(np.array([row]))[0].span
        text = self.catalogue.document_text(row)
        return text[max(0, start - characters) : start], text[end : end + characters]

    def files(self) -> list[FileRow]:
        """The files of which the reader may see something, by name, with the documents and passages of that."""
        return history.files(self.catalogue, self.number, self.labels)

    def counts(self) -> tuple[int, int]:
        """Documents and passages that the reader may see."""
        if self.labels is not None:
            return sum(file.documents for file in self.files()), len(self)
        query = "SELECT documents FROM generations WHERE id = ?"
        return int(self.catalogue.scalar(query, [self.number])), len(self)
