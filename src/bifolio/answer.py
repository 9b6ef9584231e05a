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
        weight: p(passage | answer), the answer's row; None where the answer has no probabilities.
        marker: Its number in the marked text; None if no sentence cites it.
        log_prior: Log p(z|x), before the answer was seen.
        truncated: Whether the passage was cut to fit the model's window.
    """

    passage: Passage
    weight: float | None
    marker: int | None
    log_prior: float
    truncated: bool


@dataclass(frozen=True)
class Sentence:
    """A sentence of the answer and its row.

    Attributes:
        text: The sentence, without white space around it.
        span: Its place in ``Answer.text``.
        weights: One weight a passage; none at all for the basis ``marker``.
        no_passage: Weight of the branch that read no passage; None if there was none.
        basis: ``posterior`` (exact: its tokens are those of one segment), ``evidence`` (what this sentence alone says:
            scheme ``sequence``, and where a look ahead put a token into another segment), ``mean`` (mean blame of its
            tokens: schemes ``token`` and ``requery``), ``capped`` (blame of its last token, with a cap) or ``marker``
            (the generator wrote the passage's number, which nothing proves).
        markers: Numbers of the passages with at least ``MARKER_THRESHOLD`` of the row, heaviest first; for the basis
            ``marker`` the numbers that were written.
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
class Alternative:
    """Another answer that was found.

    Attributes:
        text: The answer.
        log_prob: Log p(y|x) in nats, EOS included.
        weights: Its row: one weight a passage.
        no_passage: Weight of the branch that read no passage; None if there was none.
        finished: False when ``max_tokens`` cut it.
    """

    text: str
    log_prob: float
    weights: tuple[float, ...]
    no_passage: float | None
    finished: bool


@dataclass(frozen=True)
class Answer:
    """An answer and where it came from.

    Attributes:
        question: As asked.
        text: The answer; "" if nothing was found or the model had nothing to say.
        hits: The passages that were read, best first, with the log-prior of this answer's mixture; for a passage that
            was fetched within the answer, the log-prior that it came in with.
        weights: The answer's row: one weight a passage; none at all where ``basis`` is ``heuristic``.
        no_passage: Weight of the branch that read no passage; None if there was none.
        no_passage_log_prior: Its log-prior; None if there was none.
        sentences: Sentences with their rows.
        tokens: Tokens with their rows.
        truncated: For each hit, whether it was cut to fit the model's window.
        log_prob: Log p(y|x) in nats, EOS included where its share is known; None where ``basis`` is ``heuristic``.
        eos_log_prob: EOS's share of it; None if ``max_tokens`` cut the answer.
        scheme: ``token``, ``sentence``, ``sequence`` or ``requery``.
        decoder: ``exact``, ``thorough`` or ``fast``; ``given`` for an answer that was scored and not decoded;
            ``concatenated`` for all passages in one prompt, without a mixture.
        basis: What the weights are: ``exact`` posteriors; ``approximate`` ones, where the share of a branch that was
            not computed was taken for 0; ``heuristic``: there are none, and the markers are the generator's own words.
        cached: For each hit, whether the generator had read it before and kept it.
        log_likelihoods: Log p(y|x,z) for each hit, nats; -inf also where it was not computed (decoder ``fast``, and
            passages that only a part of the answer read).
        no_passage_log_likelihood: The same for the branch that read no passage; None if there was none.
        alternatives: Other answers that were found, best first (``n_best``).
        support: 1 - ``no_passage``; None if there was no such branch.
        evidence: Gain over the closed book, nats per token; None if there was no such branch.
        cap: Most that one document could carry before any token (the token itself may then raise its share); None for
            the paper's model.
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
    log_prob: float | None
    eos_log_prob: float | None
    scheme: str
    decoder: str = "exact"
    basis: str = "exact"
    cached: tuple[bool, ...] = ()
    log_likelihoods: tuple[float, ...] = ()
    no_passage_log_likelihood: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    support: float | None = None
    evidence: float | None = None
    cap: float | None = None
    abstained: bool = False
    notes: tuple[str, ...] = ()
    generation: str = ""
    timings: Timings = Timings()
    model: dict[str, str] = field(default_factory=dict)

    @property
    def markers(self) -> tuple[int | None, ...]:
        """For each hit its number in the marked text; None if nothing cites it.

        Numbers are given in the order of first citation. Those of a heuristic answer are the generator's, which had
        the hits numbered from 1.
        """
        if self.basis == "heuristic":
            written = {number for sentence in self.sentences for number in sentence.markers}
            return tuple(z if z in written else None for z in range(1, len(self.hits) + 1))
        return number_markers(tuple(s.weights for s in self.sentences), len(self.hits))

    def citations(self, at_least: float = 0.0) -> tuple[Citation, ...]:
        """Passages by their share of the answer, heaviest first, down to a share of ``at_least``.

        A heuristic answer has no shares: its passages come in the order of ``hits``, those without a marker only if
        ``at_least`` is 0.
        """
        if self.basis == "heuristic":
            facts = zip(self.hits, self.markers, self.truncated, strict=True)
            named = [Citation(hit.passage, None, marker, hit.log_prior, cut) for hit, marker, cut in facts]
            return tuple(c for c in named if c.marker is not None or at_least <= 0)
        rows = zip(self.hits, self.weights, self.markers, self.truncated, strict=True)
        heaviest = sorted((row for row in rows if row[1] >= at_least), key=lambda row: -row[1])
        return tuple(Citation(hit.passage, weight, marker, hit.log_prior, cut) for hit, weight, marker, cut in heaviest)

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
        """The JSON of ``bifolio ask --json``; a heuristic answer has null where others have probabilities."""
        weights = [None] * len(self.hits) if self.basis == "heuristic" else self.weights
        passages = [
            {"marker": marker, **hit_facts(hit), "posterior": weight, "truncated": cut}
            for hit, marker, weight, cut in zip(self.hits, self.markers, weights, self.truncated, strict=True)
        ]
        nothing = [None] * len(passages)
        for passage, cached, likelihood in zip(
            passages, self.cached or nothing, self.log_likelihoods or nothing, strict=True
        ):
            passage |= {"cached": bool(cached), "log_likelihood": None if likelihood is None else finite(likelihood)}
        beside = self.no_passage_log_prior
        no_passage = {"log_prior": None if beside is None else finite(beside), "posterior": self.no_passage}
        return {
            "question": self.question,
            "answer": self.text,
            "marked": self.marked(),
            "abstained": self.abstained,
            "log_prob": None if self.log_prob is None else finite(self.log_prob),
            "eos_log_prob": None if self.eos_log_prob is None else finite(self.eos_log_prob),
            "scheme": self.scheme,
            "decoder": self.decoder,
            "basis": self.basis,
            "support": self.support,
            "evidence": None if self.evidence is None else finite(self.evidence),
            "generation": self.generation,
            "passages": passages,
            "no_passage": None if self.no_passage is None else no_passage,
            "sentences": [_row(sentence) for sentence in self.sentences],
            "tokens": [_row(token) for token in self.tokens],
            "cap": self.cap,
            "alternatives": [_row(other) for other in self.alternatives],
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
        "log_prior": finite(hit.log_prior),
        "duplicates": [{"id": p.id, "source": p.source, "place": p.place} for p in hit.duplicates],
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


def _row(part: Sentence | Token | Alternative) -> dict[str, Any]:
    """A part of the answer as JSON values; its fields are the keys."""
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(part).items()}
    return lists if isinstance(part, Sentence) else {**lists, "log_prob": finite(part.log_prob)}


def _escape(text: str) -> str:
    return _LOOKS_LIKE_A_MARKER.sub(r"\\[", text)
