"""Options that people set, as data, and the warning that concerns them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args

from bifolio.errors import UsageError

Scheme = Literal["token", "sentence", "sequence"]
Style = Literal["long", "short"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
"""``token``: a reset after every token (RAG-Token). ``sentence``: after every sentence. ``sequence``: none."""

STYLES: tuple[Style, ...] = get_args(Style)
"""``long``: whole sentences. ``short``: a few words."""


class BifolioWarning(UserWarning):
    """Something that a person should know and that is no error."""


@dataclass(frozen=True)
class AskOptions:
    """How a question is answered. The texts of the fields are the help of the command line.

    Raises:
        UsageError: a value is out of range, or two values contradict each other.
    """

    k: Annotated[int, "Passages to retrieve and read."] = 5
    scheme: Annotated[Scheme, "When the prior over passages is restored."] = "sentence"
    beam: Annotated[int, "Hypotheses of the beam search; 1 is greedy."] = 1
    style: Annotated[Style, "long: whole sentences; short: a few words."] = "long"
    max_tokens: Annotated[int, "Longest answer, in tokens."] = 128
    temperature: Annotated[float | None, "Sample at this temperature instead of searching."] = None
    top_p: Annotated[float | None, "When sampling: draw from the smallest set of tokens with this mass."] = None
    seed: Annotated[int | None, "When sampling: the same seed gives the same answer; drawn when left out."] = None
    length_penalty: Annotated[float, "Beam search ranks by log p(y|x) / length^penalty; 0 is the likelihood."] = 0.0

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_sampling()

    def _check_ranges(self) -> None:
        for name in ("k", "beam", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} {value!r}: expected a whole number from 1 on")
        for name, known in (("scheme", SCHEMES), ("style", STYLES)):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)!r}: expected one of {', '.join(known)}")
        for name in ("length_penalty", "temperature", "top_p"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise UsageError(f"{name} {value!r}: expected a number")
        if not 0 <= self.length_penalty < math.inf:
            raise UsageError(f"length_penalty {self.length_penalty!r}: expected a finite number from 0 on")

    def _check_sampling(self) -> None:
        """Options of sampling and of searching exclude each other: an option without effect is an error."""
        if self.temperature is None:
            for name in ("top_p", "seed"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{name} {getattr(self, name)} has no effect without a temperature: give one, too")
            return
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature {self.temperature!r}: expected a finite number above 0, or none to search")
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise UsageError(f"seed {self.seed}: expected a whole number from 0 to 2^63 - 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p!r}: expected a number above 0 and at most 1")
        for name, idle in (("beam", 1), ("length_penalty", 0.0)):
            if getattr(self, name) != idle:
                raise UsageError(f"temperature {self.temperature} samples and {name} is for searching: choose one")

    @classmethod
    def known(cls) -> list[str]:
        """Names of all options."""
        return [field.name for field in fields(cls)]
