"""What the commands share: options, opening, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from bifolio import exits
from bifolio.errors import MissingExtraError

Command = TypeVar("Command", bound=Callable[..., Any])


# With some ten thousand threads the libraries below crash instead of saying so.
THREADS = click.IntRange(min=1, max=max(256, os.cpu_count() or 1))


def emit(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a charset that lacks a letter, or a lone surrogate
        text = json.dumps(document, allow_nan=False)
    click.echo(text)


def json_option(command: Command) -> Command:
    """The option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(command)


def model_options(command: Command) -> Command:
    """Options of every command that runs a model."""
    for option in reversed(
        (
            click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
            click.option(
                "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16, float64."
            ),
            click.option("--threads", type=THREADS, help="CPU threads; torch's choice when left out."),
        )
    ):
        command = option(command)
    return command


def options_of(options: Callable[[], type], *names: str) -> Callable[[Command], Command]:
    """Command-line options from the annotated fields of an options dataclass (all if none is named): one source."""

    def decorate(command: Command) -> Command:
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
                if default:
                    flags[0] = f"{flags[0]}/--no-{flags[0].removeprefix('--')}"
                command = click.option(*flags, is_flag=True, default=default, show_default=default, help=text)(command)
                continue
            command = click.option(*flags, type=accepted, default=default, show_default=True, help=text)(command)
        return command

    return decorate


def reading_options(command: Command) -> Command:
    """Options of every command that only reads a collection."""
    for option in reversed(
        (
            click.option("--generation", help="Read another generation than the live one, by number or tag."),
            click.option(
                "--label",
                "labels",
                multiple=True,
                help="See only documents without access labels, and those that have this one.",
            ),
        )
    ):
        command = option(command)
    return command


def seen(generation: str | None, labels: tuple[str, ...]) -> dict[str, Any]:
    """What ``reading_options`` say, as options of ``open_collection``."""
    return {"generation": generation, "labels": labels or None}


def retrieval_options() -> type:
    """What ``options_of`` makes the options of ``search`` of."""
    from bifolio.retrieval_options import RetrievalOptions

    return RetrievalOptions


def ask_options() -> type:
    """What ``options_of`` makes the options of ``ask`` of."""
    from bifolio.options import AskOptions

    return AskOptions


def set_threads(count: int | None) -> None:
    """Let torch use so many threads."""
    if count is not None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "models", "--threads") from error
        torch.set_num_threads(count)


def open_collection(path: str, **options: Any) -> Any:
    """A collection, to be closed when the command ends; options are those of :meth:`bifolio.Collection.open`."""
    from bifolio.collection import Collection

    return closing(Collection.open(path, **options))


def closing(collection: Any) -> Any:
    """The collection, to be closed when the command ends."""
    click.get_current_context().call_on_close(collection.close)
    return collection


def was_given(name: str) -> bool:
    """Whether an option of the command is not simply its default."""
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def tell_few(k: int, found: int) -> None:
    """Say that there are fewer passages than were asked for; the default does not ask."""
    if was_given("k") and found < k:
        exits.tell(f"warning: k is {k} and the collection has {found} passages: all are taken")
