r"""Filter expressions over the metadata of documents: ``source:manuals/* AND year>=2024``.

::

    expression  = conjunction ("OR" conjunction)*
    conjunction = negation ("AND" negation)*
    negation    = "NOT" negation | "(" expression ")" | key operator value
    operator    = ":" | "=" | "!=" | "<" | "<=" | ">" | ">="

``:`` compares with a glob (``*`` any text, ``?`` one character), the others with the value itself. A value stands
in double quotes if it has spaces or parentheses, with ``\`` before a quote within them. Keys are those of the
metadata and ``source``, ``title`` and ``media_type``. Numbers are compared with numbers and texts with texts, in
the order of their characters, so that ISO dates compare as dates; ``true`` and ``false`` are texts. Case matters.
Of a list any element may match. Where a document lacks a key every comparison with it is false, also ``!=``: ``NOT
year=2024`` includes what has no year.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64

from bifolio.errors import UsageError

OPERATORS = (":", "!=", "<=", ">=", "=", "<", ">")
RESERVED = ("source", "title", "media_type")
"""Keys that are no metadata."""

_LONGEST = 10_000  # characters of an expression
_DEEPEST = 50  # parentheses and NOTs within each other
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()])|(?P<operator>!=|<=|>=|[:=<>])|"(?P<quoted>(?:[^"\\]|\\.)*)"|
(?P<bare>[^\s()":=<>!]+))""",
    re.VERBOSE | re.DOTALL,
)
_VALUE = re.compile(r"""\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s()"]+))""", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Comparison:
    """``key operator value``.

    Attributes:
        key: Of the metadata, or one of :data:`RESERVED`.
        operator: One of :data:`OPERATORS`.
        value: As written.
        number: Its value, if it is a finite number that was not quoted.
    """

    key: str
    operator: str
    value: str
    number: float | None


@dataclass(frozen=True)
class Not:
    """What ``part`` does not let through."""

    part: Filter


@dataclass(frozen=True)
class All:
    """What all parts let through."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Any_:
    """What one of the parts lets through."""

    parts: tuple[Filter, ...]


Filter = Comparison | Not | All | Any_


class Store(Protocol):
    """Where documents are looked up; document numbers are ascending."""

    def documents(self) -> Int64[np.ndarray, " n"]:
        """All of them."""
        ...

    def matching(self, comparison: Comparison) -> Int64[np.ndarray, " n"]:
        """Those for which a comparison holds."""
        ...


def evaluate(expression: Filter, store: Store) -> Int64[np.ndarray, " n"]:
    """Numbers of the documents that an expression lets through, ascending."""
    if isinstance(expression, Comparison):
        return store.matching(expression)
    if isinstance(expression, Not):
        return np.setdiff1d(store.documents(), evaluate(expression.part, store), assume_unique=True)
    found = [evaluate(part, store) for part in expression.parts]
    result = found[0]
    for more in found[1:]:
        if isinstance(expression, All):
            result = np.intersect1d(result, more, assume_unique=True)
        else:
            result = np.union1d(result, more)
    return result


def matches(expression: Filter, facts: Mapping[str, Any]) -> bool:
    """Whether an expression lets a document through, of which these are the metadata and reserved keys."""
    if isinstance(expression, Not):
        return not matches(expression.part, facts)
    if isinstance(expression, All):
        return all(matches(part, facts) for part in expression.parts)
    if isinstance(expression, Any_):
        return any(matches(part, facts) for part in expression.parts)
    if expression.key not in facts:
        return False
    value = facts[expression.key]
    return any(_holds(expression, *as_row(one)) for one in (value if isinstance(value, tuple | list) else (value,)))


def as_row(value: Any) -> tuple[str, float | None]:
    """A value of the metadata as text and, if it is a finite number, as a number."""
    if isinstance(value, bool):
        return ("true" if value else "false"), None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return str(value), None
        return str(value), number if math.isfinite(number) else None
    return str(value), None


def _holds(comparison: Comparison, text: str, number: float | None) -> bool:
    operator = comparison.operator
    if operator == ":":
        return glob(comparison.value).fullmatch(text) is not None
    mine: Any = text
    other: Any = comparison.value
    if number is not None:
        if comparison.number is None:
            return False
        mine, other = number, comparison.number
    elif comparison.number is not None and operator not in ("=", "!="):
        return False  # a text is neither less nor more than a number
    holds: dict[str, bool] = {
        "=": mine == other, "!=": mine != other, "<": mine < other, "<=": mine <= other, ">": mine > other,
        ">=": mine >= other,
    }  # fmt: skip
    return holds[operator]


def glob(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression for ``fullmatch``; several stars in a row are one.

    What stands between two stars is looked for once, at the first place: trying the others would find no more, and
    would take time that grows with every star as a power of the text's length.
    """
    first, *others = _STARS.split(pattern)
    parts = [_fixed(first)]
    for number, part in enumerate(others, 1):
        parts.append(rf"(?=(.*?{_fixed(part)}))\{number}" if number < len(others) else f".*{_fixed(part)}")
    return re.compile("".join(parts), re.DOTALL)


def _fixed(part: str) -> str:
    return "".join("." if one == "?" else re.escape(one) for one in part)


_STARS = re.compile(r"\*+")


# ---- reading ----


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def _peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _fail(self, expected: str) -> UsageError:
        rest = self._text[self._at :].strip()
        found = f"{rest[:20]!r}" if rest else "the end"
        return UsageError(
            f"filter {self._text[:100]!r}: expected {expected} at character {self._at + 1}, found {found}. "
            "Write such as: source:manuals/* AND year>=2024"
        )

    def _word(self, word: str) -> bool:
        """Whether the next token is this word, which is then read."""
        token = self._peek()
        if token is None or (token["bare"] or "").upper() != word:
            return False
        self._at = token.end()
        return True

    def parse(self) -> Filter:
        expression = self._either()
        if self._text[self._at :].strip():
            raise self._fail("AND, OR or the end")
        return expression

    def _either(self) -> Filter:
        parts = [self._both()]
        while self._word("OR"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def _both(self) -> Filter:
        parts = [self._one()]
        while self._word("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self) -> Filter:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError(f"the filter has more than {_DEEPEST} parentheses and NOTs within each other")
        token = self._peek()
        if token is not None and token["mark"] == "(":
            self._at = token.end()
            inner = self._either()
            token = self._peek()
            if token is None or token["mark"] != ")":
                raise self._fail("a closing parenthesis")
            self._at = token.end()
        elif self._is_not(token):
            self._word("NOT")
            inner = Not(self._one())
        else:
            inner = self._comparison()
        self._depth -= 1
        return inner

    def _is_not(self, token: re.Match[str] | None) -> bool:
        """Whether NOT comes next; a key of that name is followed by an operator."""
        if token is None or (token["bare"] or "").upper() != "NOT":
            return False
        after = _TOKEN.match(self._text, token.end())
        return after is None or not after["operator"]

    def _comparison(self) -> Filter:
        token = self._peek()
        key = None if token is None else token["bare"] or token["quoted"]
        if token is None or not key:
            raise self._fail("a key")
        self._at = token.end()
        token = self._peek()
        if token is None or not token["operator"]:
            raise self._fail(f"one of {' '.join(OPERATORS)}")
        operator, self._at = token["operator"], token.end()
        value = _VALUE.match(self._text, self._at)
        if value is None:
            raise self._fail("a value")
        self._at = value.end()
        if value["quoted"] is not None:
            return Comparison(_unescaped(key), operator, _unescaped(value["quoted"]), None)
        bare = value["bare"]
        return Comparison(_unescaped(key), operator, bare, as_number(bare))


def as_number(text: str) -> float | None:
    """The finite number that a text is."""
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def parse(text: str) -> Filter:
    """Read a filter expression.

    Raises:
        UsageError: it cannot be read; the message says where and what was expected.
    """
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"the filter is {text!r}: expected such as source:manuals/* AND year>=2024")
    if len(text) > _LONGEST:
        raise UsageError(f"the filter has {len(text)} characters; expected at most {_LONGEST}")
    return _Parser(text).parse()


def keys(expression: Filter) -> set[str]:
    """The keys that an expression names."""
    if isinstance(expression, Comparison):
        return {expression.key}
    parts: Iterable[Filter] = (expression.part,) if isinstance(expression, Not) else expression.parts
    return set().union(*(keys(part) for part in parts))
