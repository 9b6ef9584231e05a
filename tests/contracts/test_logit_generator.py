"""What every generator with next-token distributions must do, in values against the plain model run row by row.

A generator of your own is added to ``logit_generator.py``.
"""

import pytest
import torch

from bifolio import decode, passagewise
from bifolio.errors import UsageError
from bifolio.hypotheses import Mixture, constant
from bifolio.protocols import Branches, LogitGenerator, Move, Reading, TrainableGenerator
from bifolio.segments import boundary
from contracts.logit_generator import ENCODER_DECODERS, NAMES, PASSAGES, READINGS, SHARED, subject

MOVES = [
    [Move([0, 0, 0], [5, 6, 7]), Move([0, 0], [8, 9]), Move([0], [5])],
    [Move([2, 0], [8, 9]), Move([1, 1], [7, 6]), Move([0, 0, 0, 0], [9, 8, 7, 6])],
    [Move([1, 0, 1, 0], [11, 12, 13, 14]), Move([], []), Move([3, 1], [5, 5])],
    [Move([3, 0], [9, 9]), Move([], []), Move([], [])],
    [Move([1, 0], [5, 6]), Move([], []), Move([], [])],
]
"""Beams fork, die and change places; the second question ends after two steps, the third after three."""


@pytest.fixture(scope="module", params=NAMES)
def one(request, tmp_path_factory):
    return subject(request.param, tmp_path_factory.mktemp(request.param))


def mixtures(generator, scheme, readings=READINGS):
    dice = torch.Generator().manual_seed(7)
    return [
        Mixture(
            constant(torch.log_softmax(torch.randn(size, generator=dice, dtype=torch.float64), dim=0)),
            boundary(scheme, generator.text),
            generator.spec.eos,
        )
        for size in (len(reading.passages) + reading.no_passage for reading in readings)
    ]


def step(live, move):
    return [(*live[parent], token) for parent, token in zip(move.parents, move.tokens, strict=True)]


def test_it_is_a_generator(one):
    assert isinstance(one.generator, LogitGenerator)
    assert isinstance(one.generator, TrainableGenerator)
    assert isinstance(one.generator.read(READINGS), Branches)


@pytest.mark.parametrize("family", NAMES)
def test_which_families_share_their_prompt(family, tmp_path):
    generator = subject(family, tmp_path).generator
    shared = generator._seq2seq.shared if family in ENCODER_DECODERS else generator._shared
    assert shared == (family in (*SHARED, *ENCODER_DECODERS))


def test_first_tokens_are_those_of_each_prompt_read_alone(one):
    first = one.generator.read(READINGS).start()
    assert [tuple(rows.shape[:2]) for rows in first] == [(1, 4), (1, 1), (1, 2)]
    for rows, reading in zip(first, READINGS, strict=True):
        one.close(rows[0], one.log_probs(reading, ()))
        one.close(rows.exp().sum(-1), torch.ones(rows.shape[:2]))


def test_every_hypothesis_is_its_own_path_read_from_the_start(one):
    branches = one.generator.read(READINGS)
    branches.start()
    live = [[()] for _ in READINGS]
    for moves in MOVES:
        given = branches.advance(moves)
        for q, (rows, move, reading) in enumerate(zip(given, moves, READINGS, strict=True)):
            live[q] = step(live[q], move)
            assert rows.shape[:2] == (len(move.tokens), len(one.prompts(reading)))
            for h, answer in enumerate(live[q]):
                one.close(rows[h], one.log_probs(reading, answer))


def test_neighbours_in_the_batch_change_nothing(one):
    together = one.generator.read(READINGS)
    together.start()
    alone = [one.generator.read([reading]) for reading in READINGS]
    for moves in MOVES:
        for q, rows in enumerate(together.advance(moves)):
            if moves[q].parents:
                one.close(rows, alone[q].advance([moves[q]])[0])


def test_scoring_gives_what_advancing_gives_and_disturbs_nothing(one):
    branches = one.generator.read(READINGS)
    own = [[(5, 8, 9), (6,)], [], [(9, 5, 5, one.generator.spec.eos)]]
    first = branches.start()
    branches.advance(MOVES[0])
    scored = branches.score(own)
    assert [[tuple(rows.shape) for rows in mine] for mine in scored] == [[(4, 3), (4, 1)], [], [(2, 4)]]
    for mine, answers, reading in zip(scored, own, READINGS, strict=True):
        for rows, answer in zip(mine, answers, strict=True):
            for i, token in enumerate(answer):
                one.close(rows[:, i], one.log_probs(reading, answer[:i])[:, token])
    for rows, (hypothesis, q) in zip(branches.advance(MOVES[1]), [((7, 8), 0), ((9, 7), 1), ((5, 9), 2)], strict=True):
        one.close(rows[0], one.log_probs(READINGS[q], hypothesis))
    for again, before in zip(branches.start(), first, strict=True):
        one.close(again, before)


def test_an_answer_without_tokens_has_no_columns(one):
    ((nothing,),) = one.generator.read(READINGS[:1]).score([[[]]])
    assert nothing.shape == (4, 0)


def test_starting_after_tokens_is_advancing_by_them(one):
    branches = one.generator.read(READINGS)
    after = [(5, 6, 7), (8, 9, 5), (6, 6, 6)]
    for rows, reading, prefix in zip(branches.start(after), READINGS, after, strict=True):
        one.close(rows[0], one.log_probs(reading, prefix))
    going = branches.advance([Move([0, 0], [9, 8]), Move([0], [9]), Move([], [])])
    one.close(going[0][1], one.log_probs(READINGS[0], (5, 6, 7, 8)))
    one.close(going[1][0], one.log_probs(READINGS[1], (8, 9, 5, 9)))
    for rows, reading in zip(branches.start(), READINGS, strict=True):
        one.close(rows[0], one.log_probs(reading, ()))


def test_branches_apart_are_the_same_prompts(one):
    apart = one.generator.read(READINGS).apart()
    owners = [(q, z) for q, reading in enumerate(READINGS) for z in range(len(one.prompts(reading)))]
    kept = one.generator.read(READINGS).kept
    assert [[(k.read, k.whole) for k in mine] for mine in apart.kept] == [
        [(kept[q][z].read, kept[q][z].whole)] if z < len(kept[q]) else [] for q, z in owners
    ]
    for rows, (q, z) in zip(apart.start(), owners, strict=True):
        one.close(rows[0, 0], one.log_probs(READINGS[q], ())[z])
    moves = [Move([0], [5 + i]) if i != 2 else Move([], []) for i in range(len(owners))]
    for i, (rows, (q, z)) in enumerate(zip(apart.advance(moves), owners, strict=True)):
        if i != 2:
            one.close(rows[0, 0], one.log_probs(READINGS[q], (5 + i,))[z])


@pytest.mark.parametrize(("scheme", "beams"), [("token", 1), ("sentence", 3)])
def test_decoding_reports_what_scoring_gives_and_what_each_question_has_alone(one, scheme, beams):
    branches = one.generator.read(READINGS)
    wanted = mixtures(one.generator, scheme)
    options = {"max_tokens": 8, "beams": beams, "n_best": beams}
    found = decode.run(branches, [decode.beam(mixture, **options) for mixture in wanted])
    scored = passagewise.score(branches, wanted, [[answer.tokens for answer in mine] for mine in found])
    for q, (mine, again) in enumerate(zip(found, scored, strict=True)):
        (alone,) = decode.run(one.generator.read([READINGS[q]]), [decode.beam(wanted[q], **options)])
        assert [answer.tokens for answer in mine] == [answer.tokens for answer in alone]
        for answer, other, third in zip(mine, again, alone, strict=True):
            one.close(answer.token_log_probs, other.token_log_probs)
            one.close(answer.log_probs, other.log_probs)
            one.close(answer.log_probs, third.log_probs)
            assert (answer.segment_ids, answer.finished) == (other.segment_ids, other.finished)


def test_thorough_and_fast_are_beam_searches_of_each_passage_alone(one):
    beams = 2
    branches = one.generator.read(READINGS)
    wanted = mixtures(one.generator, "sequence")
    thorough = passagewise.thorough(branches, wanted, max_tokens=6, beams=beams)
    fast = passagewise.fast(branches, wanted, max_tokens=6, beams=beams)
    plain = Mixture(constant(torch.zeros(1)), lambda prefix: False, one.generator.spec.eos)
    for q, reading in enumerate(READINGS):
        alone = [Reading(reading.question, (p,), reading.style, reading.max_tokens) for p in reading.passages]
        alone += [Reading(reading.question, (), reading.style, reading.max_tokens, True)] * reading.no_passage
        own = [
            decode.run(one.generator.read([single]), [decode.beam(plain, max_tokens=6, beams=beams, n_best=beams)])[0]
            for single in alone
        ]
        candidates = {answer.tokens for answers in own for answer in answers}
        assert {answer.tokens for answer in thorough[q]} == candidates == {answer.tokens for answer in fast[q]}
        (exact,) = passagewise.score(one.generator.read([reading]), wanted[q : q + 1], [sorted(candidates)])
        likelihood = {answer.tokens: answer.log_prob for answer in exact}
        for answer in thorough[q]:
            assert answer.log_prob == pytest.approx(likelihood[answer.tokens], abs=10 * one.tolerance)
        prior = wanted[q].prior([()])[0]
        for answer in fast[q]:
            rows = [
                float(prior[z]) + found.log_prob
                for z, answers in enumerate(own)
                for found in answers
                if found.tokens == answer.tokens
            ]
            expected = float(torch.tensor(rows, dtype=torch.float64).logsumexp(0))
            assert answer.log_prob == pytest.approx(expected, abs=10 * one.tolerance)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"style": "epic"}, "unknown style 'epic'"), ({"passages": (), "no_passage": False}, "nothing to read")],
)
def test_bad_requests(one, changes, message):
    with pytest.raises(UsageError, match=message):
        one.generator.read(
            [Reading(**{"question": "?", "passages": PASSAGES, "style": "short", "max_tokens": 4} | changes)]
        )


def test_texts_come_back(one):
    ids = one.generator.answer_ids(" Close it. ", style="short")
    assert ids[-1] == one.generator.spec.eos
    assert ids.count(one.generator.spec.eos) == 1
    assert one.generator.text(ids).strip() == "Close it."


# ---- training ----

PAIRS = (Reading("Why?", PASSAGES[:2], "short", 8), Reading("Which valve is it?", PASSAGES[1:], "short", 8))


@pytest.fixture(scope="module", params=NAMES)
def trained(request, tmp_path_factory):
    return subject(request.param, tmp_path_factory.mktemp(request.param), trainable=True)


def test_training_likelihoods_are_those_of_scoring(trained):
    eos = trained.generator.spec.eos
    answers = [[5, 6, 7, eos], [8, eos]]
    log_p, mask = trained.generator.token_log_probs(PAIRS, answers)
    assert mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert log_p.requires_grad
    assert log_p[1, :, 2:].tolist() == [[0, 0], [0, 0]]
    scored = trained.generator.read(PAIRS).score([[answer] for answer in answers])
    for b, answer in enumerate(answers):
        trained.close(log_p[b, :, : len(answer)].detach(), scored[b][0])


def test_gradients_are_those_of_the_plain_model(trained):
    """One answer under one passage at a time, by transformers alone."""
    eos = trained.generator.spec.eos
    answers = [[5, 6, eos], [8, eos]]
    mine = trained.generator._model.get_input_embeddings().weight
    theirs = trained.plain.get_input_embeddings().weight
    mine.grad = theirs.grad = None
    weights = torch.tensor([0.3, 0.7], dtype=mine.dtype)
    (trained.generator.token_log_probs(PAIRS, answers)[0].sum(2) @ weights).sum().backward()
    for reading, answer in zip(PAIRS, answers, strict=True):
        for i, token in enumerate(answer):
            trained.log_probs(reading, tuple(answer[:i]), grad=True)[:, token].matmul(weights).backward()
    scale = float(theirs.grad.abs().max())
    assert scale > 0.1
    torch.testing.assert_close(mine.grad / scale, theirs.grad / scale, atol=max(1e-6, 10 * trained.tolerance), rtol=0)


@pytest.mark.parametrize("family", ["gpt2", "bart"])  # others have norms in float32
def test_gradients_are_finite_differences(family, tmp_path):
    generator = subject(family, tmp_path, trainable=True).generator
    answers = [[5, 6, generator.spec.eos], [8, generator.spec.eos]]
    weight = generator._model.get_input_embeddings().weight

    def total():
        return generator.token_log_probs(PAIRS, answers)[0].sum()

    total().backward()
    touched = generator.answer_ids("V", style="short")[-2]
    for place in [(touched, 3), (5, 0), (8, 1)]:
        epsilon = 1e-6
        with torch.no_grad():
            weight[place] += epsilon
            above = float(total())
            weight[place] -= 2 * epsilon
            below = float(total())
            weight[place] += epsilon
        assert float(weight.grad[place]) == pytest.approx((above - below) / (2 * epsilon), rel=1e-4, abs=1e-4)
        assert abs(float(weight.grad[place])) > 1e-6


def test_training_needs_equal_branches_and_an_answer_for_each(trained):
    for readings, answers in [(READINGS, [[5]] * 3), (PAIRS, [[5]]), (PAIRS, [[5], []])]:
        with pytest.raises(UsageError, match="equally many branches"):
            trained.generator.token_log_probs(readings, answers)


def test_a_generator_for_answering_is_not_trained(one):
    with pytest.raises(UsageError, match="trainable=True"):
        one.generator.token_log_probs(PAIRS, [[5], [6]])
