"""Commands that look after a collection: verify, compact, stats, export, import."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from bifolio import exits
from bifolio.cli.root import cli
from bifolio.cli.shared import emit, json_option, open_collection


@cli.command()
@click.argument("collection")
@json_option
def verify(collection: str, as_json: bool) -> None:
    """Compare every byte of a collection with its checksums. Exits with 2 if something is damaged."""
    from bifolio import console

    with console.ingest_progress(quiet=as_json) as told:
        damage = open_collection(collection).verify(on_progress=told)
    if as_json:
        emit({"collection": collection, "damaged": damage})
    elif not damage:
        click.echo(f"{collection} is as it was written")
    if damage:
        for line in () if as_json else damage:
            click.echo(console.printable(line))
        sys.exit(exits.FAILED)


@cli.command()
@click.argument("collection")
@click.option("--keep", type=click.IntRange(min=1), default=1, show_default=True, help="Newest generations to keep.")
@click.option(
    "--wait", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds to wait for others."
)
@json_option
def compact(collection: str, keep: int, wait: float, as_json: bool) -> None:
    """Drop old generations and give their space back. The live one and those with a tag stay."""
    from bifolio import console

    with console.ingest_progress(quiet=as_json) as told:
        done = open_collection(collection).compact(keep, on_progress=told, wait=wait)
    if as_json:
        emit(asdict(done))
    else:
        click.echo(
            f"{len(done.generations)} generations and {done.passages} passages dropped; "
            f"{done.before / 1e6:.1f} MB before, {done.after / 1e6:.1f} MB now"
        )


@cli.command()
@click.argument("collection")
@json_option
def stats(collection: str, as_json: bool) -> None:
    """Say how large a collection is, what its indexes are and how good they are."""
    from bifolio import console

    facts = open_collection(collection).stats()
    if as_json:
        emit(facts)
    else:
        console.show_facts(console.output(), facts)


@cli.command("export")
@click.argument("collection")
@click.argument("file")
@json_option
def export_(collection: str, file: str, as_json: bool) -> None:
    """Write a collection to one FILE, for backup and moving: the live generation and those with a tag."""
    from bifolio import console

    with console.ingest_progress(quiet=as_json) as told:
        path = open_collection(collection).export(file, on_progress=told)
    size = path.stat().st_size
    if as_json:
        emit({"collection": collection, "file": str(path), "bytes": size})
    else:
        click.echo(f"{path}: {size / 1e6:.1f} MB")


@cli.command("import")
@click.argument("file")
@click.argument("collection")
@json_option
def import_(file: str, collection: str, as_json: bool) -> None:
    """Make a COLLECTION of what `export` wrote."""
    from bifolio.backup import restore

    restore(Path(file), Path(collection))
    documents, passages = open_collection(collection).counts()
    if as_json:
        emit({"collection": collection, "documents": documents, "passages": passages})
    else:
        click.echo(f"{collection}: {documents} documents, {passages} passages")
