"""Rag with an encoder and a generator that can be followed by hand: every option reaches what it is for."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from bifolio import Collection, Rag, marginal
from bifolio.errors import UsageError
from bifolio.options import BifolioWarning
from bifolio.protocols import Reading
from bifolio.segments import boundary, segment_ids
from fakes import FakeEncoder, FakeGenerator, write_files

TEXTS = {
    "cat.txt": "the cat sat on the mat\n",
    "dog.txt": "the dog ran to the park\n",
    "sea.txt": "a wide sea of salt\n",
}
VOCABULARY = " ".join(TEXTS.values())
QUESTION = "where sat the cat"


@pytest.fixture
def collection(tmp_path):
    with Collection.build([write_files(tmp_path / "docs", TEXTS)], tmp_path / "c", encoder=encoder()) as built:
        yield built


def encoder(**options):
    return FakeEncoder(**{"no_passage_logit": 1.5, **options})


def generator(**options):
    return FakeGenerator(VOCABULARY, **options)


def expected_prior(collection, k, no_passage=True):
    hits = collection.retrieve(QUESTION, k, mode="dense")
    logits = [10 * hit.score for hit in hits] + [1.5] * no_passage
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def rescored(rag, answer, k, scheme, no_passage=True):
    """log p(y|x) of an answer from the branches' own scores, and the same problem's tensors."""
    hits = rag.collection.retrieve(QUESTION, k, mode="dense")
    reading = Reading(QUESTION, tuple(hit.passage for hit in hits), "long", 128, no_passage)
    branches = rag.generator.read([reading])
    ids = rag.generator.answer_ids(answer.text, style="long")
    prior = torch.tensor([expected_prior(rag.collection, k, no_passage)])
    segments = torch.tensor([segment_ids(ids, boundary(scheme, rag.generator.text))])
    return prior, branches.score([[ids]])[0][0][None], segments


@pytest.mark.parametrize("scheme", ["token", "sentence", "sequence"])
def test_an_answer_and_all_of_its_numbers(collection, scheme):
    rag = Rag(collection, generator=generator(), k=2, scheme=scheme, mode="dense")
    answer = rag.ask(QUESTION)
    assert answer.text == "the cat sat on the mat"
    assert [hit.passage.source.rsplit("/", 1)[-1] for hit in answer.hits] == ["cat.txt", "dog.txt"]
    prior = expected_prior(collection, 2)
    assert [hit.log_prior for hit in answer.hits] == pytest.approx(prior[:2], abs=1e-5)
    assert answer.no_passage_log_prior == pytest.approx(prior[2], abs=1e-5)
    problem = rescored(rag, answer, 2, scheme)
    assert answer.log_prob == pytest.approx(float(marginal.segment_log_likelihood(*problem)), abs=1e-4)
    row = marginal.posterior(*problem)[0].tolist()
    assert [*answer.weights, answer.no_passage] == pytest.approx(row, abs=1e-5)
    assert answer.support == pytest.approx(1 - row[2], abs=1e-6)
    assert answer.evidence == pytest.approx(float(marginal.evidence(*problem)), abs=1e-4)
    assert sum(token.log_prob for token in answer.tokens) + answer.eos_log_prob == pytest.approx(answer.log_prob)
    assert answer.eos_log_prob < 0
    assert (answer.scheme, answer.decoder, answer.generation, answer.notes) == (scheme, "exact", "1", ())
    assert answer.model == {"generator": "fake-generator", "encoder": "fake-encoder-fake", "adapter": ""}
    assert answer.citations()[0].passage.text == "the cat sat on the mat"
    assert answer.citations(at_least=0.5) == answer.citations()[:1]


def test_without_the_no_passage_branch(collection):
    rag = Rag(collection, generator=generator(), no_passage=False, mode="dense")
    answer = rag.ask(QUESTION)
    assert (answer.no_passage, answer.no_passage_log_prior, answer.support, answer.evidence) == (None,) * 4
    assert sum(answer.weights) == pytest.approx(1)
    assert [hit.log_prior for hit in answer.hits] == pytest.approx(expected_prior(collection, 3, False), abs=1e-5)
    assert rag.generator.reads[-1][-1] is False


def test_an_encoder_without_a_constant_has_no_such_branch(tmp_path):
    docs = write_files(tmp_path / "docs", TEXTS)
    with Collection.build([docs], tmp_path / "c", encoder=encoder(no_passage_logit=None)) as collection:
        rag = Rag(collection, generator=generator())
        assert rag.ask(QUESTION).support is None
        with Collection.build([docs], tmp_path / "d", encoder=encoder(name="other")) as other:
            assert rag.with_collection(other).ask(QUESTION).support is not None


def test_options_reach_the_search(collection, monkeypatch):
    from bifolio import decode

    seen = {}
    real_search, real_sample = decode.beam, decode.draw

    def search(*arguments, **options):
        seen.update(options)
        return real_search(*arguments, **options)

    def sample(*arguments, **options):
        seen.update(options)
        return real_sample(*arguments, **options)

    monkeypatch.setattr(decode, "beam", search)
    monkeypatch.setattr(decode, "draw", sample)
    rag = Rag(collection, generator=generator())
    rag.ask(QUESTION, beam=3, length_penalty=0.5, max_tokens=9, style="short", k=1)
    plain = {"n_best": 1, "groups": 1, "diversity": 0.0}
    assert seen == {"beams": 3, "length_penalty": 0.5, "max_tokens": 9, **plain}
    assert rag.generator.reads[-1][2:4] == ("short", 9)
    assert len(rag.generator.reads[-1][1]) == 1
    seen.clear()
    rag.ask(QUESTION, temperature=0.7, top_p=0.9, seed=5)
    assert seen == {"max_tokens": 128, "temperature": 0.7, "top_p": 0.9, "seed": 5, "n_best": 1}


def test_sampling_tells_the_seed_and_draws_it_anew(collection):
    rag = Rag(collection, generator=generator(), temperature=2.0)
    answers = [rag.ask(QUESTION, max_tokens=6) for _ in range(6)]
    seeds = [int(note.removeprefix("sampled with seed ")) for a in answers for note in a.notes if "seed" in note]
    assert len(set(seeds)) == 6
    again = rag.ask(QUESTION, max_tokens=6, seed=seeds[0])
    assert (again.text, again.log_prob) == (answers[0].text, answers[0].log_prob)


def test_notes(collection):
    rag = Rag(collection, generator=generator(window=20), max_tokens=12)
    answer = rag.ask(QUESTION, max_tokens=12)
    assert answer.truncated == (True, True, True)  # 20 - 4 - 12 = 4 tokens are left for a passage
    assert [note for note in answer.notes if "4 of 6 tokens were read" in note and "cat.txt" in note]
    assert any(note == "5 passages were asked for and the collection has 3: all were read" for note in answer.notes)
    cut = Rag(collection, generator=generator()).ask(QUESTION, max_tokens=2, k=1)
    assert (cut.text, cut.eos_log_prob) == ("the cat", None)
    assert "the answer was cut after 2 tokens" in cut.notes
    assert cut.truncated == (False,)
    long = Rag(collection, generator=generator()).ask("where " * 70 + QUESTION, k=1)
    assert "the question has 74 tokens: only the first 64 were used to find passages" in long.notes


def test_another_collection_under_the_same_generator_and_options(collection, tmp_path):
    rag = Rag(collection, generator=generator(), k=1, scheme="sequence", no_passage=False)
    docs = write_files(tmp_path / "new", {"cat.txt": "the cat ran to the sea\n"})
    with Collection.build([docs], tmp_path / "d", encoder=encoder()) as other:
        swapped = rag.with_collection(other)
        assert swapped.options == rag.options
        answer = swapped.ask(QUESTION)
        assert (answer.text, answer.scheme, len(answer.hits), answer.support) == (
            "the cat ran to the sea",
            "sequence",
            1,
            None,
        )
        assert rag.ask(QUESTION).text == "the cat sat on the mat"


def test_a_language_warning_comes_once(tmp_path):
    docs = write_files(tmp_path / "docs", TEXTS)
    with Collection.build([docs], tmp_path / "c", encoder=encoder(languages=("en",))) as collection:
        rag = Rag(collection, generator=generator())
        with pytest.warns(BifolioWarning, match="looks like German, and the encoder fake-encoder-fake was made for en"):
            rag.ask("Wo ist die Katze und was macht der Hund?")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rag.ask("Wo ist die Katze und was macht der Hund?")
            Rag(collection, generator=generator()).ask(QUESTION)


@pytest.mark.parametrize(
    ("question", "options", "message"),
    [
        (" \n", {}, "question is empty"),
        (7, {}, "question 7: expected a text"),
        (QUESTION, {"speed": 9}, "unknown option speed: expected one of k, mode"),
        (QUESTION, {"k": 0}, "k 0"),
        (QUESTION, {"k": 2.5}, "k 2.5"),
        (QUESTION, {"beam": True}, "beam True"),
        (QUESTION, {"scheme": "word"}, "unknown scheme 'word'"),
        (QUESTION, {"style": "epic"}, "unknown style 'epic'"),
        (QUESTION, {"seed": 1}, "seed 1 has no effect without a temperature"),
        (QUESTION, {"top_p": 0.5}, "top_p 0.5 has no effect"),
        (QUESTION, {"temperature": 1.0, "seed": 1.5}, "seed 1.5"),
        (QUESTION, {"temperature": 1.0, "seed": -1}, "seed -1"),
        (QUESTION, {"temperature": "1"}, "temperature '1'"),
        (QUESTION, {"temperature": math.nan}, "temperature nan"),
        (QUESTION, {"temperature": 1.0, "top_p": 0.0}, "top_p 0.0"),
        (QUESTION, {"temperature": 1.0, "beam": 2}, "beam is for searching"),
        (QUESTION, {"length_penalty": -1.0}, "length_penalty -1.0"),
    ],
)
def test_what_cannot_be_asked_is_told_before_anything_is_computed(collection, question, options, message):
    rag = Rag(collection, generator=generator())
    with pytest.raises(UsageError, match=message):
        rag.ask(question, **options)
    assert rag.generator.reads == []


def test_many_threads_get_the_answers_of_one(collection):
    rag = Rag(collection, generator=generator())
    questions = ["where sat the cat", "where ran the dog", "what is a wide sea"]
    alone = [rag.ask(question) for question in questions]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda i: rag.ask(questions[i % 3]), range(30)))
    for i, answer in enumerate(found):
        assert (answer.text, answer.weights) == (alone[i % 3].text, alone[i % 3].weights)


def test_the_best_passage_is_the_nearest_by_brute_force(collection):
    question = collection.encoder.encode_questions([QUESTION])[0]
    passages = list(collection.passages())
    scores = collection.encoder.encode_passages(passages) @ question
    order = np.argsort(-scores)
    assert [hit.passage.id for hit in collection.retrieve(QUESTION, 3, mode="dense")] == [passages[i].id for i in order]
