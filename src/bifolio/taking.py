"""The first phase of an ingest: one file after the other into the catalogue, each wholly or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bifolio.catalogue import Block, Catalogue, FileRow, FileWriter
from bifolio.corpus.metadata import MetadataRules, labels, merged, sidecar
from bifolio.corpus.readers import read
from bifolio.corpus.splitting import Places, SplitOptions, split
from bifolio.draft import Draft
from bifolio.encoding import portions
from bifolio.errors import BifolioError, CollectionError, EmptyDocument, ModelError, SkippedDocument, UsageError
from bifolio.history import now
from bifolio.imported import Importer
from bifolio.ingest_report import FileReport
from bifolio.protocols import Encoder
from bifolio.types import Document

_LOG = logging.getLogger("bifolio")
_SHOWN = 3  # remarks about one file that are told
_LONGEST = 300  # characters of a remark
_RACY = 3_000_000_000  # nanoseconds: a file that changed so shortly before it was read may change again unnoticed


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        split: How documents are split.
        as_passages: Every record of a .jsonl or .tsv file is a passage with its own id.
        metadata: Where documents get metadata from, apart from themselves.
        origin: Where their vectors come from, if they have some.
        checksum: Read every file, also one whose size and time of change are as they were.
    """

    split: SplitOptions
    as_passages: bool = False
    metadata: MetadataRules = MetadataRules()
    origin: str = ""
    checksum: bool = False

    def how(self) -> str:
        """What the catalogue keeps of it: other options mean reading again."""
        origin = {"vectors": self.origin} if self.origin else {}
        rules = {"metadata": said} if (said := self.metadata.identity()) else {}
        return json.dumps({"as_passages": self.as_passages, **asdict(self.split), **origin, **rules}, sort_keys=True)


class Taker:
    """Takes files into the catalogue and into a draft, inside :meth:`Catalogue.writing`."""

    def __init__(
        self,
        catalogue: Catalogue,
        draft: Draft,
        encoder: Callable[[], Encoder],
        reading: Reading,
        importer: Importer | None,
        name_blocks: Callable[[Sequence[Block]], None],
    ) -> None:
        """``encoder`` is called if there is something new; ``name_blocks`` is told of vectors that came along."""
        self._catalogue = catalogue
        self._draft = draft
        self._encoder = encoder
        self._reading = reading
        self._how = reading.how()
        self._importer = importer
        self._name_blocks = name_blocks
        self.row = int(catalogue.meta()["next_row"])
        """Of the next passage."""
        self.imported = 0
        """Passages whose vectors came along."""

    def take(self, path: Path, source: str, root: Path, told: Callable[[int], None]) -> FileReport:
        """Read one file; whatever is wrong with it ends up in its report, and what was known of it stays.

        ``told(n)`` is told when it has n passages.
        """
        first, key = self.row, key_of(path)
        before: FileRow | None = self._draft.of_path(key)
        kept = before.passages if before else 0
        try:
            stat = _stat(path)
            if before and not self._reading.checksum and before.options == self._how and stat.same(before):
                return FileReport(source, "unchanged", "", kept)
            digest = _sha256(path)
            facts = {"path": key, "hash": digest, "options": self._how, "size": stat.size, "mtime": stat.mtime}
            before = self._known(key, source, digest)
            kept = before.passages if before else 0
            if before and (before.hash, before.options) == (digest, self._how):
                self._catalogue.change(
                    "UPDATE files SET size = ?, mtime = ? WHERE id = ?", (stat.size, stat.mtime, before.id)
                )
                return FileReport(source, "unchanged", "", kept)
            named = self._draft.free_source(source, key)
            if spare := self._draft.spare(key, named, digest, self._how):
                self._draft.put(spare)
                return FileReport(source, spare.status, spare.reason, spare.passages)
            with self._catalogue.undoing():
                status, reason, number = self._store(path, root, {**facts, "source": named, "added": now()}, told)
        except SkippedDocument as error:
            status, reason = "skipped", str(error)
            if kept and isinstance(error, EmptyDocument):
                self._draft.take_out(key)
                self.row = first
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
            self._draft.put(self._catalogue.file(number))
            return FileReport(source, status, reason, self.row - first)
        self.row, reason = first, _brief([reason])
        if kept:
            reason += "; the version that was there before is kept"
        return FileReport(source, status, reason, kept)

    def _known(self, key: str, source: str, digest: str) -> FileRow | None:
        """What the draft has of a file, also of one that stood elsewhere and is no longer there.

        A file that goes by another name now has to be read again, for its passages are named after it.
        """
        known = self._draft.of_path(key)
        if known is not None:
            return known
        for other in self._draft.like(source, digest):
            # Another report.txt may have come after the first one was put away: a name alone is a move only where
            # the folder has gone as well.
            if is_gone(other.path) and (other.hash == digest or is_gone(os.path.dirname(other.path))):
                if other.source == source:
                    self._catalogue.change("UPDATE files SET path = ? WHERE id = ?", (key, other.id))
                    return replace(other, path=key)
                self._draft.take_out(other.path)
                return replace(other, hash="")
        return None

    def _store(
        self, path: Path, root: Path, facts: dict[str, Any], told: Callable[[int], None]
    ) -> tuple[str, str, int]:
        """Status, reason and number of a new version."""
        writer = FileWriter(self._catalogue, self.row, facts)
        remarks: dict[str, None] = {}  # an ordered set: a thousand records may say the same
        blocks: list[Block] = []

        def add(document: Document) -> bool:
            document, warnings = merged(document, path, root, self._reading.metadata)
            remarks.update(dict.fromkeys((*document.warnings, *warnings)))
            return self._add(writer, document, told)

        if self._importer is not None:
            found, blocks = self._importer.take(path, self.row, add)
            remarks = dict.fromkeys(found)
        else:
            for document in read(path, as_passages=self._reading.as_passages):
                add(document)
            if self.row == writer.first_row:
                raise EmptyDocument("no text in it")
        status, reason = self._finish(writer, list(remarks))
        self._name_blocks(blocks)
        self.imported += sum(block.rows for block in blocks)
        self._catalogue.set_meta({"next_row": self.row})
        return status, reason, writer.id

    def _finish(self, writer: FileWriter, remarks: list[str]) -> tuple[str, str]:
        """What needs the encoder: which passages are too long for it."""
        encoder, long = self._encoder(), 0
        window = encoder.spec.window
        if self._importer is None:
            passages = (passage for _, passage in self._catalogue.passages_between(writer.first_row, self.row))
            for portion in portions(passages):
                long += int((encoder.passage_lengths(portion) > window).sum())
        if long:
            total = self.row - writer.first_row
            remarks.insert(0, f"{long} of {total} passages are longer than the {window} tokens that the encoder reads")
        status, reason = "warning" if remarks else "ok", _brief(remarks)
        writer.finish(status, reason)
        return status, reason

    def _add(self, writer: FileWriter, document: Document, told: Callable[[int], None]) -> bool:
        """Put a document's passages into the catalogue; False if there are none."""
        spans = split(document, self._reading.split)
        if not spans:
            return False
        places = Places(document, writer.source)
        # A passage without an id is known by its place: the same text may stand twice in a file.
        name = places.of(spans[0]) if document.whole and not document.member else document.member
        key = hashlib.sha256(f"{writer.source}\0{name}\0{document.text}".encode()).hexdigest()[:16]
        own_id = document.whole and document.member
        named = [
            (document.member if own_id else f"{key}-{ordinal}", span, places.of(span))
            for ordinal, span in enumerate(spans, start=1)
        ]
        for passage_id, _, _ in named:
            if holder := self._draft.holder(passage_id, writer.id, writer.path):
                raise UsageError(
                    f"passage id {passage_id!r} is already used by {holder}. If it has moved here from a file that is "
                    "read after this one, ingest again; otherwise give it another id"
                )
        writer.add(document, labels(document.metadata), named)
        for _ in named:
            self.row += 1
            told(self.row - writer.first_row)
        return True


@dataclass(frozen=True)
class _Stat:
    """Size and time of change of a file together with what stands beside it."""

    size: int
    mtime: int

    def same(self, known: FileRow) -> bool:
        return bool(self.mtime) and (self.size, self.mtime) == (known.size, known.mtime)


def _stat(path: Path) -> _Stat:
    """The time of change is 0, which equals no other, if the file has changed just now."""
    found = [os.stat(one) for one in (path, sidecar(path)) if one is not None]
    mtime = max(one.st_mtime_ns for one in found)
    return _Stat(sum(one.st_size for one in found), mtime if mtime < time.time_ns() - _RACY else 0)


def key_of(path: Path) -> str:
    """The absolute path as text, also where its bytes are none."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_gone(key: str) -> bool:
    """Whether there is nothing at an absolute path, as :func:`key_of` gives it, for sure."""
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
    """Of a file, and of what says more about it beside it."""
    digest = hashlib.sha256()
    for one in _with_sidecar(path):
        with one.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _with_sidecar(path: Path) -> Iterable[Path]:
    beside = sidecar(path)
    return (path,) if beside is None else (path, beside)
