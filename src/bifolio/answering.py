"""From decoded tokens to an :class:`Answer`: rows, notes and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bifolio.answer import Alternative, Answer, Timings
from bifolio.cite import cite
from bifolio.hypotheses import Decoded
from bifolio.options import AskOptions
from bifolio.protocols import Encoder, Kept
from bifolio.types import Hit, Passage


@dataclass(frozen=True)
class Asked:
    """A question with what was found for it.

    Attributes:
        question: As asked.
        chosen: Its options.
        hits: Passages that are read.
        generation: State of the collection; "" for passages of the caller's own.
        no_passage: Whether the last branch reads no passage.
        model: Ids of ``generator``, ``encoder`` and ``adapter``.
        own: Whether the passages are the caller's.
        found: How many answers were found.
    """

    question: str
    chosen: AskOptions
    hits: tuple[Hit, ...]
    generation: str
    no_passage: bool
    model: dict[str, str]
    own: bool = False
    found: int = 1


def answer(
    asked: Asked,
    decoded: Sequence[Decoded],
    kept: Sequence[Kept],
    text: Callable[[Sequence[int]], str],
    notes: Sequence[str],
    timings: Timings,
) -> Answer:
    """The first of ``decoded`` with all its rows; the others are its alternatives."""
    best, chosen = decoded[0], asked.chosen
    rows = cite(best, chosen.scheme, text, no_passage=asked.no_passage)
    # The prior that the answer began with; for a passage that was fetched later, the one that it came in with.
    came_in = (best.log_priors > -math.inf).int().argmax(0)
    priors = best.log_priors.gather(0, came_in[None])[0].tolist()
    per_branch = best.token_log_probs.cpu().double().sum(1).tolist()
    passages = len(asked.hits)
    return Answer(
        question=asked.question,
        text=rows.text,
        hits=tuple(replace(hit, log_prior=log_pi) for hit, log_pi in zip(asked.hits, priors, strict=False)),
        weights=rows.row,
        no_passage=rows.no_passage,
        no_passage_log_prior=priors[-1] if asked.no_passage else None,
        sentences=rows.sentences,
        tokens=rows.tokens,
        truncated=tuple(one.read < one.whole for one in kept),
        cached=tuple(one.cached for one in kept),
        log_likelihoods=tuple(per_branch[:passages]),
        no_passage_log_likelihood=per_branch[-1] if asked.no_passage else None,
        log_prob=best.log_prob,
        eos_log_prob=float(best.log_probs[-1]) if best.finished else None,
        scheme=chosen.scheme,
        decoder=chosen.decoder,
        basis="approximate" if chosen.decoder == "fast" else "exact",
        support=None if rows.no_passage is None or chosen.decoder == "fast" else 1 - rows.no_passage,
        evidence=None if chosen.decoder == "fast" else rows.evidence,  # it took a share for 0 that was not computed
        cap=chosen.cap,
        alternatives=tuple(_alternative(other, asked, text) for other in decoded[1 : chosen.n_best]),
        notes=tuple(notes),
        generation=asked.generation,
        timings=timings,
        model=asked.model,
    )


def _alternative(decoded: Decoded, asked: Asked, text: Callable[[Sequence[int]], str]) -> Alternative:
    rows = cite(decoded, asked.chosen.scheme, text, no_passage=asked.no_passage)
    return Alternative(rows.text, decoded.log_prob, rows.row, rows.no_passage, decoded.finished)


def notes_on_finding(question: str, hits: Sequence[Hit], k: int, own: bool, encoder: Encoder | None) -> list[str]:
    """What a person should know of how passages were found."""
    found: list[str] = []
    if own:
        return found
    if encoder is not None:
        length = int(encoder.passage_lengths([Passage("", question)])[0])
        if length > encoder.spec.window:
            found.append(
                f"the question has {length} tokens: only the first {encoder.spec.window} were used to find passages"
            )
    if len(hits) < k:
        found.append(f"{k} passages were asked for and the collection has {len(hits)}: all were read")
    return found


def notes(asked: Asked, kept: Sequence[Kept], finished: bool, encoder: Encoder | None) -> list[str]:
    """What a person should know of an answer."""
    chosen = asked.chosen
    found = notes_on_finding(asked.question, asked.hits, chosen.k, asked.own, encoder)
    if chosen.cap is not None:
        found.append(f"no document carries more than {chosen.cap:g} before a token: another model than the paper's")
    if chosen.temperature is not None:
        found.append(f"sampled with seed {chosen.seed}")
    for hit, one in zip(asked.hits, kept, strict=True):
        if one.read < one.whole:
            name = hit.passage.place or hit.passage.id
            found.append(f"{name}: {one.read} of {one.whole} tokens were read, the rest did not fit the window")
    if asked.found < chosen.n_best:
        found.append(f"{chosen.n_best} answers were asked for and {asked.found} were found")
    if not finished:
        found.append(f"the answer was cut after {chosen.max_tokens} tokens")
    return found
