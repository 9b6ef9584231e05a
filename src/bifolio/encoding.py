"""The second phase of an ingest: a vector for every new passage, in one new file.

A passage whose file was edited elsewhere has the vector that it had: it is copied, and only what the encoder has never
read is encoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from bifolio.catalogue import Catalogue, Segment
from bifolio.errors import ModelError
from bifolio.protocols import Encoder
from bifolio.twins import Twins
from bifolio.types import Passage
from bifolio.vector_files import SegmentWriter, vectors_of, verify, worth_copying

_PORTION = 4096  # passages that are sorted by length and encoded together


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


def encode(
    catalogue: Catalogue,
    folder: Path,
    encoder: Encoder,
    rows: range,
    twins: Twins,
    on_batch: Callable[[int], None],
) -> tuple[Segment | None, int]:
    """The vectors of new rows in a new file, and how many of them were encoded.

    Args:
        catalogue: Where the passages are.
        folder: Of the files of vectors.
        encoder: The collection's encoder.
        rows: The new rows.
        twins: Which of the new rows have an older one that the encoder cannot tell from it.
        on_batch: Told after every n passages.

    Raises:
        ModelError: the encoder gave something that is no vector.
        CollectionDamagedError: a vector that was to be copied is not as it was written.
    """
    segments = worth_copying(catalogue.segments(), twins.count)
    verify(folder, segments)
    first, encoded = rows.start, 0
    with SegmentWriter(folder, first) as writer:
        for portion in portions(catalogue.passages_between(rows.start, rows.stop)):
            known = twins.between(first, first + len(portion))
            copies = {row - first: old for row, old in known.items() if _is_in(segments, old)}
            fresh = [place for place in range(len(portion)) if place not in copies]
            vectors = np.empty((len(portion), encoder.spec.dimension), dtype=np.float32)
            if fresh:
                vectors[fresh] = _vectors(encoder, [portion[place] for place in fresh], on_batch)
            if copies:
                wanted = np.array(list(copies.values()), dtype=np.int64)
                vectors[list(copies)] = vectors_of(folder, segments, encoder.spec.dimension, wanted)
                on_batch(len(copies))
            writer.append(vectors)
            first += len(portion)
            encoded += len(fresh)
        return writer.finish(), encoded


def _is_in(segments: Sequence[Segment], row: int) -> bool:
    """Whether one of the segments, by ``first_row``, has a row."""
    at = bisect_right(segments, row, key=lambda segment: segment.first_row) - 1
    return at >= 0 and row < segments[at].first_row + segments[at].rows


def _vectors(encoder: Encoder, passages: list[Passage], on_batch: Callable[[int], None]) -> Float32[np.ndarray, "N D"]:
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
