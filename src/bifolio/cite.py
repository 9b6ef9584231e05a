"""From decoded tokens to rows of citations: token, sentence and answer (MATH section 3).

Tensors come in, numbers and spans go out; no model in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import marginal
from bifolio.answer import Sentence, Token, cited, number_markers
from bifolio.decode import Decoded
from bifolio.segments import SentenceBoundary, segment_ids

TextOf = Callable[[Sequence[int]], str]

_BASIS = {"sentence": "posterior", "sequence": "evidence", "token": "mean"}


@dataclass(frozen=True)
class Cited:
    """The text of an answer and all its rows; each row is over the K branches of ``log_prior``.

    Attributes:
        text: The answer without white space around it.
        row: The answer's row, passages only.
        no_passage: The no-passage share of it; None if that branch took no part.
        evidence: Nats per token over the closed book; None likewise.
        sentences: Sentences with their rows.
        tokens: Tokens with their rows; their spans tile ``text``.
    """

    text: str
    row: tuple[float, ...]
    no_passage: float | None
    evidence: float | None
    sentences: tuple[Sentence, ...]
    tokens: tuple[Token, ...]


def cite(decoded: Decoded, log_prior: Float[Tensor, " K"], scheme: str, text_of: TextOf, *, no_passage: bool) -> Cited:
    """All rows of one answer.

    Args:
        decoded: The answer as tokens.
        log_prior: Log pi_z; the last branch read no passage if ``no_passage``.
        scheme: The scheme that it was decoded with.
        text_of: Text of token ids.
        no_passage: Whether the last branch read no passage.
    """
    problem = (
        log_prior[None],
        decoded.token_log_probs[None],
        torch.tensor([decoded.segment_ids], device=log_prior.device),
    )
    passages = len(log_prior) - no_passage
    row = marginal.posterior(*problem)[0].tolist()
    evidence = float(marginal.evidence(*problem)[0]) if no_passage and passages else None
    raw = text_of(decoded.tokens)
    text = raw.strip()
    offset = len(raw) - len(raw.lstrip())
    blame = marginal.blame(*problem)[0]
    return Cited(
        text,
        tuple(row[:passages]),
        row[-1] if no_passage else None,
        evidence,
        _sentences(decoded, log_prior, blame, scheme, text_of, (offset, text), passages),
        _tokens(decoded, blame, scheme, text_of, (offset, text), passages),
    )


def _sentences(
    decoded: Decoded,
    log_prior: Float[Tensor, " K"],
    blame: Float[Tensor, "K T"],
    scheme: str,
    text_of: TextOf,
    place: tuple[int, str],
    passages: int,
) -> tuple[Sentence, ...]:
    boundary = SentenceBoundary(text_of)
    ids = segment_ids(decoded.tokens, boundary)
    if scheme == "token":
        columns = [blame[:, [i for i, s in enumerate(ids) if s == n]].mean(1).tolist() for n in sorted(set(ids))]
    else:  # the scheme's segments are the sentences, or the sentences are taken as segments: one and the same formula
        rows = marginal.segment_posteriors(
            log_prior[None], decoded.token_log_probs[None], torch.tensor([ids], device=log_prior.device)
        )[0]
        columns = rows.T.tolist()
    offset, text = place
    ends = [end - offset for end in boundary.ends(decoded.tokens)]
    found: list[tuple[tuple[int, int], list[float]]] = []
    for number, (start, end) in enumerate(zip([0, *ends], [*ends, len(text)], strict=True)):
        start, end = max(start, 0), min(end, len(text))
        body = text[start:end]
        if body.strip():
            start += len(body) - len(body.lstrip())
            # An answer that was cut may end in the word that closed the sentence before: it belongs to that segment.
            column = columns[min(number, ids[-1])]
            found.append(((start, start + len(body.strip())), column))
    weights = tuple(tuple(row[:passages]) for _, row in found)
    markers = number_markers(weights, passages)
    return tuple(
        Sentence(
            text[span[0] : span[1]],
            span,
            mine,
            row[-1] if len(row) > passages else None,
            _BASIS[scheme],
            tuple(marker for z in cited(mine) if (marker := markers[z]) is not None),
        )
        for (span, row), mine in zip(found, weights, strict=True)
    )


def _tokens(
    decoded: Decoded,
    blame: Float[Tensor, "K T"],
    scheme: str,
    text_of: TextOf,
    place: tuple[int, str],
    passages: int,
) -> tuple[Token, ...]:
    """Rows of tokens; a token without a visible character of its own is told together with the next that has one."""
    offset, text = place
    groups: list[tuple[list[int], list[int], tuple[int, int]]] = []  # tokens, those of them that make the row, span
    waiting: list[int] = []
    start = 0
    for i in range(len(decoded.tokens) - decoded.finished):
        waiting.append(i)
        # A character of which only some bytes are there yet decodes to U+FFFD: wait for the rest.
        end = min(len(text_of(decoded.tokens[: i + 1]).rstrip("\ufffd")) - offset, len(text))
        if end > start:
            groups.append((waiting, waiting, (start, end)))
            waiting, start = [], end
    if text and (waiting or start < len(text)):  # white space at the end, or an unfinished character
        members, making, (first, _) = groups.pop() if groups else ([], waiting, (0, 0))
        groups.append(([*members, *waiting], making, (first, len(text))))
    tokens = []
    for members, making, span in groups:
        # Blame is filtered: the last piece has seen the others, unless the scheme forgets after every token.
        column = blame[:, making].mean(1) if scheme == "token" else blame[:, making[-1]]
        row = column.tolist()
        log_prob = float(decoded.log_probs[members].sum())
        tokens.append(
            Token(
                text[span[0] : span[1]],
                span,
                log_prob,
                tuple(row[:passages]),
                row[-1] if len(row) > passages else None,
            )
        )
    return tuple(tokens)
