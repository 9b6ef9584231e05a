"""Files into a collection: read, split, encode, and commit at once.

Two phases inside one transaction. First all files are read and split into the catalogue, each file wholly or not at
all; then the new passages are encoded (:mod:`bifolio.encoding`). Texts wait on the disk and not in memory, the number
of passages is known before the slow phase begins, and a run that is interrupted leaves the collection as it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from bifolio.catalogue import Catalogue, FileRow, Segment
from bifolio.corpus.files import find_files, skipped_links
from bifolio.corpus.readers import read
from bifolio.corpus.splitting import Places, SplitOptions, split
from bifolio.encoding import encode, portions
from bifolio.errors import (
    BifolioError,
    CollectionError,
    EmptyDocument,
    MissingPathError,
    ModelError,
    SkippedDocument,
)
from bifolio.imported import Importer, VectorSource
from bifolio.ingest_report import FileReport, IngestProgress, IngestReport, OnProgress
from bifolio.protocols import Encoder
from bifolio.twins import Twins
from bifolio.types import Document
from bifolio.vector_files import drop_strangers

_LOG = logging.getLogger("bifolio")
_SHOWN = 3  # remarks about one file that are told
_LONGEST = 300  # characters of a remark
_OFTEN = 10_000  # passages of one file between two reports


class Sources(NamedTuple):
    """What an ingest was given.

    Attributes:
        files: The files to read, each with the name to show.
        skipped: Links that are not followed, as they will be reported.
    """

    files: list[tuple[Path, str]]
    skipped: list[FileReport]


def find_sources(paths: Sequence[str | Path], collection: Path, vectors: VectorSource | None = None) -> Sources:
    """The files to read; a collection does not read itself.

    Args:
        paths: Files and folders.
        collection: Where the collection is or will be.
        vectors: Where they have their vectors, if they have some.

    Raises:
        MissingPathError: a path does not exist, or there is no file.
    """
    home = collection.resolve()
    find = vectors.find if vectors else find_files
    found = [(path, source) for path, source in find(paths) if not path.is_relative_to(home)]
    if not found:
        raise MissingPathError(f"no file to read in {', '.join(map(str, paths)) or 'no path at all'}")
    return Sources(found, [FileReport(name, "skipped", reason, 0) for name, reason in skipped_links(paths)])


def ingest(
    catalogue: Catalogue,
    encoder: Callable[[], Encoder],
    sources: Sources,
    *,
    as_passages: bool,
    options: SplitOptions,
    on_progress: OnProgress,
    index: Callable[[Sequence[Segment], bool], None],
    vectors: VectorSource | None = None,
) -> IngestReport:
    """Add new files and update changed ones, in one transaction.

    Args:
        catalogue: The collection's catalogue.
        encoder: Gives the collection's encoder; not called if there is nothing new.
        sources: From :func:`find_sources`.
        as_passages: Every record of a .jsonl or .tsv file is a passage with its own id.
        options: How documents are split.
        on_progress: Told of every file and every batch.
        index: Called before the commit with the new segments and whether passages were removed; brings the dense
            index up to date.
        vectors: Where the passages of these files have their vectors; they are encoded if it is left out.

    Raises:
        MissingPathError: the collection would have no passage.
        CollectionBusyError: another process is writing.
        ModelError: the encoder gave something that is no vector.
    """
    started = time.monotonic()
    origin = {"vectors": vectors.identity} if vectors else {}
    how = json.dumps({"as_passages": as_passages, **asdict(options), **origin}, sort_keys=True)
    with catalogue.writing(), _tidy(catalogue) as folder, Twins() as twins:
        meta = catalogue.meta()
        first, generation = int(meta["next_row"]), int(meta["generation"])
        importer = Importer(vectors, catalogue, folder, encoder) if vectors else None
        reader = _Reader(catalogue, encoder, how, as_passages, options, first, twins, importer)
        reports = []
        total = len(sources.files)
        for done, (path, source) in enumerate(sources.files):
            here = IngestProgress("read", done, total, source)
            on_progress(here)
            reports.append(reader.take(path, source, _often(on_progress, here)))
        on_progress(IngestProgress("read", total, total))
        reports += sources.skipped
        documents, passages = catalogue.counts()
        if not passages:
            raise MissingPathError(_nothing(reports))
        segments, added = importer.segments if importer else [], reader.row - first
        told = _counting(on_progress, added)
        if importer:
            told(added)
        elif added:
            segment, added = encode(catalogue, folder, encoder(), range(first, reader.row), twins, told)
            segments = [segment] if segment else []
        if segments or reader.removed:
            for segment in segments:
                catalogue.add_segment(segment)
            generation += 1
            catalogue.set_meta({"next_row": reader.row, "generation": generation})
            index(segments, reader.removed)
    seconds = time.monotonic() - started
    collection = str(catalogue.path.parent)
    return IngestReport(collection, str(generation), documents, passages, added, tuple(reports), seconds)


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
        self,
        catalogue: Catalogue,
        encoder: Callable[[], Encoder],
        how: str,
        as_passages: bool,
        options: SplitOptions,
        row: int,
        twins: Twins,
        importer: Importer | None,
    ) -> None:
        self._catalogue = catalogue
        self._encoder = encoder
        self._how = how
        self._as_passages = as_passages
        self._options = options
        self._twins = twins
        self._importer = importer
        self.row = row  # of the next passage
        self.removed = False  # whether an older version of a file had passages
        self._told: Callable[[int], None]

    def take(self, path: Path, source: str, told: Callable[[int], None]) -> FileReport:
        """Read one file; whatever is wrong with it ends up in its report, and what was known of it stays.

        ``told(n)`` is told when it has n passages.
        """
        first, key, self._told = self.row, _key(path), told
        before = self._catalogue.rows_of(key)
        try:
            digest = _sha256(path)
            known = self._known(key, source, digest)
            before = self._catalogue.rows_of(key)
            if known and (known.hash, known.options) == (digest, self._how):
                return FileReport(source, "unchanged", "", len(before))
            if before and self._importer is None:
                self._twins.expect(before.start, self._catalogue.passages_between(before.start, before.stop))
            with self._catalogue.undoing():
                file, warnings = self._store(path, source, digest)
        except SkippedDocument as error:
            status, reason = "skipped", str(error)
            if before and isinstance(error, EmptyDocument):
                self._catalogue.drop_file(key)
                self.row, self.removed = first, True
                return FileReport(source, status, f"{reason}; the version that was there before is removed", 0)
        except (CollectionError, ModelError, sqlite3.Error):  # no fault of the file
            raise
        except BifolioError as error:
            status, reason = "failed", str(error)
        except OSError as error:
            status, reason = "failed", error.strerror or str(error)
        except Exception as error:  # a reader's bug must not cost the other files
            _LOG.debug("reading %s", source, exc_info=True)
            status, reason = "failed", f"could not be read: {type(error).__name__}: {error}"
        else:
            self.removed = self.removed or bool(before)
            status, reason = self._finish(file, first, bool(before), warnings)
            return FileReport(source, status, reason, self.row - first)
        self.row, reason = first, _brief([reason])
        if before:
            reason += "; the version that was there before is kept"
        return FileReport(source, status, reason, len(before))

    def _known(self, key: str, source: str, digest: str) -> FileRow | None:
        """What the catalogue has of a file, also of one that stood elsewhere and is no longer there.

        A file that goes by another name now has to be read again, for its passages are named after it.
        """
        known = self._catalogue.file(key)
        if known is not None:
            return known
        for other in self._catalogue.files_like(source, digest):
            # Another report.txt may have come after the first one was put away: a name alone is a move only where
            # the folder has gone as well.
            if _is_gone(other.path) and (other.hash == digest or _is_gone(os.path.dirname(other.path))):
                self._catalogue.move_file(other.path, key)
                return other if other.source == source else replace(other, hash="")
        return None

    def _store(self, path: Path, source: str, digest: str) -> tuple[int, Iterable[str]]:
        """The number of the file and what its documents warn of."""
        added = datetime.now(timezone.utc).isoformat(timespec="seconds")
        file, source = self._catalogue.replace_file(_key(path), source, hash=digest, options=self._how, added=added)
        first = self.row
        if self._importer is not None:
            return file, self._importer.take(path, first, lambda document: self._add(file, source, first, document))
        warnings: dict[str, None] = {}  # an ordered set: a thousand records may say the same
        for document in read(path, as_passages=self._as_passages):
            self._add(file, source, first, document)
            warnings |= dict.fromkeys(document.warnings)
        if self.row == first:
            raise EmptyDocument("no text in it")
        return file, warnings

    def _finish(self, file: int, first: int, known: bool, warnings: Iterable[str]) -> tuple[str, str]:
        """What needs the encoder: which passages it has read before, and which are too long for it."""
        encoder, row, long = self._encoder(), first, 0
        window = encoder.spec.window
        to_encode = self._catalogue.passages_between(first, self.row) if self._importer is None else ()
        for portion in portions(to_encode):
            long += int((encoder.passage_lengths(portion) > window).sum())
            if known:
                self._twins.match(row, portion)
            row += len(portion)
        remarks = list(warnings)
        if long:
            total = self.row - first
            remarks.insert(0, f"{long} of {total} passages are longer than the {window} tokens that the encoder reads")
        status, reason = "warning" if remarks else "ok", _brief(remarks)
        self._catalogue.set_status(file, status, reason)
        return status, reason

    def _add(self, file: int, source: str, first: int, document: Document) -> bool:
        """Put a document's passages into the catalogue; False if there are none."""
        spans = split(document, self._options)
        if not spans:
            return False
        number = self._catalogue.add_document(file, document)
        places = Places(document, source)
        # A passage without an id is known by its place: the same text may stand twice in a file.
        name = places.of(spans[0]) if document.whole and not document.member else document.member
        key = hashlib.sha256(f"{source}\0{name}\0{document.text}".encode()).hexdigest()[:16]
        for ordinal, span in enumerate(spans, start=1):
            passage_id = document.member if document.whole and document.member else f"{key}-{ordinal}"
            self._catalogue.add_passage(self.row, passage_id, number, span, places.of(span))
            self.row += 1
            self._told(self.row - first)
        return True


def _key(path: Path) -> str:
    """The absolute path as text, also where its bytes are none."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_gone(key: str) -> bool:
    """Whether there is nothing at an absolute path, as :func:`_key` gives it, for sure."""
    escaped = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), key.encode())
    for path in (key, os.fsdecode(escaped)):  # the bytes that are no text may be the name's own backslashes
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):  # who knows
            return False
        return False
    return True


def _brief(remarks: Sequence[str]) -> str:
    """Remarks in one line that is not longer for a million of them."""
    shown = [remark if len(remark) <= _LONGEST else f"{remark[:_LONGEST]}…" for remark in remarks[:_SHOWN]]
    more = [f"and {len(remarks) - _SHOWN} more"] if len(remarks) > _SHOWN else []
    return "; ".join([*shown, *more])


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
