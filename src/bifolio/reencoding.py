"""Another encoder for the same passages: a new generation beside the live one, live once it has been checked.

Its vectors are committed portion by portion, so a run that is killed goes on where it was. Old generations keep theirs.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import numpy as np
from jaxtyping import Int64

from bifolio import history
from bifolio.catalogue import Catalogue
from bifolio.deriving import Loaded, catch_up, drop_leftovers
from bifolio.draft import Draft
from bifolio.encoding import VectorMaker
from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.ingest_report import IngestProgress, IngestReport, OnProgress
from bifolio.protocols import Encoder
from bifolio.vector_files import Vectors

_SAMPLE = 100  # passages that have to find themselves
_FOUND = 0.95  # of them: passages of the same text are each other's equals
_NEAR = 5  # among so many
_SAME = 0.98  # cosine of a passage's stored vector with one made again: a batch of another shape rounds otherwise


def reencode(catalogue: Catalogue, encoder: Encoder, passages: str, on_progress: OnProgress) -> IngestReport:
    """Make the generation, for the one who holds the write lock.

    Args:
        catalogue: The collection's catalogue.
        encoder: The new encoder.
        passages: Fingerprint of its passage encoder alone; "" where there is no such thing.
        on_progress: Told of every batch.

    Raises:
        UsageError: the live generation has this encoder.
        CollectionDamagedError: the check failed; the live generation stays so.
    """
    started = time.monotonic()
    drop_leftovers(catalogue)
    draft = Draft(catalogue)
    number = _number(catalogue, encoder, passages)
    if number == draft.encoder:
        raise UsageError(f"{catalogue.path.parent} has the encoder {encoder.spec.model} already")
    draft.encoder = number
    meta, folder = catalogue.meta(), catalogue.path.parent / "vectors"
    rows = np.flatnonzero(history.mask(catalogue, draft.base, int(meta["next_row"])))
    maker = VectorMaker(catalogue, folder, number, encoder.spec.dimension, meta["precision"])
    done, lacking = 0, len(maker.lacking(rows))

    def on_batch(count: int) -> None:
        nonlocal done
        done += count
        on_progress(IngestProgress("encode", done, lacking))

    maker.make(encoder, rows, on_batch)
    notes = catch_up(catalogue, number, on_progress)
    _check(catalogue, encoder, number, rows)
    with catalogue.writing():
        generation = draft.commit("reencode")
    documents, count = draft.counts()
    seconds = time.monotonic() - started
    path = str(catalogue.path.parent)
    return IngestReport(path, str(generation), documents, count, maker.encoded, (), seconds, tuple(notes))


def _number(catalogue: Catalogue, encoder: Encoder, passages: str) -> int:
    """The number of an encoder in the catalogue, where it is put if it is not there yet."""
    for number, spec in catalogue.query("SELECT id, spec FROM encoders"):
        if json.loads(spec)["fingerprint"] == encoder.spec.fingerprint:
            return int(number)
    with catalogue.writing():
        spec = json.dumps(asdict(encoder.spec))
        return catalogue.change("INSERT INTO encoders (spec, passages) VALUES (?, ?)", (spec, passages))


def _check(catalogue: Catalogue, encoder: Encoder, number: int, rows: Int64[np.ndarray, " N"]) -> None:
    """Every passage has a vector, and passages of a sample, encoded once more, find themselves.

    Raises:
        CollectionDamagedError: it is not so.
    """
    meta = catalogue.meta()
    meta |= {"encoder": asdict(encoder.spec), "encoder_number": number}
    vectors = Vectors(catalogue.path.parent / "vectors", catalogue.blocks(number), encoder.spec.dimension)
    if not vectors.has(rows).all():
        raise CollectionDamagedError(
            f"{int((~vectors.has(rows)).sum())} of {len(rows)} passages have no vector of the new encoder: run it again"
        )
    if not len(rows):
        return
    sample = rows[np.linspace(0, len(rows) - 1, min(_SAMPLE, len(rows))).astype(np.int64)]
    passages = catalogue.by_rows(sample.tolist())
    queries = encoder.encode_passages([passages[row] for row in sample.tolist()])
    allowed = np.zeros(int(meta["next_row"]), dtype=bool)
    allowed[rows] = True
    scores, found = Loaded().dense(catalogue, meta, vectors).search(queries, _NEAR, allowed)
    stored, queries = vectors.of(sample).astype(np.float64), queries.astype(np.float64)
    own = (stored * queries).sum(axis=1)
    same = own >= _SAME * np.linalg.norm(stored, axis=1) * np.linalg.norm(queries, axis=1)
    # By inner product a longer vector may be nearer than the passage's own, which is then no fault.
    good = same & ((found == sample[:, None]).any(axis=1) | (scores[:, -1] >= own - 1e-4 * np.abs(own)))
    if good.mean() < _FOUND:
        raise CollectionDamagedError(
            f"{int((~good).sum())} of {len(sample)} passages do not find themselves with the new encoder's vectors: "
            "they are not made live. Run it again, or delete the folder and ingest again"
        )
