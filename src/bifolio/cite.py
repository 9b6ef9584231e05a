"""From decoded tokens to rows of citations: token, sentence and answer (MATH section 3).

Tensors come in, numbers and spans go out; no model in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import marginal
from bifolio.answer import Sentence, Token, cited, number_markers
from bifolio.hypotheses import Decoded
from bifolio.segments import SentenceBoundary

TextOf = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Cited:
    """The text of an answer and all its rows; each row is over the K branches.

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


def cite(decoded: Decoded, scheme: str, text_of: TextOf, *, no_passage: bool) -> Cited:
    """All rows of one answer.

    Args:
        decoded: The answer as tokens.
        scheme: The scheme that it was decoded with.
        text_of: Text of token ids.
        no_passage: Whether the last branch read no passage.
    """
    likelihood = decoded.token_log_probs
    problem = (
        decoded.log_priors[None],
        likelihood[None],
        torch.tensor([decoded.segment_ids], device=likelihood.device),
    )
    passages = likelihood.shape[0] - no_passage
    blame = marginal.blame(*problem, limit=decoded.limit)[0]
    if decoded.limit is None:
        row = marginal.posterior(*problem)[0].tolist()
        evidence = float(marginal.evidence(*problem)[0]) if no_passage and passages else None
    else:  # the recursion has no closed form, and no closed book to compare with
        row, evidence = blame[:, _segment_ends(decoded.segment_ids)].mean(1).tolist(), None
    raw = text_of(decoded.tokens)
    text = raw.strip()
    offset = len(raw) - len(raw.lstrip())
    pieces = _pieces(decoded, text_of, offset, text)
    found = []
    for span in _sentence_spans(decoded, text_of, offset, text):
        # Its tokens are those whose visible text begins in it: a look ahead may have counted them to another segment.
        members = [i for piece in pieces if span[0] <= _begins(piece, text) < span[1] for i in piece.making]
        found.append((span, *_sentence_row(decoded, blame, scheme, members, pieces)))
    return Cited(
        text,
        tuple(row[:passages]),
        row[-1] if no_passage else None,
        evidence,
        _sentences(text, found, passages),
        tuple(_token(decoded, blame, scheme, piece, text, passages) for piece in pieces),
    )


def _segment_ends(segment_ids: Sequence[int]) -> list[int]:
    """For each token the last one of its segment."""
    last = {segment: i for i, segment in enumerate(segment_ids)}
    return [last[segment] for segment in segment_ids]


class _Piece(NamedTuple):
    """A stretch of visible text and the tokens that it came from."""

    span: tuple[int, int]
    members: list[int]  # all of them: their probabilities make the piece's
    making: list[int]  # without white space behind the answer, which says nothing of the piece: these make its row


def _pieces(decoded: Decoded, text_of: TextOf, offset: int, text: str) -> list[_Piece]:
    """The answer's text cut at token ends; a token without a character of its own goes with the next that has one."""
    pieces: list[_Piece] = []
    waiting: list[int] = []
    start = 0
    for i in range(len(decoded.tokens) - decoded.finished):
        waiting.append(i)
        # A character of which only some bytes are there yet decodes to U+FFFD: wait for the rest.
        end = min(len(text_of(decoded.tokens[: i + 1]).rstrip("\ufffd")) - offset, len(text))
        if end > start:
            pieces.append(_Piece((start, end), waiting, waiting))
            waiting, start = [], end
    if text and (waiting or start < len(text)):  # white space at the end, or an unfinished character
        last = pieces.pop() if pieces else _Piece((0, 0), [], waiting)
        pieces.append(_Piece((last.span[0], len(text)), [*last.members, *waiting], last.making))
    return pieces


def _begins(piece: _Piece, text: str) -> int:
    """Where a piece's first visible character stands."""
    body = text[piece.span[0] : piece.span[1]]
    return piece.span[0] + len(body) - len(body.lstrip()) if body.strip() else piece.span[0]


def _sentence_spans(decoded: Decoded, text_of: TextOf, offset: int, text: str) -> list[tuple[int, int]]:
    """Where the sentences stand in ``text``, without white space around them."""
    ends = SentenceBoundary(text_of).ends(decoded.tokens)
    cuts = [max(0, min(end - offset, len(text))) for end in ends]
    spans = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        body = text[start:end]
        if body.strip():
            start += len(body) - len(body.lstrip())
            spans.append((start, start + len(body.strip())))
    return spans


def _sentence_row(
    decoded: Decoded,
    blame: Float[Tensor, "K T"],
    scheme: str,
    members: list[int],
    pieces: Sequence[_Piece],
) -> tuple[list[float], str]:
    """The row over all branches and its basis (MATH section 3)."""
    if not members:  # all of its characters came with tokens that began before it
        members = [len(decoded.tokens) - 1]
    if scheme == "token":
        return blame[:, members].mean(1).tolist(), "mean"
    if decoded.limit is not None:
        return blame[:, members[-1]].tolist(), "capped"
    likelihood = decoded.token_log_probs
    log_prior = decoded.log_priors[members[0]]
    segments = {decoded.segment_ids[i] for i in members}
    if scheme in ("sentence", "requery") and len(segments) == 1:
        own = [i for i, segment in enumerate(decoded.segment_ids) if segment in segments]
        visible = {i for piece in pieces for i in piece.making}
        if visible.intersection(own) == set(members):  # EOS and white space may be in the segment as well
            return _posterior(log_prior, likelihood[:, own]), "posterior"
    if scheme == "requery":
        return blame[:, members].mean(1).tolist(), "mean"
    return _posterior(log_prior, likelihood[:, members]), "evidence"


def _posterior(log_prior: Float[Tensor, " K"], likelihood: Float[Tensor, "K n"]) -> list[float]:
    """Pi_z exp(sum of l_z,i), normalised."""
    one_segment = torch.zeros((1, likelihood.shape[1]), dtype=torch.long, device=log_prior.device)
    row: list[float] = marginal.posterior(log_prior[None], likelihood[None], one_segment)[0].tolist()
    return row


def _sentences(
    text: str, found: Sequence[tuple[tuple[int, int], list[float], str]], passages: int
) -> tuple[Sentence, ...]:
    weights = tuple(tuple(row[:passages]) for _, row, _ in found)
    markers = number_markers(weights, passages)
    return tuple(
        Sentence(
            text[span[0] : span[1]],
            span,
            mine,
            row[-1] if len(row) > passages else None,
            basis,
            tuple(marker for z in cited(mine) if (marker := markers[z]) is not None),
        )
        for (span, row, basis), mine in zip(found, weights, strict=True)
    )


def _token(
    decoded: Decoded, blame: Float[Tensor, "K T"], scheme: str, piece: _Piece, text: str, passages: int
) -> Token:
    # Blame is filtered: the last piece has seen the others, unless the scheme forgets after every token.
    column = blame[:, piece.making].mean(1) if scheme in ("token", "requery") else blame[:, piece.making[-1]]
    row = column.tolist()
    return Token(
        text[piece.span[0] : piece.span[1]],
        piece.span,
        float(decoded.log_probs[piece.members].sum()),
        tuple(row[:passages]),
        row[-1] if len(row) > passages else None,
    )
