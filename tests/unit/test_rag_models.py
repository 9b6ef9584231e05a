"""Rag with real, tiny models: types, trained weights, windows, and what must not be mixed up."""

import json
import random

import pytest
import torch

import tiny
from bifolio import Collection, Rag
from bifolio.errors import UsageError
from bifolio.generators import attention
from bifolio.generators.causal import CausalGenerator
from bifolio.generators.seq2seq import Seq2SeqGenerator
from bifolio.protocols import Move, Reading
from bifolio.types import Passage
from fakes import FakeEncoder, FakeGenerator, write_files

QUESTION = "Which valve closes?"
OWN = [{"title": "Valves", "text": "The valve closes. It is red."}, {"text": "A cat sat. Then it slept."}]
PASSAGES = tuple(Passage(str(i), one["text"], one.get("title", "")) for i, one in enumerate(OWN))


@pytest.mark.parametrize("scheme", ["token", "sentence", "sequence", "requery"])
def test_double_precision_all_the_way(tmp_path, scheme):
    docs = write_files(tmp_path / "docs")
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder(no_passage_logit=1.0)) as collection:
        rag = Rag(collection, generator=CausalGenerator(tiny.causal(tmp_path / "m"), dtype="float64"), max_tokens=12)
        answer = rag.ask(QUESTION, scheme=scheme, beam=2, k=2)
        again = rag.ask(QUESTION, scheme=scheme, beam=2, k=2, decoder="thorough")
        assert sum(answer.weights) + answer.no_passage == pytest.approx(1, abs=1e-9)
        assert again.log_prob == pytest.approx(again.log_prob)
        if scheme == "requery":
            assert rag.ask(QUESTION, scheme=scheme, requery_retrieve=True, k=2).hits


def test_trained_weights_are_read_with(tmp_path):
    generator = CausalGenerator(tiny.causal(tmp_path), dtype="float32", trainable=True)
    reading = Reading(QUESTION, PASSAGES, "short", 8, True)
    before = generator.read([reading]).start()[0].clone()
    assert all(one.cached for one in generator.read([reading]).kept[0])
    with torch.no_grad():
        for parameter in generator.module.parameters():
            parameter.mul_(1.3)
    branches = generator.read([reading])
    warm = branches.start()[0]
    assert not any(one.cached for one in branches.kept[0])
    generator.clear_cache()
    torch.testing.assert_close(generator.read([reading]).start()[0], warm)
    assert float((warm - before).abs().max()) > 0.1


def test_weights_to_be_trained_are_in_single_precision(tmp_path):
    assert CausalGenerator(tiny.causal(tmp_path / "a"), trainable=True).module.dtype == torch.float32
    assert Seq2SeqGenerator(tiny.seq2seq(tmp_path / "b"), trainable=True).module.dtype == torch.float32


@pytest.mark.parametrize("kind", [CausalGenerator, Seq2SeqGenerator])
def test_an_attention_that_computes_something_else_is_not_used(tmp_path, monkeypatch, kind):
    made = tiny.causal(tmp_path) if kind is CausalGenerator else tiny.seq2seq(tmp_path)
    expected = kind(made, dtype="float32").read([Reading(QUESTION, PASSAGES, "short", 8, False)]).start()[0]
    real = attention.attention
    monkeypatch.setattr(attention, "attention", lambda *a, **k: real(*a, **{**k, "scaling": 1.7}))
    generator = kind(made, dtype="float32")
    assert generator.module.config._attn_implementation != attention.NAME
    found = generator.read([Reading(QUESTION, PASSAGES, "short", 8, False)]).start()[0]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    monkeypatch.undo()
    attention.register()


@pytest.mark.parametrize("kind", [CausalGenerator, Seq2SeqGenerator])
def test_what_was_started_last_goes_on_and_nothing_else_by_mistake(tmp_path, kind):
    made = tiny.causal(tmp_path) if kind is CausalGenerator else tiny.seq2seq(tmp_path)
    generator = kind(made, dtype="float32")
    reading = [Reading(QUESTION, PASSAGES, "short", 8, False)]
    expected = generator.read(reading).advance([Move([0], [40])])[0].clone()
    branches = generator.read(reading)
    first = branches.start()[0].clone()
    parts = branches.apart()
    parts.start()
    alone = torch.cat(parts.advance([Move([0], [41]), Move([0], [40])]), dim=1)
    if kind is CausalGenerator:  # its runs share their columns
        with pytest.raises(RuntimeError, match="only the latest goes on"):
            branches.advance([Move([0], [40])])
    torch.testing.assert_close(branches.start()[0], first)
    together = branches.advance([Move([0], [40])])[0]
    torch.testing.assert_close(together, expected)
    torch.testing.assert_close(alone[0, 1], together[0, 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_no_input_is_longer_than_the_window(tmp_path, family):
    from bifolio.generators.seq2seq import Layout

    made = tiny.seq2seq(tmp_path, family=family, window=64)
    generator = Seq2SeqGenerator(made, dtype="float32", layout=Layout(max_length=64))
    dice = random.Random(0)

    def text(most):
        return "".join(dice.choices("abc de.", k=dice.randrange(most))).strip() or "x"

    for _ in range(400):
        question = text(70)
        passage = Passage("p", text(200), text(40))
        try:
            branches = generator.read([Reading(question, (passage,), "short", 4, False)])
        except UsageError as error:
            assert "leaves no room" in str(error)
            continue
        ids, kept = generator._input(passage, question)
        assert len(ids) <= 64
        assert 0 <= kept.read <= kept.whole
        words = generator._words.encode(question.replace("  ", " "), add_special_tokens=False).ids
        behind = words[1:]  # its first token may have merged with the blank before it
        assert ids[len(ids) - 1 - len(behind) : -1] == behind  # the question is whole
        assert branches.kept == ((kept,),)


def test_a_line_break_in_a_given_answer_is_a_blank(tmp_path):
    rag = Rag(generator=CausalGenerator(tiny.causal(tmp_path, chat=False), dtype="float32", trainable=True))
    loss = rag.loss(["q"], ["first line\nsecond"], passages=[OWN])
    assert float(loss.detach()) == pytest.approx(float(rag.loss(["q"], ["first line second"], passages=[OWN]).detach()))
    assert torch.isfinite(loss)


def test_huge_scores_are_probabilities(tmp_path):
    rag = Rag(generator=FakeGenerator("a b"))
    answer = rag.ask("a", passages=[{"text": "a", "score": 1e300}, {"text": "b", "score": -1e300}])
    assert answer.weights == (1.0, 0.0)
    json.dumps(answer.to_dict(), allow_nan=False)


def test_a_given_answer_takes_no_notice_of_how_answers_are_decoded():
    generator = FakeGenerator("a b")
    plain = Rag(generator=generator, scheme="sequence").score("q", "a b", passages=[{"text": "a b"}, {"text": "b"}])
    for defaults in ({"decoder": "fast"}, {"temperature": 0.7}, {"beam": 4, "n_best": 2}):
        rag = Rag(generator=generator, scheme="sequence", **defaults)
        scored = rag.score("q", "a b", passages=[{"text": "a b"}, {"text": "b"}])
        assert (scored.basis, scored.notes, scored.alternatives) == (plain.basis, plain.notes, ())
        assert scored.log_prob == plain.log_prob
    with pytest.raises(UsageError, match="beam: an answer that is given is not decoded"):
        Rag(generator=generator).score("q", "a", passages=[{"text": "a"}], beam=2)


def test_fast_claims_nothing_about_what_it_did_not_compute(tmp_path):
    docs = write_files(tmp_path / "docs")
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder(no_passage_logit=1.0)) as collection:
        rag = Rag(collection, generator=FakeGenerator("the pump starts when cat sat on a mat"), scheme="sequence")
        answer = rag.ask("the cat", decoder="fast")
        assert (answer.basis, answer.evidence, answer.support) == ("approximate", None, None)
        json.dumps(answer.to_dict(), allow_nan=False)


def test_passages_fetched_within_an_answer_have_the_prior_that_they_came_in_with(tmp_path):
    texts = {"a.txt": "cats. rivers.\n", "b.txt": "rivers. stones.\n", "c.txt": "stones. the end\n"}
    docs = write_files(tmp_path / "docs", texts)
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder()) as collection:
        rag = Rag(collection, generator=FakeGenerator(" ".join(texts.values())), k=1)
        answer = rag.ask("cats", scheme="requery", requery_retrieve=True, max_tokens=9)
        assert [hit.log_prior for hit in answer.hits] == [0.0] * len(answer.hits)
        json.dumps(answer.to_dict(), allow_nan=False)


def test_requery_takes_no_scores(tmp_path):
    docs = write_files(tmp_path / "docs")
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder()) as collection:
        rag = Rag(collection, generator=FakeGenerator("the cat"), scheme="requery", k=1)
        with pytest.raises(UsageError, match="leave out the passages' own"):
            rag.ask("cat", passages=[{"text": "the cat", "score": 1.0}])
        assert rag.ask("the cat").scheme == "requery"
