"""Which of a server's tokens are a given text: where an answer begins among the tokens of prompt and answer.

Servers disagree about how a token looks. Most give its text; a token that holds only some bytes of a character shows
as U+FFFD, SentencePiece loses the space before a word or writes it as "▁". So tokens are matched with the text that is
known, byte by byte, and nothing is believed about offsets that a server states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_BYTES_FORM = re.compile(r"bytes:(?:\\x[0-9a-fA-F]{2}|[\x20-\x7e])+")  # how OpenAI writes half a character
_BYTE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_FRAGMENT = rb"[\x80-\xff]{1,3}"  # what U+FFFD stands for, at most three bytes of a character


_MOST_HOLES = 8  # in one token; the ways to fill them double with each


class UnalignedError(Exception):
    """The tokens are not the text, or not it alone."""


class StraddledError(UnalignedError):
    """A token holds the end of the prompt and the beginning of the answer."""


class ServerToken(NamedTuple):
    """A token as a server shows it.

    Attributes:
        text: Its text, as far as it has one.
        log_prob: Log p given what is before it; None where the server does not say, as for a prompt's first token.
        data: Its bytes, where the server gives them.
        top: Likely tokens in its place with their log-probabilities.
    """

    text: str
    log_prob: float | None
    data: bytes | None = None
    top: tuple[tuple[str, float], ...] = ()


class Cover(NamedTuple):
    """Consecutive tokens that make up a text.

    Attributes:
        first: The first of them.
        stop: One past the last.
        pieces: The text, cut where a token begins with a character; joined they are the text.
        log_probs: Of each piece, nats; the tokens of one character are one piece.
        cut: Whether the last token goes on behind the text.
    """

    first: int
    stop: int
    pieces: tuple[str, ...]
    log_probs: tuple[float, ...]
    cut: bool = False


def head(tokens: Sequence[ServerToken], text: str) -> Cover:
    """The first tokens, which make up ``text``; a stop string may have cut the last one short.

    Raises:
        UnalignedError: they do not, or one of them has no log-probability.
    """
    return _strictly_or_not(_head, tokens, text)


def tail(tokens: Sequence[ServerToken], text: str) -> Cover:
    """The last tokens, which make up ``text``.

    Raises:
        UnalignedError: they do not, one of them has no log-probability, or the first of them begins before ``text``.
    """
    return _strictly_or_not(_tail, tokens, text)


_Find = Callable[[Sequence[ServerToken], str, bool], Cover]


def _strictly_or_not(find: _Find, tokens: Sequence[ServerToken], text: str) -> Cover:
    """Take tokens by the letter; only when that fails, let each have lost the space before it."""
    try:
        return find(tokens, text, False)
    except StraddledError:
        raise
    except UnalignedError:
        try:
            return find(tokens, text, True)
        except UnalignedError:
            pass
        raise


def _head(tokens: Sequence[ServerToken], text: str, tolerant: bool) -> Cover:
    data = text.encode("utf-8", "surrogatepass")
    steps: list[dict[int, int]] = []  # for each token, where it may end and where it then began
    reached = {0}
    while len(data) not in reached:
        if len(steps) == len(tokens):
            raise UnalignedError("the tokens end before the text does")
        token = tokens[len(steps)]
        step = {end: at for at in sorted(reached) for end in _ends(token, data, at, tolerant)}
        if not step:
            over = [at for at in reached if _bytes(token).startswith(data[at:])]
            if not over:
                raise UnalignedError(f"the server's token {token.text[:40]!r} is not in its text")
            return _cover(data, tokens, 0, [*steps, {len(data): over[0]}], cut=True)
        steps.append(step)
        reached = set(step)
    whole = len(steps)
    while len(steps) < len(tokens) and _is_fragment(tokens[len(steps)]) and steps and _is_fragment(tokens[whole - 1]):
        token = tokens[len(steps)]
        steps.append({end: at for at in sorted(steps[-1]) for end in _ends(token, data, at, tolerant)})
        whole = len(steps) if len(data) in steps[-1] else whole
    return _cover(data, tokens, 0, steps[:whole])


def _tail(tokens: Sequence[ServerToken], text: str, tolerant: bool) -> Cover:
    data = text.encode("utf-8", "surrogatepass")
    steps: list[dict[int, int]] = []  # from the last token on: where it may begin and where it then ends
    reached = {len(data)}
    while 0 not in reached:
        if len(steps) == len(tokens):
            raise UnalignedError("the tokens are fewer than the text needs")
        token = tokens[len(tokens) - 1 - len(steps)]
        step = {begin: at for at in sorted(reached) for begin in _begins(token, data, at, tolerant)}
        if not step:
            if any(_bytes(token).endswith(data[:at]) for at in reached):
                raise StraddledError(
                    f"the token {token.text[:40]!r} holds the end of the prompt and the beginning of the answer"
                )
            raise UnalignedError(f"the server's token {token.text[:40]!r} is not in the text that was sent")
        steps.append(step)
        reached = set(step)
    while steps and len(steps) < len(tokens) and all(map(_is_fragment, tokens[-len(steps) - 1 :][:2])):
        token = tokens[len(tokens) - 1 - len(steps)]
        steps.append({begin: at for at in sorted(steps[-1]) for begin in _begins(token, data, at, tolerant)})
        if 0 not in steps[-1]:
            raise StraddledError("the prompt ends and the answer begins within one character")
    path, at = [], 0
    for step in reversed(steps):
        path.append({step[at]: at})
        at = step[at]
    return _cover(data, tokens, len(tokens) - len(path), path)


def _cover(
    data: bytes, tokens: Sequence[ServerToken], first: int, steps: Sequence[dict[int, int]], cut: bool = False
) -> Cover:
    """Walk back from the end of the text, then join the tokens of one character, and fragments side by side."""
    ends = [len(data)]
    for step in reversed(steps[1:]):
        ends.append(step[ends[-1]])
    pieces: list[str] = []
    log_probs: list[float] = []
    start, total = 0, 0.0
    mine = [*tokens[first : first + len(steps)]]
    for i, (token, end) in enumerate(zip(mine, ends[::-1] if steps else (), strict=True)):
        if token.log_prob is None:
            raise UnalignedError(f"the server's token {token.text[:40]!r} has no log-probability")
        total += token.log_prob
        within = _is_fragment(token) and i + 1 < len(mine) and _is_fragment(mine[i + 1])
        if end > start and not within and (end == len(data) or data[end] & 0xC0 != 0x80):
            pieces.append(data[start:end].decode("utf-8", "surrogatepass"))
            log_probs.append(total)
            start, total = end, 0.0
    if total and log_probs:  # tokens without a character at the end
        log_probs[-1] += total
    return Cover(first, first + len(steps), tuple(pieces), tuple(log_probs), cut)


def _is_fragment(token: ServerToken) -> bool:
    """Whether a token is some bytes of a character, nobody knows how many; side by side, all are taken."""
    return token.data is None and "\ufffd" in token.text


def _bytes(token: ServerToken) -> bytes:
    """A token's bytes as far as they are known."""
    if token.data is not None:
        return token.data
    if _BYTES_FORM.fullmatch(token.text) and "\\x" in token.text:
        shown = token.text.removeprefix("bytes:").encode()
        return _BYTE.sub(lambda found: bytes([int(found.group(1), 16)]), shown)
    return token.text.encode("utf-8", "surrogatepass")


class _Form(NamedTuple):
    """What a token may look like in the text, and between which lengths in bytes."""

    pattern: re.Pattern[bytes]
    least: int
    most: int


def _forms(token: ServerToken, tolerant: bool) -> list[_Form]:
    known = _bytes(token)
    shapes = [known]
    if tolerant:
        words = known.replace("▁".encode(), b" ")
        shapes += [words, b" " + words, words.removeprefix(b" ")]
    forms = []
    for shape in dict.fromkeys(shapes):
        parts = [shape] if token.data is not None else shape.split("\ufffd".encode())
        size, holes = sum(map(len, parts)), len(parts) - 1
        if holes > _MOST_HOLES:
            continue
        pattern = re.compile(_FRAGMENT.join(map(re.escape, parts)), re.DOTALL)
        forms.append(_Form(pattern, size + holes, size + 3 * holes))
    return forms


def _ends(token: ServerToken, data: bytes, at: int, tolerant: bool) -> set[int]:
    return {
        at + size
        for form in _forms(token, tolerant)
        for size in range(form.least, min(form.most, len(data) - at) + 1)
        if form.pattern.fullmatch(data, at, at + size)
    }


def _begins(token: ServerToken, data: bytes, at: int, tolerant: bool) -> set[int]:
    return {
        at - size
        for form in _forms(token, tolerant)
        for size in range(form.least, min(form.most, at) + 1)
        if form.pattern.fullmatch(data, at - size, at)
    }
