"""Generators behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, LM Studio, Ollama, OpenAI.

Each passage is read on its own by a request of its own; the branches run side by side. What a server can do decides
what the answer is worth, so it is found out, once, when it is first needed: whether tokens come with log-probabilities,
and whether given text can be scored, by the echo of ``/completions`` or by vLLM's ``prompt_logprobs`` in a chat.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bifolio.errors import ModelError, UsageError
from bifolio.generators import prompts, wire
from bifolio.generators.endpoint import Endpoint, Limits, Request, ServerError
from bifolio.generators.seam import UnalignedError
from bifolio.generators.templates import CHAT_USER, PLAIN
from bifolio.protocols import Kept, Reading, TextCandidate, TextGeneratorSpec

APIS = ("auto", "completions", "chat")
"""``completions``: the plain prompt form is continued. ``chat``: the server's chat template is used. ``auto``: the one
with which the server can do more; chat if both are equal."""

_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_CANNOT = (400, 404, 405, 422, 500, 501)  # with which servers answer to what they do not know
_FEWER = 5  # alternatives a token that OpenAI's /completions has at most
_PROBE = ("Question: What is one plus one?\nShort answer:", " two")
_NAMED = 10  # models of a server that a message names


@dataclass(frozen=True)
class _Way:
    """How to talk to the server, and what it can do.

    Attributes:
        api: ``completions`` or ``chat``.
        top: Alternatives a token that may be asked for; 0 when there are no log-probabilities.
        log_probs: Whether generated tokens come with log-probabilities.
        scores: Whether given text can be scored.
        why: Why it cannot; "".
    """

    api: str
    top: int
    log_probs: bool
    scores: bool
    why: str = ""

    @property
    def chat(self) -> bool:
        return self.api == "chat"


class RemoteGenerator:
    """A server's model as a :class:`bifolio.protocols.TextGenerator`. Safe to use from many threads."""

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        api: str = "auto",
        api_key_env: str | None = None,
        timeout: float = 120.0,
        concurrency: int = 8,
        window: int = 4096,
        top_log_probs: int = _FEWER,
        end_tokens: Sequence[str] = (),
        languages: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        """Check the arguments; nothing is sent before the first use.

        Args:
            url: Such as ``http://127.0.0.1:8000/v1``; what follows a ``#`` is the model.
            model: The server's name for the model; when left out, the one that it has.
            api: One of :data:`APIS`.
            api_key_env: Environment variable that holds the key; see :class:`bifolio.generators.endpoint.Endpoint`.
            timeout: Seconds that one request may take.
            concurrency: Requests under way at a time.
            window: Tokens that prompt and answer may have together at the server. Its tokenizer is unknown, so that
                tokens are estimated, rather too many than too few.
            top_log_probs: Alternatives a token to ask for. The end of an answer is looked for among them; above 5,
                which is all that some servers give, it is found more often.
            end_tokens: How the server shows tokens that end an answer, beside the usual ones.
            languages: ISO 639-1 codes that the model is known to handle.
            limits: All bounds of time and size, instead of ``timeout``.

        Raises:
            UsageError: an argument cannot be used.
        """
        address, _, named = url.partition("#")
        if named and model:
            raise UsageError(f"two models, {named!r} and {model!r}: name one")
        if api not in APIS:
            raise UsageError(f"unknown api {api!r}: expected one of {', '.join(APIS)}")
        for name, value, least in (
            ("concurrency", concurrency, 1), ("window", window, 64), ("top_log_probs", top_log_probs, 1)
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} {value!r}: expected a whole number from {least} on")
        if limits is None:
            limits = Limits(timeout=timeout)
        self._endpoint = Endpoint(address, api_key_env=api_key_env, limits=limits)
        self._model = named or model
        self._api = api
        self._concurrency = concurrency
        self._window = window
        self._top = top_log_probs
        self._ends = wire.END_TOKENS | frozenset(end_tokens)
        self._languages = languages
        self._lock = threading.Lock()
        self._known: _Way | None = None

    def __repr__(self) -> str:
        return f"RemoteGenerator({self._endpoint.url!r}, {self._model!r})"

    @property
    def spec(self) -> TextGeneratorSpec:
        """The generator's identity and what it can do; asks the server when that is not known yet.

        Raises:
            ModelError: the server cannot be reached, or does not have the model.
            UsageError: no model was named and the server has several.
        """
        way = self._way()
        return TextGeneratorSpec(f"{self._endpoint.url}#{self._model}", way.log_probs, way.scores, self._languages)

    def kept(self, reading: Reading, *, together: bool = False) -> tuple[Kept, ...]:
        """For each passage the characters of its text that are read and that it has; ``together``: in one prompt."""
        return self._prompts(reading, self._way(), together=together).kept

    def generate(self, reading: Reading, *, n: int = 1) -> list[list[TextCandidate]]:
        """For each branch up to ``n`` answers, best first: the greedy one, and others drawn with the seeds 1, 2, ...

        Raises:
            UsageError: ``n`` is below 1, the question does not fit, or there is no branch.
            ModelError: the server cannot be reached or answers with something that cannot be used.
        """
        if n < 1:
            raise UsageError(f"n {n}: expected at least 1")
        way = self._way()
        texts = self._prompts(reading, way).texts
        found = iter(self._ask([self._body(way, reading, text, seed) for text in texts for seed in range(n)], way))
        form = prompts.template(reading, chat=way.chat)
        branches = []
        for _ in texts:
            unique: dict[str, TextCandidate] = {}
            for _ in range(n):
                made = wire.candidate(next(found), form, self._ends)
                unique.setdefault(made.text, made)
            branches.append(sorted(unique.values(), key=_rank))
        return branches

    def score(self, reading: Reading, answers: Sequence[TextCandidate]) -> list[list[TextCandidate]]:
        """For each branch the same answers with their log-probabilities under it.

        In a chat the text that is scored has no white space around it, which chat templates take off.
        ``log_probs`` is None where the server's tokens do not part prompt and answer, so that p(answer | prompt) is
        not among what it returned.

        Raises:
            UsageError: the server cannot score, or the question does not fit.
            ModelError: the server cannot be reached or answers with something that cannot be used.
        """
        way = self._way()
        if not way.scores:
            raise UsageError(f"{self._endpoint.url} cannot score given answers: {way.why}")
        texts = self._prompts(reading, way).texts
        form = prompts.template(reading, chat=way.chat)
        given = [answer.text.strip() if way.chat else answer.text for answer in answers]
        pairs = [(text, answer) for text in texts for answer in given]
        found = self._ask([self._scoring_body(way, text, answer) for text, answer in pairs], way)
        scored = []
        for (text, answer), one in zip(pairs, found, strict=True):
            try:
                if way.chat:
                    made = wire.prompted(one, answer, form, self._ends)
                else:
                    made = wire.echoed(one, text, answer, form, self._ends)
            except UnalignedError:
                made = TextCandidate(answer, (answer,) if answer else (), None, None, True)
            scored.append(made)
        width = len(given)
        rows = [scored[z * width : (z + 1) * width] for z in range(len(texts))]
        return [[_with_finish(made, answer) for made, answer in zip(row, answers, strict=True)] for row in rows]

    def concatenated(self, reading: Reading) -> TextCandidate:
        """One answer to all passages in one prompt, numbered from 1: no mixture, where log-probabilities are missing.

        Raises:
            UsageError: the question does not fit, or the passages have too little room.
            ModelError: the server cannot be reached or answers with something that cannot be used.
        """
        way = self._way()
        (text,) = self._prompts(reading, way, together=True).texts
        (found,) = self._ask([self._body(way, reading, text, 0)], way)
        return wire.candidate(found, prompts.template(reading, chat=way.chat), self._ends)

    def _prompts(self, reading: Reading, way: _Way, *, together: bool = False) -> prompts.Prompts:
        build = prompts.together if together else prompts.apart
        return build(reading, prompts.template(reading, chat=way.chat), self._window)

    def _body(self, way: _Way, reading: Reading, text: str, seed: int) -> dict[str, Any]:
        room = reading.max_tokens
        if way.chat:
            return wire.chat_body(self._model, text, max_tokens=room, seed=seed, top=way.top)
        stop = PLAIN[reading.style].stop
        return wire.completion_body(self._model, text, max_tokens=room, stop=stop, seed=seed, top=way.top)

    def _scoring_body(self, way: _Way, text: str, answer: str) -> dict[str, Any]:
        if way.chat:
            return wire.chat_scoring_body(self._model, text, answer, top=way.top)
        return wire.completion_body(self._model, text + answer, max_tokens=1, stop=(), seed=0, top=way.top, echo=True)

    def _ask(self, bodies: Sequence[dict[str, Any]], way: _Way) -> list[wire.Completion]:
        requests = [Request(_PATHS[way.api], body) for body in bodies]
        return [wire.read(answer) for answer in self._endpoint.ask(requests, self._concurrency)]

    def _way(self) -> _Way:
        """What the server can do; asked once, by one thread."""
        with self._lock:
            if self._known is None:
                self._model = self._model or self._only_model()
                self._known = self._discover()
            return self._known

    def _discover(self) -> _Way:
        """Try the interfaces that are wished, and take the one with which the server can do most."""
        ways: list[_Way] = []
        failures: list[ServerError] = []
        for api in ("chat", "completions") if self._api == "auto" else (self._api,):
            try:
                ways.append(self._try(api))
            except ServerError as error:
                failures.append(error)
                if error.status not in _CANNOT:
                    raise
            if ways and ways[-1].scores:
                break
        if not ways:
            raise self._unknown_model(failures) from None
        return max(ways, key=lambda way: (way.scores, way.log_probs, way.chat))

    def _try(self, api: str) -> _Way:
        """What can be had of one interface: first everything is asked for, then less and less."""
        fewer = [self._top, *([_FEWER] if self._top > _FEWER else [])]
        why, refused = "", None
        for scoring, top in [*((True, top) for top in fewer), *((False, top) for top in fewer), (False, 0)]:
            try:
                (found,) = self._ask([self._probe(api, scoring, top)], _Way(api, top, False, False))
            except ServerError as error:
                if error.status not in _CANNOT:
                    raise
                refused = error
                why = why or str(error)
                continue
            scores = False
            if scoring:
                why = self._why_not(api, found)
                scores = not why
            counted = _has_log_probs(found)
            if scores or counted or not top:
                return _Way(api, top if counted else 0, counted, scores, why)
        if refused is None:
            raise AssertionError("the last attempt returns or is refused")
        raise refused

    def _probe(self, api: str, scoring: bool, top: int) -> dict[str, Any]:
        """A request of one token; with ``scoring`` it has all that scoring needs."""
        prompt, answer = _PROBE
        if api == "chat":
            if scoring:
                return wire.chat_scoring_body(self._model, prompt, answer.strip(), top=top)
            return wire.chat_body(self._model, prompt, max_tokens=1, seed=0, top=top)
        whole = prompt + answer
        return wire.completion_body(self._model, whole, max_tokens=1, stop=(), seed=0, top=top, echo=scoring)

    def _why_not(self, api: str, found: wire.Completion) -> str:
        """Why the answer to a probe shows that the server cannot score; "" if it can."""
        prompt, answer = _PROBE
        try:
            if api == "chat":
                wire.prompted(found, answer.strip(), CHAT_USER["short"], self._ends)
            else:
                wire.echoed(found, prompt, answer, PLAIN["short"], self._ends)
        except UnalignedError as error:
            return str(error)
        return ""

    def _models(self) -> list[str]:
        """Names of the server's models, as ``/models`` lists them."""
        (answer,) = self._endpoint.ask([Request("/models")])
        listed = answer.get("data")
        entries = listed if isinstance(listed, list) else []
        return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]

    def _only_model(self) -> str:
        names = self._models()
        if len(names) != 1:
            have = f"has {_list(names)}" if names else "lists none"
            raise UsageError(f"no model was named and {self._endpoint.url} {have}: write URL#MODEL")
        return names[0]

    def _unknown_model(self, failures: Sequence[ServerError]) -> ModelError:
        """The failure that says most; for an unknown model, which ones there are."""
        if any(error.status == 404 for error in failures):
            try:
                names = self._models()
            except ModelError:
                names = []
            if names and self._model not in names:
                return ModelError(f"{self._endpoint.url} has no model {self._model!r}: it has {_list(names)}")
        return min(failures, key=lambda error: error.status in (404, 405))


def _has_log_probs(found: wire.Completion) -> bool:
    """Whether tokens came with log-probabilities; an answer that ended at once has none to show."""
    if found.tokens is None or (found.text and not found.tokens):
        return False
    return not found.tokens or any(token.log_prob is not None for token in found.tokens)


def _list(names: Sequence[str]) -> str:
    shown = ["".join(c if c.isprintable() else "?" for c in name[:80]) for name in names[:_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _rank(made: TextCandidate) -> tuple[bool, float]:
    """Finished answers first, then by log-probability; without any, the greedy one stays first."""
    known = None if made.log_probs is None else sum(made.log_probs) + (made.end_log_prob or 0.0)
    return (not made.finished, -known if known is not None else 0.0)


def _with_finish(made: TextCandidate, answer: TextCandidate) -> TextCandidate:
    """A scored answer that was cut when it was generated has no end."""
    if answer.finished:
        return made
    return TextCandidate(made.text, made.pieces, made.log_probs, None, False)
