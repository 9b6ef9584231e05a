"""How passages are found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from bifolio.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

Mode = Literal["dense", "lexical", "hybrid"]
Fusion = Literal["weighted", "rrf"]

MODES: tuple[Mode, ...] = get_args(Mode)
"""``dense``: by the encoder's inner product. ``lexical``: by BM25 over words. ``hybrid``: both."""

FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
"""``weighted``: scores are added, on the scale of the prior. ``rrf``: reciprocal ranks are added."""


@dataclass(frozen=True)
class RetrievalOptions:
    """How passages are found. The texts of the fields are the help of the command line.

    Raises:
        UsageError: a value is out of range, or an option has no effect beside another.
    """

    k: Annotated[int, "Passages to retrieve and read."] = 5
    mode: Annotated[Mode, "dense: by meaning; lexical: by words (BM25); hybrid: both."] = "hybrid"
    fusion: Annotated[Fusion, "Mode hybrid: weighted adds scores, rrf adds reciprocal ranks."] = "weighted"
    candidates: Annotated[int, "Passages that each side proposes before the best k are chosen."] = 100
    where: Annotated[str | None, 'Only documents whose metadata meet this, such as "year >= 2020".'] = None
    reranker: Annotated[str, "Read the best again with this: cross-encoder:MODEL, generator or generator:MODEL."] = ""
    rerank: Annotated[int, "With a reranker: passages that it reads (at least k)."] = 20
    mmr: Annotated[float | None, "Prefer passages that differ: 1 is relevance alone, 0 is difference alone."] = None
    collapse: Annotated[bool, "Show passages with the same text once."] = True

    def __post_init__(self) -> None:
        """Check the values."""
        self._check_retrieval()

    def _check_retrieval(self) -> None:
        for name, known in (("mode", MODES), ("fusion", FUSIONS)):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)!r}: expected one of {', '.join(known)}")
        value: Any
        for name in ("k", "candidates", "rerank"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise UsageError(f"{name} {value!r}: expected a whole number from 1 on")
            object.__setattr__(self, name, int(value))
        if self.where is not None and not isinstance(self.where, str):
            raise UsageError(f'where {self.where!r}: expected an expression such as "year >= 2020", or none')
        if not isinstance(self.reranker, str):
            raise UsageError(f"reranker {self.reranker!r}: expected a name such as cross-encoder:MODEL, or ''")
        if not isinstance(self.collapse, bool):
            raise UsageError(f"collapse {self.collapse!r}: expected True or False")
        if self.mmr is not None:
            value = self.mmr
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
                raise UsageError(f"mmr {self.mmr!r}: expected a number from 0 (different) to 1 (relevant), or none")
            object.__setattr__(self, "mmr", float(value))
        if self.fusion != "weighted" and self.mode != "hybrid":
            raise UsageError(f"fusion {self.fusion} is for mode hybrid, not {self.mode}: leave one of them out")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """These options with others in their place.

        Raises:
            UsageError: one is unknown or cannot be used.
        """
        if unknown := sorted(set(changes) - set(self.known())):
            raise UsageError(f"unknown option {', '.join(unknown)}: expected one of {', '.join(self.known())}")
        return replace(self, **changes)

    @classmethod
    def known(cls) -> list[str]:
        """Names of all options."""
        return [field.name for field in fields(cls)]
