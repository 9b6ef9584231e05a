"""Scheme ``requery``: the prior knows the answer so far (the formula p(z | x, y_<i), to the letter).

Every few tokens the question encoder encodes x joined with y_<i, and pi becomes its softmax over the same K passages.
With ``retrieve`` the passages themselves are fetched anew at every sentence end; the rows of the answer are then over
the union of all that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import decode
from bifolio.errors import UsageError
from bifolio.hypotheses import Decoded
from bifolio.protocols import Encoder, Kept, LogitGenerator, Move, Reading
from bifolio.retriever import Retrieval, Retriever
from bifolio.segments import SentenceBoundary, segment_ids
from bifolio.types import Hit


def joined(question: str, answer: str) -> str:
    """What is encoded in place of the question: x joined with y_<i."""
    answer = answer.strip()
    return f"{question} {answer}" if answer else question


def renewed(
    question: str,
    found: Retrieval,
    encoder: Encoder,
    text: Callable[[Sequence[int]], str],
    *,
    no_passage: bool,
    like: Tensor | None = None,
) -> Callable[[Sequence[tuple[int, ...]]], Float[Tensor, "H K"]]:
    """Log pi after each prefix, over the passages of ``found``; encoded once for every prefix.

    The dense part of their logits is renewed; what other stages added stays as it was for the question.

    Raises:
        UsageError: the passages have no vectors.
    """
    if not found.hits:
        vectors = torch.zeros((0, encoder.spec.dimension))
    elif found.vectors is None:
        raise UsageError("scheme requery takes its scores from the encoder: leave out the passages' own, or the scheme")
    else:
        vectors = torch.from_numpy(found.vectors())
    known: dict[tuple[int, ...], Tensor] = {}

    def after(prefixes: Sequence[tuple[int, ...]]) -> Float[Tensor, "H K"]:
        missing = list(dict.fromkeys(prefix for prefix in prefixes if prefix not in known))
        if missing:
            queries = encoder.encode_questions([joined(question, text(prefix)) for prefix in missing])
            for prefix, query in zip(missing, torch.from_numpy(queries), strict=True):
                scores = (vectors @ query).tolist()
                fresh = found.prior.log_prior(scores, offsets=found.offsets, no_passage=no_passage)
                known[prefix] = fresh if like is None else fresh.to(like)
        return torch.stack([known[prefix] for prefix in prefixes])

    return after


@dataclass(frozen=True)
class Refetched:
    """A greedy answer whose passages were fetched anew at every sentence end.

    Attributes:
        decoded: Over the union of all passages, in the order in which they were first read, and no passage.
        hits: The union.
        kept: What was read of each.
    """

    decoded: Decoded
    hits: tuple[Hit, ...]
    kept: tuple[Kept, ...]


@dataclass
class _Part:
    """One sentence: the places of its passages in the union, and its tokens under them."""

    places: list[int]
    log_pi: Tensor
    token_log_probs: list[Tensor]


def refetch(generator: LogitGenerator, retriever: Retriever, reading: Reading, found: Retrieval, k: int) -> Refetched:
    """Decode greedily; at each sentence end fetch K passages for the question joined with the answer so far.

    The branches of the new passages read y_<i first, as if it had been written under them.
    """
    starts = SentenceBoundary(generator.text)
    eos = generator.spec.eos
    tokens: tuple[int, ...] = ()
    hits: dict[str, Hit] = {}
    kept: dict[str, Kept] = {}
    parts: list[_Part] = []
    totals: list[Tensor] = []
    while len(tokens) < reading.max_tokens and tokens[-1:] != (eos,):
        if tokens:
            found = retriever.within(found, joined(reading.question, generator.text(tokens)), k)
        branches = generator.read([replace(reading, passages=tuple(hit.passage for hit in found.hits))])
        for hit, one in zip(found.hits, branches.kept[0], strict=True):
            hits.setdefault(hit.passage.id, hit)
            kept.setdefault(hit.passage.id, one)
        (log_probs,) = branches.start([tokens] if tokens else None)
        log_pi = found.log_prior(no_passage=reading.no_passage).to(log_probs)
        part = _Part([list(hits).index(hit.passage.id) for hit in found.hits], log_pi, [])
        parts.append(part)
        log_w = log_pi[None]
        while True:
            token, total, log_w, likelihood = _greedy(log_w, log_probs)
            tokens = (*tokens, token)
            part.token_log_probs.append(likelihood)
            totals.append(total)
            if token == eos or len(tokens) >= reading.max_tokens or starts(tokens):
                break
            (log_probs,) = branches.advance([Move([0], [token])])
    decoded = _union(parts, len(hits), reading.no_passage, tokens, torch.stack(totals), starts, eos)
    return Refetched(decoded, tuple(hits.values()), tuple(kept.values()))


def _greedy(log_w: Tensor, log_probs: Tensor) -> tuple[int, Tensor, Tensor, Tensor]:
    """The best token, its log p, w after it and its likelihoods (K,)."""
    from bifolio import marginal

    mixed = marginal.mixture(log_w, log_probs)[0]
    token = int(mixed.argmax())
    if mixed[token] == -torch.inf:
        raise UsageError(decode.NOTHING)
    likelihood = log_probs[0, :, token]
    return token, mixed[token], marginal.bayes_update(log_w, likelihood[None]), likelihood


def _union(
    parts: Sequence[_Part],
    passages: int,
    no_passage: bool,
    tokens: tuple[int, ...],
    totals: Float[Tensor, " T"],
    starts: SentenceBoundary,
    eos: int,
) -> Decoded:
    """Rows over all passages: one that a sentence did not read has no prior there."""
    width = passages + no_passage
    likelihoods, priors = [], []
    for part in parts:
        places = part.places + [passages] * no_passage
        prior = totals.new_full((width,), -torch.inf)
        prior[places] = part.log_pi.to(totals)
        for row in part.token_log_probs:
            column = totals.new_full((width,), -torch.inf)
            column[places] = row
            likelihoods.append(column)
            priors.append(prior)
    ids = tuple(segment_ids(tokens, starts))
    return Decoded(tokens, totals, torch.stack(likelihoods, 1), torch.stack(priors), ids, tokens[-1:] == (eos,))
