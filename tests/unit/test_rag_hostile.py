"""Odd input to Rag: a readable error, or the answer that is meant; and answers that do not depend on history."""

import math

import numpy as np
import pytest
import torch

import tiny
from bifolio import Rag
from bifolio.errors import UsageError
from bifolio.generators.causal import CausalGenerator
from bifolio.options import AskOptions
from bifolio.protocols import Reading
from bifolio.types import Passage
from fakes import FakeGenerator

QUESTION = "which valve"
OWN = [{"text": "the valve"}, {"text": "the cat sat"}]


def rag(**options):
    return Rag(generator=FakeGenerator("the valve cat sat"), **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_answer_does_not_depend_on_what_was_read_before(tmp_path, dtype):
    """In half precision a row depends on the shape of its batch: so what is kept is read alone."""
    generator = CausalGenerator(tiny.causal(tmp_path), dtype=dtype)
    texts = ["A cat.", "The valve closes at noon, and then it opens again." * 3, "x", "Oil is black and warm. " * 5]
    passages = tuple(Passage(str(i), text) for i, text in enumerate(texts))
    reading = Reading(QUESTION, passages, "short", 8, True)
    cold = generator.read([reading]).start()[0].clone()
    for order in ([0], [3, 1], [2, 0, 1]):
        generator.clear_cache()
        generator.warm([passages[i] for i in order], style="short")
        branches = generator.read([reading])
        assert [one.cached for one in branches.kept[0]] == [i in order for i in range(4)]
        assert torch.equal(branches.start()[0], cold)


def test_passages_are_cut_alike_whatever_the_answer(tmp_path):
    rag = Rag(generator=CausalGenerator(tiny.causal(tmp_path, window=200), dtype="float32"), max_tokens=32)
    long = [{"text": "The valve closes at noon. " * 20}]
    cut = rag.ask(QUESTION, passages=long).notes[0]
    assert "tokens were read" in cut
    for answer in ("V", "V x x x x x x"):
        assert rag.score(QUESTION, answer, passages=long).notes == (cut,)


@pytest.mark.parametrize("name", ["beam", "temperature", "decoder", "requery_retrieve"])
def test_a_loss_takes_no_options_of_decoding(name):
    value = {"beam": 2, "temperature": 1.0, "decoder": "fast", "requery_retrieve": True}[name]
    with pytest.raises(UsageError, match=f"{name}: an answer that is given is not decoded"):
        rag().loss([QUESTION], ["the"], passages=[OWN], **{name: value})


def test_questions_before_a_failure_of_the_caller_are_answered():
    class Broken(Exception):
        """The caller's own."""

    def questions():
        yield QUESTION
        yield "cat"
        raise Broken

    mine = rag()
    mine._find = lambda asked, chosen, passages=None: [mine._finder.given(q, OWN) for q in asked]
    stream = mine.ask_many(questions())
    assert [next(stream).question, next(stream).question] == [QUESTION, "cat"]
    with pytest.raises(Broken):
        next(stream)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rag().ask(QUESTION, passages=[{"text": "a\ud83d"}]), "its text is no text from character 2"),
        (lambda: rag().ask(QUESTION, passages=[Passage(None, None)]), "its id is None"),
        (lambda: rag().ask(QUESTION, passages=[{"text": "a", "score": 10**400}]), "expected a finite number"),
        (lambda: rag().ask(QUESTION, passages=OWN, decoder="concatenated"), "for the model of a server"),
        (lambda: rag().score(QUESTION, None, passages=OWN), "answer None: expected a text"),
        (lambda: rag().score(QUESTION, "a\ud83d", passages=OWN), "the answer is no text"),
        (lambda: rag().loss(["a", "b"], "bc"), "a list with one answer for each"),
        (lambda: rag().ask_many(None), "expected a list of questions"),
        (lambda: rag().warm("given-1"), "expected a list of passages"),
        (lambda: rag().warm([3]), "expected a Passage or an id"),
        (lambda: Rag("manuals", generator=FakeGenerator("a")), "expected a Collection"),
        (lambda: AskOptions(length_penalty=1e9), "from 0 to 10"),
        (lambda: AskOptions(length_penalty=None), "expected a number"),
        (lambda: AskOptions(diversity=None), "expected a number"),
        (lambda: AskOptions(seed=True, temperature=1.0), "seed True"),
    ],
)
def test_readable_errors(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_numbers_of_any_library_are_numbers():
    given = [{"text": "the valve", "score": np.float32(1)}, {"text": "the cat", "score": np.int64(0)}]
    answer = rag().ask(QUESTION, passages=given, beam=np.int64(2), length_penalty=np.float32(0))
    assert math.exp(answer.hits[0].log_prior) == pytest.approx(1 / (1 + math.exp(-1)))


def test_fewer_answers_than_asked_for_are_told():
    answer = rag().ask(QUESTION, passages=[{"text": "the valve"}], decoder="thorough", scheme="sequence", n_best=4)
    assert answer.alternatives == ()
    assert "4 answers were asked for and 1 were found" in answer.notes
