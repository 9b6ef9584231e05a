"""What goes over the wire: bodies of requests, and what the answers of differing servers mean. Pure, no I/O.

Two interfaces, ``/completions`` (a prompt is continued; with ``echo`` its own log-probabilities come back) and
``/chat/completions`` (messages; vLLM also gives ``prompt_logprobs``). Both forms of log-probabilities, OpenAI's old one
(lists side by side) and the new one (a list of tokens), are read at either, because servers mix them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bifolio.errors import ModelError
from bifolio.generators.seam import Cover, ServerToken, UnalignedError, head, tail
from bifolio.generators.templates import Template
from bifolio.protocols import TextCandidate

END_TOKENS = frozenset(
    "</s> <eos> <|endoftext|> <|end_of_text|> <|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> <end_of_turn> "
    "<turn|> <|END_OF_TURN_TOKEN|> <｜end▁of▁sentence｜>".split()
) | {""}
"""How servers show the tokens that end an answer; "" because some hide the text of special tokens."""

_LEAST = -1e6  # nats; what is less is no rounding of a probability
_ROUNDING = 1e-3  # by which a log-probability may lie above 0


class Completion(NamedTuple):
    """One choice of an answer.

    Attributes:
        text: The text, with the prompt before it where it was echoed.
        tokens: Its tokens; None without log-probabilities.
        ended: Whether it ended by itself, and not for want of room.
        prompt: Tokens of the prompt, where the server has ``prompt_logprobs``; None elsewhere.
        prompt_length: How many tokens the server counts in the prompt; None where it does not say.
    """

    text: str
    tokens: tuple[ServerToken, ...] | None
    ended: bool
    prompt: tuple[ServerToken, ...] | None = None
    prompt_length: int | None = None


def completion_body(
    model: str, prompt: str, *, max_tokens: int, stop: Sequence[str], seed: int, top: int, echo: bool = False
) -> dict[str, Any]:
    """A request to ``/completions``: greedy for ``seed`` 0, else drawn at temperature 1; ``top`` 0: no log-probs."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens, **_drawing(seed)}
    if stop:
        body["stop"] = list(stop)
    if top:
        body["logprobs"] = top
    return {**body, "echo": True} if echo else body


def chat_body(model: str, user: str, *, max_tokens: int, seed: int, top: int) -> dict[str, Any]:
    """A request to ``/chat/completions``, with the same meaning of ``seed`` and ``top``."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": user}],
        "max_tokens": max_tokens,
        **_drawing(seed),
    }
    return {**body, "logprobs": True, "top_logprobs": top} if top else body


def chat_scoring_body(model: str, user: str, answer: str, *, top: int) -> dict[str, Any]:
    """As vLLM understands it: the log-probabilities of a chat whose last message is the answer, without its end."""
    body = {**chat_body(model, user, max_tokens=1, seed=0, top=top), "prompt_logprobs": 0}
    if answer:
        body["messages"].append({"role": "assistant", "content": answer})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def _drawing(seed: int) -> dict[str, Any]:
    return {"temperature": 1.0, "seed": seed} if seed else {"temperature": 0.0}


def read(answer: Mapping[str, Any]) -> Completion:
    """The first choice of a server's answer.

    Raises:
        ModelError: it has no choice, no text, or log-probabilities that are none (NaN, above 0).
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ModelError("the server's answer has no choices: is this an OpenAI-compatible address?")
    choice = choices[0]
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    if text is None and isinstance(message, dict):
        text = ""  # a message that was all thought, and no answer
    if not isinstance(text, str):
        raise ModelError("the server's answer has no text: is this an OpenAI-compatible address?")
    prompt = answer.get("prompt_logprobs", choice.get("prompt_logprobs"))
    usage = answer.get("usage")
    length = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return Completion(
        text,
        _tokens(choice.get("logprobs")),
        choice.get("finish_reason") != "length",
        tuple(map(_prompt_token, prompt)) if isinstance(prompt, list) else None,
        length if isinstance(length, int) else None,
    )


def _tokens(logprobs: Any) -> tuple[ServerToken, ...] | None:
    """Tokens in either form; None where there are none or they fit no form."""
    if not isinstance(logprobs, dict):
        return None
    if isinstance(content := logprobs.get("content"), list):
        made = [_chat_token(entry) for entry in content]
        return tuple(token for token in made if token) if all(made) else None
    names, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    tops = logprobs.get("top_logprobs")
    tops = tops if isinstance(tops, list) and len(tops) == len(names) else [None] * len(names)
    return tuple(
        ServerToken(
            name,
            _log_prob(value),
            None,
            _top(top.items()) if isinstance(top, dict) else (),
        )
        for name, value, top in zip(names, values, tops, strict=True)
    )


def _chat_token(entry: Any) -> ServerToken | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        return None
    data = entry.get("bytes")
    known = isinstance(data, list) and all(isinstance(b, int) and 0 <= b < 256 for b in data)
    top = entry.get("top_logprobs")
    listed = (
        [e for e in top if isinstance(e, dict) and isinstance(e.get("token"), str)] if isinstance(top, list) else []
    )
    return ServerToken(
        entry["token"],
        _log_prob(entry.get("logprob")),
        bytes(data) if known and isinstance(data, list) else None,
        _top((e["token"], e.get("logprob")) for e in listed),
    )


def _prompt_token(entry: Any) -> ServerToken:
    """A position of ``prompt_logprobs``: the token that stands there is the first, and with 0 the only one."""
    first = next(iter(entry.values()), None) if isinstance(entry, dict) else None
    if not isinstance(first, dict):
        return ServerToken("", None)
    return ServerToken(str(first.get("decoded_token") or ""), _log_prob(first.get("logprob")))


def _top(pairs: Any) -> tuple[tuple[str, float], ...]:
    known = [(str(name), _log_prob(value)) for name, value in pairs]
    return tuple((name, value) for name, value in known if value is not None)


def _log_prob(value: Any) -> float | None:
    """A log-probability in nats, or None where the server has none."""
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        number = math.nan
    if math.isnan(number) or -math.inf < number < _LEAST:
        raise ModelError(f"the server gave {str(value)[:40]!r} as a log-probability: what it returns cannot be used")
    if number > _ROUNDING:
        raise ModelError(f"the server gave a log-probability above 0 ({value}): what it returns cannot be used")
    return min(number, 0.0)


def candidate(found: Completion, template: Template, ends: frozenset[str]) -> TextCandidate:
    """A generated answer; without log-probabilities where the tokens are not its text."""
    tokens = found.tokens or ()
    for text in dict.fromkeys([found.text, _indent(tokens) + found.text]):  # some servers strip a message
        try:
            cover = head(tokens, text)
        except UnalignedError:
            continue
        if tokens:
            return TextCandidate(text, cover.pieces, cover.log_probs, _end(found, cover, template, ends), found.ended)
    return TextCandidate(found.text, (found.text,) if found.text else (), None, None, found.ended)


def _indent(tokens: Sequence[ServerToken]) -> str:
    """White space before the first word."""
    joined = "".join(token.text for token in tokens[:4])
    return joined[: len(joined) - len(joined.lstrip())]


def _end(found: Completion, cover: Cover, template: Template, ends: frozenset[str]) -> float | None:
    """Log p of the end of a generated answer."""
    tokens = found.tokens or ()
    if not found.ended:
        return None
    if cover.cut:  # a stop string was in the last token: after it nothing else could come
        return 0.0
    rest = tokens[cover.stop :]
    while len(rest) > 1 and rest[0].text.isspace() and not rest[0].text.startswith(template.stop):
        rest = rest[1:]  # white space that the server took off
    return end_log_prob(rest[0], template.stop, ends | {rest[0].text}) if rest else None


def end_log_prob(token: ServerToken, stop: tuple[str, ...], ends: frozenset[str]) -> float | None:
    """Log p that an answer ends where ``token`` stands: its mass and that of its rivals, as far as they are ends."""
    known = dict(token.top)
    if token.log_prob is not None:
        known[token.text] = token.log_prob
    mass = sum(math.exp(p) for text, p in known.items() if text in ends or text.startswith(stop))
    return min(math.log(mass), 0.0) if mass > 0 else None


def echoed(found: Completion, prompt: str, answer: str, template: Template, ends: frozenset[str]) -> TextCandidate:
    """A given answer with its log-probabilities, from the echo of prompt and answer and one token more.

    Raises:
        UnalignedError: the echo is not what was sent, or does not part prompt and answer.
    """
    whole = prompt + answer
    if found.tokens is None or not found.text.startswith(whole):
        raise UnalignedError("the server does not send back the prompt with its log-probabilities")
    tokens, more = found.tokens, found.text[len(whole) :]
    if not tokens:
        raise UnalignedError("the server sends back no tokens")
    following: ServerToken | None = None
    hidden = tokens[-1].text in ends and not whole.endswith(tokens[-1].text or "\0")
    if more or hidden or len(tokens) - 1 == found.prompt_length:
        tokens, following = tokens[:-1], tokens[-1]
    if len(tokens) > 2 and all(token.log_prob in (None, 0.0) for token in tokens):
        raise UnalignedError("the server gives log-probability 0 to every token of the prompt")
    return _scored(tail(tokens, answer), answer, following, template, ends)


def prompted(found: Completion, answer: str, template: Template, ends: frozenset[str]) -> TextCandidate:
    """A given answer with its log-probabilities, from ``prompt_logprobs`` of a chat that ends with it.

    Raises:
        UnalignedError: there are none, or they do not part prompt and answer.
    """
    if not found.prompt:
        raise UnalignedError("the server does not give prompt_logprobs")
    following = found.tokens[0] if found.tokens else None
    return _scored(tail(found.prompt, answer), answer, following, template, ends)


def _scored(
    cover: Cover, answer: str, following: ServerToken | None, template: Template, ends: frozenset[str]
) -> TextCandidate:
    end = None if following is None else end_log_prob(following, template.stop, ends)
    return TextCandidate(answer, cover.pieces, cover.log_probs, end, True)
