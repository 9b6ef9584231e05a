"""Files into a collection: read, split, encode, and commit at once.

Two phases inside one transaction. First all files are read and split into the catalogue, each file wholly or not at
all; then every new passage is encoded, in large length-sorted portions. Texts wait on the disk and not in memory, the
number of passages is known before the slow phase begins, and a run that is interrupted leaves the collection as it
was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from bifolio.catalogue import Catalogue, Segment
from bifolio.corpus.files import find_files
from bifolio.corpus.readers import read
from bifolio.corpus.splitting import Places, SplitOptions, split
from bifolio.errors import BifolioError, CollectionError, MissingPathError, ModelError, SkippedDocument
from bifolio.protocols import Encoder
from bifolio.types import Document, Passage
from bifolio.vector_files import SegmentWriter, drop_strangers

_LOG = logging.getLogger("bifolio")
_PORTION = 4096  # passages that are sorted by length and encoded together


@dataclass(frozen=True)
class FileReport:
    """How one file went.

    Attributes:
        path: The file as the user named it.
        status: ``ok``, ``warning``, ``skipped``, ``failed`` or ``unchanged``.
        reason: Why, for a person; "" when there is nothing to say.
        passages: Passages that the collection has of it now.
    """

    path: str
    status: str
    reason: str
    passages: int


@dataclass(frozen=True)
class IngestReport:
    """What an ingest did; ``documents`` and ``passages`` count the whole collection afterwards.

    Attributes:
        collection: Path of the collection.
        generation: Name of the state that the collection has now.
        documents: Documents in it.
        passages: Passages in it.
        added: Passages that this ingest encoded.
        files: One report per file, in the order of reading.
        seconds: Wall time.
    """

    collection: str
    generation: str
    documents: int
    passages: int
    added: int
    files: tuple[FileReport, ...]
    seconds: float


@dataclass(frozen=True)
class IngestProgress:
    """Where an ingest is.

    Attributes:
        stage: ``read`` (the unit is files) or ``encode`` (the unit is passages).
        done: Units done.
        total: Units in all.
        current: What is being worked on.
    """

    stage: str
    done: int
    total: int
    current: str = ""


OnProgress = Callable[[IngestProgress], None]


def find_sources(paths: Sequence[str | Path], collection: Path) -> list[tuple[Path, str]]:
    """The files to read, each with the name to show; a collection does not read itself.

    Raises:
        MissingPathError: a path does not exist, or there is no file.
    """
    home = collection.resolve()
    found = [(path, source) for path, source in find_files(paths) if not path.is_relative_to(home)]
    if not found:
        raise MissingPathError(f"no file to read in {', '.join(map(str, paths)) or 'no path at all'}")
    return found


def ingest(
    catalogue: Catalogue,
    encoder: Encoder,
    sources: Sequence[tuple[Path, str]],
    *,
    as_passages: bool,
    options: SplitOptions,
    on_progress: OnProgress,
    index: Callable[[Segment | None, bool], None],
) -> IngestReport:
    """Add new files and update changed ones, in one transaction.

    Args:
        catalogue: The collection's catalogue.
        encoder: The collection's encoder.
        sources: From :func:`find_sources`.
        as_passages: Every record of a .jsonl or .tsv file is a passage with its own id.
        options: How documents are split.
        on_progress: Told of every file and every batch.
        index: Called before the commit with the new segment (or None) and whether passages were removed; brings
            the dense index up to date.

    Raises:
        MissingPathError: the collection would have no passage.
        CollectionBusyError: another process is writing.
        ModelError: the encoder gave something that is no vector.
    """
    started = time.monotonic()
    how = json.dumps({"as_passages": as_passages, **asdict(options)}, sort_keys=True)
    with catalogue.writing(), _tidy(catalogue) as vectors:
        meta = catalogue.meta()
        reader = _Reader(catalogue, encoder, how, as_passages, options, int(meta["next_row"]))
        reports = []
        for done, (path, source) in enumerate(sources):
            on_progress(IngestProgress("read", done, len(sources), source))
            reports.append(reader.take(path, source))
        on_progress(IngestProgress("read", len(sources), len(sources)))
        documents, passages = catalogue.counts()
        if not passages:
            raise MissingPathError(_nothing(reports))
        segment = _encode(catalogue, vectors, encoder, int(meta["next_row"]), reader.row, on_progress)
        generation = int(meta["generation"])
        if segment is not None or reader.removed:
            if segment is not None:
                catalogue.add_segment(segment)
            generation += 1
            catalogue.set_meta({"next_row": reader.row, "generation": generation})
            index(segment, reader.removed)
    added = reader.row - int(meta["next_row"])
    seconds = time.monotonic() - started
    collection = str(catalogue.path.parent)
    return IngestReport(collection, str(generation), documents, passages, added, tuple(reports), seconds)


@contextmanager
def _tidy(catalogue: Catalogue) -> Iterator[Path]:
    """The folder of vectors, rid of what a killed ingest left, and rid of what this one wrote if it fails.

    The index of the generation before the newest goes only now, for readers that still had it.
    """
    folder = catalogue.path.parent
    named = {"vectors": {s.name for s in catalogue.segments()}, "index": {catalogue.meta().get("index_file", "")}}

    def tidy() -> None:
        for name, files in named.items():
            drop_strangers(folder / name, files)

    tidy()
    try:
        yield folder / "vectors"
    except BaseException:
        tidy()
        raise


def _nothing(reports: Sequence[FileReport]) -> str:
    shown = "; ".join(f"{report.path}: {report.reason}" for report in reports[:3])
    more = f"; and {len(reports) - 3} more" if len(reports) > 3 else ""
    return f"nothing readable: {shown}{more}"


class _Reader:
    """The first phase: one file after the other into the catalogue."""

    def __init__(
        self, catalogue: Catalogue, encoder: Encoder, how: str, as_passages: bool, options: SplitOptions, row: int
    ) -> None:
        self._catalogue = catalogue
        self._encoder = encoder
        self._how = how
        self._as_passages = as_passages
        self._options = options
        self.row = row  # of the next passage
        self.removed = False  # whether an older version of a file had passages

    def take(self, path: Path, source: str) -> FileReport:
        """Read one file; whatever is wrong with it ends up in its report, and what was known of it stays."""
        row, before, key = self.row, 0, _key(path)
        try:
            digest = _sha256(path)
            known = self._catalogue.file(key)
            before = self._catalogue.passages_of(key) if known else 0
            if known and (known.hash, known.options) == (digest, self._how):
                return FileReport(source, "unchanged", "", before)
            with self._catalogue.undoing():
                status, reason = self._store(path, source, digest)
            self.removed = self.removed or before > 0
            return FileReport(source, status, reason, self.row - row)
        except SkippedDocument as error:
            status, reason = "skipped", str(error)
        except (CollectionError, ModelError, sqlite3.Error):  # no fault of the file
            raise
        except BifolioError as error:
            status, reason = "failed", str(error)
        except OSError as error:
            status, reason = "failed", error.strerror or str(error)
        except Exception as error:  # a reader's bug must not cost the other files
            _LOG.debug("reading %s", source, exc_info=True)
            status, reason = "failed", f"could not be read: {type(error).__name__}: {error}"
        self.row = row
        if before:
            reason += "; the version that was there before is kept"
        return FileReport(source, status, reason, before)

    def _store(self, path: Path, source: str, digest: str) -> tuple[str, str]:
        added = datetime.now(timezone.utc).isoformat(timespec="seconds")
        file, source = self._catalogue.replace_file(_key(path), source, hash=digest, options=self._how, added=added)
        first = self.row
        warnings: dict[str, None] = {}  # an ordered set: a thousand records may say the same
        for document in read(path, as_passages=self._as_passages):
            self._add(file, source, document)
            warnings |= dict.fromkeys(document.warnings)
        if self.row == first:
            raise SkippedDocument("no text in it")
        window = self._encoder.spec.window
        portions = _portions(self._catalogue.passages_between(first, self.row))
        long = sum(int((self._encoder.passage_lengths(portion) > window).sum()) for portion in portions)
        if long:
            total = self.row - first
            warnings |= {f"{long} of {total} passages are longer than the {window} tokens that the encoder reads": None}
        status, reason = "warning" if warnings else "ok", "; ".join(warnings)
        self._catalogue.set_status(file, status, reason)
        return status, reason

    def _add(self, file: int, source: str, document: Document) -> None:
        spans = split(document, self._options)
        if not spans:
            return
        number = self._catalogue.add_document(file, document)
        places = Places(document, source)
        key = hashlib.sha256(f"{source}\0{document.member}\0{document.text}".encode()).hexdigest()[:16]
        for ordinal, span in enumerate(spans, start=1):
            passage_id = document.member if document.whole else f"{key}-{ordinal}"
            self._catalogue.add_passage(self.row, passage_id, number, span, places.of(span))
            self.row += 1


def _key(path: Path) -> str:
    """The absolute path as text, also where its bytes are none."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _portions(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    portion: list[Passage] = []
    for passage in passages:
        portion.append(passage)
        if len(portion) == _PORTION:
            yield portion
            portion = []
    if portion:
        yield portion


def _encode(
    catalogue: Catalogue, vectors: Path, encoder: Encoder, first: int, end: int, on_progress: OnProgress
) -> Segment | None:
    """The second phase: the vectors of rows ``first`` to ``end`` into one new file."""
    total, done = end - first, 0

    def on_batch(count: int) -> None:
        nonlocal done
        done += count
        on_progress(IngestProgress("encode", done, total))

    on_progress(IngestProgress("encode", 0, total))
    if not total:
        return None
    with SegmentWriter(vectors, first) as writer:
        for portion in _portions(catalogue.passages_between(first, end)):
            encoded = encoder.encode_passages(portion, on_batch)
            if encoded.shape != (len(portion), encoder.spec.dimension):
                raise ModelError(
                    f"the encoder gave vectors of shape {encoded.shape} for {len(portion)} passages, "
                    f"expected {(len(portion), encoder.spec.dimension)}"
                )
            bad = np.flatnonzero(~np.isfinite(encoded).all(axis=1))
            if len(bad):
                raise ModelError(
                    f"the encoder gave a vector with NaN or infinity for {portion[bad[0]].place}: try dtype float32"
                )
            writer.append(encoded)
        return writer.finish()
