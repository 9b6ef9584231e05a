"""What servers may do wrong, what no thread may survive, and what must never get out."""

import json
import math
import threading
import time

import pytest

import remote_server
import tiny
from bifolio.errors import ModelError, UsageError
from bifolio.generators.endpoint import Endpoint, Limits, Request
from bifolio.generators.remote import RemoteGenerator
from bifolio.protocols import Reading
from bifolio.types import Passage

READING = Reading("Which valve?", (Passage("p0", "The red valve closes first."), Passage("p1", "A pump.")), "short", 5)
QUICK = Limits(timeout=20, first_wait=0.01, longest_wait=5)
SECRET = "sk-test-0123456789"

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


# ---- what a server may do wrong ----


def test_a_busy_server_is_asked_again(server):
    server.fault = remote_server.busy(2)
    assert remote(server).spec.scores
    assert len(server.requests) == 3
    server.fault = remote_server.busy(1, 503, Retry_After="0")
    assert len(remote(server).generate(READING)) == 2


def test_how_long_a_busy_server_is_waited_for_is_bounded(server):
    server.fault = remote_server.busy(99)
    with pytest.raises(ModelError, match="is busy .HTTP 429, 4 attempts.: Rate limit"):
        remote(server).spec  # noqa: B018
    assert len(server.requests) == 4
    server.fault = remote_server.busy(99, 503, Retry_After="3600")
    with pytest.raises(ModelError, match="asks to wait 3600 s"):
        remote(server).spec  # noqa: B018
    server.fault = remote_server.busy(99, Retry_After="Wed, 21 Oct 2099 07:28:00 GMT")
    with pytest.raises(ModelError, match="asks to wait"):
        remote(server).spec  # noqa: B018
    server.fault = remote_server.busy(1, Retry_After="soon")
    assert remote(server).spec.scores


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (remote_server.always(200, b"<html>hello</html>"), "not JSON: <html>hello"),
        (remote_server.always(200, b"[1]"), "JSON that is not an object"),
        (remote_server.always(200, b"[" * 100_000), "not JSON"),
        (remote_server.always(200, b'{"a": ' + b"9" * 5000 + b"}"), "not JSON|no choices"),
        (remote_server.always(200, b""), "not JSON"),
        (
            remote_server.always(200, b'{"error": {"message": "out of \\u001b[31mmemory"}}'),
            r"error: out of \[31mmemory",
        ),
        (remote_server.always(200, b'{"choices": []}'), "no choices"),
        (remote_server.always(500, b"boom"), "HTTP 500: boom"),
        (remote_server.always(418, b""), "HTTP 418$"),
        (remote_server.always(200, b"{}", Content_Length=10**13), "sends more than"),
        (
            remote_server.always(307, b"", Location="http://elsewhere.test/v1?key=1"),
            "redirects to http://elsewhere.test,",
        ),
        (remote_server.always(302, b"", Location="/other"), "redirects to another path"),
        (remote_server.endless, "sends more than 1000000 bytes"),
        (remote_server.hang, "did not finish within 0.5 s"),
        (remote_server.drip, "did not finish within 0.5 s"),
    ],
)
def test_faults_are_errors_with_a_sentence(server, fault, message):
    server.fault = fault
    hasty = fault in (remote_server.hang, remote_server.drip)
    generator = remote(server, limits=Limits(timeout=0.5 if hasty else 20, body=10**6))
    with pytest.raises(ModelError, match=message) as caught:
        generator.spec  # noqa: B018
    assert server.url in str(caught.value) or "server's answer" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [math.nan, 3.0, "x"])
def test_numbers_that_are_no_log_probabilities_are_an_error(server, value):
    generator = remote(server)
    assert generator.spec.scores

    def edit(answer):
        answer["choices"][0]["logprobs"]["token_logprobs"][-1] = value
        return answer

    server.edit = edit
    with pytest.raises(ModelError, match="log-probability"):
        generator.generate(READING)


def test_nobody_listens():
    with pytest.raises(ModelError, match="connection refused.: start it"):
        RemoteGenerator("http://127.0.0.1:9/v1", "m", limits=QUICK).spec  # noqa: B018


def test_a_server_that_does_not_speak_https(server):
    with pytest.raises(ModelError, match="does not speak https"):
        RemoteGenerator(server.url.replace("http:", "https:"), "m", limits=QUICK).spec  # noqa: B018


def test_a_server_that_hangs_up(server):
    def cut(handler, payload):
        handler.close_connection = True
        return True

    server.fault = cut
    with pytest.raises(ModelError, match="the connection to .* broke"):
        remote(server).spec  # noqa: B018


# ---- threads ----


def remote_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bifolio-remote")]


def test_one_failure_breaks_off_the_others_and_no_thread_stays(server):
    def fault(handler, payload):
        if payload["n"] == 1:
            handler.json(400, {"error": {"message": "no"}})
            return True
        return remote_server.hang(handler, payload)

    server.fault = fault
    endpoint = Endpoint(server.url, limits=Limits(timeout=50))
    with pytest.raises(ModelError, match="HTTP 400: no"):
        endpoint.ask([Request("/completions", {"n": n}) for n in range(4)], concurrency=4)
    assert remote_threads() == []


def test_an_interrupted_call_leaves_no_thread(server, monkeypatch):
    arrived = threading.Event()

    def fault(handler, payload):
        arrived.set()
        return remote_server.hang(handler, payload)

    def interrupt(futures):
        assert arrived.wait(20)
        raise KeyboardInterrupt

    server.fault = fault
    monkeypatch.setattr("bifolio.generators.endpoint._raise_first", interrupt)
    endpoint = Endpoint(server.url, limits=Limits(timeout=50))
    with pytest.raises(KeyboardInterrupt):
        endpoint.ask([Request("/completions", {}) for _ in range(5)], concurrency=2)
    assert remote_threads() == []
    assert len(server.requests) <= 2  # what was waiting was never sent


def test_waiting_for_a_busy_server_is_broken_off_as_well(server):
    def fault(handler, payload):
        if payload["n"] == 1:
            while len(server.requests) < 2:
                time.sleep(0.01)
            handler.json(400, {"error": "no"})
        else:
            handler.json(429, {}, Retry_After="40")
        return True

    server.fault = fault
    endpoint = Endpoint(server.url, limits=Limits(timeout=50, longest_wait=50))
    with pytest.raises(ModelError, match="HTTP 400: no"):
        endpoint.ask([Request("/completions", {"n": n}) for n in range(2)], concurrency=2)
    assert remote_threads() == []


# ---- secrets and addresses ----


def test_the_key_goes_into_the_header_and_nowhere_else(server, monkeypatch):
    monkeypatch.setenv("BIFOLIO_API_KEY", f" {SECRET}\n")
    generator = remote(server)
    assert SECRET not in generator.spec.model + repr(generator) + repr(vars(generator)) + repr(generator._endpoint)
    path, payload, headers = server.requests[0]
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in path + json.dumps(payload)
    server.fault = remote_server.always(401, json.dumps({"error": {"message": f"bad key {SECRET}"}}).encode())
    with pytest.raises(ModelError, match="wants another key in the variable BIFOLIO_API_KEY: bad key ...$") as caught:
        generator.generate(READING)
    assert SECRET not in str(caught.value)
    server.fault = remote_server.always(200, f"not json {SECRET}".encode())
    with pytest.raises(ModelError) as caught:
        generator.generate(READING)
    assert SECRET not in str(caught.value)


def test_without_a_key_none_is_sent_and_the_message_says_where_to_put_it(server, monkeypatch):
    monkeypatch.delenv("BIFOLIO_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)  # meant for another server
    server.fault = remote_server.always(401)
    with pytest.raises(ModelError, match="wants a key in the variable BIFOLIO_API_KEY"):
        remote(server).spec  # noqa: B018
    assert "Authorization" not in server.requests[0][2]
    server.fault = None
    remote(server, api_key_env="OPENAI_API_KEY").spec  # noqa: B018
    assert server.requests[-1][2]["Authorization"] == f"Bearer {SECRET}"


def test_which_variable_has_the_key():
    assert Endpoint("https://api.openai.com/v1").key_name == "OPENAI_API_KEY"
    for other in ("http://api.openai.com/v1", "https://api.openai.com.test/v1", "http://127.0.0.1:1"):
        assert Endpoint(other).key_name == "BIFOLIO_API_KEY"
    assert Endpoint("https://api.openai.com/v1", api_key_env="MINE").key_name == "MINE"


@pytest.mark.parametrize("key", ["sk-\nInjected: yes", "sk-\u00fc", "a\x00b"])
def test_a_key_that_no_header_can_hold_is_not_sent_and_not_shown(server, monkeypatch, key):
    monkeypatch.setattr("os.environ", {"BIFOLIO_API_KEY": key})
    with pytest.raises(UsageError, match="BIFOLIO_API_KEY") as caught:
        remote(server).spec  # noqa: B018
    assert key not in str(caught.value) and "Injected" not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1", "file:///etc/passwd", "host:8000", "", "http://", "http:///v1", "http://host:0/v1",
        "http://host:99999/v1", "http://host:x/v1", "http://ho st/v1", "http://host/v1\n", "http://h\u00f6st/v1",
        "http://[::1/v1", f"http://{'a' * 70}.test/v1", f"http://user:{SECRET}@host/v1", f"http://host/v1?key={SECRET}",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    with pytest.raises(UsageError) as caught:
        RemoteGenerator(url, "m")
    assert SECRET not in str(caught.value)


def test_an_address_without_a_path_gets_the_usual_one(server):
    assert (
        Endpoint("http://127.0.0.1:8000").url == Endpoint("http://127.0.0.1:8000/v1/").url == "http://127.0.0.1:8000/v1"
    )
    assert Endpoint("http://[::1]:8000/api").url == "http://[::1]:8000/api"
    assert RemoteGenerator(server.url.removesuffix("/v1"), "tiny", limits=QUICK).spec.model == f"{server.url}#tiny"


@pytest.mark.parametrize(
    "options",
    [
        {"api": "responses"}, {"concurrency": 0}, {"window": 3}, {"top_log_probs": 0}, {"concurrency": True},
        {"timeout": 0}, {"timeout": math.nan}, {"timeout": "9"},
    ],
)  # fmt: skip
def test_options_out_of_range(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        RemoteGenerator("http://127.0.0.1:9/v1", "m", **options)
    with pytest.raises(UsageError, match="two models"):
        RemoteGenerator("http://127.0.0.1:9/v1#a", "b")


@pytest.mark.parametrize("options", [{"attempts": 0}, {"body": 1.5}, {"first_wait": -1}, {"longest_wait": math.inf}])
def test_limits_out_of_range(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        Limits(**options)
