"""Files into a collection: read, split, encode, index, and commit at once as a new generation.

Three phases, each of which commits as it goes to places that no generation names yet. First all files are read and
split into the catalogue (:mod:`bifolio.taking`); then the new passages get vectors (:mod:`bifolio.encoding`); then the
indexes catch up (:mod:`bifolio.deriving`). At last one short transaction makes the generation. Texts wait on the disk
and not in memory, the number of passages is known before the slow phase begins, and a run that is killed leaves the
collection as it was and its own work where the next run finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from bifolio import history
from bifolio.catalogue import Catalogue, FileRow
from bifolio.deriving import catch_up, drop_leftovers, encoder_spec
from bifolio.draft import Draft, rows_of
from bifolio.encoding import VectorMaker
from bifolio.errors import MissingPathError
from bifolio.imported import Importer, VectorSource
from bifolio.ingest_report import FileReport, IngestProgress, IngestReport, OnProgress
from bifolio.protocols import Encoder
from bifolio.taking import Reading, Taker, is_gone, key_of

_OFTEN = 10_000  # passages of one file between two reports
_COMMIT_SECONDS = 2.0  # of reading that are committed together


@dataclass(frozen=True)
class Sources:
    """What an ingest was given.

    Attributes:
        files: The files to read, each with the name to show and the folder that it was found under.
        skipped: What is not read, as it will be reported: links, and folders that cannot be listed.
        roots: For a sync: absolute paths, files under which are removed if they were not found.
        unknown: Absolute paths that could not be looked into: what is known under them stays.
    """

    files: list[tuple[Path, str, Path]]
    skipped: list[FileReport]
    roots: tuple[Path, ...] = ()
    unknown: tuple[Path, ...] = ()


def ingest(
    catalogue: Catalogue,
    encoder: Callable[[], Encoder],
    sources: Sources,
    *,
    action: str,
    reading: Reading,
    on_progress: OnProgress,
    vectors: VectorSource | None = None,
    may_be_empty: bool = False,
) -> IngestReport:
    """Add new files, update changed ones and, for a sync, remove those that are gone.

    The caller holds the write lock.

    Args:
        catalogue: The collection's catalogue.
        encoder: Gives the collection's encoder; not called if there is nothing new.
        sources: From :func:`find_sources`.
        action: What the generation will say that made it.
        reading: How files are read.
        on_progress: Told of every file and every batch.
        vectors: Where the passages of these files have their vectors; they are encoded if it is left out.
        may_be_empty: Whether a collection without a passage may be the outcome.

    Raises:
        MissingPathError: the collection would have no passage.
        CollectionBusyError: another process is writing.
        ModelError: the encoder gave something that is no vector.
    """
    started = time.monotonic()
    folder = catalogue.path.parent
    drop_leftovers(catalogue)
    draft = Draft(catalogue)
    meta = catalogue.meta()
    dimension = int(encoder_spec(catalogue, draft.encoder)["dimension"])
    maker = VectorMaker(catalogue, folder / "vectors", draft.encoder, dimension, meta["precision"])
    importer = Importer(vectors, catalogue, maker.writer, encoder) if vectors else None
    taker = Taker(catalogue, draft, encoder, reading, importer, maker.add)
    reports = [*_read(catalogue, taker, sources, on_progress), *sources.skipped, *_remove(draft, sources)]
    documents, passages = draft.counts()
    if not passages and not may_be_empty:
        raise MissingPathError(_nothing(reports))
    if draft.changed:
        rows = _rows(list(draft.added.values()))
        lacking = maker.lacking(rows) if importer is None else rows[:0]
        if len(lacking):
            maker.make(encoder(), lacking, _counting(on_progress, len(lacking)))
        elif taker.imported:
            _counting(on_progress, taker.imported)(taker.imported)
        notes = catch_up(catalogue, draft.encoder, on_progress)
        with catalogue.writing():
            number = draft.commit(action)
    else:
        number, notes = draft.base, []
    if number != history.live(catalogue):
        notes = [*notes, f"generation {number} is committed and not live: another one was swapped in meanwhile"]
    seconds, added = time.monotonic() - started, maker.encoded + taker.imported
    files = tuple(reports)
    return IngestReport(str(folder), str(number), documents, passages, added, files, seconds, tuple(notes))


def _read(catalogue: Catalogue, taker: Taker, sources: Sources, on_progress: OnProgress) -> list[FileReport]:
    """The first phase, committed every few seconds."""
    total, reports = len(sources.files), list[FileReport]()
    while len(reports) < total:
        with catalogue.writing():
            until = time.monotonic() + _COMMIT_SECONDS
            while len(reports) < total and time.monotonic() < until:
                path, source, root = sources.files[len(reports)]
                here = IngestProgress("read", len(reports), total, source)
                on_progress(here)
                reports.append(taker.take(path, source, root, _often(on_progress, here)))
    on_progress(IngestProgress("read", total, total))
    return reports


def _remove(draft: Draft, sources: Sources) -> Iterator[FileReport]:
    """What was under a root of the sync and is not there any more."""
    if not sources.roots:
        return
    found = {key_of(path) for path, _, _ in sources.files}
    roots = [key_of(root) for root in sources.roots]
    unknown = [key_of(path) for path in sources.unknown]
    for version in list(draft.files()):
        path = version.path
        if path in found or not any(_is_under(path, root) for root in roots):
            continue
        if any(_is_under(path, folder) for folder in unknown):
            continue
        draft.take_out(path)
        reason = "" if is_gone(path) else "it is there and not among the files to read any more"
        yield FileReport(version.source, "removed", reason, 0)


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/\\") + "/") or path.startswith(root.rstrip("/\\") + "\\")


def _rows(versions: Sequence[FileRow]) -> Int64[np.ndarray, " N"]:
    """Rows of the passages of some versions."""
    ranges = rows_of(versions)
    return np.concatenate([np.arange(r.start, r.stop, dtype=np.int64) for r in ranges] or [np.empty(0, np.int64)])


def _often(on_progress: OnProgress, here: IngestProgress) -> Callable[[int], None]:
    """Tell how many passages of a file are done, now and then."""

    def on_passages(count: int) -> None:
        if count and not count % _OFTEN:
            on_progress(replace(here, passages=count))

    return on_passages


def _counting(on_progress: OnProgress, total: int) -> Callable[[int], None]:
    """Tell the progress of encoding from the sizes of batches."""
    done = 0

    def on_batch(count: int) -> None:
        nonlocal done
        done += count
        on_progress(IngestProgress("encode", done, total))

    on_batch(0)
    return on_batch


def _nothing(reports: Sequence[FileReport]) -> str:
    shown = "; ".join(f"{report.path}: {report.reason}" for report in reports[:3])
    more = f"; and {len(reports) - 3} more" if len(reports) > 3 else ""
    return f"nothing readable: {shown}{more}"
