"""From a name to a class: ``"faiss:hnsw"`` is the index ``faiss`` with the argument ``hnsw``.

Third parties add their own with an entry point in the group ``bifolio.<kind>`` (``bifolio.index``, ...); a class is
imported only when its name is asked for, and a missing extra is an error that names the pip command.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any, NamedTuple

from bifolio.errors import MissingExtraError, UsageError


class _Entry(NamedTuple):
    target: str  # "module:attribute"
    package: str  # distribution whose absence makes the import fail; "" when the core is enough
    extra: str


_BUILT_IN: dict[str, dict[str, _Entry]] = {
    "index": {
        "exact": _Entry("bifolio.indexes.exact:ExactIndex", "", ""),
        "faiss": _Entry("bifolio.indexes.faiss:FaissIndex", "faiss-cpu", "faiss"),
    },
    "encoder": {
        "transformer": _Entry("bifolio.encoders.transformer:TransformerEncoder", "sentence-transformers", "models"),
    },
    "generator": {
        "causal": _Entry("bifolio.generators.causal:CausalGenerator", "transformers", "models"),
        "seq2seq": _Entry("bifolio.generators.seq2seq:Seq2SeqGenerator", "transformers", "models"),
        "remote": _Entry("bifolio.generators.remote:RemoteGenerator", "", ""),
    },
    "reranker": {
        "cross-encoder": _Entry("bifolio.rerankers:CrossEncoderReranker", "sentence-transformers", "models"),
        "generator": _Entry("bifolio.rerankers:GeneratorReranker", "torch", "models"),
    },
}


def names(kind: str) -> list[str]:
    """All names of a kind, built in and from entry points, sorted.

    Raises:
        UsageError: ``kind`` is unknown.
    """
    if kind not in _BUILT_IN:
        raise UsageError(f"unknown kind {kind!r}; kinds are {', '.join(sorted(_BUILT_IN))}")
    return sorted({*_BUILT_IN[kind], *(point.name for point in metadata.entry_points(group=f"bifolio.{kind}"))})


def resolve(kind: str, name: str) -> tuple[Any, str]:
    """The class for ``name[:argument]`` and the argument ("" if none). Built-in names win over entry points.

    Raises:
        UsageError: ``kind`` or the name is unknown.
        MissingExtraError: the class needs an optional dependency that is not installed.
    """
    known = names(kind)
    head, _, argument = name.partition(":")
    if head not in known:
        raise UsageError(f"unknown {kind} {name!r}: expected {' or '.join(known)}, with ':argument' or without")
    if head in _BUILT_IN[kind]:
        entry = _BUILT_IN[kind][head]
        module, _, attribute = entry.target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute), argument
        except ImportError as error:
            if isinstance(error, MissingExtraError) or not entry.package:
                raise
            raise MissingExtraError(entry.package, entry.extra, f"{kind} {head!r}") from error
    (point, *_) = metadata.entry_points(group=f"bifolio.{kind}", name=head)
    return point.load(), argument
