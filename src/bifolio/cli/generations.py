"""Commands around generations: log, diff, swap, tag."""

from __future__ import annotations

from dataclasses import asdict

import click

from bifolio.cli.root import cli
from bifolio.cli.shared import emit, json_option, open_collection


@cli.command()
@click.argument("collection")
@json_option
def log(collection: str, as_json: bool) -> None:
    """List the generations of a collection, the newest first."""
    from bifolio import console

    generations = open_collection(collection).log()
    if as_json:
        emit({"generations": [asdict(generation) for generation in generations]})
    else:
        console.show_generations(console.output(), generations)


@cli.command()
@click.argument("collection")
@click.argument("first")
@click.argument("second", required=False)
@json_option
def diff(collection: str, first: str, second: str | None, as_json: bool) -> None:
    """Say what changed from generation FIRST to SECOND, numbers or tags; SECOND is the live one when left out."""
    from bifolio import console

    difference = open_collection(collection).diff(first, second)
    if as_json:
        emit(asdict(difference))
    else:
        console.show_difference(console.output(), difference)


@cli.command()
@click.argument("collection")
@click.argument("generation")
@json_option
def swap(collection: str, generation: str, as_json: bool) -> None:
    """Let every reader read another generation, by number or tag, at once and without downtime."""
    with open_collection(collection) as opened:
        before = opened.generation
        number = opened.swap(generation)
        documents, passages = opened.counts()
    if as_json:
        emit({"generation": number, "before": before, "documents": documents, "passages": passages})
    else:
        click.echo(f"generation {number} is live (before: {before}): {documents} documents, {passages} passages")


@cli.command()
@click.argument("collection")
@click.argument("name")
@click.argument("generation", required=False)
@click.option("--delete", is_flag=True, help="Take the name away.")
@json_option
def tag(collection: str, name: str, generation: str | None, delete: bool, as_json: bool) -> None:
    """Name a generation, the live one when left out; `compact` keeps generations that have a name."""
    with open_collection(collection) as opened:
        if delete:
            opened.untag(name)
            number = None
        else:
            number = opened.tag(name, generation)
    if as_json:
        emit({"tag": name, "generation": number})
    else:
        click.echo(f"{name} is no tag any more" if number is None else f"{name} is generation {number}")
