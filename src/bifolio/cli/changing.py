"""Commands that change what a collection has: ingest, sync, rm, reencode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bifolio import exits
from bifolio.cli.root import cli
from bifolio.cli.shared import Command, emit, json_option, model_options, open_collection, set_threads
from bifolio.errors import BifolioError

if TYPE_CHECKING:
    from bifolio.ingest_report import IngestReport

_WAIT = click.option(
    "--wait", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds to wait for another writer."
)


def _reading_options(command: Command) -> Command:
    """How files are found and read."""
    for option in reversed(
        (
            click.option(
                "-c", "--collection", required=True, help="Folder of the collection; made if it is not there."
            ),
            click.option(
                "--as-passages",
                is_flag=True,
                help="Each record of a .jsonl or .tsv file is a passage, with its own id.",
            ),
            click.option(
                "--vectors",
                metavar="COLUMN",
                help="PATHS are saved data sets; this column has their passages' vectors.",
            ),
            click.option("--include", multiple=True, metavar="GLOB", help="Only files that match one of these."),
            click.option("--exclude", multiple=True, metavar="GLOB", help="No files that match one of these."),
            click.option("--no-gitignore", is_flag=True, help="Also read what .gitignore files leave out."),
            click.option(
                "--metadata", metavar="PATTERN", help="Metadata from where a file lies, such as '{product}/{year}/*'."
            ),
            click.option(
                "--words",
                type=click.IntRange(min=1),
                help="Words of a passage, about.  [default: as before; 100 in a new collection]",
            ),
            click.option(
                "--split",
                type=click.Choice(["sentence", "words"]),
                help="End passages at sentence ends, or after exactly --words words (the paper's way).  "
                "[default: as before; sentence]",
            ),
            click.option("--encoder", help="Model id, for a new collection; QUESTION,PASSAGE for a DPR pair."),
            click.option(
                "--index", help="auto, exact, faiss:flat, faiss:hnsw or faiss:ivfpq, for a new one.  [default: auto]"
            ),
            click.option(
                "--precision",
                type=click.Choice(["float32", "float16"]),
                help="What vectors are stored in, for a new collection.  [default: float32]",
            ),
            click.option("--checksum", is_flag=True, help="Read every file, also one that looks unchanged."),
            _WAIT,
            click.option("--strict", is_flag=True, help="Exit with 2 if a file failed."),
        )
    ):
        command = option(command)
    return command


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@_reading_options
@model_options
@json_option
def ingest(paths: tuple[str, ...], **options: Any) -> None:
    """Add files and folders to a collection and update those that changed; files that are gone stay.

    A run that is interrupted leaves the collection as it was; the same command goes on where it stopped.
    """
    _change("ingest", paths, **options)


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@_reading_options
@click.option("--watch", is_flag=True, help="Stay, and do it again whenever something under PATHS changes.")
@model_options
@json_option
def sync(paths: tuple[str, ...], watch: bool, **options: Any) -> None:
    """As ingest, and remove what was below these paths and is no longer there.

    A path that does not exist, or a folder without any file, is an error and not the end of what it had: a disk may not
    be mounted. See also: bifolio rm.
    """
    report = _change("sync", paths, **{**options, "strict": options["strict"] and not watch})
    if watch:
        with exits.resuming():
            _watch(paths, report, **{**options, "strict": False})


def _watch(paths: tuple[str, ...], report: IngestReport, **options: Any) -> NoReturn:
    """Sync again and again. What goes wrong is told and tried again: a disk comes back, another writer finishes."""
    from bifolio.watching import changes

    told = ""
    for changed in changes(paths, options["collection"]):
        if not changed and not told:
            continue
        try:
            report = _change("sync", paths, known=report, **options)
            told = ""
        except BifolioError as error:
            if str(error) != told:
                exits.tell(f"error: {error}")
            told = str(error)
    raise AssertionError("watching never ends")


def _outcome(report: IngestReport) -> tuple[Any, ...]:
    """What makes a report worth telling."""
    failed = [(file.path, file.reason) for file in report.files if file.status == "failed"]
    return report.generation, failed, report.notes


def _change(
    action: str,
    paths: tuple[str, ...],
    *,
    known: IngestReport | None = None,
    collection: str,
    words: int | None,
    split: str | None,
    encoder: str | None,
    index: str | None,
    precision: str | None,
    no_gitignore: bool,
    strict: bool,
    device: str,
    dtype: str,
    threads: int | None,
    as_json: bool,
    **how: Any,
) -> IngestReport:
    """An ingest or a sync; it is told unless it says what ``known`` says."""
    from bifolio import console
    from bifolio.collection import Collection

    set_threads(threads)
    how["gitignore"] = not no_gitignore
    with exits.resuming(), console.ingest_progress(quiet=as_json) as told, ExitStack() as held:
        if Collection.exists(collection):
            opened = held.enter_context(Collection.open(collection, device=device, dtype=dtype))
            opened.require(encoder=encoder, index=index)
            how["split"] = opened.split(words, split)
            change: Callable[..., IngestReport] = opened.sync if action == "sync" else opened.ingest
            report: IngestReport | None = change(list(paths), on_progress=told, **how)
        else:
            from bifolio.corpus.splitting import SplitOptions

            how["split"] = SplitOptions(words=words or 100, mode=split or "sentence")  # type: ignore[arg-type]
            new = (("encoder", encoder), ("index", index), ("precision", precision))
            how |= {name: value for name, value in new if value}
            built = Collection.build(list(paths), collection, device=device, dtype=dtype, on_progress=told, **how)
            report = held.enter_context(built).report
    assert report is not None
    if known is None or _outcome(report) != _outcome(known):
        _tell(report, as_json)
    failed = sum(file.status == "failed" for file in report.files)
    if strict and failed:
        exits.tell(f"error: {failed} of {len(report.files)} files failed (--strict)")
        sys.exit(exits.FAILED)
    return report


def _tell(report: Any, as_json: bool) -> None:
    from bifolio import console

    if as_json:
        emit({**asdict(report), "seconds": round(report.seconds, 3)})
    else:
        console.show_report(console.output(), report)


@cli.command()
@click.argument("collection")
@click.argument("sources", nargs=-1, required=True)
@_WAIT
@json_option
def rm(collection: str, sources: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Remove files from a collection by the names that `ls` shows, or by globs such as 'old/*'.

    The files themselves are not touched, and a generation from before still has them until `compact`.
    """
    _tell(open_collection(collection).remove(list(sources), wait=wait), as_json)


@cli.command()
@click.argument("collection")
@click.argument("encoder")
@_WAIT
@model_options
@json_option
def reencode(
    collection: str, encoder: str, wait: float, device: str, dtype: str, threads: int | None, as_json: bool
) -> None:
    """Make the vectors anew with another encoder, beside the live ones, and go live once they are checked."""
    from bifolio import console

    opened = open_collection(collection, device=device, dtype=dtype)
    set_threads(threads)
    with exits.resuming(), console.ingest_progress(quiet=as_json) as told:
        report = opened.reencode(encoder, on_progress=told, wait=wait)
    _tell(report, as_json)
