"""Options that people set, as data, and the warning that concerns them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from bifolio.errors import UsageError


class BifolioWarning(UserWarning):
    """Something that a person should know and that is no error."""


@dataclass(frozen=True)
class AskOptions:
    """How a question is answered. The texts of the fields are the help of the command line."""

    k: Annotated[int, "Passages to retrieve and read."] = 5
    scheme: Annotated[str, "When the prior over passages is restored: token, sentence or sequence."] = "sentence"
    beam: Annotated[int, "Hypotheses of the beam search; 1 is greedy."] = 1
    style: Annotated[str, "long: whole sentences; short: a few words."] = "long"
    max_tokens: Annotated[int, "Longest answer, in tokens."] = 128
    temperature: Annotated[float | None, "Sample at this temperature instead of searching."] = None
    top_p: Annotated[float | None, "When sampling: draw from the smallest set of tokens with this mass."] = None
    seed: Annotated[int | None, "When sampling: the same seed gives the same answer."] = None
    length_penalty: Annotated[float, "Beam search ranks by log p(y|x) / length^penalty; 0 is the likelihood."] = 0.0

    def __post_init__(self) -> None:
        """Check what does not depend on a model; the search and the scheme check their own."""
        if self.temperature is None:
            for name in ("top_p", "seed"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{name} {getattr(self, name)} has no effect without a temperature: give one, too")
        elif self.beam != 1:
            raise UsageError(f"temperature {self.temperature} samples and beam {self.beam} searches: choose one")

    @classmethod
    def known(cls) -> list[str]:
        """Names of all options."""
        return [field.name for field in fields(cls)]
