"""Answers from a generator that returns text: the best that its server's log-probabilities allow.

==============  =================================================  ============  ==========================
decoder         needs                                              basis         weights
==============  =================================================  ============  ==========================
thorough        log-probabilities of given text                    exact         posterior of RAG-Sequence
fast            log-probabilities of generated text                approximate   0 where not generated
concatenated    nothing                                            heuristic     none, markers as written
==============  =================================================  ============  ==========================

Text alone has no next-token distribution, so that RAG-Sequence is the one scheme, and ``exact`` decoding, which
searches the mixture token by token, is not to be had.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeGuard, cast

from bifolio.answer import Alternative, Answer, Timings
from bifolio.errors import ModelError, UsageError
from bifolio.protocols import Kept, LogitGenerator, Reading, TextCandidate, TextGenerator, TextGeneratorSpec
from bifolio.retrieval_options import RetrievalOptions
from bifolio.types import Hit

if TYPE_CHECKING:
    import torch

    from bifolio.text_mixture import Weighed

SCHEME = "sequence"
"""The only scheme of text generators."""

DECODERS = ("thorough", "fast", "concatenated")
"""Best first."""

OPTIONS = (
    *(field.name for field in fields(RetrievalOptions)), "scheme", "decoder", "beam", "n_best", "style", "max_tokens"
)  # fmt: skip
"""Options of a question that have a meaning here; ``beam`` is the number of answers to take from each branch."""

_NO_ENDS = (
    "how probable it is that the answer ends there is not known for every passage: log_prob and the weights are those "
    "of its text alone"
)
_LOWER_BOUND = (
    "fast decoding: a passage for which the generator did not find this very answer counts as if it could not give it; "
    "log_prob is a lower bound and the weights are approximate"
)
_HEURISTIC = (
    "all passages were read in one prompt: the markers are what the generator wrote, they are no probabilities, and "
    "nothing proves them"
)


def is_text_generator(generator: object) -> TypeGuard[TextGenerator]:
    """Whether a generator returns text; unlike ``isinstance`` with a protocol it asks no server."""
    return hasattr(type(generator), "concatenated")


def with_logits(generator: LogitGenerator | TextGenerator, purpose: str) -> LogitGenerator:
    """The generator, if it has the next-token distribution that ``purpose`` needs.

    Raises:
        UsageError: it returns text alone.
    """
    if is_text_generator(generator):
        raise UsageError(
            f"{purpose} needs the generator's next-token distribution, which a server does not return: take a local one"
        )
    return cast("LogitGenerator", generator)


def check_options(names: Iterable[str]) -> None:
    """Refuse options that were given and would have no effect on a generator of text.

    Raises:
        UsageError: there is one that is not among :data:`OPTIONS`.
    """
    idle = [name for name in names if name not in OPTIONS]
    if idle:
        raise UsageError(f"with a remote generator {', '.join(idle)} has no effect: it knows {', '.join(OPTIONS)}")


def check_request(scheme: str | None, decoder: str | None, spec: TextGeneratorSpec | None = None) -> None:
    """Refuse what a generator of text cannot do; None stands for what was not asked for.

    Without ``spec`` only what no such generator can do, so that it can be told before anything is sent.

    Raises:
        UsageError: the scheme or decoder is impossible, or the server does not return what the decoder needs.
    """
    if scheme not in (None, SCHEME):
        raise UsageError(
            f"scheme {scheme} needs the generator's next-token distribution, which a server does not return: with a "
            "remote generator the scheme is sequence"
        )
    if decoder not in (None, *DECODERS):
        raise UsageError(
            f"decoder {decoder} needs the generator's next-token distribution, which a server does not return: with a "
            f"remote generator it is {', '.join(DECODERS[:-1])} or {DECODERS[-1]}"
        )
    if spec is None:
        return
    if decoder == "thorough" and not spec.scores:
        raise UsageError(
            f"decoder thorough scores every answer under every passage, and the server of {spec.model} does not return "
            "log-probabilities of given text: take fast, or a server that does (vLLM, SGLang)"
        )
    if decoder == "fast" and not spec.log_probs:
        raise UsageError(
            f"decoder fast needs the log-probabilities of generated tokens, and the server of {spec.model} returns "
            "none: take concatenated, or a server that does"
        )


def answer_from_text(
    generator: TextGenerator,
    reading: Reading,
    hits: Sequence[Hit],
    log_prior: Sequence[float] | torch.Tensor,
    *,
    candidates: int = 1,
    alternatives: int = 0,
    decoder: str | None = None,
    scheme: str | None = None,
) -> Answer:
    """Answer a question with what the server can do: thorough, else fast, else concatenated.

    Args:
        generator: The generator.
        reading: Question, passages and style; ``reading.no_passage`` adds one branch.
        hits: The passages of ``reading``, in its order.
        log_prior: (K,) log pi_z of the passages, then of the no-passage branch where it is read.
        candidates: Answers to take from each branch.
        alternatives: Other answers to report, where there are any.
        decoder: One of :data:`DECODERS`; None for the best possible.
        scheme: None or ``sequence``.

    Returns:
        An answer without the facts of its retrieval; ``generation``, notes and timings are to be completed.

    Raises:
        UsageError: what was asked for is impossible, or the question does not fit.
        ModelError: the server cannot be reached, or returned nothing that can be used.
    """
    import torch

    check_request(scheme, decoder)
    branches = len(reading.passages) + reading.no_passage
    prior = torch.as_tensor(log_prior, dtype=torch.float64)
    if prior.shape != (branches,) or len(hits) != len(reading.passages):
        raise UsageError(f"{len(hits)} hits and a log-prior of shape {tuple(prior.shape)} for {branches} branches")
    spec = generator.spec
    check_request(scheme, decoder, spec)
    started = time.perf_counter()
    if decoder is None:
        decoder = "thorough" if spec.scores else "fast" if spec.log_probs else "concatenated"
    if decoder == "concatenated":
        made = _concatenated(generator, reading, hits)
    else:
        made = _mixed(generator, reading, hits, prior, candidates, alternatives, decoder)
    model = {"generator": spec.model, "encoder": "", "adapter": ""}
    return replace(made, model=model, timings=Timings(decode_s=time.perf_counter() - started))


def _mixed(
    generator: TextGenerator,
    reading: Reading,
    hits: Sequence[Hit],
    log_prior: torch.Tensor,
    candidates: int,
    alternatives: int,
    decoder: str,
) -> Answer:
    """Thorough or fast decoding of RAG-Sequence."""
    from bifolio import text_mixture

    found = generator.generate(reading, n=candidates)
    if len(found) != len(log_prior):
        raise ModelError(f"the generator answered for {len(found)} branches of {len(log_prior)}")
    notes = []
    if decoder == "thorough":
        unique = _unique(found)
        weighed = text_mixture.thorough(log_prior, generator.score(reading, unique)) if unique else []
        left = len(unique) - len(weighed)
    else:
        weighed = text_mixture.fast(log_prior, found)
        left = sum(answer.log_probs is None for answers in found for answer in answers)
        notes.append(_LOWER_BOUND)
    if not weighed:
        raise ModelError(
            f"the server returned no answer whose log-probabilities can be told apart from its prompt's ({left} were "
            "left out): take the decoder concatenated, or another server"
        )
    if left:
        notes.append(f"{left} answers were left out: the server's tokens do not give their log-probability")
    kept = generator.kept(reading)
    best = weighed[0]
    notes += _common_notes(hits, kept, best.finished, reading.max_tokens)
    if best.finished and not best.ends:
        notes.append(_NO_ENDS)
    basis = "exact" if decoder == "thorough" else "approximate"
    return _answer(reading, hits, kept, weighed[: alternatives + 1], decoder, basis, notes)


def _unique(found: Sequence[Sequence[TextCandidate]]) -> list[TextCandidate]:
    """Each text once, in the order of first appearance; finished if some branch finished it."""
    unique: dict[str, TextCandidate] = {}
    for answers in found:
        for answer in answers:
            known = unique.get(answer.text)
            if known is None or (answer.finished and not known.finished):
                unique[answer.text] = answer
    return list(unique.values())


def _answer(
    reading: Reading,
    hits: Sequence[Hit],
    kept: Sequence[Kept],
    weighed: Sequence[Weighed],
    decoder: str,
    basis: str,
    notes: Sequence[str],
) -> Answer:
    best = weighed[0]
    rows = best.cited(no_passage=reading.no_passage)
    priors = best.log_prior.tolist()
    per_branch = best.decoded.token_log_probs.sum(1).tolist()
    return Answer(
        question=reading.question,
        text=rows.text,
        hits=tuple(replace(hit, log_prior=log_pi) for hit, log_pi in zip(hits, priors, strict=False)),
        weights=rows.row,
        no_passage=rows.no_passage,
        no_passage_log_prior=priors[-1] if reading.no_passage else None,
        sentences=rows.sentences,
        tokens=rows.tokens,
        truncated=tuple(one.read < one.whole for one in kept),
        cached=tuple(one.cached for one in kept),
        log_likelihoods=tuple(per_branch[: len(hits)]),
        no_passage_log_likelihood=per_branch[-1] if reading.no_passage else None,
        log_prob=best.decoded.log_prob,
        eos_log_prob=float(best.decoded.log_probs[-1]) if best.ends else None,
        scheme=SCHEME,
        decoder=decoder,
        basis=basis,
        support=None if rows.no_passage is None else 1 - rows.no_passage,
        evidence=rows.evidence if basis == "exact" else None,
        alternatives=tuple(_alternative(other, reading.no_passage) for other in weighed[1:]),
        notes=tuple(notes),
    )


def _alternative(other: Weighed, no_passage: bool) -> Alternative:
    rows = other.cited(no_passage=no_passage)
    return Alternative(rows.text, other.decoded.log_prob, rows.row, rows.no_passage, other.finished)


def _concatenated(generator: TextGenerator, reading: Reading, hits: Sequence[Hit]) -> Answer:
    """One prompt with all passages: markers, and nothing that could be taken for a probability."""
    from bifolio import text_mixture

    said = generator.concatenated(reading)
    kept = generator.kept(reading, together=True)
    written = text_mixture.written(said.text, len(hits))
    notes = [_HEURISTIC, *_common_notes(hits, kept, said.finished, reading.max_tokens)]
    if written.unknown:
        named = ", ".join(f"[{number}]" for number in written.unknown)
        notes.append(f"the generator named passages that there are not, which was taken out: {named}")
    return Answer(
        question=reading.question,
        text=written.text,
        hits=tuple(hits),
        weights=(),
        no_passage=None,
        no_passage_log_prior=None,
        sentences=written.sentences,
        tokens=(),
        truncated=tuple(one.read < one.whole for one in kept),
        cached=tuple(one.cached for one in kept),
        log_prob=None,
        eos_log_prob=None,
        scheme="",
        decoder="concatenated",
        basis="heuristic",
        notes=tuple(notes),
    )


def _common_notes(hits: Sequence[Hit], kept: Sequence[Kept], finished: bool, max_tokens: int) -> list[str]:
    """Cut passages, a cut answer."""
    notes = [
        f"{hit.passage.place or hit.passage.id}: {one.read} of {one.whole} characters were read, the rest did not fit "
        "the window"
        for hit, one in zip(hits, kept, strict=True)
        if one.read < one.whole
    ]
    return notes if finished else [*notes, f"the answer was cut after {max_tokens} tokens"]
