"""Decoding the mixture exactly: one beam search, or one sample, whatever the scheme.

The paper notes that RAG-Sequence's likelihood "does not break into a conventional per-token likelihood" (section 2.5)
and searches every passage on its own. With the weights w of :mod:`bifolio.marginal` it does break: each hypothesis
carries its own log w, its next-token distribution is ``logsumexp_z(log w_z + l_z)``, and Bayes' rule updates w. So
greedy search, beam search and sampling are the ordinary ones, and their scores are exact log-likelihoods. (The same
update was published for visual question answering as BERAG, arXiv:2604.22678.) The scores are exact; the search is
still a search.

A search is a coroutine: it yields a :class:`bifolio.protocols.Move` and is sent the log-probabilities after it.
:func:`run` drives the searches of many questions in lockstep, so that their branches share one batch. Nothing here
knows a model: it sees :class:`bifolio.protocols.Branches`, token ids, a prior and a boundary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bifolio import marginal
from bifolio.errors import UsageError
from bifolio.hypotheses import Decoded, Live, Mixture, begin, done, extend, pick, reset
from bifolio.protocols import Branches, Move

Search = Generator["Move | None", Float[Tensor, "H K V"], list[Decoded]]
"""Yields None once, and is sent the first log-probabilities; then yields moves."""


def run(branches: Branches, searches: Sequence[Search]) -> list[list[Decoded]]:
    """Run one search a question, all in lockstep; the answers of each, best first.

    Raises:
        UsageError: an option is out of range, or no continuation has any probability.
    """
    results: list[list[Decoded] | None] = [None] * len(searches)
    for search in searches:
        next(search)
    given = branches.start()
    while True:
        moves = []
        for q, search in enumerate(searches):
            move: Move | None = Move([], [])
            if results[q] is None:
                try:
                    move = search.send(given[q])
                except StopIteration as stop:
                    results[q] = stop.value
            moves.append(move or Move([], []))
        if not any(move.parents for move in moves):
            return [result or [] for result in results]
        given = branches.advance(moves)


def rank_score(answer: Decoded, length_penalty: float) -> float:
    """What beam search ranks by: log p(y|x) / T^length_penalty. With 0, the default, it is the log-likelihood."""
    return float(answer.log_prob / max(len(answer.tokens), 1) ** length_penalty)


def ranked(answers: Sequence[Decoded], length_penalty: float = 0.0) -> list[Decoded]:
    """Best first; those that ``max_tokens`` cut come after all finished ones; equal token ids only once."""
    unique: dict[tuple[int, ...], Decoded] = {}
    for answer in answers:
        known = unique.get(answer.tokens)
        if known is None or answer.log_prob > known.log_prob:
            unique[answer.tokens] = answer
    return sorted(unique.values(), key=lambda answer: (not answer.finished, -rank_score(answer, length_penalty)))


def _check(max_tokens: int, beams: int, n_best: int, groups: int = 1) -> None:
    if max_tokens < 1:
        raise UsageError(f"max_tokens {max_tokens}: expected at least 1")
    if beams < 1:
        raise UsageError(f"beam {beams}: expected at least 1")
    if not 1 <= n_best <= beams:
        raise UsageError(f"n_best {n_best}: expected 1 to the beam, {beams}")
    if not 1 <= groups <= beams or beams % groups:
        raise UsageError(f"{groups} groups: expected a number that divides the beam, {beams}")


NOTHING = "no answer has any probability: every continuation is impossible under every branch"


def _one_each(groups: Sequence[Sequence[Decoded]], count: int, length_penalty: float) -> list[Decoded]:
    """The best ``count`` answers, among them one that is new from every group as long as there is one."""
    chosen: dict[tuple[int, ...], Decoded] = {}
    for answers in groups:
        new = next((answer for answer in answers if answer.tokens not in chosen), None)
        if new is not None and len(chosen) < count:
            chosen[new.tokens] = new
    others = ranked([answer for answers in groups for answer in answers], length_penalty)
    for answer in others:
        if len(chosen) < count:
            chosen.setdefault(answer.tokens, answer)
    return ranked(list(chosen.values()), length_penalty)


class _Group:
    """Some of the beams, which compete only among themselves."""

    def __init__(self, beams: int, n_best: int, length_penalty: float, max_tokens: int) -> None:
        self._beams, self._n_best, self._penalty, self._max_tokens = beams, n_best, length_penalty, max_tokens
        self.rows = [0]
        self.closed = False
        self._finished: list[Decoded] = []

    def choose(self, step: _Step, taken: Counter[int], diversity: float) -> tuple[list[int], list[int]]:
        """Finish what ends now; parents and tokens of what goes on."""
        scores = step.scores[self.rows]
        for token, times in taken.items():
            scores[:, token] -= diversity * times
        ended, rows, tokens = _select(scores, self._beams, step.mixture.eos)
        if ended:
            over = [self.rows[row] for row in ended]
            last = extend(step.live, over, [step.mixture.eos] * len(over), step.mixed, step.log_probs)
            self._finished += [done(last, j, step.mixture, True) for j in range(len(over))]
            self._finished.sort(key=lambda answer: -rank_score(answer, self._penalty))
        return [self.rows[row] for row in rows], tokens

    def settle(self, live: Live, length: int) -> None:
        """Close if no live hypothesis can still overtake the ``n_best``-th finished one."""
        if not self.rows:
            self.closed = True
        elif len(self._finished) >= self._n_best:
            # Totals only fall, and dividing by a longer length only raises a negative score.
            total = float(live.total[self.rows].max())
            best = total / (self._max_tokens if self._penalty > 0 else length) ** self._penalty
            self.closed |= best <= rank_score(self._finished[self._n_best - 1], self._penalty)

    def cut(self, live: Live, mixture: Mixture) -> None:
        """The end of the room: what is still live is an answer without its end."""
        if not self.closed:
            self._finished += [done(live, row, mixture, False) for row in self.rows]

    def best(self) -> list[Decoded]:
        """The answers of this group, best first."""
        return ranked(self._finished, self._penalty)[: self._n_best]


@dataclass(frozen=True)
class _Step:
    """What is known when the next tokens are chosen."""

    mixture: Mixture
    live: Live
    log_probs: Float[Tensor, "H K V"]
    mixed: Float[Tensor, "H V"]

    @property
    def scores(self) -> Float[Tensor, "H V"]:
        """Log p(y_<=i | x) of every continuation."""
        return self.live.total[:, None] + self.mixed


def beam(
    mixture: Mixture,
    *,
    max_tokens: int,
    beams: int = 1,
    n_best: int = 1,
    length_penalty: float = 0.0,
    groups: int = 1,
    diversity: float = 0.0,
    may_fail: bool = False,
) -> Search:
    """The best answers found, best first; with one beam it is greedy search.

    A hypothesis that ends with EOS is kept if it is among the ``beams`` best continuations of its step. The search
    stops when no live hypothesis can still overtake the ``n_best``-th finished one, so that what it returns is what
    an unlimited search with these beams would. Answers that ``max_tokens`` cut come after all finished ones.

    With ``groups`` > 1 it is diverse beam search (Vijayakumar et al. 2018, arXiv:1610.02424, Hamming diversity): the
    groups choose one after the other, and a token loses ``diversity`` nats for every earlier group that took it at
    this step (ending is not discouraged). Only the choice is changed by that, never a score that is reported.

    Raises:
        UsageError: a count is below 1 or does not fit the others, or no continuation has any probability (then the
            result is empty if the search ``may_fail``).
    """
    _check(max_tokens, beams, n_best, groups)
    # Groups may find the same answers: each looks for as many as are asked for.
    teams = [_Group(beams // groups, n_best, length_penalty, max_tokens) for _ in range(groups)]
    live = begin(mixture)
    log_probs = yield None
    for step in range(1, max_tokens + 1):
        now = _Step(mixture, live, log_probs, marginal.mixture(live.log_w, log_probs))
        taken: Counter[int] = Counter()
        parents: list[int] = []
        tokens: list[int] = []
        for team in teams:
            rows, words = ([], []) if team.closed else team.choose(now, taken, diversity)
            team.rows = list(range(len(parents), len(parents) + len(rows)))
            taken.update(set(words))
            parents += rows
            tokens += words
        if not parents:
            break
        live = extend(live, parents, tokens, now.mixed, log_probs)
        for team in teams:
            team.settle(live, step)
        if all(team.closed for team in teams):
            break
        if step == max_tokens:
            for team in teams:
                team.cut(live, mixture)
            break
        live = reset(live, mixture)
        log_probs = yield Move(parents, tokens)
    found = _one_each([team.best() for team in teams], n_best, length_penalty)
    if not found and not may_fail:
        raise UsageError(NOTHING)
    return found


def _select(scores: Float[Tensor, "H V"], beams: int, eos: int) -> tuple[list[int], list[int], list[int]]:
    """The best continuations: rows that end now, and up to ``beams`` (row, token) pairs that go on."""
    width = scores.shape[1]
    # Each row has one EOS, so 2 * beams candidates always hold `beams` that go on.
    best, flat = scores.flatten().topk(min(2 * beams, scores.numel()))
    ended: list[int] = []
    parents: list[int] = []
    tokens: list[int] = []
    for place, (score, index) in enumerate(zip(best.tolist(), flat.tolist(), strict=True)):
        row, token = divmod(index, width)
        if score == -float("inf"):
            break
        if token == eos:
            if place < beams:
                ended.append(row)
        elif len(parents) < beams:
            parents.append(row)
            tokens.append(token)
    return ended, parents, tokens


def draw(
    mixture: Mixture,
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    n_best: int = 1,
) -> Search:
    """``n_best`` answers drawn from the mixture, independently, finished ones first, by their log p(y|x).

    Draws may coincide; the first is the best of them, and a sample only if ``n_best`` is 1.

    ``temperature`` and ``top_p`` shape what is drawn; the log-probabilities reported and w stay the model's own. The
    same seed gives the same answers.

    Raises:
        UsageError: an option is out of range, or no continuation has any probability.
    """
    _check(max_tokens, n_best, n_best)
    if not 0 < temperature < float("inf"):
        raise UsageError(
            f"temperature {temperature}: expected a finite number above 0 (leave it out for greedy search)"
        )
    if not 0 < top_p <= 1:
        raise UsageError(f"top_p {top_p}: expected a number above 0 and at most 1")
    dice = torch.Generator(device="cpu").manual_seed(seed)
    live = begin(mixture)
    log_probs = yield None
    parents = [0] * n_best
    drawn: list[Decoded] = []
    for step in range(1, max_tokens + 1):
        mixed = marginal.mixture(live.log_w, log_probs)
        tokens = [_draw(mixed[row].cpu().double(), temperature, top_p, dice) for row in parents]
        live = extend(live, parents, tokens, mixed, log_probs)
        over = [j for j, token in enumerate(tokens) if token == mixture.eos or step == max_tokens]
        drawn += [done(live, j, mixture, tokens[j] == mixture.eos) for j in over]
        going = [j for j in range(len(tokens)) if j not in over]
        if not going:
            break
        log_probs = yield Move([parents[j] for j in going], [tokens[j] for j in going])
        live = reset(pick(live, going), mixture)
        parents = list(range(len(going)))
    return sorted(drawn, key=lambda answer: (not answer.finished, -answer.log_prob))


def _draw(log_p: Float[Tensor, " V"], temperature: float, top_p: float, dice: torch.Generator) -> int:
    weights = _truncate(log_p, temperature, top_p)
    if not float(weights.sum()) > 0:
        raise UsageError(NOTHING)
    return int(torch.multinomial(weights, 1, generator=dice))


def _truncate(log_p: Float[Tensor, " V"], temperature: float, top_p: float) -> Float[Tensor, " V"]:
    """Weights to draw from: tempered, and only the smallest set of tokens that holds ``top_p`` of the mass."""
    if bool((log_p == -torch.inf).all()):
        return torch.zeros_like(log_p)
    probability = torch.softmax((log_p - log_p.max()) / temperature, dim=0)  # tiny temperatures must not overflow
    if top_p >= 1:
        return probability
    ordered, order = probability.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    return torch.zeros_like(probability).scatter(0, order, torch.where(before < top_p, ordered, 0.0))
