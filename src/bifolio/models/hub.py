"""A model from the hub, or from whatever ``HF_ENDPOINT`` names; the only code here that talks to it.

huggingface_hub has had three HTTP libraries with three families of exceptions so far, so what it raises is caught as
``Exception`` and passed on with its name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bifolio.errors import MissingExtraError, ModelError
from bifolio.models import torch_bin
from bifolio.models.progress import OnProgress, Progress, Watch
from bifolio.models.store import hash_file

# Settings, vocabularies and safetensors; never code, and a pickle only where the user wants it converted. The first
# list is a whitelist, the second one a reminder.
ALLOWED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
REFUSED = ["*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.py", "*.h5", "*.msgpack"]
_CONNECT_SECONDS = 5.0
# The timeout of a request does not cover the name look-up, which can hang on its own.
_PROBE_SECONDS = 8.0
_TRUE = ("1", "ON", "YES", "TRUE")


class HubUnavailableError(ModelError):
    """The hub did not answer, or has no such model that we may read: a default model then comes from its wheel."""


@dataclass(frozen=True)
class HubModel:
    """What the hub says about a model.

    Attributes:
        name: ``org/name``.
        revision: The commit that is fetched.
        sizes: Bytes of the files that are wanted, by path.
        hashes: SHA-256 of those that the hub states one for.
        license: As the model card has it; "".
        languages: As the model card has them; empty.
        pickles: The wanted files that have to be converted.
    """

    name: str
    revision: str
    sizes: dict[str, int]
    hashes: dict[str, str]
    license: str
    languages: tuple[str, ...]
    pickles: tuple[str, ...] = ()


def probe(name: str, *, convert_bin: bool = False) -> HubModel:
    """Ask the hub about a model; answers or fails within eight seconds.

    Args:
        name: ``org/name``.
        convert_bin: Whether weights that are a pickle only are wanted.

    Raises:
        HubUnavailableError: The hub cannot be reached, or does not have or show the model.
        ModelError: The model has no safetensors.
        MissingExtraError: huggingface_hub is not installed.
    """
    _require_hub()
    if _is_offline():
        raise HubUnavailableError(f"the hub was not asked for {name}, because HF_HUB_OFFLINE is set")
    answers: list[Any] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
            answers.append(api.model_info(name, timeout=_CONNECT_SECONDS, files_metadata=True))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    if not answers:
        raise HubUnavailableError(f"the hub did not answer within {_PROBE_SECONDS:.0f} s when asked for {name}")
    if isinstance(answers[0], Exception):
        raise _unavailable(name, answers[0]) from answers[0]
    return _understand(name, answers[0], convert_bin)


def _require_hub() -> None:
    """Raise ``MissingExtraError`` without huggingface_hub, which comes with transformers."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError("huggingface_hub", "models", "fetching a model from the hub") from None
    del huggingface_hub


def _is_offline() -> bool:
    """Whether the user forbids the hub, now: the library looks only when it is imported."""
    return any(os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _unavailable(name: str, error: Exception) -> HubUnavailableError:
    """A sentence for what the hub's library raised."""
    kind = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        why = f"the hub has no model {name}, or it is private or gated and HF_TOKEN does not open it (HTTP {status})"
    elif status is not None:
        why = f"the hub answered HTTP {status} when asked for {name}"
    else:
        first = (str(error).splitlines() or [""])[0]
        why = f"the hub cannot be reached to fetch {name} ({kind}: {first})"
    return HubUnavailableError(why)


def _understand(name: str, info: Any, convert_bin: bool) -> HubModel:
    """Keep what is needed of the hub's answer."""
    listed = [file.rfilename for file in info.siblings or []]
    old = torch_bin.convertible(listed)
    wanted = [
        file for file in info.siblings or [] if _is_wanted(file.rfilename) or (convert_bin and file.rfilename in old)
    ]
    if not any(file.rfilename.endswith((".safetensors", ".bin")) for file in wanted):
        reason = f"model {name} has no safetensors on the hub; only those are loaded, because a pickle can run code"
        if old:
            reason += (
                f". It has {old[0]}: to have that converted to safetensors, by a reader that runs no code, run: "
                f"bifolio models pull {torch_bin.FLAG} {name}"
            )
        raise ModelError(reason)
    card = info.card_data or {}
    spoken = card.get("language") or []
    languages = [spoken] if isinstance(spoken, str) else spoken
    return HubModel(
        name=name,
        revision=str(info.sha),
        sizes={file.rfilename: file.size or 0 for file in wanted},
        hashes={file.rfilename: file.lfs.sha256 for file in wanted if file.lfs is not None},
        license=str(card.get("license") or ""),
        languages=tuple(str(language) for language in languages),
        pickles=old if convert_bin else (),
    )


def _is_wanted(path: str) -> bool:
    """Whether a file of the repository is one of those that are fetched."""
    return path.endswith(tuple(pattern[1:] for pattern in ALLOWED))


def download(model: HubModel, folder: Path, on_progress: OnProgress) -> None:
    """Fetch a model's files into an empty folder and compare the hashes that the hub states.

    Raises:
        HubUnavailableError: The download broke off.
        ModelError: A file is missing or not what the hub says that it is.
    """
    from huggingface_hub import snapshot_download

    total = sum(model.sizes.values())
    on_progress(Progress("download", 0, total, f"fetching {model.name} from the hub"))
    with Watch(folder, total, on_progress), _no_progress_bars():
        _translated(
            model.name,
            lambda: snapshot_download(
                model.name,
                revision=model.revision,
                local_dir=folder,
                allow_patterns=[*ALLOWED, *model.pickles],
                ignore_patterns=[pattern for pattern in REFUSED if not (model.pickles and pattern == "*.bin")],
                etag_timeout=_CONNECT_SECONDS,
                endpoint=os.environ.get("HF_ENDPOINT") or None,
            ),
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes about the download
    on_progress(Progress("download", total, total))
    for path in model.sizes:
        if not (folder / path).is_file():
            raise ModelError(f"the hub lists {path} for {model.name} and did not send it")
    for path, expected in model.hashes.items():
        actual = hash_file(folder / path)
        if actual != expected:
            raise ModelError(f"{path} of {model.name} came with sha256 {actual}, expected {expected}")


def _translated(name: str, call: Callable[[], object]) -> None:
    """Run a call of the hub's library and raise our error for any of its own."""
    try:
        call()
    except Exception as error:
        raise _unavailable(name, error) from error


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep huggingface_hub from drawing on stderr; the caller's callback tells what goes on."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hidden = are_progress_bars_disabled()
    if not hidden:
        disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()
