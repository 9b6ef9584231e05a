"""Remote generators against a server on loopback: what it can do is found out, and what it says is understood."""

import threading

import pytest

import remote_server
import tiny
from bifolio.errors import ModelError, UsageError
from bifolio.generators.endpoint import Limits
from bifolio.generators.remote import RemoteGenerator
from bifolio.loading import load_generator
from bifolio.protocols import Kept, Reading, TextCandidate
from bifolio.registry import names, resolve
from bifolio.types import Passage

PASSAGES = (Passage("p0", "The red valve closes first.", "Valves"), Passage("p1", "A pump needs power."))
READING = Reading("Which valve?", PASSAGES, "short", 5, no_passage=True)
QUICK = Limits(timeout=20, first_wait=0.01, longest_wait=5)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return remote_server.Model(tiny.causal(tmp_path_factory.mktemp("tiny"), seed=3), ends=0.5)


@pytest.fixture
def server(model):
    with remote_server.serving(model) as running:
        yield running


def remote(server, **options):
    return RemoteGenerator(server.url, "tiny", **{"api": "completions", "limits": QUICK, **options})


def paths(server):
    return [path.removeprefix("/v1") for path, _, _ in server.requests]


# ---- what a server can do ----


def test_nothing_is_sent_before_the_first_use_and_the_probe_only_once(server):
    generator = remote(server)
    assert repr(generator) == f"RemoteGenerator('{server.url}', 'tiny')"
    assert server.requests == []
    assert (generator.spec.log_probs, generator.spec.scores) == (True, True)
    assert generator.spec.model == f"{server.url}#tiny"
    assert len(server.requests) == 1


def test_threads_that_come_together_probe_once(server):
    generator = remote(server)
    threads = [threading.Thread(target=lambda: generator.spec) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("abilities", "api", "log_probs", "scores", "used"),
    [
        (("completions", "chat", "logprobs", "echo"), "auto", True, True, "/completions"),
        (("completions", "chat", "logprobs", "echo", "prompt_logprobs"), "auto", True, True, "/chat/completions"),
        (("completions", "chat", "logprobs"), "auto", True, False, "/chat/completions"),
        (("completions", "logprobs", "echo"), "auto", True, True, "/completions"),
        (("chat", "logprobs"), "auto", True, False, "/chat/completions"),
        (("completions", "chat", "logprobs", "echo"), "chat", True, False, "/chat/completions"),
        (("completions", "logprobs"), "completions", True, False, "/completions"),
        (("completions",), "auto", False, False, "/completions"),
        (("chat",), "auto", False, False, "/chat/completions"),
    ],
)
def test_the_better_interface_is_found(model, abilities, api, log_probs, scores, used):
    with remote_server.serving(model, abilities=abilities) as server:
        generator = remote(server, api=api)
        assert (generator.spec.log_probs, generator.spec.scores) == (log_probs, scores)
        server.requests.clear()
        (found,) = generator.generate(Reading("Which?", PASSAGES[:1], "short", 4))
        assert paths(server) == [used]
        assert (found[0].log_probs is not None) == log_probs


def test_fewer_alternatives_are_asked_for_where_a_server_has_a_limit(model):
    with remote_server.serving(model, most=5) as server:
        assert remote(server, top_log_probs=20).spec.scores
        assert [payload["logprobs"] for _, payload, _ in server.requests] == [20, 5]


def ignore_echo(answer):
    choice = answer["choices"][0]
    many = len(choice["logprobs"]["tokens"]) - 1
    choice["text"] = choice["text"][-1:]
    choice["logprobs"] = {name: values[many:] for name, values in choice["logprobs"].items()}
    return answer


def other_tokens(answer):
    logprobs = answer["choices"][0]["logprobs"]
    logprobs["tokens"] = ["x"] * len(logprobs["tokens"])
    return answer


def all_zero(answer):
    logprobs = answer["choices"][0]["logprobs"]
    logprobs["token_logprobs"] = [0.0] * len(logprobs["tokens"])
    return answer


@pytest.mark.parametrize(
    ("edit", "why"),
    [(ignore_echo, "does not send back"), (other_tokens, "not in the text"), (all_zero, "log-probability 0")],
)
def test_an_echo_that_is_none_is_no_scoring(server, edit, why):
    server.edit = edit
    generator = remote(server)
    assert (generator.spec.log_probs, generator.spec.scores) == (True, False)
    with pytest.raises(UsageError, match=why):
        generator.score(READING, [TextCandidate("a", ("a",), None, None, True)])


def test_a_tokenizer_that_joins_prompt_and_answer_cannot_score(tmp_path):
    words = tiny.tokenizer(merges=(":Ġ",))
    joined = remote_server.Model(tiny.causal(tmp_path, words=words))
    with remote_server.serving(joined) as server:
        generator = remote(server)
        assert not generator.spec.scores
        with pytest.raises(UsageError, match="holds the end of the prompt and the beginning of the answer"):
            generator.score(READING, [])


def test_an_answer_that_straddles_the_seam_has_no_log_probability(server):
    generator = remote(server)
    assert generator.spec.scores
    plain = TextCandidate(" ab", (" ab",), None, None, True)
    before = generator.score(READING, [plain])
    assert all(rows[0].log_probs is not None and rows[0].pieces == (" ", "a", "b") for rows in before)

    def join(answer):  # the colon and the space become one token
        logprobs = answer["choices"][0]["logprobs"]
        at = max(i for i, token in enumerate(logprobs["tokens"]) if token == ":")
        for values in logprobs.values():
            values[at : at + 2] = [": "] if values is logprobs["tokens"] else values[at + 1 : at + 2]
        return answer

    server.edit = join
    assert [rows[0] for rows in generator.score(READING, [plain])] == [plain] * 3


# ---- models of a server ----


def test_the_only_model_needs_no_name(server):
    assert RemoteGenerator(server.url, limits=QUICK).spec.model == f"{server.url}#tiny"


def test_of_several_models_one_has_to_be_named(model):
    with remote_server.serving(model, names=("one", "two")) as server:
        with pytest.raises(UsageError, match="has one, two: write URL#MODEL"):
            RemoteGenerator(server.url, limits=QUICK).spec  # noqa: B018
        assert RemoteGenerator(f"{server.url}#two", limits=QUICK).spec.model == f"{server.url}#two"


def test_an_unknown_model_is_an_error_that_names_the_known_ones(server):
    with pytest.raises(ModelError, match="has no model 'other': it has tiny"):
        RemoteGenerator(server.url, "other", limits=QUICK).spec  # noqa: B018


def test_a_path_that_is_no_interface(server):
    generator = RemoteGenerator(server.url.replace("/v1", "/v2"), "tiny", limits=QUICK)
    with pytest.raises(ModelError, match="HTTP 404: no route"):
        generator.spec  # noqa: B018


# ---- answers ----


def test_answers_come_in_the_order_of_the_branches_and_in_parallel(server):
    generator = remote(server, concurrency=2)
    assert generator.spec.scores
    together = threading.Barrier(2)  # no answer before two requests are there: with one at a time, it breaks
    inside, most = set(), set()

    def meet(handler, payload):
        with server.lock:
            inside.add(payload["prompt"])
            most.add(len(inside))
        together.wait(20)
        with server.lock:
            inside.remove(payload["prompt"])
        together.wait(20)  # both have left before either is answered
        return False

    server.fault = meet
    found = generator.generate(Reading("Which?", (*PASSAGES, Passage("p2", "Third.")), "short", 4, no_passage=True))
    assert max(most) == 2
    prompts = sorted(payload["prompt"] for _, payload, _ in server.requests[1:])
    server.fault = None
    assert len(found) == len(prompts) == 4
    for passage, branch in zip(PASSAGES, found, strict=False):
        assert generator.generate(Reading("Which?", (passage,), "short", 4)) == [branch]


def test_more_answers_are_drawn_with_seeds_and_each_comes_once(server):
    generator = remote(server)
    found = generator.generate(READING, n=4)
    sent = [(p["temperature"], p.get("seed")) for _, p, _ in server.requests[1:]]
    assert sorted(set(sent), key=str) == [(0.0, None), (1.0, 1), (1.0, 2), (1.0, 3)]
    assert found == generator.generate(READING, n=4)
    for branch in found:
        assert len({answer.text for answer in branch}) == len(branch)
        order = [(not a.finished, -sum(a.log_probs) - (a.end_log_prob or 0.0)) for a in branch]
        assert order == sorted(order)
    with pytest.raises(UsageError, match="n 0"):
        generator.generate(READING, n=0)


def test_an_end_that_the_server_hides_is_not_known(model):
    with remote_server.serving(model) as server:
        server.hide_end = True
        found = remote(server, api="chat").generate(READING, n=6)
        ended = [answer for branch in found for answer in branch if answer.finished]
        assert ended and all(answer.end_log_prob is None for answer in ended)


def test_one_prompt_has_all_passages_numbered(server):
    generator = remote(server)
    made = generator.concatenated(READING)
    assert isinstance(made.text, str)
    prompt = server.requests[-1][1]["prompt"]
    assert prompt.index("[1] Valves\nThe red valve") < prompt.index("[2] A pump") < prompt.index("Which valve?")
    assert "such as [1]" in prompt and prompt.endswith("Short answer:")
    generator.concatenated(Reading("Which valve?", (), "short", 5, no_passage=True))
    assert "[1]" not in server.requests[-1][1]["prompt"]


def test_a_long_passage_is_cut_and_the_question_never(server):
    long = Passage("p", "word " * 400)
    generator = remote(server, window=128)
    reading = Reading("Which?", (long, PASSAGES[0]), "short", 5)
    cut, whole = generator.kept(reading)
    assert cut.whole == 2000 and 100 < cut.read < 400
    assert whole == Kept(27, 27)
    generator.generate(reading)
    assert all("Question: Which?\nShort answer:" in p["prompt"] for _, p, _ in server.requests[1:])
    both = generator.kept(reading, together=True)
    assert both[0].read < cut.read
    with pytest.raises(UsageError, match="leaves no room for a passage"):
        generator.generate(Reading("word " * 300, (long,), "short", 5))
    with pytest.raises(UsageError, match="32 passages in one prompt"):
        generator.concatenated(Reading("Which?", (long,) * 32, "short", 5))
    with pytest.raises(UsageError, match="nothing to read"):
        generator.generate(Reading("Which?", (), "short", 5))


def test_braces_in_texts_are_nothing_special(server):
    generator = remote(server)
    generator.generate(Reading("{text} {0}?", (Passage("p", "{question}", "{text}"),), "short", 2))
    assert server.requests[-1][1]["prompt"] == "{text}\n{question}\n\nQuestion: {text} {0}?\nShort answer:"


# ---- loading ----


def test_an_address_is_a_model_id(server):
    generator = load_generator(f"{server.url}#tiny", form="plain")
    assert isinstance(generator, RemoteGenerator)
    assert generator.spec.model == f"{server.url}#tiny"
    assert paths(server) == ["/completions"]
    assert "remote" in names("generator") and resolve("generator", "remote") == (RemoteGenerator, "")


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"dtype": "float16"}, {"form": "loud"}])
def test_options_that_mean_nothing_to_a_server_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        load_generator("http://127.0.0.1:9/v1#m", **options)
