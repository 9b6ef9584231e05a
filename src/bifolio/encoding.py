"""The second phase of an ingest: a vector for every new passage.

What the encoder has read before, in whatever document or generation, is copied and not encoded again. Every portion is
committed on its own: who is killed here goes on here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64

from bifolio import vector_files
from bifolio.catalogue import Block, Catalogue
from bifolio.errors import ModelError
from bifolio.protocols import Encoder
from bifolio.types import Passage
from bifolio.vector_files import BlockWriter, Precision, Vectors, end_of

_PORTION = 2048  # passages that are sorted by length, encoded and committed together
_WORTH = 1000  # vectors that are checked in the time in which one is made


def portions(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Passages in the lots in which they are encoded."""
    portion: list[Passage] = []
    for passage in passages:
        portion.append(passage)
        if len(portion) == _PORTION:
            yield portion
            portion = []
    if portion:
        yield portion


class VectorMaker:
    """Makes the vectors of one encoder, for the one who holds the write lock."""

    def __init__(self, catalogue: Catalogue, folder: Path, number: int, dimension: int, precision: Precision) -> None:
        """Vectors of encoder ``number`` go to files in ``folder``."""
        self._catalogue = catalogue
        self._folder = folder
        self._number = number
        self._dimension = dimension
        self._precision = precision
        self._sound: dict[int, bool] = {}  # blocks that were compared with their checksums
        self._now = self._vectors()
        self.encoded = 0
        """Passages that were encoded so far."""

    def _vectors(self) -> Vectors:
        self._blocks = self._catalogue.blocks(self._number)
        return Vectors(self._folder, self._blocks, self._dimension)

    def lacking(self, rows: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " n"]:
        """Those of some rows that have no vector yet."""
        lacking: Int64[np.ndarray, " n"] = rows[~self._now.has(rows)]
        return lacking

    def writer(self) -> BlockWriter:
        """Where the next vectors go."""
        blocks = self._catalogue.blocks(self._number)
        return BlockWriter(self._folder, *end_of(blocks, self._precision), self._dimension)

    def add(self, blocks: Sequence[Block]) -> None:
        """Name vectors that were written, inside :meth:`Catalogue.writing`."""
        for block in blocks:
            self._catalogue.add_block(self._number, block)

    def make(self, encoder: Encoder, rows: Int64[np.ndarray, " N"], on_batch: Callable[[int], None]) -> None:
        """A vector for every one of these rows, ascending, that has none.

        Args:
            encoder: The encoder itself.
            rows: Rows that have passages.
            on_batch: Told after every n passages.

        Raises:
            ModelError: the encoder gave something that is no vector.
            CollectionDamagedError: a vector that was to be copied is not as it was written.
        """
        self._now = self._vectors()
        lacking = self.lacking(rows)
        for start in range(0, len(lacking), _PORTION):
            part = lacking[start : start + _PORTION]
            vectors = self._portion(encoder, part, on_batch)
            with self.writer() as writer:
                for run in np.split(np.arange(len(part)), np.flatnonzero(np.diff(part) > 1) + 1):
                    writer.append(int(part[run[0]]), vectors[run])
                blocks = writer.finish()
            with self._catalogue.writing():  # after the file is closed: an interrupt must not undo what is named
                self.add(blocks)
            self._now = self._vectors()

    def _portion(
        self, encoder: Encoder, rows: Int64[np.ndarray, " n"], on_batch: Callable[[int], None]
    ) -> Float32[np.ndarray, "n D"]:
        """Vectors of some rows, copied where there is one of the same input, and otherwise encoded once an input."""
        inputs = self._inputs(rows)
        twins = self._twins(set(inputs))
        vectors = np.empty((len(rows), self._dimension), dtype=np.float32)
        copied = np.array([given in twins for given in inputs])
        if copied.any():
            vectors[copied] = self._now.of(np.array([twins[g] for g in inputs if g in twins], dtype=np.int64))
            on_batch(int(copied.sum()))
        fresh: dict[bytes, list[int]] = {}
        for place in np.flatnonzero(~copied).tolist():
            fresh.setdefault(inputs[place], []).append(place)
        if fresh:
            firsts = [places[0] for places in fresh.values()]
            found = dict(self._passages(rows[firsts]))
            made = _checked(encoder, [found[int(row)] for row in rows[firsts]], on_batch)
            for vector, places in zip(made, fresh.values(), strict=True):
                vectors[places] = vector
            if (again := int((~copied).sum()) - len(fresh)) > 0:
                on_batch(again)
            self.encoded += len(fresh)
        return vectors

    def _passages(self, rows: Int64[np.ndarray, " n"]) -> Iterator[tuple[int, Passage]]:
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            yield from self._catalogue.passages_between(int(run[0]), int(run[-1]) + 1)

    def _inputs(self, rows: Int64[np.ndarray, " n"]) -> list[bytes]:
        found: dict[int, bytes] = {}
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            query = "SELECT row, input FROM passages WHERE row >= ? AND row <= ?"
            found |= dict(self._catalogue.query(query, [int(run[0]), int(run[-1])]))
        return [found[row] for row in rows.tolist()]

    def _twins(self, inputs: set[bytes]) -> dict[bytes, int]:
        """For inputs that were encoded before the row of a vector that is as it was written."""
        found: list[tuple[bytes, int]] = []
        listed = sorted(inputs)
        for start in range(0, len(listed), 500):
            part = listed[start : start + 500]
            marks = ",".join("?" * len(part))
            found += self._catalogue.query(f"SELECT input, row FROM passages WHERE input IN ({marks})", part)
        rows = np.array([row for _, row in found], dtype=np.int64)
        there = self._now.has(rows)
        twins = {given: row for (given, row), has in zip(found, there, strict=True) if has}
        if twins:
            sound = self._now.has(np.array(list(twins.values()))) & self._checked_blocks(np.array(list(twins.values())))
            twins = {given: row for (given, row), keep in zip(twins.items(), sound, strict=True) if keep}
        return twins

    def _checked_blocks(self, rows: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Which rows stand in a block that is as it was written.

        A block is read from end to end before anything is copied from it; one from which little would be copied is
        not worth that.

        Raises:
            CollectionDamagedError: a block is not as it was written.
        """
        good = np.zeros(len(rows), dtype=bool)
        for block in self._blocks:
            mine = (rows >= block.first_row) & (rows < block.first_row + block.rows)
            if not mine.any():
                continue
            if block.id not in self._sound and int(mine.sum()) * _WORTH >= block.rows:
                for complaint in vector_files.verify(self._folder, [block], self._dimension):
                    raise vector_files.damaged(complaint)
                self._sound[block.id] = True
            good |= mine & self._sound.get(block.id, False)
        return good


def _checked(encoder: Encoder, passages: list[Passage], on_batch: Callable[[int], None]) -> Float32[np.ndarray, "N D"]:
    vectors = encoder.encode_passages(passages, on_batch)
    if vectors.shape != (len(passages), encoder.spec.dimension):
        raise ModelError(
            f"the encoder gave vectors of shape {vectors.shape} for {len(passages)} passages, "
            f"expected {(len(passages), encoder.spec.dimension)}"
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ModelError(
            f"the encoder gave a vector with NaN or infinity for {passages[bad[0]].place}: try dtype float32"
        )
    return vectors
