"""The two models that a RAG checkpoint is made of, each as an ordinary folder in the cache.

A checkpoint (``RagTokenForGeneration.save_pretrained`` and ``RagTokenizer.save_pretrained``) is one ``config.json``
with the two models' settings in it, one set of weights whose names say which model they belong to, and a folder for
each tokenizer. A part is that, taken apart: bytes are copied by name, nothing is loaded. Its folder is named after the
content that it is made of, so a checkpoint that has changed since gives another one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bifolio.errors import ModelError
from bifolio.models import store, tensors
from bifolio.models.ids import PARTS, ModelId, models_dir
from bifolio.models.progress import OnProgress, Progress
from bifolio.models.store import Source
from bifolio.models.tensors import Tensor

GENERATORS = {"bart": "BartForConditionalGeneration", "t5": "T5ForConditionalGeneration"}
_FORMAT = 1
_TOKENIZERS = {"question_encoder": "question_encoder_tokenizer", "generator": "generator_tokenizer"}
_TOKENIZER_FILES = (".json", ".txt", ".model", ".jinja")
_VOCABULARIES = frozenset(("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model"))
_GENERATION = "generation_config.json"
# One table under several names. A writer keeps one of them, not always the one that a reader looks for: it, the others
# that are always the same table, and the one that is only where the settings say so.
_TABLES = {
    "bart": (
        "model.shared.weight",
        ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        "lm_head.weight",
    ),
    "t5": ("shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "lm_head.weight"),
}


def read_config(checkpoint: Path) -> dict[str, Any]:
    """The settings of a RAG checkpoint's folder.

    Raises:
        ModelError: They cannot be read, are another model's, or name models that cannot be taken apart.
    """
    path = checkpoint / "config.json"
    config = _json(path)
    kind = config.get("model_type")
    if kind != "rag":
        raise ModelError(f"{checkpoint} is no RAG checkpoint: its config.json has model_type {kind!r}, expected 'rag'")
    for part, known in (("question_encoder", ("dpr",)), ("generator", tuple(GENERATORS))):
        inner = config.get(part)
        found = inner.get("model_type") if isinstance(inner, dict) else None
        if found not in known:
            what = f"of type {found!r}" if isinstance(inner, dict) else "missing"
            raise ModelError(f"{path}: the settings of its {part} are {what}; expected {' or '.join(known)}")
    return config


def read_generation(checkpoint: Path) -> dict[str, Any]:
    """The settings of generation beside the others; empty where there are none.

    Raises:
        ModelError: They cannot be read.
    """
    path = checkpoint / _GENERATION
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def folder(model: ModelId, checkpoint: Path, on_progress: OnProgress, *, force: bool = False) -> Path:
    """The folder of one part of a checkpoint, made if it is not there.

    Two processes that want one part make it once: the second waits.

    Args:
        model: The part's id.
        checkpoint: The checkpoint's folder.
        on_progress: Told what is going on.
        force: Make it even if it is there.

    Raises:
        ModelError: The checkpoint is no RAG checkpoint, is damaged or lacks something, or the cache cannot be written.
    """
    config = read_config(checkpoint)
    files = _inputs(model.part, checkpoint)
    model = replace(model, slug=f"rag-{model.part}--{_key(checkpoint, files)}")
    if not force and store.is_whole(model):
        return store.folder_of(model)
    try:
        with store.lock(model, on_progress):
            store.remove_leftovers(model)
            if not force and store.is_whole(model):
                return store.folder_of(model)
            with store.building(model) as partial:
                size = sum((checkpoint / path).stat().st_size for path in files)
                said = f"taking the {model.part} out of {model.name}, once"
                on_progress(Progress("convert", 0, size, said))
                _fill(partial / "model", model.part, checkpoint, config)
                on_progress(Progress("convert", size, size))
                return store.commit(model, partial, Source("split", "", "", "", "", ()), on_progress)
    except OSError as error:
        raise ModelError(f"model {model.text} cannot be put into {models_dir()}: {error}") from error


def _inputs(part: str, checkpoint: Path) -> list[str]:
    """The files that a part is made of, as relative paths with ``/``.

    Raises:
        ModelError: There are no weights, or no tokenizer.
    """
    home = checkpoint / _TOKENIZERS[part]
    tokenizer = sorted(path for path in home.glob("*") if path.is_file() and path.suffix in _TOKENIZER_FILES)
    if _VOCABULARIES.isdisjoint(path.name for path in tokenizer):
        raise ModelError(
            f"{checkpoint} has no tokenizer for its {part}: expected the folder {_TOKENIZERS[part]} with a vocabulary, "
            "as RagTokenizer.save_pretrained(folder) writes it beside the weights"
        )
    settings = [path for path in (checkpoint / "config.json", checkpoint / _GENERATION) if path.is_file()]
    found = [*settings, *tensors.files_of(checkpoint), *tokenizer]
    return [path.relative_to(checkpoint).as_posix() for path in found]


def _key(checkpoint: Path, files: list[str]) -> str:
    """A name for the content of some files; a cached checkpoint's hashes are known, a folder's files are read."""
    known: dict[str, str] = {}
    if checkpoint.parent == models_dir():
        known = {file.path: file.sha256 for file in store.read_manifest(checkpoint, checkpoint.name).files}
    lines = [f"{known.get(path) or store.hash_file(checkpoint / path)}  {path}\n" for path in files]
    return hashlib.sha256(f"{_FORMAT}\n{''.join(lines)}".encode()).hexdigest()[:32]


def _fill(target: Path, part: str, checkpoint: Path, config: dict[str, Any]) -> None:
    """Write a part's files into an empty folder."""
    inner = dict(config[part])
    kind = str(inner["model_type"])
    inner["architectures"] = ["DPRQuestionEncoder" if part == PARTS[0] else GENERATORS[kind]]
    dtypes = [settings.get(name) for settings in (inner, config) for name in ("dtype", "torch_dtype")]
    inner["dtype"] = next((dtype for dtype in dtypes if dtype), None)
    inner.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps(inner, indent=2) + "\n", encoding="utf-8")
    found = _named(checkpoint, part)
    if part == "generator":
        _add_table(found, kind, bool(inner.get("tie_word_embeddings", True)))
        if (checkpoint / _GENERATION).is_file():
            shutil.copyfile(checkpoint / _GENERATION, target / _GENERATION)
    tensors.write(target / tensors.WEIGHTS, found)
    for path in (checkpoint / _TOKENIZERS[part]).glob("*"):
        if path.is_file() and path.suffix in _TOKENIZER_FILES:
            shutil.copyfile(path, target / path.name)


def _named(checkpoint: Path, part: str) -> dict[str, Tensor]:
    """The weights of one part under the names that it has alone."""
    everything = tensors.read_all(tensors.files_of(checkpoint))
    outer = "rag." if any(name.startswith("rag.") for name in everything) else ""  # a bare RagModel has none
    prefix = f"{outer}{part}."
    found = {name.removeprefix(prefix): tensor for name, tensor in everything.items() if name.startswith(prefix)}
    if not found:
        some = ", ".join(sorted(everything)[:3]) or "none at all"
        raise ModelError(f"{checkpoint} has no weights named {prefix}*; it has {some}. It is no whole RAG checkpoint")
    return found


def _add_table(found: dict[str, Tensor], kind: str, tied: bool) -> None:
    """Give the table of token vectors the name that is looked for, if it is there under another one."""
    name, aliases, output = _TABLES[kind]
    others = [*aliases, output] if tied else list(aliases)
    if name not in found:
        table = next((found[other] for other in others if other in found), None)
        if table is not None:
            found[name] = table
