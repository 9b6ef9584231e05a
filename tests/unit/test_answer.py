"""Answers: markers, citations, JSON."""

import json
import math
from dataclasses import replace

import pytest

from bifolio.answer import Answer, Sentence, Timings, Token, cited, finite, hit_facts, number_markers
from bifolio.types import Hit, Passage


def passage(name):
    return Passage(
        name, f"Text of {name}.", "Title", "Title > Part", "m.md", f"m.md:{name[1:]}", (3, 15), {"year": 1999}
    )


def sentence(text, start, weights, markers=(), no_passage=None):
    return Sentence(text, (start, start + len(text)), weights, no_passage, "posterior", markers)


def answer(*parts, k=3, gap=" ", **changes):
    """An answer of sentences ``(text, weights)``, numbered as cite does."""
    rows = tuple(weights for _, weights in parts)
    numbers = number_markers(rows, k)
    sentences, at = [], 0
    for text, weights in parts:
        sentences.append(sentence(text, at, weights, tuple(numbers[z] for z in cited(weights))))
        at += len(text) + len(gap)
    fields = {
        "question": "Which?",
        "text": gap.join(text for text, _ in parts),
        "hits": tuple(Hit(passage(f"p{z}"), 0.5 - z / 10, math.log(1 / k)) for z in range(k)),
        "weights": tuple([1 / k] * k),
        "no_passage": None,
        "no_passage_log_prior": None,
        "sentences": tuple(sentences),
        "tokens": (),
        "truncated": (False,) * k,
        "log_prob": -1.25,
        "eos_log_prob": -0.25,
        "scheme": "sentence",
        "model": {"generator": "g", "encoder": "e", "adapter": ""},
    }
    return Answer(**{**fields, **changes})


def test_passages_are_numbered_as_they_are_cited():
    made = answer(("One.", (0.2, 0.05, 0.75)), ("Two.", (0.02, 0.97, 0.01)), ("Three.", (0.1, 0.9, 0.0)))
    assert made.markers == (2, 3, 1)
    assert [s.markers for s in made.sentences] == [(1, 2), (3,), (3, 2)]
    assert made.marked() == "One [1][2]. Two [3]. Three [3][2]."


def test_a_tenth_is_enough_and_less_is_not():
    made = answer(("One.", (0.1, 0.0999, 0.8)))
    assert (made.markers, made.marked()) == ((2, None, 1), "One [1][2].")
    nobody = answer(("One.", (0.05, 0.05, 0.05)))
    assert (nobody.markers, nobody.marked()) == ((None, None, None), "One.")
    assert [c.marker for c in nobody.citations()] == [None, None, None]


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Close it.", "Close it [1]."),
        ("Close it", "Close it [1]"),
        ("Close it?!", "Close it [1]?!"),
        ('He said "close it."', 'He said "close it [1]."'),
        ("He did (at once!)", "He did (at once [1]!)"),
        ("关上阀门。", "关上阀门 [1]。"),
        ("It is 3.14", "It is 3.14 [1]"),
        ("...", "... [1]"),
    ],
)
def test_markers_stand_before_what_ends_the_sentence(text, marked):
    assert answer((text, (0.9, 0.05, 0.05))).marked() == marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("See [3] and [12].", r"See \[3] and \[12] [1]."),
        ("See [3].", r"See \[3] [1]."),
        ("[1] and [a] and [] and [1, 2]", r"\[1] and [a] and [] and [1, 2] [1]"),
    ],
)
def test_a_literal_marker_is_told_from_ours(text, marked):
    assert answer((text, (0.9, 0.05, 0.05))).marked() == marked


def test_text_between_and_after_the_sentences_stays():
    made = answer(("One.", (0.9, 0.05, 0.05)), ("Two.", (0.9, 0.05, 0.05)), gap="\n\n[7]\n")
    assert made.marked() == "One [1].\n\n\\[7]\nTwo [1]."
    cut = replace(made, text=made.text + " and [8")
    assert cut.marked() == "One [1].\n\n\\[7]\nTwo [1]. and [8"


def test_citations_are_sorted_and_cut():
    made = answer(("One.", (0.2, 0.05, 0.75)), weights=(0.2, 0.05, 0.75), truncated=(True, False, False))
    assert [(c.passage.id, c.weight, c.marker, c.truncated) for c in made.citations()] == [
        ("p2", 0.75, 1, False),
        ("p0", 0.2, 2, True),
        ("p1", 0.05, None, False),
    ]
    assert [c.passage.id for c in made.citations(at_least=0.2)] == ["p2", "p0"]
    assert made.citations(at_least=0.8) == ()
    assert made.citations()[0].log_prior == math.log(1 / 3)


# INTERFACES.md, `ask`; what is beyond it is named, so that nothing is added without being seen.
TOP = (
    "question answer marked abstained log_prob eos_log_prob scheme decoder support evidence generation passages "
    "no_passage sentences tokens timings model"
).split()
BEYOND = {
    "top": ["alternatives", "basis", "cap", "notes"],
    "passage": ["cached", "duplicates", "log_likelihood", "score"],
}
PASSAGE = "marker id source place span heading text log_prior posterior truncated".split()
SENTENCE = "text span weights no_passage basis markers".split()
TOKEN = "text span log_prob weights no_passage".split()


def check_ask_document(document):
    """Keys and types of `ask --json`, and the sums that INTERFACES.md promises."""
    assert sorted(document) == sorted([*TOP, *BEYOND["top"]])
    assert sorted(document["timings"]) == ["decode_s", "prefill_s", "retrieve_s"]
    assert sorted(document["model"]) == ["adapter", "encoder", "generator"]
    for found in document["passages"]:
        assert sorted(found) == sorted([*PASSAGE, *BEYOND["passage"]])
        assert found["marker"] is None or found["marker"] >= 1
        assert len(found["span"]) == 2
    for kind, keys in (("sentences", SENTENCE), ("tokens", TOKEN)):
        for row in document[kind]:
            assert sorted(row) == sorted(keys)
            assert sum(row["weights"]) + (row["no_passage"] or 0) == pytest.approx(1, abs=1e-4)
            assert len(row["weights"]) == len(document["passages"])
            assert document["answer"][slice(*row["span"])] == row["text"]
    if document["passages"]:
        whole = sum(p["posterior"] for p in document["passages"]) + (document["no_passage"] or {}).get("posterior", 0)
        assert whole == pytest.approx(1, abs=1e-4)
    if document["no_passage"] is not None:
        assert sorted(document["no_passage"]) == ["log_prior", "posterior"]
    assert "".join(token["text"] for token in document["tokens"]) == document["answer"]
    json.dumps(document, allow_nan=False)


def test_the_document_has_what_the_interface_says():
    made = answer(
        ("One.", (0.5, 0.3, 0.1)),
        no_passage=0.1,
        no_passage_log_prior=-4.0,
        weights=(0.5, 0.3, 0.1),
        support=0.9,
        evidence=1.4,
        timings=Timings(0.12345678, 1, 2),
        generation="7",
        notes=("n",),
    )
    made = replace(
        made,
        sentences=(replace(made.sentences[0], no_passage=0.1),),
        tokens=(Token("One.", (0, 4), -0.5, (0.5, 0.3, 0.1), 0.1),),
    )
    document = made.to_dict()
    check_ask_document(document)
    assert document["passages"][1] == {
        "marker": 2,
        "id": "p1",
        "source": "m.md",
        "place": "m.md:1",
        "span": [3, 15],
        "heading": "Title > Part",
        "text": "Text of p1.",
        "score": 0.4,
        "log_prior": math.log(1 / 3),
        "duplicates": [],
        "posterior": 0.3,
        "truncated": False,
        "cached": False,
        "log_likelihood": None,
    }
    assert document["no_passage"] == {"log_prior": -4.0, "posterior": 0.1}
    assert document["sentences"] == [
        {
            "text": "One.",
            "span": [0, 4],
            "weights": [0.5, 0.3, 0.1],
            "no_passage": 0.1,
            "basis": "posterior",
            "markers": [1, 2, 3],
        }
    ]
    assert document["tokens"] == [
        {"text": "One.", "span": [0, 4], "log_prob": -0.5, "weights": [0.5, 0.3, 0.1], "no_passage": 0.1}
    ]
    assert document["timings"] == {"retrieve_s": 0.1235, "prefill_s": 1, "decode_s": 2}
    assert (document["marked"], document["support"], document["evidence"]) == ("One [1][2][3].", 0.9, 1.4)
    assert (document["generation"], document["notes"], document["decoder"]) == ("7", ["n"], "exact")


def test_a_hit_is_the_same_in_every_document():
    made = answer(("One.", (0.5, 0.3, 0.1)))
    for hit, shown in zip(made.hits, made.to_dict()["passages"], strict=True):
        own = ("marker", "posterior", "truncated", "cached", "log_likelihood")
        assert {key: shown[key] for key in shown if key not in own} == hit_facts(hit)
        assert list(hit_facts(hit)) == "id source place span heading text score log_prior duplicates".split()


def test_without_the_no_passage_branch_its_fields_are_null():
    document = answer(("One.", (0.5, 0.3, 0.2))).to_dict()
    assert [document[key] for key in ("no_passage", "support", "evidence")] == [None, None, None]
    assert document["sentences"][0]["no_passage"] is None


def test_an_empty_answer_is_a_document_too():
    made = answer(text="", eos_log_prob=None)
    document = made.to_dict()
    check_ask_document(document)
    assert (document["answer"], document["marked"], document["sentences"], document["tokens"]) == ("", "", [], [])
    assert document["eos_log_prob"] is None
    assert [p["marker"] for p in document["passages"]] == [None, None, None]


def test_numbers_that_json_lacks_are_null():
    made = answer(
        ("One.", (0.5, 0.3, 0.2)),
        log_prob=-math.inf,
        eos_log_prob=-math.inf,
        evidence=math.nan,
        tokens=(Token("One.", (0, 4), -math.inf, (0.5, 0.3, 0.2), None),),
    )
    document = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert [document[key] for key in ("log_prob", "eos_log_prob", "evidence")] == [None, None, None]
    assert document["tokens"][0]["log_prob"] is None
    assert [finite(x) for x in (math.nan, math.inf, 0.0, -1.5)] == [None, None, 0.0, -1.5]
