"""Ranking, hostile candidates, and the markers that a generator writes."""

import math

import pytest
import torch

from bifolio import text_mixture
from bifolio.errors import UsageError
from bifolio.protocols import TextCandidate

HALF = torch.log(torch.tensor([0.5, 0.5]))


def said(text, *log_probs, end=0.0, finished=True):
    """An answer of as many pieces as there are log-probabilities, the last one longer than the others."""
    cuts = [*range(len(log_probs)), len(text)] if log_probs else []
    pieces = tuple(text[a:b] for a, b in zip(cuts, cuts[1:], strict=False))
    return TextCandidate(text, pieces, tuple(log_probs), end, finished)


def texts(weighed):
    return [one.text for one in weighed]


def test_finished_answers_come_first_then_the_likelier():
    found = [
        [said("cut", -0.1, end=None, finished=False), said("far", -2.0)],
        [said("near", -1.0), said("nearer", -0.5, -0.25)],
    ]
    assert texts(text_mixture.fast(HALF, found)) == ["nearer", "near", "far", "cut"]


def test_an_empty_answer_does_not_win_because_its_end_is_not_known():
    found = [[said("", end=None), said("Paris", -0.5, end=None)], [said("Rome", -0.75, end=None)]]
    assert texts(text_mixture.fast(HALF, found)) == ["Paris", "Rome", ""]
    assert texts(text_mixture.fast(HALF, [[said("", end=-0.1)], [said("Rome", -0.75)]])) == ["", "Rome"]


def test_an_empty_answer_with_an_end_is_a_token_without_text():
    (one,) = text_mixture.thorough(HALF, [[said("", end=math.log(0.5))], [said("", end=math.log(0.25))]])
    assert one.decoded.log_prob == pytest.approx(math.log(0.375))
    rows = one.cited(no_passage=True)
    assert (rows.text, rows.sentences, rows.tokens) == ("", (), ())
    assert rows.row + (rows.no_passage,) == pytest.approx((2 / 3, 1 / 3))
    (one,) = text_mixture.thorough(HALF, [[said("", end=None)], [said("", end=-1.0)]])
    assert one.cited(no_passage=False).row == pytest.approx((0.5, 0.5))


def test_white_space_around_an_answer_is_not_shown_and_counts():
    branches = [[said(" \nParis ", -1.0, -0.5, -0.25)], [said(" \nParis ", -2.0, -0.5, -0.25)]]
    (one,) = text_mixture.fast(HALF, branches)
    rows = one.cited(no_passage=False)
    assert (rows.text, [token.text for token in rows.tokens]) == ("Paris", ["Paris"])
    assert one.decoded.token_log_probs.sum(1).tolist() == pytest.approx([-1.75, -2.75])
    (blank,) = text_mixture.fast(HALF, [[said(" ", -1.0)], []])
    assert blank.cited(no_passage=False).text == ""


def test_a_branch_that_found_an_answer_twice_counts_once():
    (one,) = text_mixture.fast(HALF, [[said("Paris", -1.0), said("Paris", -2.0)], []])
    assert one.decoded.token_log_probs[:, 0].tolist() == [-1.0, -math.inf]


def test_answers_without_log_probabilities_are_left_out():
    unknown = TextCandidate("Rome", ("Rome",), None, None, True)
    assert texts(text_mixture.fast(HALF, [[unknown], [said("Paris", -1.0)]])) == ["Paris"]
    assert text_mixture.fast(HALF, [[unknown], []]) == []
    assert texts(text_mixture.thorough(HALF, [[unknown, said("A", -1.0)], [said("Rome", -1.0), said("A", -2.0)]])) == [
        "A"
    ]


def test_an_answer_that_no_branch_can_give_keeps_the_prior():
    prior = torch.log(torch.tensor([0.75, 0.25]))
    (one,) = text_mixture.thorough(prior, [[said("x", -math.inf)], [said("x", -math.inf)]])
    assert one.decoded.log_prob == -math.inf
    assert one.cited(no_passage=False).row == pytest.approx((0.75, 0.25))


def test_sentences_have_what_they_alone_say():
    text = "The one closed. The two opened."
    first = TextCandidate(text, ("The one closed.", " The two opened."), (-1.0, -5.0), 0.0, True)
    second = TextCandidate(text, ("The one closed.", " The two opened."), (-4.0, -2.0), 0.0, True)
    (one,) = text_mixture.thorough(HALF, [[first], [second]])
    one_row, two_row = (sentence.weights for sentence in one.cited(no_passage=False).sentences)
    assert one_row == pytest.approx((1 / (1 + math.exp(-3)), 1 / (1 + math.exp(3))))
    assert two_row == pytest.approx((1 / (1 + math.exp(3)), 1 / (1 + math.exp(-3))))


@pytest.mark.parametrize(
    ("prior", "branches"),
    [
        (HALF, [[said("a", -1.0)]]),
        (torch.zeros(0), []),
        (torch.tensor([-math.inf, -math.inf]), [[said("a", -1.0)], [said("a", -1.0)]]),
        (torch.tensor([math.nan, 0.0]), [[said("a", -1.0)], [said("a", -1.0)]]),
        (HALF, [[TextCandidate("ab", ("a",), (-1.0,), None, True)], [said("ab", -1.0)]]),
        (HALF, [[TextCandidate("ab", ("a", "b"), (-1.0,), None, True)], [said("ab", -1.0)]]),
    ],
)
def test_what_fits_nothing_is_refused(prior, branches):
    with pytest.raises(UsageError):
        text_mixture.thorough(prior, branches)
    with pytest.raises(UsageError):
        text_mixture.fast(prior, branches)


def test_thorough_wants_the_same_answers_everywhere():
    with pytest.raises(UsageError, match="same answers"):
        text_mixture.thorough(HALF, [[said("a", -1.0)], [said("b", -1.0)]])
    with pytest.raises(UsageError, match="same answers"):
        text_mixture.thorough(HALF, [[said("a", -1.0)], []])


def marked(raw, passages=3):
    made = text_mixture.written(raw, passages)
    assert all(not s.weights and s.no_passage is None and s.basis == "marker" for s in made.sentences)
    return made.text, [(s.text, s.markers) for s in made.sentences], made.unknown


def test_markers_go_with_their_sentence():
    assert marked("It closes [1]. It opens. [2][3] It rests [1, 2].") == (
        "It closes. It opens. It rests.",
        [("It closes.", (1,)), ("It opens.", (2, 3)), ("It rests.", (1, 2))],
        (),
    )


@pytest.mark.parametrize(
    ("raw", "text", "markers"),
    [
        ("Yes [1-3].", "Yes.", (1, 2, 3)),
        ("Yes [ 2 ; 1 ]", "Yes", (2, 1)),
        ("[2] says yes.", "says yes.", (2,)),
        ("Yes [1][1] [1].", "Yes.", (1,)),
        ("Yes.", "Yes.", ()),
    ],
)
def test_forms_of_markers(raw, text, markers):
    assert marked(raw) == (text, [(text, markers)], ())


def test_passages_that_are_not_there_are_told_and_taken_out():
    assert marked("Yes [4] and [0]. No [2, 7].") == ("Yes and. No.", [("Yes and.", ()), ("No.", (2,))], (4, 0, 7))
    assert marked("Yes [3-99].") == ("Yes.", [("Yes.", (3,))], (99,))


def test_what_is_no_marker_stays():
    raw = "In [2019] x[i] = [a] and [1.5] held [] [99999999999]."
    assert marked(raw)[0] == raw
    assert marked("") == ("", [], ())
    assert marked("[1]") == ("", [], ())
