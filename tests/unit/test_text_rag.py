"""Answers through HTTP, against the same model run here: thorough is the marginal, and fast is at most that."""

import json
import math
import sys

import pytest
import torch

import remote_server
import tiny
from bifolio import console, marginal
from bifolio.errors import ModelError, UsageError
from bifolio.generators import prompts
from bifolio.generators.remote import RemoteGenerator
from bifolio.protocols import Kept, Reading, TextCandidate, TextGenerator, TextGeneratorSpec
from bifolio.text_rag import answer_from_text, check_options, check_request, is_text_generator, with_logits
from bifolio.types import Hit, Passage

PASSAGES = (
    Passage("p0", "The red valve closes first.", "Valves", place="m.md:1"),
    Passage("p1", "A pump needs power.", place="m.md:2"),
    Passage("p2", "Größe: 5 µm", place="m.md:3"),
)
HITS = tuple(Hit(passage, 0.5, math.log(1 / 3)) for passage in PASSAGES)
PRIOR = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0]), 0).tolist()
READING = Reading("Which valve?", PASSAGES, "short", 8, no_passage=True)
ALL = 1000  # more alternatives than the vocabulary has


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return remote_server.Model(tiny.causal(tmp_path_factory.mktemp("tiny"), seed=2), ends=0.5)


@pytest.fixture
def server(model):
    with remote_server.serving(model) as running:
        yield running


def remote(server, **options):
    return RemoteGenerator(server.url, "tiny", **{"api": "completions", "top_log_probs": ALL, **options})


def oracle(model, prompt_ids, answer, finished):
    """Log p of an answer's tokens, and of its end where it has one, under one prompt: (T,)."""
    tokens = model.ids(answer) if answer else []
    rows = model.log_probs([*prompt_ids, *tokens])[len(prompt_ids) - 1 :]
    values = [rows[i, token] for i, token in enumerate(tokens)]
    ends = model.ends if finished == "line" else [model.eos]
    return torch.stack([*values, torch.logsumexp(rows[-1, ends], 0)] if finished else values)


def echoed(server):
    """What was scored."""
    return [payload for _, payload, _ in server.requests if payload.get("echo")]


def stripped(payload, prompt):
    """The answer that was scored behind this prompt; None behind another one."""
    return payload["prompt"].removeprefix(prompt).strip() if payload["prompt"].startswith(prompt) else None


def check_against(answer, table, log_prior):
    """An answer's figures against log p of every branch, (K, T)."""
    problem = (torch.tensor([log_prior], dtype=torch.float64), table[None], torch.zeros(1, table.shape[1]).long())
    assert answer.log_prob == pytest.approx(float(marginal.segment_log_likelihood(*problem)), abs=1e-4)
    expected = marginal.posterior(*problem)[0].tolist()
    assert [*answer.weights, answer.no_passage] == pytest.approx(expected, abs=1e-4)
    assert [*answer.log_likelihoods, answer.no_passage_log_likelihood] == pytest.approx(table.sum(1).tolist(), abs=1e-4)
    assert answer.evidence == pytest.approx(float(marginal.evidence(*problem)), abs=1e-4)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("style", ["short", "long"])
def test_thorough_through_http_is_the_marginal_of_the_model(model, server, style):
    reading = Reading("Which valve?", PASSAGES, style, 8, no_passage=True)
    answer = answer_from_text(remote(server), reading, HITS, PRIOR, candidates=3, alternatives=9)
    assert (answer.decoder, answer.basis, answer.scheme) == ("thorough", "exact", "sequence")
    assert answer.text and answer.eos_log_prob is not None
    texts = prompts.apart(reading, prompts.template(reading, chat=False), 4096).texts
    (raw,) = {one["prompt"].removeprefix(texts[0]) for one in echoed(server) if stripped(one, texts[0]) == answer.text}
    table = torch.stack([oracle(model, model.ids(text), raw, "line") for text in texts])
    check_against(answer, table, PRIOR)
    # No candidate that was found is better, and the others are in order.
    others = [other.log_prob for other in answer.alternatives if other.finished]
    assert others and answer.log_prob >= max(others)
    assert others == sorted(others, reverse=True)
    assert sum(answer.weights) + answer.no_passage == pytest.approx(1.0)
    assert "".join(token.text for token in answer.tokens) == answer.text


@pytest.mark.timeout(120)
def test_thorough_in_a_chat_with_prompt_log_probabilities(model):
    with remote_server.serving(model, abilities=("chat", "logprobs", "prompt_logprobs")) as server:
        generator = remote(server, api="auto")
        answer = answer_from_text(generator, READING, HITS, PRIOR, candidates=3)
    assert answer.decoder == "thorough" and answer.text and answer.eos_log_prob is not None
    texts = prompts.apart(READING, prompts.template(READING, chat=True), 4096).texts
    rows = []
    for text in texts:
        message = [{"role": "user", "content": text}]
        made = model.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
        rows.append(oracle(model, made["input_ids"], answer.text, "eos"))
    check_against(answer, torch.stack(rows), PRIOR)


@pytest.mark.timeout(120)
def test_fast_is_a_lower_bound_and_says_so(server):
    generator = remote(server)
    thorough = answer_from_text(generator, READING, HITS, PRIOR, candidates=3, alternatives=99)
    fast = answer_from_text(generator, READING, HITS, PRIOR, candidates=3, alternatives=99, decoder="fast")
    assert (fast.decoder, fast.basis, fast.evidence) == ("fast", "approximate", None)
    assert any("lower bound" in note for note in fast.notes)
    exact = {one.text: one.log_prob for one in (thorough, *thorough.alternatives)}
    for one in (fast, *fast.alternatives):
        assert one.log_prob <= exact[one.text] + 1e-6
    assert fast.to_dict()["basis"] == "approximate"


@pytest.mark.timeout(120)
def test_what_the_server_can_do_decides(model):
    expected = {
        ("completions", "logprobs", "echo"): "thorough",
        ("completions", "logprobs"): "fast",
        ("chat", "logprobs"): "fast",
        ("completions",): "concatenated",
        ("chat",): "concatenated",
    }
    for abilities, decoder in expected.items():
        with remote_server.serving(model, abilities=abilities) as server:
            answer = answer_from_text(remote(server, api="auto"), READING, HITS, PRIOR)
        assert answer.decoder == decoder, abilities


@pytest.mark.timeout(60)
def test_a_heuristic_answer_has_no_probability_anywhere(model, capsys):
    with remote_server.serving(model, abilities=("chat",)) as server:
        server.edit = lambda answer: saying(answer, "The red one [1]. It is 5 µm [3][9].")
        answer = answer_from_text(remote(server, api="auto"), READING, HITS, PRIOR)
    assert (answer.basis, answer.weights, answer.no_passage, answer.support, answer.log_prob) == (
        "heuristic", (), None, None, None
    )  # fmt: skip
    assert answer.marked() == "The red one [1]. It is 5 µm [3]."
    assert answer.markers == (1, None, 3)
    facts = json.loads(json.dumps(answer.to_dict()))
    assert [passage["posterior"] for passage in facts["passages"]] == [None] * 3
    assert [sentence["weights"] for sentence in facts["sentences"]] == [[], []]
    assert (facts["log_prob"], facts["support"], facts["no_passage"], facts["tokens"]) == (None, None, None, [])
    assert [(c.weight, c.marker) for c in answer.citations()] == [(None, 1), (None, None), (None, 3)]
    assert [c.marker for c in answer.citations(at_least=0.1)] == [1, 3]
    assert any("[9]" in note for note in answer.notes)
    console.show_answer(console.output(), answer)
    shown = capsys.readouterr().out
    assert "no probabilities" in shown and "m.md:1" in shown and "m.md:3" in shown
    assert "█" not in shown and "p(y|x)" not in shown and "0.33" not in shown


def saying(answer, text):
    answer["choices"][0]["message"]["content"] = text
    return answer


class Canned:
    """A generator of ready answers."""

    def __init__(self, found=(), scored=(), *, log_probs=True, scores=True):
        self.found, self.scored = found, scored
        self.spec = TextGeneratorSpec("canned", log_probs, scores)
        self.calls = []

    def generate(self, reading, *, n=1):
        self.calls.append("generate")
        return self.found

    def score(self, reading, answers):
        self.calls.append([answer.text for answer in answers])
        return self.scored

    def kept(self, reading, *, together=False):
        return tuple(Kept(3, 9) for _ in reading.passages)

    def concatenated(self, reading):
        return TextCandidate("Yes [1].", ("Yes [1].",), None, None, False)


def known(text, log_prob=-1.0, end=-0.5, finished=True):
    return TextCandidate(text, (text,), (log_prob,), end, finished)


def unknown(text):
    return TextCandidate(text, (text,), None, None, True)


TWO = Reading("Which?", PASSAGES[:2], "short", 8)


def ask(generator, **options):
    return answer_from_text(generator, TWO, HITS[:2], [math.log(0.5)] * 2, **options)


def test_each_text_is_scored_once():
    generator = Canned([[known("yes"), known("no")], [known("yes")]], [[known("yes"), known("no")]] * 2)
    ask(generator)
    assert generator.calls == ["generate", ["yes", "no"]]


def test_answers_without_log_probability_are_left_out_and_told():
    scored = [[known("yes"), unknown("no")], [known("yes"), known("no")]]
    answer = ask(Canned([[known("yes")], [known("no")]], scored), alternatives=5)
    assert (answer.text, answer.alternatives) == ("yes", ())
    assert any(note.startswith("1 answers were left out") for note in answer.notes)
    with pytest.raises(ModelError, match="concatenated"):
        ask(Canned([[known("yes")], [known("no")]], [[unknown("yes"), unknown("no")]] * 2))
    with pytest.raises(ModelError, match="concatenated"):
        ask(Canned([[unknown("yes")], []], scores=False))


def test_notes_of_cut_passages_cut_answers_and_unknown_ends():
    answer = ask(Canned([[known("yes", end=None)], [known("yes", end=None)]], scores=False))
    assert answer.truncated == (True, True)
    assert "m.md:1: 3 of 9 characters were read, the rest did not fit the window" in answer.notes
    assert any("of its text alone" in note for note in answer.notes)
    assert answer.eos_log_prob is None and answer.log_prob == pytest.approx(-1.0)
    heuristic = ask(Canned(log_probs=False, scores=False))
    assert "the answer was cut after 8 tokens" in heuristic.notes


@pytest.mark.parametrize("scheme", ["token", "sentence", "requery"])
def test_schemes_that_need_tokens_are_refused_before_anything_is_sent(scheme):
    generator = Canned()
    with pytest.raises(UsageError, match=f"scheme {scheme} needs the generator's next-token distribution"):
        ask(generator, scheme=scheme)
    with pytest.raises(UsageError, match="decoder exact needs"):
        ask(generator, decoder="exact")
    assert generator.calls == []
    with pytest.raises(UsageError, match="temperature, seed has no effect"):
        check_options(["k", "temperature", "seed"])
    check_options(["k", "scheme", "decoder", "beam", "n_best", "style", "max_tokens"])
    check_request(None, None)
    check_request("sequence", "fast")


@pytest.mark.timeout(60)
def test_a_decoder_that_the_server_cannot_do_is_refused_with_what_it_lacks(model):
    with remote_server.serving(model, abilities=("completions",)) as server:
        with pytest.raises(UsageError, match=r"does not return\s+log-probabilities of given text"):
            answer_from_text(remote(server), READING, HITS, PRIOR, decoder="thorough")
        with pytest.raises(UsageError, match="fast needs the log-probabilities of generated tokens"):
            answer_from_text(remote(server), READING, HITS, PRIOR, decoder="fast")
        with pytest.raises(UsageError, match="unknown style"):
            answer_from_text(remote(server), Reading("q", PASSAGES, "loud", 8), HITS, PRIOR[:3])
        assert {payload["max_tokens"] for _, payload, _ in server.requests} == {1}  # nothing but probes


def test_hits_and_prior_have_to_fit_the_reading():
    with pytest.raises(UsageError, match="branches"):
        answer_from_text(Canned(), TWO, HITS, [0.0, 0.0])
    with pytest.raises(UsageError, match="branches"):
        answer_from_text(Canned(), TWO, HITS[:2], [0.0])
    with pytest.raises(ModelError, match="branches"):
        ask(Canned([[known("yes")]]))


@pytest.mark.timeout(60)
def test_only_the_no_passage_branch(model, server):
    answer = answer_from_text(remote(server), Reading("Which?", (), "short", 4, no_passage=True), (), [0.0])
    assert (answer.weights, answer.no_passage, answer.support) == ((), 1.0, 0.0)


@pytest.mark.timeout(60)
def test_kinds_of_generators_are_told_apart_without_asking_the_server(server):
    generator = remote(server)
    assert is_text_generator(generator) and not is_text_generator(object())
    with pytest.raises(UsageError, match="loss needs the generator's next-token distribution"):
        with_logits(generator, "loss")
    local = object()
    assert with_logits(local, "loss") is local
    assert server.requests == []
    assert isinstance(generator, TextGenerator)


def test_the_modules_of_remote_generators_do_not_load_torch():
    import subprocess

    check = (
        "import sys, bifolio.text_rag, bifolio.generators.remote;"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "[]\n"
