"""Filter expressions: what is written is what is meant, in SQL as in Python, and no text hangs or breaks them."""

import fnmatch
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio import filters
from bifolio.attributes import SqlStore
from bifolio.catalogue import Catalogue, FileWriter
from bifolio.errors import UsageError
from bifolio.filters import All, Any_, Comparison, Not, as_number, evaluate, glob, matches, parse
from bifolio.types import Document

KEYS = ["year", "team", "a.b", "source", "title", "media_type", "NOT", "with space"]
TEXTS = ["", "2024", "2024.0", "-3", "1e3", "true", "hr", "Hr", "a*b", 'q"q', "b\\s", "ü", "x y", "(", "10", "9", "nan"]
VALUES = st.one_of(
    st.sampled_from(TEXTS), st.integers(-5, 2030), st.sampled_from([0.5, 2024.0, -0.0, 1e300]), st.booleans(),
    st.lists(st.sampled_from(["hr", "x y", "2024"]), min_size=1, max_size=3).map(tuple),
)  # fmt: skip
METADATA = st.dictionaries(st.sampled_from(["year", "team", "a.b", "NOT", "with space"]), VALUES, max_size=4)


@st.composite
def comparisons(draw):
    value = draw(st.sampled_from([*TEXTS, "*", "20*", "?r", "*.md", "2024-01-01", "5", "docs/*"]))
    quoted = draw(st.booleans()) or not value or bool(re.search(r'[\s()"\\]', value))
    number = None if quoted else as_number(value)
    return Comparison(draw(st.sampled_from(KEYS)), draw(st.sampled_from(filters.OPERATORS)), value, number)


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: All(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Any_(tuple(parts))),
    ),
    max_leaves=6,
)


def written(expression, quote=False):
    """An expression as a person writes it."""
    if isinstance(expression, Comparison):
        as_text = f'"{escaped(expression.value)}"'
        bare = expression.number is not None or not re.search(r'[\s()"\\]|^$', expression.value)
        bare = bare and (expression.number is not None or as_number(expression.value) is None)
        key = expression.key if " " not in expression.key else f'"{expression.key}"'
        return f"{key}{expression.operator}{expression.value if bare and not quote else as_text}"
    if isinstance(expression, Not):
        return f"NOT ({written(expression.part)})"
    word = " AND " if isinstance(expression, All) else " OR "
    return word.join(f"({written(part)})" for part in expression.parts)


def escaped(text):
    return re.sub(r'(["\\])', r"\\\1", text)


def meaning(expression, facts):
    """The rules of the module's docstring, written down once more."""
    if isinstance(expression, Not):
        return not meaning(expression.part, facts)
    if isinstance(expression, All | Any_):
        return (all if isinstance(expression, All) else any)([meaning(part, facts) for part in expression.parts])
    if expression.key not in facts:
        return False
    values = facts[expression.key]
    return any(holds(expression, value) for value in (values if isinstance(values, tuple) else [values]))


def holds(comparison, value):
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if comparison.operator == ":":
        pattern = re.sub(r"\[", "[[]", comparison.value)
        return re.fullmatch(fnmatch.translate(pattern), text) is not None
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if numeric != (comparison.number is not None):
        if numeric or comparison.operator not in ("=", "!="):
            return False
        return (text == comparison.value) == (comparison.operator == "=")
    mine, other = (float(value), comparison.number) if numeric else (text, comparison.value)
    return {
        "=": mine == other, "!=": mine != other, "<": mine < other,
        "<=": mine <= other, ">": mine > other, ">=": mine >= other,
    }[comparison.operator]  # fmt: skip


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    made = Catalogue.create(tmp_path_factory.mktemp("filters") / "catalogue.sqlite")
    yield made
    made.close()


def store_of(catalogue, documents):
    """The documents in a catalogue of their own; facts by document number."""
    facts = {}
    with catalogue.writing():
        catalogue.change("DELETE FROM files")
        for number, (source, metadata) in enumerate(documents):
            given = {
                "path": f"/{number}",
                "source": source,
                "hash": "",
                "options": "",
                "added": "",
                "size": 0,
                "mtime": 0,
            }
            writer = FileWriter(catalogue, number, given)
            document = Document(text="", title=f"T{number}", media_type="text/plain", metadata=metadata)
            writer.add(document, (), [])
            identity = catalogue.scalar("SELECT max(id) FROM documents")
            facts[identity] = {**metadata, "source": source, "title": f"T{number}", "media_type": "text/plain"}
    return SqlStore(catalogue.query), facts


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, st.lists(st.tuples(st.sampled_from(["docs/a.md", "b.txt", "2024"]), METADATA), max_size=6))
def test_sql_python_and_the_rules_agree(catalogue, expression, documents):
    store, facts = store_of(catalogue, documents)
    expected = [number for number, known in facts.items() if meaning(expression, known)]
    assert [number for number, known in facts.items() if matches(expression, known)] == expected
    found = evaluate(expression, store)
    assert found.dtype == np.int64
    assert found.tolist() == expected
    assert evaluate(parse(written(expression)), store).tolist() == expected


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_what_is_written_is_read(expression):
    again = parse(written(expression))
    assert written(again) == written(expression)
    assert filters.keys(again) == filters.keys(expression)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet='ab:=<>!()"\\* ANDORNOT', max_size=40))
def test_any_text_is_read_or_refused_with_a_reason(text):
    try:
        parse(text)
    except UsageError as error:
        assert "filter" in str(error)


@given(st.text(alphabet="ab?*[]^\\\n", max_size=12), st.text(alphabet="ab[]^\\\n", max_size=12))
def test_a_glob_is_that_of_fnmatch_without_its_brackets(pattern, text):
    oracle = fnmatch.translate(pattern.replace("[", "[[]"))
    assert bool(glob(pattern).fullmatch(text)) == bool(re.fullmatch(oracle, text))


@pytest.mark.timeout(60)
def test_a_glob_of_many_stars_does_not_hang():
    """It would take hours if every place of every part were tried."""
    assert not glob("*a" * 60 + "*b").fullmatch("a" * 5000)
    assert glob("*a" * 60 + "*b").fullmatch("a" * 5000 + "b")


def test_precedence_and_words_as_keys():
    assert written(parse("a=1 OR b=2 AND NOT c=3")) == "(a=1) OR ((b=2) AND (NOT (c=3)))"
    assert parse("not=1") == Comparison("not", "=", "1", 1.0)
    assert parse("not a=1") == Not(Comparison("a", "=", "1", 1.0))
    assert parse('year >= 2024 and team : "h r"') == All(
        (Comparison("year", ">=", "2024", 2024.0), Comparison("team", ":", "h r", None))
    )
    assert parse("url=http://x/y?a=b") == Comparison("url", "=", "http://x/y?a=b", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the filter is ''"),
        ("year", r"expected one of : != <= .* at character 5, found the end"),
        ("year>=", "expected a value at character 7, found the end"),
        ("(a=1", "expected a closing parenthesis"),
        ("a=1 b=2", "expected AND, OR or the end at character 4, found 'b=2'"),
        ("a=1 AND", "expected a key"),
        ('a="x', "expected a value"),
        ("NOT " * 60 + "a=1", "more than 50 parentheses"),
        ("(" * 60 + "a=1" + ")" * 60, "more than 50 parentheses"),
        ("a=" + "x" * 10_000, "10002 characters"),
    ],
)
def test_what_cannot_be_read_says_where(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)
