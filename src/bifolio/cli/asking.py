"""Commands that read: search, ask, show, ls."""

from __future__ import annotations

import sys
from typing import Any

import click

from bifolio import exits
from bifolio.cli.root import cli
from bifolio.cli.shared import (
    ask_options,
    emit,
    json_option,
    model_options,
    open_collection,
    options_of,
    reading_options,
    retrieval_options,
    seen,
    set_threads,
    tell_few,
    was_given,
)


@cli.command()
@click.argument("collection")
@click.argument("question")
@options_of(retrieval_options)
@reading_options
@model_options
@json_option
def search(
    collection: str,
    question: str,
    generation: str | None,
    labels: tuple[str, ...],
    device: str,
    dtype: str,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the passages for a question, with the probability that each is the one to read."""
    import time

    from bifolio import console
    from bifolio.answer import hit_facts
    from bifolio.retrieval_options import RetrievalOptions
    from bifolio.retriever import Retriever, check_question

    check_question(question)
    chosen = RetrievalOptions(**options)
    opened = open_collection(collection, device=device, dtype=dtype, **seen(generation, labels))
    set_threads(threads)
    if chosen.mode != "lexical":
        opened.encoder  # noqa: B018  loading the model is not searching
    started = time.perf_counter()
    found = Retriever(opened, chosen).retrieval(question, chosen.k)
    seconds = round(time.perf_counter() - started, 4)
    hits = found.hits
    if chosen.mode != "lexical" and chosen.where is None:
        tell_few(chosen.k, len(hits))
    if as_json:
        facts = [hit_facts(hit) for hit in hits]
        emit({"question": question, "generation": found.generation, "hits": facts, "seconds": seconds})
    else:
        console.show_hits(console.output(), hits, question)
    if not hits:
        sys.exit(exits.NOTHING)


@cli.command()
@click.argument("collection")
@click.argument("question")
@options_of(ask_options)
@click.option("--generator", help="Model id of the generator.  [default: the one that `models pull` fetches]")
@click.option(
    "--no-passage/--without-no-passage",
    default=True,
    show_default=True,
    help="Whether one branch reads no passage; support and evidence need it.",
)
@reading_options
@model_options
@json_option
def ask(
    collection: str,
    question: str,
    generator: str | None,
    no_passage: bool,
    generation: str | None,
    labels: tuple[str, ...],
    device: str,
    dtype: str,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer a question from a collection and say which passage each sentence came from."""
    from bifolio import console
    from bifolio.loading import load_generator
    from bifolio.models import DEFAULT_GENERATOR
    from bifolio.options import AskOptions
    from bifolio.retriever import check_question

    check_question(question)
    AskOptions(**options)  # wrong options are told before any model is loaded
    k = options["k"]
    options = {name: value for name, value in options.items() if was_given(name)}  # a server's model knows only some
    opened = open_collection(collection, device=device, dtype=dtype, **seen(generation, labels))
    set_threads(threads)
    from bifolio.rag import Rag

    opened.encoder  # noqa: B018  a missing one is told before the larger generator is loaded
    loaded = load_generator(generator or DEFAULT_GENERATOR, device=device, dtype=dtype)
    answer = Rag(opened, generator=loaded, no_passage=no_passage).ask(question, **options)
    tell_few(k, len(answer.hits))
    if as_json:
        emit(answer.to_dict())
    else:
        console.show_answer(console.output(), answer)
    if answer.abstained or not answer.hits:
        sys.exit(exits.NOTHING)


@cli.command()
@click.argument("collection")
@click.argument("passage_id")
@reading_options
@json_option
def show(collection: str, passage_id: str, generation: str | None, labels: tuple[str, ...], as_json: bool) -> None:
    """Print a passage within its document."""
    from bifolio import console

    opened = open_collection(collection, **seen(generation, labels))
    passage = opened.passage(passage_id)
    before, after = opened.context(passage_id)
    if as_json:
        facts = {"id": passage.id, "source": passage.source, "place": passage.place, "span": list(passage.span)}
        more = {"heading": passage.label, "before": before, "after": after, "metadata": dict(passage.metadata)}
        emit({**facts, "text": passage.text, **more})
    else:
        console.show_passage(console.output(), passage, before, after)


@cli.command()
@click.argument("collection")
@reading_options
@json_option
def ls(collection: str, generation: str | None, labels: tuple[str, ...], as_json: bool) -> None:
    """List the files of a collection."""
    from bifolio import console

    files = open_collection(collection, **seen(generation, labels)).files()
    if as_json:
        keys = ("source", "passages", "documents", "hash", "added", "status", "reason")
        emit({"documents": [{key: getattr(file, key) for key in keys} for file in files]})
    else:
        console.show_files(console.output(), files)
