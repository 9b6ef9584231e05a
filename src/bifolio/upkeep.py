"""Looking after a collection: removing, compacting, verifying, and saying what there is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any

import numpy as np

from bifolio import history, seals, vector_files
from bifolio.catalogue import Catalogue, FileRow, file_digest
from bifolio.deriving import catch_up, drop_leftovers, encoder_spec, sha256_of
from bifolio.draft import Draft
from bifolio.errors import BifolioError, NotFoundError, UsageError
from bifolio.indexes.lexical import BM25Index
from bifolio.ingest_report import FileReport, IngestProgress, IngestReport, OnProgress
from bifolio.snapshot import Snapshot
from bifolio.vector_files import BlockWriter, Vectors, new_file

_LOT = 4096  # vectors that are copied at once


@dataclass(frozen=True)
class Compaction:
    """What a compaction did.

    Attributes:
        generations: Numbers of the generations that were dropped.
        passages: Passages that were dropped with them.
        before: Bytes of the collection before, and
        after: afterwards; open readers may keep some of them on the disk until they move on.
    """

    generations: tuple[int, ...]
    passages: int
    before: int
    after: int


def remove(catalogue: Catalogue, draft: Draft, sources: Sequence[str]) -> IngestReport:
    """Remove files by source or glob, for the one who holds the write lock; see :meth:`bifolio.Collection.remove`."""
    started = time.monotonic()
    chosen: dict[str, FileRow] = {}
    for name in sources:
        mine = draft.of_source(name)  # does not look at the others
        if not mine:
            pattern = re.compile(translate(name))
            mine = [f for f in history.files(catalogue, draft.base) if pattern.fullmatch(f.source)]
        if not mine:
            raise NotFoundError(
                f"no file {name!r} in {catalogue.path.parent}: nothing is removed; names are those of: bifolio ls"
            )
        chosen |= {f.path: f for f in mine}
    for path in chosen:
        draft.take_out(path)
    documents, passages = draft.counts()
    with catalogue.writing():
        number = draft.commit("rm")
    names = sorted(file.source for file in chosen.values())
    reports = tuple(FileReport(name, "removed", "", 0) for name in names)
    path = str(catalogue.path.parent)
    return IngestReport(path, str(number), documents, passages, 0, reports, time.monotonic() - started)


# ---- compacting ----


def compact(catalogue: Catalogue, keep: int, on_progress: OnProgress) -> Compaction:
    """Drop old generations and give the space back, for the one who holds the write lock.

    Whoever has the collection open goes on with what is open: the catalogue's old state stays readable for them, and
    vectors that they have mapped stay on the disk until they let them go.

    Raises:
        CollectionDamagedError: vectors are not as they were written; everything is as it was.
    """
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise UsageError(f"keep {keep!r}: expected a whole number from 1 on")
    folder, before = catalogue.path.parent, size_of(catalogue.path.parent)
    drop_leftovers(catalogue)
    dropped, passages = reduce(catalogue, keep, on_progress)
    derive(catalogue, on_progress)
    drop_leftovers(catalogue)
    return Compaction(dropped, passages, before, size_of(folder))


def reduce(catalogue: Catalogue, keep_newest: int, on_progress: OnProgress) -> tuple[tuple[int, ...], int]:
    """Leave only the live generation, those with a tag and some of the newest, with their vectors.

    Returns:
        The numbers of the generations that are gone, and how many passages went with them.
    """
    meta = catalogue.meta()
    everything = [number for (number,) in catalogue.query("SELECT id FROM generations ORDER BY id DESC")]
    tagged = {number for (number,) in catalogue.query("SELECT generation FROM tags")}
    kept = sorted({history.live(catalogue), *tagged, *everything[:keep_newest]})
    dropped = tuple(sorted(set(everything) - set(kept)))
    passages = int(catalogue.scalar("SELECT count(*) FROM passages"))
    with catalogue.writing():
        _forget(catalogue, kept)
        passages -= int(catalogue.scalar("SELECT count(*) FROM passages"))
        for (encoder,) in catalogue.query("SELECT id FROM encoders"):
            _rewrite_vectors(catalogue, encoder, meta["precision"], on_progress)
        catalogue.set_meta({"dense": {}, "lexical": {}, "compactions": int(meta.get("compactions", 0)) + 1})
        history.record(catalogue, "compact", history.live(catalogue), f"{len(dropped)} generations dropped")
    return dropped, passages


def derive(catalogue: Catalogue, on_progress: OnProgress) -> None:
    """Make all indexes."""
    for (encoder,) in catalogue.query("SELECT DISTINCT encoder FROM generations"):
        catch_up(catalogue, encoder, on_progress)


def _forget(catalogue: Catalogue, kept: Sequence[int]) -> None:
    """Leave only the kept generations, and what is part of one of them.

    Numbers are never given again: the newest number is remembered where its generation goes.
    """
    marks = ",".join(map(str, kept))
    catalogue.set_meta({"last": history.newest(catalogue)})
    catalogue.change(f"DELETE FROM generations WHERE id NOT IN ({marks})")
    alive = " OR ".join(f"(born <= {g} AND (died IS NULL OR died > {g}))" for g in kept)
    catalogue.change(f"DELETE FROM lives WHERE NOT ({alive})")
    catalogue.change("DELETE FROM files WHERE id NOT IN (SELECT file FROM lives)")
    unused = "NOT IN (SELECT encoder FROM generations)"
    catalogue.change(f"DELETE FROM blocks WHERE encoder {unused}")
    catalogue.change(f"DELETE FROM encoders WHERE id {unused}")


def _rewrite_vectors(catalogue: Catalogue, encoder: int, precision: Any, on_progress: OnProgress) -> None:
    """Copy the vectors of passages that are still there to a new file, and name that instead."""
    folder = catalogue.path.parent / "vectors"
    dimension = int(encoder_spec(catalogue, encoder)["dimension"])
    blocks = catalogue.blocks(encoder)
    rows = np.array([r for (r,) in catalogue.query("SELECT row FROM passages ORDER BY row")], dtype=np.int64)
    vectors = Vectors(folder, blocks, dimension)
    rows = rows[vectors.has(rows)]
    for complaint in vector_files.verify(folder, blocks, dimension):
        raise vector_files.damaged(complaint)
    with BlockWriter(folder, new_file(precision), 0, dimension) as writer:
        for start in range(0, len(rows), _LOT):
            lot = rows[start : start + _LOT]
            copied = vectors.of(lot)
            for run in np.split(np.arange(len(lot)), np.flatnonzero(np.diff(lot) > 1) + 1):
                writer.append(int(lot[run[0]]), copied[run])
            on_progress(IngestProgress("copy", start + len(lot), len(rows)))
        fresh = writer.finish()
    catalogue.change("DELETE FROM blocks WHERE encoder = ?", [encoder])
    for block in fresh:
        catalogue.add_block(encoder, block)


# ---- verifying ----


def verify(catalogue: Catalogue, on_progress: OnProgress, *, indexes: bool = True) -> list[str]:
    """Compare everything with its checksums, with the indexes or without; what is damaged, a sentence each."""
    found = [f"{catalogue.path}: {what}. {_RESTORE}" for what in _integrity(catalogue)]
    if found:  # what it says of the rest cannot be trusted
        return found
    try:
        found += [f"{catalogue.path}: {what}. {_RESTORE}" for what in _catalogue(catalogue, on_progress)]
        folder = catalogue.path.parent
        for (encoder,) in catalogue.query("SELECT id FROM encoders"):
            dimension = int(encoder_spec(catalogue, encoder)["dimension"])
            complaints = vector_files.verify(folder / "vectors", catalogue.blocks(encoder), dimension)
            found += [f"{complaint}. {_RESTORE}" for complaint in complaints]
        found += [f"{what}. {_AGAIN}" for what in (_indexes(catalogue) if indexes else ())]
    except BifolioError as error:
        found.append(f"{error}")
    except (ValueError, TypeError, KeyError, LookupError) as error:
        found.append(f"{catalogue.path}: {type(error).__name__}: {error}. {_RESTORE}")
    return found


_RESTORE = "Restore it from a backup, or delete the folder and ingest again"
_AGAIN = "It is derived: delete it, and the next ingest or compact makes it again"


def _integrity(catalogue: Catalogue) -> list[str]:
    try:
        said = [what for (what,) in catalogue.query("PRAGMA integrity_check(10)")]
    except BifolioError as error:
        return [str(error)]
    return [] if said == ["ok"] else said


def _catalogue(catalogue: Catalogue, on_progress: OnProgress) -> list[str]:
    """Whether the catalogue says of every file what it said when that was read, and its parts fit together."""
    found = []
    files = catalogue.query("SELECT id, source, digest FROM files ORDER BY id")
    for done, (number, source, digest) in enumerate(files):
        on_progress(IngestProgress("verify", done, len(files), source))
        if file_digest(catalogue.query, number) != digest:
            found.append(f"{source} (version {number}) is not as it was read")
    return found + seals.broken(catalogue.query)


def _indexes(catalogue: Catalogue) -> list[str]:
    folder, meta, found = catalogue.path.parent / "index", catalogue.meta(), []
    for entry in meta.get("dense", {}).values():
        path = folder / entry["file"] if entry.get("file") else None
        if path is not None and not path.is_file():
            found.append(f"{path} is missing")
        elif path is not None and sha256_of(path) != entry["sha256"]:
            found.append(f"{path} is not as it was written")
    name = meta.get("lexical", {}).get("folder", "")
    if name:
        try:
            found += BM25Index.check(folder / name)
        except BifolioError as error:
            found.append(str(error))
    return found


# ---- saying what there is ----


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def stats(catalogue: Catalogue, snapshot: Snapshot) -> dict[str, Any]:
    """Facts of a collection as JSON values."""
    meta, folder = snapshot.meta, catalogue.path.parent
    documents, passages = snapshot.counts()
    entry = meta.get("dense", {}).get(str(meta["encoder_number"]), {"index": meta["index"]})
    stored = int(catalogue.scalar("SELECT count(*) FROM passages"))
    sizes = {name: size_of(folder / name) for name in ("vectors", "index") if (folder / name).exists()}
    sizes["catalogue"] = sum(f.stat().st_size for f in folder.glob("catalogue.sqlite*"))
    encoder = meta["encoder"]
    return {
        "collection": str(snapshot.path),
        "generation": snapshot.generation,
        "generations": int(catalogue.scalar("SELECT count(*) FROM generations")),
        "documents": documents,
        "passages": passages,
        "passages_of_old_generations": stored - passages,
        "encoder": {
            "model": encoder["model"],
            "fingerprint": encoder["fingerprint"],
            "dimension": encoder["dimension"],
        },
        "precision": meta["precision"],
        "index": {"asked": meta["index"], **{k: entry[k] for k in entry if k not in ("file", "sha256", "block")}},
        "lexical": {"rows": catalogue.rows_end() if meta.get("lexical") else 0},
        "bytes": {**sizes, "all": sum(sizes.values()), "per_passage": round(sum(sizes.values()) / max(1, stored))},
        "split": json.loads(json.dumps(meta.get("settings", {}).get("split", {}))),
    }
