"""Prompts for a generator whose tokenizer is unknown: one a branch, or one for all passages, in a guessed window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from bifolio.errors import UsageError
from bifolio.generators.templates import CHAT_USER, PLAIN, Template, check_style
from bifolio.protocols import Kept, Reading
from bifolio.types import Passage

_LEAST_ROOM = 32  # tokens of a passage under which reading it makes no sense

_CITING: Mapping[str, str] = {
    "short": "Answer with a few words and the number of the passage that says so in brackets, such as [1].",
    "long": "Answer with one or two sentences. End each with the number of the passage that says so, such as [1].",
}


class Prompts(NamedTuple):
    """Texts to send, and what was read of each passage, in characters."""

    texts: tuple[str, ...]
    kept: tuple[Kept, ...]


def template(reading: Reading, *, chat: bool) -> Template:
    """The template of a reading: the plain form, or the message of a chat.

    Raises:
        UsageError: the style is unknown.
    """
    check_style(reading.style)
    return (CHAT_USER if chat else PLAIN)[reading.style]


def estimate(text: str) -> int:
    """Tokens that a text hardly exceeds: one for three ASCII letters or spaces, one for other ASCII, two for the rest.

    English takes about four letters a token, so that a passage is rather cut than a request refused.
    """
    letters = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    foreign = sum(not c.isascii() for c in text)
    return math.ceil(letters / 3) + (len(text) - letters - foreign) + 2 * foreign


def fit(text: str, room: int) -> str:
    """The longest beginning of ``text`` that has at most ``room`` tokens by :func:`estimate`."""
    if estimate(text) <= room:
        return text
    low, high = 0, len(text)  # text[:low] fits, text[:high] does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if estimate(text[:middle]) <= room else (low, middle)
    return text[:low]


def apart(reading: Reading, form: Template, window: int) -> Prompts:
    """One prompt a branch: each passage with the question, and the question alone if ``reading.no_passage``.

    A passage that does not fit beside the question and the answer is cut at the end of its text, never the question.

    Raises:
        UsageError: the question leaves no room, or there is neither a passage nor the no-passage branch.
    """
    if not reading.passages and not reading.no_passage:
        raise UsageError("nothing to read: no passage was given and the no-passage branch is off")
    question = form.question.replace("{question}", reading.question) + form.after
    room = _room(form.before + question, reading, window)
    made = [_passage(form, passage, room) for passage in reading.passages]
    texts = [f"{form.before}{text}{question}" for text, _ in made]
    if reading.no_passage:
        texts.append(form.before + question)
    return Prompts(tuple(texts), tuple(kept for _, kept in made))


def together(reading: Reading, form: Template, window: int) -> Prompts:
    """One prompt with all passages, numbered from 1, that asks for their numbers; each may take an equal share.

    Raises:
        UsageError: the question leaves no room.
    """
    question = form.question.replace("{question}", reading.question)
    if reading.passages:
        question = f"{question.rstrip()}\n{_CITING[reading.style]}\n"
    question += form.after
    room = _room(form.before + question, reading, window)
    share = room // max(1, len(reading.passages))
    if reading.passages and share < _LEAST_ROOM:
        raise UsageError(
            f"{len(reading.passages)} passages in one prompt leave {share} tokens for each in the window of {window} "
            "tokens: read fewer, or give the generator the window that its server has"
        )
    made = [_passage(form, passage, share, f"[{z}] ") for z, passage in enumerate(reading.passages, start=1)]
    return Prompts((form.before + "".join(text for text, _ in made) + question,), tuple(kept for _, kept in made))


def _room(frame: str, reading: Reading, window: int) -> int:
    """Tokens that are left for passages."""
    needed = estimate(frame)
    room = window - needed - reading.max_tokens
    if room < _LEAST_ROOM:
        raise UsageError(
            f"the question takes about {needed} tokens and the answer may take {reading.max_tokens}: that leaves no "
            f"room for a passage in the window of {window} tokens; shorten the question, lower max_tokens, or give the "
            "generator the window that its server has"
        )
    return room


def _passage(form: Template, passage: Passage, room: int, number: str = "") -> tuple[str, Kept]:
    """A passage in at most ``room`` tokens, and how many characters of its text that are of how many."""
    above, _, below = form.passage.partition("{text}")
    before, _, after = above.partition("{label}")
    label = fit(passage.label, room // 4)
    head = f"{before}{number}{label}{after}" if label else number  # without a label there is no empty line for it
    text = fit(passage.text, max(0, room - estimate(head + below)))
    return f"{head}{text}{below}", Kept(len(text), len(passage.text))
