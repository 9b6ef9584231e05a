"""Vectors that were made elsewhere: taken over as they are, checked, and compared with the encoder's own in a sample.

Each file's vectors become a block of their own while its passages go into the catalogue, so a file is taken as a whole
or not at all, as any other file is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from bifolio.catalogue import Block, Catalogue
from bifolio.corpus.files import find_files
from bifolio.errors import DocumentError, EmptyDocument
from bifolio.protocols import Encoder
from bifolio.types import Document
from bifolio.vector_files import BlockWriter

LEAST_COSINE = 0.9
"""Between a stored vector and the encoder's own for the same passage: half precision costs 0.001, and another title or
another cut a few hundredths; the vectors of two encoders have nothing to do with each other."""
_LONGER = 1.25  # times; scores are raw products for some encoders, so the length matters as well
_NAMED = 3

Batches = Iterator[tuple[list[Document], Float32[np.ndarray, "n D"]]]


@dataclass(frozen=True)
class VectorSource:
    """Where passages come with their vectors.

    Attributes:
        what: What the vectors are called in messages, such as ``column 'embeddings'``.
        identity: Says, together with a file's content, which vectors it has.
        read: Gives a file's passages and their vectors in batches, one vector each.
        find: Gives the files that are meant by paths, each with the name to show.
    """

    what: str
    identity: str
    read: Callable[[Path], Batches]
    find: Callable[[Iterable[str | Path]], list[tuple[Path, str]]] = find_files


class Importer:
    """Takes files over into the catalogue and into blocks of vectors."""

    def __init__(
        self,
        source: VectorSource,
        catalogue: Catalogue,
        writer: Callable[[], BlockWriter],
        encoder: Callable[[], Encoder],
    ) -> None:
        """Take vectors from ``source`` to where ``writer`` writes; ``encoder`` gives the collection's encoder."""
        self._source = source
        self._catalogue = catalogue
        self._writer = writer
        self._encoder = encoder

    def take(self, path: Path, first: int, add: Callable[[Document], bool]) -> tuple[list[str], list[Block]]:
        """Take one file.

        Args:
            path: The file.
            first: Row of its first passage.
            add: Puts a passage into the catalogue; False if it has no text, and then it has no row.

        Returns:
            What a person should know, and the vectors, which are on the disk.

        Raises:
            EmptyDocument: It has no passage with a text.
            DocumentError: It cannot be read, or its vectors are not the encoder's.
        """
        dimension = self._encoder().spec.dimension
        rows, read = 0, 0
        empty: list[int] = []
        sample: list[Float32[np.ndarray, " D"]] = []
        sampled: list[int] = []
        with self._writer() as writer:
            for documents, vectors in self._source.read(path):
                self._check(vectors, len(documents), dimension, read)
                kept = []
                for at, document in enumerate(documents):
                    if add(document):
                        kept.append(at)
                    elif len(empty) < _NAMED:
                        empty.append(read + at + 1)
                writer.append(first + rows, vectors[kept])
                for place, at in enumerate(kept, rows):
                    if not place & (place + 1):  # the 1st, 2nd, 4th, 8th ... passage
                        sample.append(vectors[at].copy())
                        sampled.append(first + place)
                rows, read = rows + len(kept), read + len(documents)
            if not rows:
                raise EmptyDocument("no passage with a text in it")
            remarks = self._compare(sampled, np.stack(sample))
            blocks = writer.finish()
        if empty:
            more = f" and {read - rows - _NAMED} more" if read - rows > _NAMED else ""
            remarks.append(f"row{'s' if read - rows > 1 else ''} {', '.join(map(str, empty))}{more}: no text")
        return remarks, blocks

    def _check(self, vectors: Float32[np.ndarray, "n D"], count: int, dimension: int, read: int) -> None:
        what = self._source.what
        if vectors.shape != (count, dimension):
            raise DocumentError(
                f"row {read + 1}: {what} has {vectors.shape[1]} values; the encoder {self._encoder().spec.model} has "
                f"{dimension} dimensions: use the encoder that made them"
            )
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise DocumentError(f"row {read + int(bad[0]) + 1}: {what} has NaN or infinity, or a value beyond float32")

    def _compare(self, rows: list[int], stored: Float32[np.ndarray, "n D"]) -> list[str]:
        """Encode some passages and compare; a remark if a few differ.

        Raises:
            DocumentError: most of them differ.
        """
        encoder, found = self._encoder(), self._catalogue.by_rows(rows)
        passages = [found[row] for row in rows]
        own = np.asarray(encoder.encode_passages(passages), dtype=np.float64)
        lengths = np.linalg.norm(stored.astype(np.float64), axis=1), np.linalg.norm(own, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # a vector of zeros
            cosines = np.nan_to_num((stored * own).sum(axis=1) / (lengths[0] * lengths[1]))
            ratios = np.nan_to_num(lengths[0] / lengths[1])
        far = np.flatnonzero((cosines < LEAST_COSINE) | (ratios > _LONGER) | (ratios < 1 / _LONGER))
        if not len(far):
            return []
        worst = int(far[np.argmin(cosines[far])])
        said = (
            f"{len(far)} of {len(rows)} passages that were encoded anew have other vectors in {self._source.what}: for "
            f"{passages[worst].id} the cosine is {cosines[worst]:.2f} and the length {ratios[worst]:.2f} times that of "
            f"{encoder.spec.model}"
        )
        if 2 * len(far) > len(rows):
            raise DocumentError(
                f"{said}; expected at least {LEAST_COSINE} and about 1. Use the encoder that made them, and the same "
                "title and text"
            )
        return [said]
