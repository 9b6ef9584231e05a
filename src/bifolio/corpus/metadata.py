"""Metadata of documents: from the documents themselves, from a file beside them, from where they lie, from a function.

Of one key a function wins over the file beside, that over the document itself, and that over the path. The key
``access`` has the labels of those who may see the document; without it everybody may.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bifolio.errors import DocumentError, UsageError
from bifolio.types import Document, Metadata

SIDECAR = ".meta.json"
"""``manual.pdf.meta.json`` has more metadata of ``manual.pdf``: an object of plain values."""

_LARGEST = 1 << 20  # bytes of such a file
_MOST = 100  # values of one key
_LABEL = re.compile(r"[\w.@+-]{1,100}")
_FIELD = re.compile(r"\{([^\W\d]\w*)\}|\*\*|\*|[^{*]+")

Rule = Callable[[Path, Document], Mapping[str, Any]]


@dataclass(frozen=True)
class MetadataRules:
    """Where documents get metadata from, apart from themselves and the files beside them.

    Attributes:
        rule: A pattern of the path below the folder given, such as ``{product}/{year}/*``, or a function of path and
            document; None for nothing.

    Raises:
        UsageError: it is neither.
    """

    rule: str | Rule | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rule, str):
            if not any(match[1] for match in _FIELD.finditer(self.rule)):
                raise UsageError(f"metadata {self.rule!r}: expected a pattern with a {{name}}, such as {{product}}/*")
        elif self.rule is not None and not callable(self.rule):
            raise UsageError(f"metadata {self.rule!r}: expected a pattern, or a function of path and document")

    def identity(self) -> str:
        """What tells that another rule was used; "" for none. A function is known by its name alone."""
        if self.rule is None or isinstance(self.rule, str):
            return self.rule or ""
        return f"{getattr(self.rule, '__module__', '')}.{getattr(self.rule, '__qualname__', repr(type(self.rule)))}"


def sidecar(path: Path) -> Path | None:
    """The file with metadata beside a file, if there is one."""
    beside = path.with_name(path.name + SIDECAR)
    return beside if beside.is_file() else None


def is_sidecar(path: Path) -> bool:
    """Whether a file is the metadata of one beside it, and no document."""
    return path.name.endswith(SIDECAR) and path.with_name(path.name.removesuffix(SIDECAR)).is_file()


def merged(document: Document, path: Path, root: Path, rules: MetadataRules) -> tuple[Document, list[str]]:
    """A document with all its metadata, and what a person should know.

    Raises:
        DocumentError: the file beside cannot be read, or a value is none.
    """
    found: dict[str, Any] = {}
    if isinstance(rules.rule, str):
        found |= of_path(path, root, rules.rule)
    found |= document.metadata
    beside = sidecar(path)
    if beside is not None:
        found |= _of_sidecar(beside)
    if callable(rules.rule):
        given = rules.rule(path, document)
        if not isinstance(given, Mapping):
            raise DocumentError(f"the metadata function gave {type(given).__name__}; expected a mapping")
        found |= _plain(given, "the metadata function")
    if found == dict(document.metadata):
        return document, []
    title = found["title"] if isinstance(found.get("title"), str) and beside is not None else document.title
    return replace(document, metadata=found, title=title), []


def of_path(path: Path, root: Path, pattern: str) -> Metadata:
    """What a pattern finds in the path below ``root``; nothing where it does not fit. Digits become a number."""
    parts = []
    for match in _FIELD.finditer(pattern):
        name = match[1]
        if name:
            parts.append(rf"(?P<{name}>[^/]+)")
        elif match[0] == "**":
            parts.append(".*")
        else:
            parts.append("[^/]*" if match[0] == "*" else re.escape(match[0]))
    try:
        below = path.relative_to(root).as_posix()
        expression = re.compile("".join(parts), re.DOTALL)
    except ValueError:
        return {}
    except re.error as error:
        raise UsageError(f"metadata {pattern!r}: {error.msg}; each {{name}} may stand there once") from error
    fits = expression.fullmatch(below)
    if fits is None:
        return {}
    return {
        key: int(value) if re.fullmatch(r"\d{1,18}", value, re.ASCII) else value
        for key, value in fits.groupdict().items()
    }


def labels(metadata: Metadata) -> tuple[str, ...]:
    """The access labels of a document; () where everybody may see it.

    Raises:
        DocumentError: they cannot be read. A document is never open to all because somebody mistyped a label.
    """
    if "access" not in metadata:
        return ()
    value = metadata["access"]
    given = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(given, tuple | list) or not given:
        raise DocumentError(f"access is {value!r}; expected a label, or several between commas")
    for label in given:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise DocumentError(f"access label {label!r}: expected letters, digits and any of . @ + - _")
    return tuple(dict.fromkeys(given))


def _of_sidecar(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            raise DocumentError(f"{path.name} has more than {_LARGEST} bytes")
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DocumentError(f"{path.name} beside it cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DocumentError(f"{path.name} beside it has no JSON object")
    return _plain(found, path.name)


def _plain(given: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Values as metadata has them; null is left out."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        if isinstance(value, list | tuple | set | frozenset):
            value = tuple(str(one) for one in value)
        elif not isinstance(value, str | int | float | bool):
            value = str(value) if hasattr(value, "isoformat") else value
        fine = isinstance(value, str | int | float | bool) or (isinstance(value, tuple) and 0 < len(value) <= _MOST)
        if not isinstance(key, str) or not key or not fine or (isinstance(value, float) and not math.isfinite(value)):
            raise DocumentError(
                f"{where}: {key!r} is {value!r}; expected a text, a number, true, false or a short list"
            )
        found[key] = value
    return found
