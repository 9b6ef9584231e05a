"""Losses, beams and thorough decoding against transformers' own RAG, on hundreds of random models (MATH section 5)."""

from itertools import product

import pytest
import torch

from bifolio import decode, marginal, passagewise
from bifolio.hypotheses import Mixture, constant
from bifolio.segments import boundary
from parity.reference import MAX_LENGTH, Counted, Unfinished, pair, problem

SHAPES = [
    ("bart", 16, 1, 2), ("bart", 16, 2, 4), ("bart", 24, 2, 3), ("bart", 32, 1, 2),
    ("t5", 16, 1, 2), ("t5", 24, 2, 3),
]  # fmt: skip
SEEDS = 40
"""Models of each shape: 240 in all."""
SEARCHED = 20
"""Of each shape: 120 models and searches."""
THOROUGH = 8


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def made(request, tmp_path_factory):
    return pair(tmp_path_factory.mktemp("reference"), *request.param)


def mixtures(made, given, scheme):
    return [
        Mixture(constant(prior), boundary(scheme, made.ours.text), made.eos)
        for prior in marginal.log_prior(given.scores)
    ]


def until_eos(made, rows):
    """Token rows of the reference without the decoder's start and without padding."""
    return [
        tuple(row[1 : row.index(made.eos, 1) + 1]) if made.eos in row[1:] else tuple(row[1:]) for row in rows.tolist()
    ]


@torch.no_grad()
def test_both_losses(made):
    for seed in range(SEEDS):
        made.redraw(seed)
        given = problem(made, seed)
        for reference, scheme in ((made.token, "token"), (made.sequence, "sequence")):
            theirs = reference(
                **made.tensors(given.contexts, given.scores), labels=made.labels(given.answers), n_docs=given.k
            ).loss
            ours = made.losses(given.contexts, given.scores, given.answers, scheme)
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def until_it_ends(made, seed, search, **settings):
    """A problem and what ``search`` makes of it; models are drawn, EOS ever likelier, until every search ends early."""
    given = problem(made, seed, **settings)
    for draw, ending in product(range(seed, seed + 8000, 1000), (1, 3, 8)):
        made.redraw(draw, ending=ending)
        try:
            return given, search(given, Counted(made.branches(given.contexts), MAX_LENGTH - 2))
        except Unfinished:
            continue
    raise AssertionError(f"seed {seed}: the searches do not end")


def test_beams_of_the_mixture_are_token_for_token_the_same(made):
    """Settings under which the reference's search is the canonical one, as ours is.

    ``early_stopping="never"`` with ``length_penalty=0.0`` stops it when no live beam can overtake the worst of
    ``num_beams`` finished ones (its default only guesses). Every search ends by itself before ``max_length``, where
    the reference lets unfinished answers compete with finished ones, and ours ranks them behind.
    """
    lengths = []
    for seed in range(SEARCHED):

        def search(given, branches):
            options = {"max_tokens": MAX_LENGTH - 1, "beams": given.beams, "n_best": given.beams}
            searches = [decode.beam(mixture, **options) for mixture in mixtures(made, given, "token")]
            return decode.run(branches, searches)

        given, ours = until_it_ends(made, seed, search)
        options = {"early_stopping": "never", "length_penalty": 0.0} if given.beams > 1 else {}
        theirs = made.token.generate(
            **made.tensors(given.contexts, given.scores), n_docs=given.k, num_beams=given.beams,
            num_return_sequences=given.beams, max_length=MAX_LENGTH, **options,
        )  # fmt: skip
        flat = [answer.tokens for mine in ours for answer in mine]
        assert flat == until_eos(made, theirs), seed
        lengths += map(len, flat)
    assert max(lengths) > 6


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def forced(request, tmp_path_factory):
    """BART as it is fine-tuned: BOS is always the first token."""
    first = {"forced_bos_token_id": 0} if request.param[0] == "bart" else {}
    return pair(tmp_path_factory.mktemp("reference"), *request.param, **first)


def test_thorough_decoding_ranks_all_candidates_the_same(forced):
    """Contexts without padding, which the reference's candidate pass would read (MATH section 6, fault 1).

    The reference leaves BOS out of a candidate's score where all candidates begin with it, which is the same where BOS
    is certain, as it is with BART here; and it cannot score answers of one token (fault 2) or with padding in them, so
    that no model is used that has one among its candidates.
    """
    bart = forced.theirs.config.model_type == "bart"
    count = 0
    for seed in range(THOROUGH):

        def search(given, branches):
            wanted = mixtures(forced, given, "sequence")
            found = passagewise.thorough(branches, wanted, max_tokens=MAX_LENGTH - 1, beams=given.beams)
            if any(len(answer.tokens) == 1 or forced.pad in answer.tokens for mine in found for answer in mine):
                raise Unfinished
            return found

        given, ours = until_it_ends(forced, seed, search, ragged=False, most=10 if bart else 4)
        beams = {"early_stopping": "never", "length_penalty": 0.0} if given.beams > 1 else {}
        forced.sequence.config.n_docs = given.k  # as an argument of generate it is forgotten on the way (fault 13)
        candidates = min(map(len, ours))
        theirs = forced.sequence.generate(
            **forced.tensors(given.contexts, given.scores), n_docs=given.k, num_beams=given.beams,
            num_return_sequences=candidates, max_length=MAX_LENGTH, **beams,
        )  # fmt: skip
        flat = [answer.tokens for mine in ours for answer in mine[:candidates]]
        assert flat == until_eos(forced, theirs), seed
        count += len(flat)
    assert count > 3 * THOROUGH
