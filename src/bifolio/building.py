"""How a collection comes to be: begun as an empty catalogue, filled, and only then there for readers.

What was begun stays when a build is interrupted or killed, and the same build goes on with it; when it fails, nothing
stays.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bifolio import history
from bifolio.catalogue import Catalogue
from bifolio.corpus.metadata import MetadataRules
from bifolio.corpus.splitting import SplitOptions
from bifolio.draft import settings
from bifolio.errors import CollectionExistsError, UsageError
from bifolio.imported import VectorSource
from bifolio.ingest import Sources, ingest
from bifolio.ingest_options import IngestOptions
from bifolio.ingest_report import IngestReport, OnProgress
from bifolio.protocols import Encoder
from bifolio.registry import resolve
from bifolio.sources import find_sources
from bifolio.staging import beside, check_free
from bifolio.taking import Reading
from bifolio.vector_files import Precision
from bifolio.write_lock import write_lock

CATALOGUE = "catalogue.sqlite"
"""The file that makes a folder a collection."""


@dataclass(frozen=True)
class Plan:
    """A collection to be made.

    Attributes:
        paths: Files and folders.
        path: Its own folder.
        vectors: Where the passages have their vectors, if they have some.
        index: Name of the dense index, or ``auto``.
        precision: What vectors are stored in.
        options: How files are found and read.
    """

    paths: Sequence[str | Path]
    path: Path
    vectors: VectorSource | None
    index: str
    precision: Precision
    options: IngestOptions


def passage_fingerprint(encoder: Encoder) -> str:
    """What the vectors of passages depend on; "" for an encoder that does not tell it from the questions' side."""
    return str(getattr(encoder, "passage_fingerprint", ""))


def alike(encoder: Encoder, meta: Mapping[str, Any]) -> bool:
    """Whether an encoder's vectors of questions can be compared with what a generation, of these facts, has stored."""
    if meta["encoder"]["fingerprint"] == encoder.spec.fingerprint:
        return True
    return bool(meta["passage_encoder"]) and meta["passage_encoder"] == passage_fingerprint(encoder)


def is_made(path: Path) -> bool:
    """Whether there is a collection at a path, in whatever state; one that was only begun is none."""
    file = path.absolute() / CATALOGUE
    if not file.exists():
        return False
    with suppress(Exception):  # whoever opens it is told what is wrong
        catalogue = Catalogue.open(file)
        try:
            return history.live(catalogue) > 0
        finally:
            catalogue.close()
    return True


def build(plan: Plan, load: Callable[[], Encoder], on_progress: OnProgress) -> tuple[Encoder, IngestReport]:
    """Make a collection; errors as for :meth:`bifolio.Collection.build`. ``load`` gives its encoder."""
    if is_made(plan.path):
        raise CollectionExistsError(f"{plan.path} is a collection already; add to it with ingest instead")
    begun = (plan.path / CATALOGUE).exists()
    target = plan.path.resolve() if begun else check_free(plan.path)
    # What is wrong with the arguments is told before anything is loaded.
    sources = find_sources(plan.paths, target, plan.options, plan.vectors)
    if plan.index != "auto":
        index_class, argument = resolve("index", plan.index)
        index_class(1, argument)
    if plan.precision not in ("float32", "float16"):
        raise UsageError(f"precision {plan.precision!r}: expected float32 or float16")
    encoder = load()
    if not begun:
        with beside(target) as folder:
            _begin(folder, plan, encoder)
    try:
        with write_lock(target, "build", wait=plan.options.wait):
            writer = Catalogue.open(target / CATALOGUE)
            try:
                _go_on(writer, plan, encoder)
                return encoder, run(writer, lambda: encoder, sources, plan.vectors, plan.options, "ingest", on_progress)
            finally:
                writer.close()
    except Exception:
        if not is_made(target):
            shutil.rmtree(target, ignore_errors=True)
        raise


def _begin(folder: Path, plan: Plan, encoder: Encoder) -> None:
    """A catalogue without a generation."""
    catalogue = Catalogue.create(folder / CATALOGUE)
    try:
        with catalogue.writing():
            _write_facts(catalogue, plan, encoder)
    finally:
        catalogue.close()


def _write_facts(catalogue: Catalogue, plan: Plan, encoder: Encoder) -> None:
    split = asdict(plan.options.split or SplitOptions())
    facts = {"index": plan.index, "precision": plan.precision, "settings": {"split": split}, "live": 0, "next_row": 0}
    catalogue.set_meta(facts)
    spec = json.dumps(asdict(encoder.spec))
    catalogue.change("INSERT INTO encoders VALUES (1, ?, ?)", (spec, passage_fingerprint(encoder)))


def _go_on(catalogue: Catalogue, plan: Plan, encoder: Encoder) -> None:
    """Make sure that what was begun is what is wanted now; otherwise begin again.

    Raises:
        CollectionExistsError: somebody else has finished it in the meantime.
    """
    if history.live(catalogue):
        raise CollectionExistsError(f"{catalogue.path.parent} appeared while it was being built: add to it with ingest")
    meta, split = catalogue.meta(), asdict(plan.options.split or SplitOptions())
    known = json.loads(catalogue.scalar("SELECT spec FROM encoders WHERE id = 1"))["fingerprint"]
    has = (meta["index"], meta["precision"], meta["settings"]["split"], known)
    if has != (plan.index, plan.precision, split, encoder.spec.fingerprint):
        with catalogue.writing():
            for table in ("files", "blocks", "encoders"):
                catalogue.change(f"DELETE FROM {table}")
            catalogue.change("DELETE FROM meta")
            _write_facts(catalogue, plan, encoder)


def run(
    catalogue: Catalogue,
    encoder: Callable[[], Encoder],
    sources: Sources,
    vectors: VectorSource | None,
    options: IngestOptions,
    action: str,
    on_progress: OnProgress,
) -> IngestReport:
    """One ingest or sync, for the one who holds the write lock; see :func:`bifolio.ingest.ingest`."""
    reading = Reading(
        split=options.split or SplitOptions(**settings(catalogue)["split"]),
        as_passages=options.as_passages or vectors is not None,
        metadata=MetadataRules(options.metadata),
        origin=vectors.identity if vectors else "",
        checksum=options.checksum,
    )
    return ingest(
        catalogue,
        encoder,
        sources,
        action=action,
        reading=reading,
        on_progress=on_progress,
        vectors=vectors,
        may_be_empty=action == "sync",
    )
