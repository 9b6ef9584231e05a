"""bifolio: retrieval-augmented generation whose citations are probabilities (Lewis et al. 2020, arXiv:2005.11401).

Names are loaded when first used (PEP 562): ``import bifolio`` loads neither torch nor faiss.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bifolio._version import __version__

if TYPE_CHECKING:
    from bifolio.answer import Answer, Citation
    from bifolio.collection import Collection
    from bifolio.rag import Rag
    from bifolio.retriever import Retriever
    from bifolio.types import Document, Hit, Passage

    from . import errors, marginal

_HOME = {
    "Answer": "bifolio.answer",
    "Citation": "bifolio.answer",
    "Collection": "bifolio.collection",
    "Document": "bifolio.types",
    "Hit": "bifolio.types",
    "Passage": "bifolio.types",
    "Rag": "bifolio.rag",
    "Retriever": "bifolio.retriever",
}
_MODULES = ("errors", "marginal")

__all__ = [
    "Answer",
    "Citation",
    "Collection",
    "Document",
    "Hit",
    "Passage",
    "Rag",
    "Retriever",
    "__version__",
    "errors",
    "marginal",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"bifolio.{name}")
    raise AttributeError(f"module 'bifolio' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, also those not loaded yet."""
    return sorted(__all__)
