"""Options that people set, as data, and the warning that concerns them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Literal, get_args

from bifolio.errors import UsageError
from bifolio.retrieval_options import RetrievalOptions

Scheme = Literal["token", "sentence", "sequence", "requery"]
Decoder = Literal["exact", "thorough", "fast", "concatenated"]
Style = Literal["long", "short"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
"""``token``: a reset after every token (RAG-Token). ``sentence``: after every sentence. ``sequence``: none.
``requery``: after every few tokens, to a prior that knows the answer so far."""

DECODERS: tuple[Decoder, ...] = get_args(Decoder)
"""``exact``: one search over the mixture. ``thorough``, ``fast``: a search for every passage (RAG-Sequence's own).
``concatenated``: all passages in one prompt, for the model of a server that returns no log-probabilities."""

STYLES: tuple[Style, ...] = get_args(Style)
"""``long``: whole sentences. ``short``: a few words."""


_WHOLE = ("beam", "max_tokens", "n_best", "requery_every")
_REAL = ("length_penalty", "diversity", "temperature", "top_p", "cap")


class BifolioWarning(UserWarning):
    """Something that a person should know and that is no error."""


@dataclass(frozen=True)
class AskOptions(RetrievalOptions):
    """How a question is answered, with the options of finding passages.

    The texts of the fields are the help of the command line.

    Raises:
        UsageError: a value is out of range, or two values contradict each other.
    """

    scheme: Annotated[Scheme, "When the prior over passages is restored."] = "sentence"
    decoder: Annotated[
        Decoder, "exact: one search over the mixture; thorough, fast: one a passage; concatenated: servers only."
    ] = "exact"
    beam: Annotated[int, "Hypotheses of the beam search; 1 is greedy (without a length penalty)."] = 1
    n_best: Annotated[int, "Answers to find, or to draw; the best is the answer, the others are its alternatives."] = 1
    diversity: Annotated[float, "With n_best: nats that a token loses for each answer that took it already."] = 0.0
    add_thorough: Annotated[bool, "Decoder exact: also score the candidates of thorough."] = False
    style: Annotated[Style, "long: whole sentences; short: a few words."] = "long"
    max_tokens: Annotated[int, "Longest answer, in tokens."] = 128
    temperature: Annotated[float | None, "Sample at this temperature instead of searching."] = None
    top_p: Annotated[float | None, "When sampling: draw from the smallest set of tokens with this mass."] = None
    seed: Annotated[int | None, "When sampling: the same seed gives the same answer; drawn when left out."] = None
    length_penalty: Annotated[float, "Beam search ranks by log p(y|x) / length^penalty; 0 is the likelihood."] = 0.0
    cap: Annotated[
        float | None, "Most that one document's passages together carry; another model than the paper's."
    ] = None
    requery_every: Annotated[int, "Scheme requery: ask the encoder again after so many tokens."] = 1
    requery_retrieve: Annotated[bool, "Scheme requery: fetch new passages after every sentence instead."] = False

    def __post_init__(self) -> None:
        """Check the values."""
        self._check_retrieval()
        self._check_ranges()
        for name in _WHOLE:  # numbers of numpy and others become Python's
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in _REAL:
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        self._check_sampling()
        self._check_decoder()
        self._check_requery()

    def _check_ranges(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise UsageError(f"{name} {value!r}: expected a whole number from 1 on")
        for name, known in (("scheme", SCHEMES), ("style", STYLES), ("decoder", DECODERS)):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)!r}: expected one of {', '.join(known)}")
        for name in _REAL:
            value = getattr(self, name)
            missing = value is None and name not in ("length_penalty", "diversity")
            if not missing and (isinstance(value, bool) or not isinstance(value, Real)):
                raise UsageError(f"{name} {value!r}: expected a number")
        if not 0 <= self.length_penalty <= 10:
            raise UsageError(f"length_penalty {self.length_penalty!r}: expected a number from 0 to 10")
        if not 0 <= self.diversity < math.inf:
            raise UsageError(f"diversity {self.diversity!r}: expected a finite number from 0 on")
        if self.cap is not None and not 0 < self.cap < 1:
            raise UsageError(f"cap {self.cap!r}: expected a share above 0 and below 1, or none")
        for name in ("add_thorough", "requery_retrieve"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} {getattr(self, name)!r}: expected True or False")

    def _check_sampling(self) -> None:
        """Options of sampling and of searching exclude each other: an option without effect is an error."""
        if self.temperature is None:
            for name in ("top_p", "seed"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{name} {getattr(self, name)} has no effect without a temperature: give one, too")
            return
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature {self.temperature!r}: expected a finite number above 0, or none to search")
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < 2**63):
            raise UsageError(f"seed {self.seed}: expected a whole number from 0 to 2^63 - 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p!r}: expected a number above 0 and at most 1")
        idle = {"beam": 1, "length_penalty": 0.0, "decoder": "exact", "diversity": 0.0, "add_thorough": False}
        for name, value in idle.items():
            if getattr(self, name) != value:
                raise UsageError(f"temperature {self.temperature} samples and {name} is for searching: choose one")

    def _check_decoder(self) -> None:
        if self.decoder == "fast" and self.scheme != "sequence":
            raise UsageError(
                f"decoder fast is for scheme sequence, not {self.scheme}: it scores no passage but its own"
            )
        if self.cap is not None and (self.decoder == "fast" or self.requery_retrieve):
            raise UsageError("cap is not for decoder fast, nor for requery_retrieve: leave one of them out")
        if self.decoder != "exact":
            for name, value in (("diversity", 0.0), ("add_thorough", False)):
                if getattr(self, name) != value:
                    raise UsageError(f"{name} is for the decoder exact, not {self.decoder}")
        if self.temperature is None and self.decoder == "exact" and self.n_best > self.beam:
            raise UsageError(f"n_best {self.n_best} with beam {self.beam}: expected a beam of at least n_best")
        if self.diversity and (self.n_best < 2 or self.beam % self.n_best):
            raise UsageError(
                f"diversity {self.diversity} with n_best {self.n_best} and beam {self.beam}: expected n_best from 2 "
                "on, and a beam that is a multiple of it"
            )

    def _check_requery(self) -> None:
        if self.scheme == "requery" and self.mode == "lexical":
            raise UsageError("scheme requery asks the encoder again, and mode lexical does not ask it: take another")
        if self.scheme != "requery":
            for name, value in (("requery_every", 1), ("requery_retrieve", False)):
                if getattr(self, name) != value:
                    raise UsageError(f"{name} is for scheme requery, not {self.scheme}")
        elif self.requery_retrieve:
            greedy = self.beam == 1 and self.n_best == 1 and self.temperature is None and self.decoder == "exact"
            if not greedy or self.requery_every != 1 or self.add_thorough or self.length_penalty:
                raise UsageError(
                    "requery_retrieve fetches new passages after every sentence of one greedy answer: leave out beam, "
                    "n_best, temperature, decoder, add_thorough, length_penalty and requery_every"
                )

    @classmethod
    def known(cls) -> list[str]:
        """Names of all options."""
        return [field.name for field in fields(cls)]
