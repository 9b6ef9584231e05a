"""The paper's two ways of decoding RAG-Sequence, a beam search for every passage alone, and scoring of given answers.

"Thorough Decoding" scores every candidate of any passage under every passage; "Fast Decoding" takes p(y|x,z) for 0
where y was not found for z (Lewis et al. 2020, section 2.5). Here thorough knows every scheme, because scoring does,
and reads and encodes nothing twice. They are for comparison, and for generators that return only text:
:func:`bifolio.decode.beam` is exact at a fraction of the cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import marginal
from bifolio.decode import NOTHING, beam, ranked, run
from bifolio.errors import UsageError
from bifolio.hypotheses import Decoded, Mixture, constant
from bifolio.protocols import Branches
from bifolio.segments import segment_ids


def decoded(tokens: Sequence[int], token_log_probs: Float[Tensor, "K T"], mixture: Mixture) -> Decoded:
    """An answer from its log-probabilities under every branch, as if it had been decoded."""
    whole = tuple(tokens)
    ids = segment_ids(whole, mixture.starts_segment)
    starts = [i for i in range(len(whole)) if i == 0 or ids[i] != ids[i - 1]]
    fresh = mixture.prior([whole[:i] for i in starts]).to(token_log_probs)
    log_priors = fresh[torch.tensor(ids, device=fresh.device)]
    segments = torch.tensor([ids], device=fresh.device)
    log_probs = marginal.token_log_likelihood(log_priors[None], token_log_probs[None], segments, limit=mixture.limit)[0]
    ended = whole[-1:] == (mixture.eos,)
    return Decoded(whole, log_probs, token_log_probs, log_priors, tuple(ids), ended, mixture.limit)


def score(
    branches: Branches, mixtures: Sequence[Mixture], answers: Sequence[Sequence[Sequence[int]]]
) -> list[list[Decoded]]:
    """Given answers of each question with their exact log p(y|x), in the order given."""
    likelihoods = branches.score(answers)
    return [
        [decoded(tokens, rows, mixture) for tokens, rows in zip(mine, scored, strict=True)]
        for mixture, mine, scored in zip(mixtures, answers, likelihoods, strict=True)
    ]


def _per_branch(
    branches: Branches, mixtures: Sequence[Mixture], max_tokens: int, beams: int
) -> list[list[list[Decoded]]]:
    """For each question and branch the answers of a beam search under that branch alone."""
    sizes = [mixture.prior([()]).shape[1] for mixture in mixtures]
    searches = [
        beam(
            Mixture(constant(mixture.prior([()]).new_zeros(1)), lambda prefix: False, mixture.eos),
            max_tokens=max_tokens,
            beams=beams,
            n_best=beams,
            may_fail=True,
        )
        for mixture, size in zip(mixtures, sizes, strict=True)
        for _ in range(size)
    ]
    found = iter(run(branches.apart(), searches))
    return [[next(found) for _ in range(size)] for size in sizes]


def thorough(
    branches: Branches,
    mixtures: Sequence[Mixture],
    *,
    max_tokens: int,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> list[list[Decoded]]:
    """A beam search under each branch, every candidate scored under all of them; all candidates, best first.

    Raises:
        UsageError: a count is below 1, or no continuation has any probability.
    """
    candidates = [
        list(dict.fromkeys(answer.tokens for answers in per_branch for answer in answers))
        for per_branch in _per_branch(branches, mixtures, max_tokens, beams)
    ]
    if not all(candidates):
        raise UsageError(NOTHING)
    return [ranked(answers, length_penalty) for answers in score(branches, mixtures, candidates)]


def fast(
    branches: Branches,
    mixtures: Sequence[Mixture],
    *,
    max_tokens: int,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> list[list[Decoded]]:
    """A beam search under each branch, p(y|x,z) = 0 where z did not find y; log p(y|x) is a lower bound.

    Raises:
        UsageError: a count is below 1, or no continuation has any probability.
    """
    results = []
    for mixture, per_branch in zip(mixtures, _per_branch(branches, mixtures, max_tokens, beams), strict=True):
        rows: dict[tuple[int, ...], Tensor] = {}
        for z, answers in enumerate(per_branch):
            for answer in answers:
                own = answer.token_log_probs[0]
                rows.setdefault(answer.tokens, own.new_full((len(per_branch), len(own)), -torch.inf))[z] = own
        found = ranked([decoded(tokens, table, mixture) for tokens, table in rows.items()], length_penalty)
        if not found:
            raise UsageError(NOTHING)
        results.append(found)
    return results
