"""What comes back from a question: text, and for every part of it the probability of each passage.

Every row of weights is over the passages that were read, in the order of ``hits``, with the no-passage branch beside
it where it took part; it sums to 1 and cannot name a passage that was not read (MATH section 3).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from bifolio.types import Hit, Passage

MARKER_THRESHOLD = 0.1
"""A sentence carries a marker for every passage with at least this share of its row."""

_LOOKS_LIKE_A_MARKER = re.compile(r"\[(?=\d+\])")
_END = re.compile(r"[.!?。！？]+[\"'”’»)\]」』）]*$")


@dataclass(frozen=True)
class Citation:
    """A passage and its share of the whole answer.

    Attributes:
        passage: The passage.
        weight: p(passage | answer), the answer's row.
        marker: Its number in the marked text; None if no sentence cites it.
        log_prior: Log p(z|x), before the answer was seen.
        truncated: Whether the passage was cut to fit the model's window.
    """

    passage: Passage
    weight: float
    marker: int | None
    log_prior: float
    truncated: bool


@dataclass(frozen=True)
class Sentence:
    """A sentence of the answer and its row.

    Attributes:
        text: The sentence, without white space around it.
        span: Its place in ``Answer.text``.
        weights: One weight a passage.
        no_passage: Weight of the branch that read no passage; None if there was none.
        basis: ``posterior`` (exact, scheme ``sentence``), ``evidence`` (what this sentence alone says, scheme
            ``sequence``) or ``mean`` (mean blame of its tokens, scheme ``token``).
        markers: Numbers of the passages with at least ``MARKER_THRESHOLD`` of the row, heaviest first.
    """

    text: str
    span: tuple[int, int]
    weights: tuple[float, ...]
    no_passage: float | None
    basis: str
    markers: tuple[int, ...]


@dataclass(frozen=True)
class Token:
    """A token of the answer and its row: p(z | x, the answer up to here), since the last reset.

    Attributes:
        text: The token's characters; pieces of one character are one token here.
        span: Its place in ``Answer.text``; the spans of all tokens tile it.
        log_prob: Log p(token | x, what came before), nats.
        weights: One weight a passage.
        no_passage: Weight of the branch that read no passage; None if there was none.
    """

    text: str
    span: tuple[int, int]
    log_prob: float
    weights: tuple[float, ...]
    no_passage: float | None


@dataclass(frozen=True)
class Timings:
    """Wall seconds of the stages of one answer."""

    retrieve_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class Answer:
    """An answer and where it came from.

    Attributes:
        question: As asked.
        text: The answer; "" if nothing was found or the model had nothing to say.
        hits: The passages that were read, best first, with the log-prior of this answer's mixture.
        weights: The answer's row: one weight a passage.
        no_passage: Weight of the branch that read no passage; None if there was none.
        no_passage_log_prior: Its log-prior; None if there was none.
        sentences: Sentences with their rows.
        tokens: Tokens with their rows.
        truncated: For each hit, whether it was cut to fit the model's window.
        log_prob: Log p(y|x) in nats, EOS included.
        eos_log_prob: EOS's share of it; None if ``max_tokens`` cut the answer.
        scheme: ``token``, ``sentence`` or ``sequence``.
        decoder: ``exact``.
        support: 1 - ``no_passage``; None if there was no such branch.
        evidence: Gain over the closed book, nats per token; None if there was no such branch.
        abstained: Whether the answer is withheld.
        notes: What a person should know: cut passages, a cut answer, fewer passages than asked for.
        generation: State of the collection that was read.
        timings: Seconds by stage.
        model: Ids of ``generator``, ``encoder`` and ``adapter``.
    """

    question: str
    text: str
    hits: tuple[Hit, ...]
    weights: tuple[float, ...]
    no_passage: float | None
    no_passage_log_prior: float | None
    sentences: tuple[Sentence, ...]
    tokens: tuple[Token, ...]
    truncated: tuple[bool, ...]
    log_prob: float
    eos_log_prob: float | None
    scheme: str
    decoder: str = "exact"
    support: float | None = None
    evidence: float | None = None
    abstained: bool = False
    notes: tuple[str, ...] = ()
    generation: str = ""
    timings: Timings = Timings()
    model: dict[str, str] = field(default_factory=dict)

    @property
    def markers(self) -> tuple[int | None, ...]:
        """For each hit its number in the marked text, in the order of first citation; None if nothing cites it."""
        return number_markers(tuple(s.weights for s in self.sentences), len(self.hits))

    def citations(self, at_least: float = 0.0) -> tuple[Citation, ...]:
        """Passages by their share of the answer, heaviest first, down to a share of ``at_least``."""
        rows = zip(self.hits, self.weights, self.markers, self.truncated, strict=True)
        cited = [Citation(hit.passage, weight, marker, hit.log_prior, cut) for hit, weight, marker, cut in rows]
        return tuple(sorted((c for c in cited if c.weight >= at_least), key=lambda c: -c.weight))

    def marked(self) -> str:
        """The answer with ``[n]`` before the end of each sentence; a literal ``[n]`` gets a backslash before it."""
        parts, done = [], 0
        for sentence in self.sentences:
            start, end = sentence.span
            parts.append(_escape(self.text[done:start]))
            stop = _END.search(sentence.text)
            cut = start + stop.start() if stop and stop.start() else end
            markers = "".join(f"[{number}]" for number in sentence.markers)
            parts.append(_escape(self.text[start:cut]) + (f" {markers}" if markers else "") + self.text[cut:end])
            done = end
        return "".join([*parts, _escape(self.text[done:])])

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``bifolio ask --json``."""
        passages = [
            {"marker": marker, **hit_facts(hit), "posterior": weight, "truncated": cut}
            for hit, marker, weight, cut in zip(self.hits, self.markers, self.weights, self.truncated, strict=True)
        ]
        no_passage = {"log_prior": self.no_passage_log_prior, "posterior": self.no_passage}
        return {
            "question": self.question,
            "answer": self.text,
            "marked": self.marked(),
            "abstained": self.abstained,
            "log_prob": finite(self.log_prob),
            "eos_log_prob": None if self.eos_log_prob is None else finite(self.eos_log_prob),
            "scheme": self.scheme,
            "decoder": self.decoder,
            "support": self.support,
            "evidence": None if self.evidence is None else finite(self.evidence),
            "generation": self.generation,
            "passages": passages,
            "no_passage": None if self.no_passage is None else no_passage,
            "sentences": [_row(sentence) for sentence in self.sentences],
            "tokens": [_row(token) for token in self.tokens],
            "notes": list(self.notes),
            "timings": {
                "retrieve_s": round(self.timings.retrieve_s, 4),
                "prefill_s": round(self.timings.prefill_s, 4),
                "decode_s": round(self.timings.decode_s, 4),
            },
            "model": self.model,
        }


def hit_facts(hit: Hit) -> dict[str, Any]:
    """A hit as JSON values, the same in ``search --json`` and ``ask --json``."""
    passage = hit.passage
    return {
        "id": passage.id,
        "source": passage.source,
        "place": passage.place,
        "span": list(passage.span),
        "heading": passage.label,
        "text": passage.text,
        "score": hit.score,
        "log_prior": hit.log_prior,
    }


def number_markers(rows: tuple[tuple[float, ...], ...], passages: int) -> tuple[int | None, ...]:
    """Number the passages that some row cites, in the order of first citation, the heavier first within a row."""
    numbers: dict[int, int] = {}
    for row in rows:
        for place in cited(row):
            numbers.setdefault(place, len(numbers) + 1)
    return tuple(numbers.get(place) for place in range(passages))


def cited(row: tuple[float, ...]) -> list[int]:
    """Places in a row with at least ``MARKER_THRESHOLD``, heaviest first."""
    return sorted((z for z, weight in enumerate(row) if weight >= MARKER_THRESHOLD), key=lambda z: -row[z])


def finite(value: float) -> float | None:
    """A number that JSON has: -inf, the logarithm of an impossible event, is null there."""
    return value if math.isfinite(value) else None


def _row(part: Sentence | Token) -> dict[str, Any]:
    """A sentence or token as JSON values; its fields are the keys."""
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(part).items()}
    return {**lists, "log_prob": finite(part.log_prob)} if isinstance(part, Token) else lists


def _escape(text: str) -> str:
    return _LOOKS_LIKE_A_MARKER.sub(r"\\[", text)
