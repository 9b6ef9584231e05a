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
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from bifolio.catalogue import Catalogue, FileRow, Segment
from bifolio.corpus.files import find_files, skipped_links
from bifolio.corpus.readers import read
from bifolio.corpus.splitting import Places, SplitOptions, split
from bifolio.encoding import encode, encoder_input, portions
from bifolio.errors import (
    BifolioError,
    CollectionError,
    EmptyDocument,
    MissingPathError,
    ModelError,
    SkippedDocument,
)
from bifolio.protocols import Encoder
from bifolio.types import Document
from bifolio.vector_files import drop_strangers

_LOG = logging.getLogger("bifolio")
_SHOWN = 3  # remarks about one file that are told
_LONGEST = 300  # characters of a remark


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
        added: Passages that this ingest encoded; those that were only moved have their vectors already.
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


class Sources(NamedTuple):
    """What an ingest was given.

    Attributes:
        files: The files to read, each with the name to show.
        skipped: Links that are not followed, as they will be reported.
    """

    files: list[tuple[Path, str]]
    skipped: list[FileReport]


def find_sources(paths: Sequence[str | Path], collection: Path) -> Sources:
    """The files to read; a collection does not read itself.

    Raises:
        MissingPathError: a path does not exist, or there is no file.
    """
    home = collection.resolve()
    found = [(path, source) for path, source in find_files(paths) if not path.is_relative_to(home)]
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
    index: Callable[[Segment | None, bool], None],
) -> IngestReport:
    """Add new files and update changed ones, in one transaction.

    Args:
        catalogue: The collection's catalogue.
        encoder: Gives the collection's encoder; not called if there is nothing new.
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
        first, generation = int(meta["next_row"]), int(meta["generation"])
        reader = _Reader(catalogue, encoder, how, as_passages, options, first)
        reports = []
        total = len(sources.files)
        for done, (path, source) in enumerate(sources.files):
            on_progress(IngestProgress("read", done, total, source))
            reports.append(reader.take(path, source))
        on_progress(IngestProgress("read", total, total))
        reports += sources.skipped
        documents, passages = catalogue.counts()
        if not passages:
            raise MissingPathError(_nothing(reports))
        segment, added = None, 0
        told = _counting(on_progress, reader.row - first)
        if reader.row > first:
            segment, added = encode(catalogue, vectors, encoder(), range(first, reader.row), reader.twins, told)
        if segment is not None or reader.removed:
            if segment is not None:
                catalogue.add_segment(segment)
            generation += 1
            catalogue.set_meta({"next_row": reader.row, "generation": generation})
            index(segment, reader.removed)
    seconds = time.monotonic() - started
    collection = str(catalogue.path.parent)
    return IngestReport(collection, str(generation), documents, passages, added, tuple(reports), seconds)


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
    ) -> None:
        self._catalogue = catalogue
        self._encoder = encoder
        self._how = how
        self._as_passages = as_passages
        self._options = options
        self.row = row  # of the next passage
        self.removed = False  # whether an older version of a file had passages
        self.twins: dict[int, int] = {}  # for a new row an older one of the file with the same encoder_input

    def take(self, path: Path, source: str) -> FileReport:
        """Read one file; whatever is wrong with it ends up in its report, and what was known of it stays."""
        first, key = self.row, _key(path)
        before = self._catalogue.rows_of(key)
        try:
            digest = _sha256(path)
            known = self._known(key, source, digest)
            before = self._catalogue.rows_of(key)
            if known and (known.hash, known.options) == (digest, self._how):
                return FileReport(source, "unchanged", "", len(before))
            inputs = self._inputs(before)
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
            status, reason = self._finish(file, first, inputs, warnings)
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

    def _inputs(self, rows: range) -> dict[bytes, int]:
        """Rows by what the encoder reads of them."""
        passages = self._catalogue.passages_between(rows.start, rows.stop)
        return {encoder_input(passage): row for row, passage in zip(rows, passages, strict=True)}

    def _store(self, path: Path, source: str, digest: str) -> tuple[int, Iterable[str]]:
        """The number of the file and what its documents warn of."""
        added = datetime.now(timezone.utc).isoformat(timespec="seconds")
        file, source = self._catalogue.replace_file(_key(path), source, hash=digest, options=self._how, added=added)
        first = self.row
        warnings: dict[str, None] = {}  # an ordered set: a thousand records may say the same
        for document in read(path, as_passages=self._as_passages):
            self._add(file, source, document)
            warnings |= dict.fromkeys(document.warnings)
        if self.row == first:
            raise EmptyDocument("no text in it")
        return file, warnings

    def _finish(self, file: int, first: int, inputs: dict[bytes, int], warnings: Iterable[str]) -> tuple[str, str]:
        """What needs the encoder: which passages it has read before, and which are too long for it."""
        encoder, row, long = self._encoder(), first, 0
        window = encoder.spec.window
        for portion in portions(self._catalogue.passages_between(first, self.row)):
            long += int((encoder.passage_lengths(portion) > window).sum())
            for passage in portion if inputs else ():
                twin = inputs.get(encoder_input(passage))
                if twin is not None:
                    self.twins[row] = twin
                row += 1
        remarks = list(warnings)
        if long:
            total = self.row - first
            remarks.insert(0, f"{long} of {total} passages are longer than the {window} tokens that the encoder reads")
        status, reason = "warning" if remarks else "ok", _brief(remarks)
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
