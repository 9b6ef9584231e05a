"""Requests, and the answers of differing servers."""

import math

import pytest

from bifolio.errors import ModelError
from bifolio.generators import wire
from bifolio.generators.seam import ServerToken, UnalignedError
from bifolio.generators.templates import CHAT_USER, PLAIN
from bifolio.protocols import TextCandidate

SHORT = PLAIN["short"]
ENDS = wire.END_TOKENS


def old(text, *tokens, finish="stop", top=None, **more):
    """OpenAI's old form."""
    logprobs = {
        "tokens": [t for t, _ in tokens],
        "token_logprobs": [p for _, p in tokens],
        "top_logprobs": top or [None] * len(tokens),
    }
    return {"choices": [{"text": text, "finish_reason": finish, "logprobs": logprobs}], **more}


def new(text, *tokens, finish="stop"):
    """OpenAI's new form."""
    content = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in tokens]
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": finish, "logprobs": {"content": content}}]}


def test_both_forms_of_log_probabilities():
    plain = wire.read(old(" yes", (" yes", -0.5), ("</s>", -0.25)))
    assert wire.candidate(plain, SHORT, ENDS) == TextCandidate(" yes", (" yes",), (-0.5,), -0.25, True)
    chat = wire.read(new("yes", ("y", -0.5), ("es", -0.75), ("<|im_end|>", -0.25)))
    assert wire.candidate(chat, CHAT_USER["short"], ENDS) == TextCandidate(
        "yes", ("y", "es"), (-0.5, -0.75), -0.25, True
    )


def test_all_ways_to_end_are_one_probability():
    top = [{"x": -1.0}, {"\n": math.log(0.5), "</s>": math.log(0.25), " and": math.log(0.125)}]
    found = wire.read(old(" yes", (" yes", -0.5), ("\n", math.log(0.5)), top=top))
    assert wire.candidate(found, SHORT, ENDS).end_log_prob == pytest.approx(math.log(0.75))
    # In a chat a line break goes on.
    assert wire.candidate(found, CHAT_USER["long"], ENDS - {"\n"}).end_log_prob == pytest.approx(math.log(0.75))
    token = ServerToken(" and", math.log(0.125), None, (("\n", math.log(0.5)), ("</s>", math.log(0.25))))
    assert wire.end_log_prob(token, (), ENDS) == pytest.approx(math.log(0.25))
    assert wire.end_log_prob(ServerToken(" and", -0.1), ("\n",), ENDS) is None


def test_an_end_that_is_not_shown_is_not_known_and_a_cut_answer_has_none():
    assert wire.candidate(wire.read(old(" yes", (" yes", -0.5))), SHORT, ENDS).end_log_prob is None
    cut = wire.candidate(wire.read(old(" yes", (" yes", -0.5), finish="length")), SHORT, ENDS)
    assert (cut.end_log_prob, cut.finished) == (None, False)
    within = wire.candidate(wire.read(old(" yes.", (" yes", -0.5), (".\n", -1.0))), SHORT, ENDS)
    assert (within.log_probs, within.end_log_prob) == ((-0.5, -1.0), 0.0)


def test_white_space_that_the_server_took_off():
    found = wire.read(new("yes", (" yes", -0.5), (" ", -3.0), ("</s>", -0.25)))
    assert wire.candidate(found, CHAT_USER["short"], ENDS) == TextCandidate("yes", ("yes",), (-0.5,), -0.25, True)
    found = wire.read(new("yes", ("\n\n", -1.0), ("yes", -0.5), ("</s>", -0.25)))
    made = wire.candidate(found, CHAT_USER["short"], ENDS)
    assert made == TextCandidate("\n\nyes", ("\n\n", "yes"), (-1.0, -0.5), -0.25, True)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        [],
        {},
        {"tokens": ["a"], "token_logprobs": []},
        {"tokens": [1], "token_logprobs": [-1.0]},
        {"content": [3]},
    ],
)
def test_without_usable_log_probabilities_there_is_only_text(logprobs):
    answer = {"choices": [{"text": " yes", "finish_reason": "stop", "logprobs": logprobs}]}
    assert wire.candidate(wire.read(answer), SHORT, ENDS) == TextCandidate(" yes", (" yes",), None, None, True)


def test_tokens_that_are_not_the_text_give_no_log_probability():
    found = wire.read(old(" yes", (" no", -0.5), ("</s>", -0.1)))
    assert wire.candidate(found, SHORT, ENDS) == TextCandidate(" yes", (" yes",), None, None, True)


@pytest.mark.parametrize("value", [math.nan, 0.5, math.inf, "-1", True, [1]])
def test_numbers_that_are_no_log_probabilities(value):
    with pytest.raises(ModelError, match="log-probability"):
        wire.read(old(" yes", (" yes", value)))
    with pytest.raises(ModelError, match="log-probability"):
        wire.read(old(" yes", (" yes", -1.0), top=[{"x": value}]))


def test_rounding_above_0_and_impossible_tokens_are_legal():
    found = wire.read(old(" yes", (" yes", 1e-7), ("</s>", -math.inf)))
    assert [token.log_prob for token in found.tokens] == [0.0, -math.inf]


@pytest.mark.parametrize(
    "answer",
    [{}, {"choices": []}, {"choices": None}, {"choices": ["x"]}, {"choices": [{}]}, {"choices": [{"text": 5}]}],
)
def test_an_answer_that_is_none(answer):
    with pytest.raises(ModelError, match="OpenAI-compatible"):
        wire.read(answer)


def test_a_message_without_content_is_empty():
    assert wire.read({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}).text == ""


def test_an_echo_is_parted():
    found = wire.read(
        old(
            "Q: yes\n",
            ("<s>", None),
            ("Q", -9.0),
            (":", -8.0),
            (" yes", -0.5),
            ("\n", -0.25),
            usage={"prompt_tokens": 4},
        )
    )
    assert wire.echoed(found, "Q:", " yes", SHORT, ENDS) == TextCandidate(" yes", (" yes",), (-0.5,), -0.25, True)


def test_a_hidden_or_shown_end_after_an_echo():
    shown = wire.read(old("Q: yes", ("Q:", None), (" yes", -0.5), ("</s>", -0.25)))
    assert wire.echoed(shown, "Q:", " yes", SHORT, ENDS).end_log_prob == -0.25
    hidden = wire.read(old("Q: yes", ("Q:", None), (" yes", -0.5)))
    assert wire.echoed(hidden, "Q:", " yes", SHORT, ENDS).end_log_prob is None
    counted = wire.read(old("Q: é", ("Q:", None), (" é", -0.5), ("\ufffd", -0.25), usage={"prompt_tokens": 2}))
    assert wire.echoed(counted, "Q:", " é", SHORT, ENDS) == TextCandidate(" é", (" é",), (-0.5,), None, True)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (old(" yes", (" yes", -0.5)), "does not send back the prompt"),
        ({"choices": [{"text": "Q: yes", "finish_reason": "stop"}]}, "does not send back the prompt"),
        (old("Q: yes"), "no tokens"),
        (old("Q: yes", ("Q", None), (":", 0.0), (" yes", 0.0)), "log-probability 0 to every token"),
        (old("Q: yes", ("Q", None), (": y", -1.0), ("es", -1.0)), "holds the end of the prompt"),
        (old("Q: yes", ("Q:", -1.0), (" yes", None)), "no log-probability"),
    ],
)
def test_an_echo_that_cannot_be_used(answer, why):
    with pytest.raises(UnalignedError, match=why):
        wire.echoed(wire.read(answer), "Q:", " yes", SHORT, ENDS)


def test_prompt_log_probabilities_of_a_chat():
    entries = [
        None,
        *({str(i): {"logprob": p, "decoded_token": t}} for i, (t, p) in enumerate([("<|x|>", -7.0), ("yes", -0.5)])),
    ]
    answer = {**new("", ("<|im_end|>", -0.25)), "prompt_logprobs": entries}
    found = wire.prompted(wire.read(answer), "yes", CHAT_USER["short"], ENDS)
    assert found == TextCandidate("yes", ("yes",), (-0.5,), -0.25, True)
    with pytest.raises(UnalignedError, match="prompt_logprobs"):
        wire.prompted(wire.read(new("", ("x", -1.0))), "yes", CHAT_USER["short"], ENDS)


def test_requests():
    assert wire.completion_body("m", "p", max_tokens=3, stop=("\n",), seed=0, top=5, echo=True) == {
        "model": "m", "prompt": "p", "max_tokens": 3, "stop": ["\n"], "temperature": 0.0, "logprobs": 5, "echo": True
    }  # fmt: skip
    assert wire.chat_body("m", "u", max_tokens=3, seed=2, top=0) == {
        "model": "m", "messages": [{"role": "user", "content": "u"}], "max_tokens": 3, "temperature": 1.0, "seed": 2
    }  # fmt: skip
    scoring = wire.chat_scoring_body("m", "u", "a", top=5)
    assert scoring["messages"][-1] == {"role": "assistant", "content": "a"}
    assert (scoring["prompt_logprobs"], scoring["continue_final_message"], scoring["add_generation_prompt"]) == (
        0,
        True,
        False,
    )
    empty = wire.chat_scoring_body("m", "u", "", top=5)
    assert len(empty["messages"]) == 1 and "continue_final_message" not in empty
