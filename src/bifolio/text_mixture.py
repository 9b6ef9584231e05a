"""The mixture over answers that come as text: RAG-Sequence from what a :class:`TextGenerator` returns.

The paper's two ways of decoding RAG-Sequence (Lewis et al. 2020, section 2.5) need only text and its log-probability.
:func:`thorough` has every candidate scored under every branch, so that

    log p(y|x) = logsumexp_z( log pi_z + log p(y|x,z) )        and the posterior of z are exact;

:func:`fast` takes p(y|x,z) for 0 where branch z did not find y: a lower bound, and the weights are approximate. Without
log-probabilities there is no mixture, and :func:`written` reads the markers that a generator wrote, which are no
probabilities.

Branches may cut the same text into different tokens. Their log-probabilities are added up between the places where all
of them have a cut, so that p(y|x,z) stays what it was. How probable it is that the answer ends is often not known for
every branch: then the rows are those of the text without its end, and the end counts only in the ranking, as a lower
bound in which a branch with an unknown end has no share.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio.answer import Sentence
from bifolio.cite import Cited, cite
from bifolio.errors import UsageError
from bifolio.hypotheses import Decoded, Mixture, constant
from bifolio.marginal import logsumexp
from bifolio.passagewise import decoded
from bifolio.protocols import TextCandidate
from bifolio.segments import SentenceBoundary

_MARKER = re.compile(r"\s*\[\s*(\d{1,4}(?:\s*(?:[,;&]|[-–])\s*\d{1,4})*)\s*\]")
_RANGE = re.compile(r"(\d+)\s*[-–]\s*(\d+)")


@dataclass(frozen=True)
class Weighed:
    """A candidate with its log-probability under every branch.

    Attributes:
        text: The answer as it was generated; :meth:`cited` takes off the white space around it.
        pieces: T stretches of it, joined they are ``text``.
        decoded: It as tokens 0 ... T-1, one a piece, and the token T for its end if ``ends``; one segment.
        finished: Whether it ended by itself.
        ends: Whether the end is among the tokens, known under every branch that can produce the text.
        at_least: Lower bound of log p(y|x) with its end, by which candidates are ranked.
        log_prior: (K,) log pi_z.
    """

    text: str
    pieces: tuple[str, ...]
    decoded: Decoded
    finished: bool
    ends: bool
    at_least: float
    log_prior: Float[Tensor, " K"]

    def text_of(self, ids: Sequence[int]) -> str:
        """Text of some of the tokens of ``decoded``."""
        return "".join(self.pieces[i] for i in ids if i < len(self.pieces))

    def cited(self, *, no_passage: bool) -> Cited:
        """The answer's rows: sentences with ``evidence`` rows, tokens with blame (MATH section 3).

        Args:
            no_passage: Whether the last branch read no passage.
        """
        if self.decoded.tokens:
            return cite(self.decoded, "sequence", self.text_of, no_passage=no_passage)
        row = self.log_prior.exp().tolist()  # an answer without tokens has told nothing
        return Cited("", tuple(row[: len(row) - no_passage]), row[-1] if no_passage else None, None, (), ())


def thorough(log_prior: Float[Tensor, " K"], scored: Sequence[Sequence[TextCandidate]]) -> list[Weighed]:
    """Candidates with their exact log p(y|x), best first.

    Args:
        log_prior: Log pi_z.
        scored: For each branch the same answers, scored under it. One without log-probabilities under some branch is
            left out.

    Raises:
        UsageError: the branches have different answers, or not one list is given for each.
    """
    log_prior = _checked(log_prior, scored)
    if len({len(answers) for answers in scored}) > 1:
        raise UsageError("thorough needs the same answers scored under every branch")
    weighed = []
    for answers in zip(*scored, strict=True):
        if len({answer.text for answer in answers}) > 1:
            raise UsageError("thorough needs the same answers, in the same order, scored under every branch")
        if all(answer.log_probs is not None for answer in answers):
            weighed.append(_weigh(log_prior, dict(enumerate(answers))))
    return _ranked(weighed)


def fast(log_prior: Float[Tensor, " K"], found: Sequence[Sequence[TextCandidate]]) -> list[Weighed]:
    """Candidates with a lower bound of log p(y|x), best first: p(y|x,z) = 0 where branch z did not find y.

    Args:
        log_prior: Log pi_z.
        found: For each branch its own answers. Those without log-probabilities are left out.

    Raises:
        UsageError: not one list is given for each branch.
    """
    log_prior = _checked(log_prior, found)
    table: dict[str, dict[int, TextCandidate]] = {}
    for z, answers in enumerate(found):
        for answer in answers:
            if answer.log_probs is None:
                continue
            table.setdefault(answer.text, {}).setdefault(z, answer)
    return _ranked([_weigh(log_prior, answers) for answers in table.values()])


def _checked(log_prior: Float[Tensor, " K"], branches: Sequence[Sequence[TextCandidate]]) -> Float[Tensor, " K"]:
    if log_prior.ndim != 1 or not len(log_prior) or len(log_prior) != len(branches):
        raise UsageError(
            f"log_prior has shape {tuple(log_prior.shape)} beside {len(branches)} branches: expected one value a branch"
        )
    if not bool((log_prior < torch.inf).all() & (log_prior > -torch.inf).any()):  # also where there is NaN
        raise UsageError(f"log_prior {log_prior.tolist()}: expected logarithms, and one branch with a probability")
    return torch.log_softmax(log_prior.double(), dim=0)


def _weigh(log_prior: Float[Tensor, " K"], answers: dict[int, TextCandidate]) -> Weighed:
    """A candidate from its log-probabilities under the branches that have any for it; impossible under the others."""
    text = next(iter(answers.values())).text
    cuts = {z: _cuts(answer) for z, answer in answers.items()}
    common = sorted(set.intersection(*(set(cut) for cut in cuts.values())) - {0} | {len(text)})
    width = len(common)
    rows = log_prior.new_full((len(log_prior), width + 1), -torch.inf)
    for z, answer in answers.items():
        rows[z] = 0.0
        for cut, log_prob in zip(cuts[z], answer.log_probs or (), strict=True):
            rows[z, bisect_left(common, cut)] += log_prob
    finished = any(answer.finished for answer in answers.values())
    known = {z: answer.end_log_prob for z, answer in answers.items() if answer.end_log_prob is not None}
    ends = finished and len(known) == len(answers)
    for z, log_end in known.items():
        rows[z, width] = log_end
    closing = torch.stack([rows[z, width] if z in known else rows.new_tensor(-torch.inf) for z in range(len(rows))])
    whole = rows[:, :width].sum(1) + (closing if finished else 0.0)
    at_least = float(logsumexp((log_prior + whole)[None], 1))
    # An empty text is no piece of its own; what its tokens said is in the end.
    pieces = tuple(text[a:b] for a, b in zip([0, *common], common, strict=False)) if text else ()
    if not text:
        rows = torch.cat([rows[:, :0], rows[:, :width].sum(1, keepdim=True) + rows[:, width:]], dim=1)
    if not ends:
        rows = rows[:, : len(pieces)]
    mixture = Mixture(constant(log_prior), lambda prefix: False, len(pieces))
    made = decoded(range(rows.shape[1]), rows, mixture) if rows.shape[1] else _nothing(log_prior)
    return Weighed(text, pieces, made, finished, ends, at_least, log_prior)


def _nothing(log_prior: Float[Tensor, " K"]) -> Decoded:
    """An answer without a token."""
    empty = log_prior.new_zeros((len(log_prior), 0))
    return Decoded((), empty[0], empty, empty.T, (), False)


def _cuts(answer: TextCandidate) -> list[int]:
    """Where each piece ends in the text.

    Raises:
        UsageError: the pieces are not the text, or do not have one log-probability each.
    """
    if "".join(answer.pieces) != answer.text or len(answer.log_probs or ()) != len(answer.pieces):
        raise UsageError(f"a candidate's pieces are not its text, or not as many as its log-probabilities: {answer!r}")
    return list(accumulate(map(len, answer.pieces)))


def _ranked(weighed: Sequence[Weighed]) -> list[Weighed]:
    """Finished answers first, then by the lower bound with the end, then by what is known without it."""

    def order(one: Weighed) -> tuple[bool, bool, float, float]:
        return (not one.finished, not one.ends and not one.text.strip(), -one.at_least, -one.decoded.log_prob)

    return sorted(weighed, key=order)


class Written(NamedTuple):
    """A text and the markers that its author put into it.

    Attributes:
        text: Without the markers.
        sentences: Its sentences with the passages' numbers, and without any weight.
        unknown: Numbers of passages that there are not.
    """

    text: str
    sentences: tuple[Sentence, ...]
    unknown: tuple[int, ...]


def written(raw: str, passages: int) -> Written:
    """Take the markers ``[1]``, ``[1][2]``, ``[1, 3]`` and ``[1-3]`` out of a text that cites passages from 1 on.

    A number in brackets that is no passage's stays in the text where it is above 99, as years are.
    """
    parts: list[str] = []
    found: list[tuple[int, int]] = []  # (characters of the text before the marker, number)
    unknown: list[int] = []
    done = length = 0
    raw = raw.strip()
    for match in _MARKER.finditer(raw):
        numbers = _numbers(match.group(1), passages)
        if max(numbers) > max(99, passages):
            continue
        parts.append(raw[done : match.start()])
        length += len(parts[-1])
        done = match.end()
        found += [(length, number) for number in numbers if 1 <= number <= passages]
        unknown += [number for number in numbers if not 1 <= number <= passages]
    text = "".join([*parts, raw[done:]])
    indent = len(text) - len(text.lstrip())
    text = text.strip()
    spans = sentence_spans(text)
    markers: list[list[int]] = [[] for _ in spans]
    for at, number in found if spans else ():
        mine = max((i for i, span in enumerate(spans) if span[0] < max(at - indent, 1)), default=0)
        if number not in markers[mine]:
            markers[mine].append(number)
    sentences = tuple(
        Sentence(text[a:b], (a, b), (), None, "marker", tuple(numbers))
        for (a, b), numbers in zip(spans, markers, strict=True)
    )
    return Written(text, sentences, tuple(dict.fromkeys(unknown)))


def _numbers(inside: str, passages: int) -> list[int]:
    """Numbers in a marker, ranges of passages written out."""
    numbers: list[int] = []
    for part in re.split(r"\s*[,;&]\s*", inside):
        span = _RANGE.fullmatch(part)
        if span and 1 <= int(span[1]) <= int(span[2]) <= passages:
            numbers += range(int(span[1]), int(span[2]) + 1)
        else:
            numbers += [int(number) for number in re.findall(r"\d+", part)]
    return list(dict.fromkeys(numbers))


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text stand, without white space around them."""
    words = re.findall(r"\s*\S+", text)
    ends = list(accumulate(map(len, words), initial=0))
    cuts = SentenceBoundary(lambda ids: text[: ends[len(ids)]]).ends(tuple(range(len(words))))
    spans = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        body = text[start:end]
        if body.strip():
            start += len(body) - len(body.lstrip())
            spans.append((start, start + len(body.strip())))
    return spans
