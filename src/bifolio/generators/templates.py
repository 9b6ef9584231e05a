"""Prompts as data: what is put around a passage, a question and an answer.

The passage comes first, then the question, then the answer, so that what a model has read of a passage depends on
nothing else and can be kept. Parts are tokenized one by one and joined as ids: the seam is always the same (a tokenizer
that marks the beginning of a text, as SentencePiece does, marks it at every seam).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bifolio.errors import ModelError, UsageError
from bifolio.options import STYLES

_PASSAGE = "\x02passage\x03"
_QUESTION = "\x02question\x03"


@dataclass(frozen=True)
class Template:
    """The parts of a prompt around ``{label}``, ``{text}`` and ``{question}``.

    Attributes:
        before: Before everything, also when no passage is read. Trusted: special tokens in it count as such. In the
            chat form it has the BOS that the model's template writes; in the plain form the tokenizer's is added.
        passage: Around the passage; ``{label}`` is its title and heading path. Left out when no passage is read.
        question: Around the question.
        after: After the question. Trusted like ``before``.
        lead: What every answer begins with, such as the space after a colon; it is not part of the answer.
        stop: A token that begins with one of these ends the answer, as EOS does.
    """

    before: str
    passage: str
    question: str
    after: str
    lead: str
    stop: tuple[str, ...]


PLAIN: Mapping[str, Template] = {
    "short": Template("", "{label}\n{text}\n\n", "Question: {question}\n", "Short answer:", " ", ("\n", "\r")),
    "long": Template("", "{label}\n{text}\n\n", "Question: {question}\n", "Answer:", " ", ("\n", "\r")),
}
"""For base models and for models fine-tuned by bifolio."""

_SYSTEM = "You answer questions from the text that you are given."
_CHAT_PASSAGE = "{label}\n{text}\n\n"
_CHAT_QUESTION: Mapping[str, str] = {
    "short": "{question}\nAnswer with a few words.",
    "long": "{question}\nAnswer with one or two sentences.",
}

CHAT_USER: Mapping[str, Template] = {
    style: Template(f"{_SYSTEM}\n\n", _CHAT_PASSAGE, question, "", "", ()) for style, question in _CHAT_QUESTION.items()
}
"""The user's message of a chat that a server puts into the model's own template. What the system would say is said in
it: many models refuse a system message, and a server does not tell."""


def check_style(style: str) -> None:
    """Raise ``UsageError`` for a style that no template has."""
    if style not in STYLES:
        raise UsageError(f"unknown style {style!r}: expected one of {', '.join(STYLES)}")


def chat(render: Callable[[list[dict[str, str]]], str]) -> Mapping[str, Template]:
    """The chat form of a model: ``render(messages)`` applies the model's own chat template, up to the answer.

    Raises:
        ModelError: the chat template does not give back the user's message unchanged.
    """
    templates: dict[str, Template] = {}
    for style in STYLES:
        user = f"{_PASSAGE}{_QUESTION}"
        try:
            prompt = render([{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}])
        except Exception:  # templates raise what they like; many of them refuse a system message
            try:
                prompt = render([{"role": "user", "content": user}])
            except Exception as error:
                raise ModelError(f"the model's chat template fails ({error}): use the plain prompt form") from error
        before, middle, after = prompt.partition(user)
        if not middle:
            raise ModelError("the model's chat template changes the user's message: use the plain prompt form")
        templates[style] = Template(before, _CHAT_PASSAGE, _CHAT_QUESTION[style], after, "", ())
    return templates
