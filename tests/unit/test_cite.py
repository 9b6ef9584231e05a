"""Rows of citations, compared with MATH.md section 3 worked out by hand, in plain floats."""

import math

import pytest
import torch

from bifolio.cite import cite
from bifolio.hypotheses import Decoded
from bifolio.segments import SCHEMES, boundary, segment_ids
from toy import recursion

EOS = 0
TEXTS = {EOS: "", 1: " Close", 2: " it", 3: ".", 4: " Then", 5: " wait", 6: "\n", 7: " 3", 8: " ", 9: "[3]"}
PRIOR = [0.5, 0.3, 0.2]
TWO_SENTENCES = (1, 2, 3, 4, 5, 3, EOS)  # "Close it. Then wait."


def text_of(ids):
    return "".join(TEXTS[i] for i in ids)


def likelihoods(count, k=3):
    """l_z,i, the same in every run: branch 0 likes the first half, branch 1 the second."""
    table = [[0.9, 0.2, 0.4], [0.3, 0.8, 0.5], [0.4, 0.4, 0.1]]
    return [[math.log(table[z][(i // 3) % 3] * (0.9 - 0.05 * (i % 3))) for i in range(count)] for z in range(k)]


def decoded(tokens, scheme, prior=PRIOR, text=text_of):
    ids = tuple(segment_ids(tokens, boundary(scheme, text)))
    likelihood = likelihoods(len(tokens), len(prior))
    resets = [i > 0 and ids[i] != ids[i - 1] for i in range(len(tokens))]
    log_prior = [math.log(p) for p in prior]
    total, blames, rows = recursion(log_prior, likelihood, resets)
    mixed = [
        math.log(sum(w * math.exp(likelihood[z][i]) for z, w in enumerate(before)))
        for i, before in enumerate(prior if i == 0 or resets[i] else blames[i - 1] for i in range(len(tokens)))
    ]
    assert sum(mixed) == pytest.approx(total)
    log_priors = torch.tensor(log_prior).expand(len(tokens), -1)
    made = Decoded(tokens, torch.tensor(mixed), torch.tensor(likelihood), log_priors, ids, tokens[-1:] == (EOS,))
    return made, blames, rows


def cited(tokens, scheme, no_passage=False, prior=PRIOR, text=text_of):
    made, blames, rows = decoded(tokens, scheme, prior, text)
    return cite(made, scheme, text, no_passage=no_passage), blames, rows


def normalised(row):
    return [value / sum(row) for value in row]


def alone(tokens, prior=PRIOR):
    """pi_z exp(sum of l_z,i over these places), normalised."""
    table = likelihoods(len(TWO_SENTENCES), len(prior))
    return normalised([prior[z] * math.exp(sum(table[z][i] for i in tokens)) for z in range(len(prior))])


def close(row, expected):
    assert list(row) == pytest.approx(expected, abs=1e-5)


def test_sentence_rows_are_the_posteriors_of_their_segments():
    found, _, rows = cited(TWO_SENTENCES, "sentence")
    assert [s.text for s in found.sentences] == ["Close it.", "Then wait."]
    assert [s.span for s in found.sentences] == [(0, 9), (10, 20)]
    assert {s.basis for s in found.sentences} == {"posterior"}
    close(found.sentences[0].weights, alone([0, 1, 2]))
    close(found.sentences[1].weights, alone([3, 4, 5]))
    close(found.sentences[0].weights, rows[0][0])
    # The whole answer: token-weighted mean over segments, EOS being one of its own.
    sizes = [3, 3, 1]
    close(
        found.row, [sum(n * row[z] for n, row in zip(sizes, [r for r, _ in rows], strict=True)) / 7 for z in range(3)]
    )
    assert [size for _, size in rows] == sizes


def test_sequence_rows_are_evidence_and_the_answer_has_the_posterior():
    found, _, rows = cited(TWO_SENTENCES, "sequence")
    assert {s.basis for s in found.sentences} == {"evidence"}
    close(found.sentences[0].weights, alone([0, 1, 2]))
    close(found.sentences[1].weights, alone([3, 4, 5]))
    close(found.row, alone(range(7)))
    assert len(rows) == 1


def test_token_rows_are_mean_blame():
    found, blames, _ = cited(TWO_SENTENCES, "token")
    assert {s.basis for s in found.sentences} == {"mean"}
    for row, places in zip(found.sentences, ([0, 1, 2], [3, 4, 5]), strict=True):
        close(row.weights, [sum(blames[i][z] for i in places) / 3 for z in range(3)])
    close(found.row, [sum(blames[i][z] for i in range(7)) / 7 for z in range(3)])
    for token, blame in zip(found.tokens, blames, strict=False):
        close(token.weights, blame)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("no_passage", [False, True])
def test_rows_sum_to_one_and_tokens_tile(scheme, no_passage):
    found, blames, _ = cited(TWO_SENTENCES, scheme, no_passage)
    k = 2 if no_passage else 3
    for row in (*found.sentences, *found.tokens):
        assert sum(row.weights) + (row.no_passage or 0) == pytest.approx(1, abs=1e-5)
        assert len(row.weights) == k
        assert (row.no_passage is None) != no_passage
        assert found.text[slice(*row.span)] == row.text
    assert sum(found.row) + (found.no_passage or 0) == pytest.approx(1, abs=1e-5)
    assert [t.text for t in found.tokens] == ["Close", " it", ".", " Then", " wait", "."]
    assert [t.span for t in found.tokens] == [(0, 5), (5, 8), (8, 9), (9, 14), (14, 19), (19, 20)]
    assert [t.no_passage for t in found.tokens] == (
        [pytest.approx(blame[2], abs=1e-5) for blame in blames[:6]] if no_passage else [None] * 6
    )


def test_without_the_no_passage_branch_there_is_no_evidence():
    found, *_ = cited(TWO_SENTENCES, "sequence")
    assert (found.no_passage, found.evidence) == (None, None)


def test_evidence_is_the_gain_over_the_closed_book():
    found, *_ = cited(TWO_SENTENCES, "sequence", no_passage=True)
    table = likelihoods(7)
    read = math.log(sum(p / 0.8 * math.exp(sum(table[z])) for z, p in enumerate(PRIOR[:2])))
    assert found.evidence == pytest.approx((read - sum(table[2])) / 7, abs=1e-5)


def test_the_closed_book_alone_has_no_evidence_and_no_weights():
    found, *_ = cited(TWO_SENTENCES, "sentence", no_passage=True, prior=[1.0])
    assert (found.row, found.no_passage, found.evidence) == ((), pytest.approx(1), None)
    assert [(s.weights, s.no_passage, s.markers) for s in found.sentences] == [((), pytest.approx(1), ())] * 2


def test_markers_are_numbered_over_the_sentences():
    found, *_ = cited(TWO_SENTENCES, "sentence")
    # 0.5 * 0.9^3, 0.3 * 0.3^3, 0.2 * 0.4^3 and 0.5 * 0.2^3, 0.3 * 0.8^3, 0.2 * 0.4^3, each row normalised
    close(found.sentences[0].weights, normalised([0.3645, 0.0081, 0.0128]))
    close(found.sentences[1].weights, normalised([0.004, 0.1536, 0.0128]))
    assert [s.markers for s in found.sentences] == [(1,), (2,)]


@pytest.mark.parametrize("tokens", [(EOS,), (6, EOS), (8, 6, EOS), (8,)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_empty_answer_has_a_row_and_nothing_else(tokens, scheme):
    found, *_ = cited(tokens, scheme)
    assert (found.text, found.sentences, found.tokens) == ("", (), ())
    assert sum(found.row) == pytest.approx(1, abs=1e-5)


def test_white_space_at_the_ends_belongs_to_the_nearest_token():
    tokens = (8, 1, 2, 3, 6, 6, EOS)
    found, blames, _ = cited(tokens, "sentence")
    assert found.text == "Close it."
    assert [(t.text, t.span) for t in found.tokens] == [("Close", (0, 5)), (" it", (5, 8)), (".", (8, 9))]
    close(found.tokens[2].weights, blames[3])  # not that of the new line, which is after a reset
    made, *_ = decoded(tokens, "sentence")
    assert sum(t.log_prob for t in found.tokens) == pytest.approx(float(made.log_probs[:6].sum()), abs=1e-5)


EMOJI = "🦉".encode()


def bytes_text(ids):
    """Token i > 0 is a byte, or a word."""
    pieces = [EMOJI[i - 10 : i - 9] if 10 <= i < 14 else TEXTS[i].encode() for i in ids]
    return b"".join(pieces).decode("utf-8", "replace")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bytes_of_one_character_are_one_row(scheme):
    tokens = (1, 8, 10, 11, 12, 13, 2, 3, EOS)
    found, blames, _ = cited(tokens, scheme, text=bytes_text)
    assert found.text == "Close 🦉 it."
    assert [t.text for t in found.tokens] == ["Close", " ", "🦉", " it", "."]
    assert [t.span for t in found.tokens] == [(0, 5), (5, 6), (6, 7), (7, 10), (10, 11)]
    owl = found.tokens[2]
    pieces = blames[2:6]
    forgets = scheme in ("token", "requery")
    close(owl.weights, [sum(b[z] for b in pieces) / 4 for z in range(3)] if forgets else pieces[-1])
    made, *_ = decoded(tokens, scheme, text=bytes_text)
    assert owl.log_prob == pytest.approx(float(made.log_probs[2:6].sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "text", "pieces"),
    [
        ((1, 8, 10, 11), "Close \ufffd", ["Close", " \ufffd"]),  # cut within a character
        ((10, 11), "\ufffd", ["\ufffd"]),
        ((10, 11, EOS), "\ufffd", ["\ufffd"]),
        ((11, 1, EOS), "\ufffd Close", ["\ufffd Close"]),
    ],
)
def test_broken_characters_are_tiled_too(tokens, text, pieces):
    found, *_ = cited(tokens, "sentence", text=bytes_text)
    assert found.text == text
    assert [t.text for t in found.tokens] == pieces
    assert [s.text for s in found.sentences] == [text]


def test_an_answer_cut_after_the_word_that_closed_a_sentence_has_a_row_for_that_word():
    tokens = (1, 2, 7, 3, 4)  # "Close it 3. Then": only "Then" shows that the sentence had ended
    found, _, rows = cited(tokens, "sentence")
    assert [s.text for s in found.sentences] == ["Close it 3.", "Then"]
    assert len(rows) == 1  # one segment, so neither sentence has a posterior of its own
    assert [s.basis for s in found.sentences] == ["evidence", "evidence"]
    close(found.sentences[0].weights, alone([0, 1, 2, 3]))
    close(found.sentences[1].weights, alone([4]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_look_ahead_never_gives_a_sentence_the_row_of_other_tokens(scheme):
    tokens = (1, 2, 7, 3, 4, 5, EOS)  # "Close it 3. Then wait": the segment ends after "Then", the sentence before it
    found, blames, _ = cited(tokens, scheme)
    assert [s.text for s in found.sentences] == ["Close it 3.", "Then wait"]
    basis = {"sentence": "evidence", "sequence": "evidence"}.get(scheme, "mean")
    for sentence, members in zip(found.sentences, [[0, 1, 2, 3], [4, 5]], strict=True):
        assert sentence.basis == basis
        mean = [sum(blames[i][z] for i in members) / len(members) for z in range(3)]
        close(sentence.weights, mean if basis == "mean" else alone(members))


def test_an_end_that_was_withdrawn_leaves_one_sentence_with_all_of_its_tokens():
    texts = {EOS: "", 1: " Edit", 2: " pg", 3: ".", 4: "conf", 5: " now"}

    def text(ids):
        return "".join(texts[i] for i in ids)

    found, _, rows = cited((1, 2, 3, 4, 5, EOS), "sentence", text=text)
    (sentence,) = found.sentences
    assert (sentence.text, sentence.basis) == ("Edit pg.conf now", "evidence")
    assert len(rows) == 2  # the reset after "pg." could not know better
    close(sentence.weights, alone([0, 1, 2, 3, 4]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_impossible_token_gives_no_nan(scheme):
    made, *_ = decoded(TWO_SENTENCES, scheme)
    made.token_log_probs[:, 4] = -math.inf
    made.log_probs[4] = -math.inf
    found = cite(made, scheme, text_of, no_passage=True)
    for row in (*found.sentences, *found.tokens):
        assert sum(row.weights) + row.no_passage == pytest.approx(1, abs=1e-5)


OTHERS = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]]


def requeried(every):
    """Two sentences under a prior that is another one for every segment; the rows of the segments by hand."""
    ids = tuple(i // every for i in range(len(TWO_SENTENCES)))
    table = likelihoods(len(ids))
    priors = [OTHERS[segment % 3] for segment in ids]
    rows, mixed, w = [], [], None
    for i, segment in enumerate(ids):
        if i == 0 or segment != ids[i - 1]:
            w = priors[i]
        joint = [w[z] * math.exp(table[z][i]) for z in range(3)]
        mixed.append(math.log(sum(joint)))
        w = normalised(joint)
        rows.append(w)
    made = Decoded(
        TWO_SENTENCES, torch.tensor(mixed), torch.tensor(table), torch.tensor(priors).log(), ids, finished=True
    )
    return cite(made, "requery", text_of, no_passage=False), rows


def test_a_renewed_prior_counts_in_the_segment_that_it_was_made_for():
    found, blames = requeried(3)  # each sentence is a segment, and EOS one of its own
    assert [s.basis for s in found.sentences] == ["posterior", "posterior"]
    table = likelihoods(7)
    for sentence, prior, places in zip(found.sentences, OTHERS, ([0, 1, 2], [3, 4, 5]), strict=False):
        close(sentence.weights, normalised([prior[z] * math.exp(sum(table[z][i] for i in places)) for z in range(3)]))
    ends = [blames[2], blames[5], blames[6]]
    close(found.row, [sum(n * row[z] for n, row in zip([3, 3, 1], ends, strict=True)) / 7 for z in range(3)])


@pytest.mark.parametrize("every", [1, 2, 4])
def test_sentences_that_are_no_segments_of_a_renewed_prior_have_mean_blame(every):
    found, blames = requeried(every)
    assert {s.basis for s in found.sentences} == {"mean"}
    for sentence, places in zip(found.sentences, ([0, 1, 2], [3, 4, 5]), strict=True):
        close(sentence.weights, [sum(blames[i][z] for i in places) / 3 for z in range(3)])
    for token, blame in zip(found.tokens, blames, strict=False):
        close(token.weights, blame)
