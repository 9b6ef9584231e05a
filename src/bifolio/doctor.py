"""What `bifolio doctor` reports: the machine and the installation, without loading a model."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sqlite3
import sys
from importlib import metadata
from typing import Any

from bifolio import models
from bifolio._version import __version__
from bifolio.errors import ModelError

_PACKAGES = {
    "torch": "models",
    "transformers": "models",
    "sentence-transformers": "models",
    "safetensors": "models",
    "gguf": "models",
    "faiss-cpu": "faiss",
    "lxml": "docs",
    "pypdfium2": "docs",
    "numpy": "",
}


def examine() -> dict[str, dict[str, Any]]:
    """Facts by section: ``bifolio``, ``packages``, ``models``, ``machine``; JSON values only."""
    return {"bifolio": _installation(), "packages": _packages(), "models": _models(), "machine": _machine()}


def _installation() -> dict[str, Any]:
    cache = models.cache_dir()
    nearest = next(folder for folder in (cache, *cache.parents) if folder.exists())
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "sqlite": sqlite3.sqlite_version,
        "cache": str(cache),
        "cache_free_gb": round(shutil.disk_usage(nearest).free / 1e9, 1),
    }


def _packages() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for package, extra in _PACKAGES.items():
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = f"missing; pip install 'bifolio[{extra}]'"
    return found


def _models() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for role, model in (("encoder", models.DEFAULT_ENCODER), ("generator", models.DEFAULT_GENERATOR)):
        try:
            found[f"{role} {model}"] = str(models.resolve(model))
        except ModelError as error:
            found[f"{role} {model}"] = str(error)
    known = {models.DEFAULT_ENCODER, models.DEFAULT_GENERATOR}
    return found | {record.id: str(record.path) for record in models.installed() if record.id not in known}


def _machine() -> dict[str, Any]:
    facts: dict[str, Any] = {"cpus": os.cpu_count(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set")}
    if importlib.util.find_spec("torch") is None:
        return facts
    try:
        return facts | _torch()
    except Exception as error:  # a broken installation is what people run this for
        return facts | {"torch": f"cannot be used: {type(error).__name__}: {error}"}


def _torch() -> dict[str, Any]:
    import torch

    from bifolio.weights import pick_device, pick_dtype

    device = pick_device("auto")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.version.cuda or "no (CPU build of torch)",
        "gpus": ", ".join(gpus) or "none",
        "device": str(device),
        "dtype": str(pick_dtype("auto", device)).removeprefix("torch."),
    }
