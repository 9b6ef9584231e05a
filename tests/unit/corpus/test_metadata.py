"""Metadata of documents: where it comes from, and what wins."""

import json
from datetime import date
from pathlib import Path

import pytest

from bifolio.corpus.metadata import MetadataRules, is_sidecar, labels, merged, of_path, sidecar
from bifolio.errors import DocumentError, UsageError
from bifolio.types import Document


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("{product}/{year}/*", "pump/2024/a.md", {"product": "pump", "year": 2024}),
        ("{product}/{year}/*", "pump/2024/deep/a.md", {}),
        ("{product}/**", "pump/2024/deep/a.md", {"product": "pump"}),
        ("**/{name}.md", "pump/2024/a.md", {"name": "a"}),
        ("{name}-{lang}.md", "manual-two-de.md", {"name": "manual-two", "lang": "de"}),
        ("v{major}.{minor}/*", "v1.20/a.md", {"major": 1, "minor": 20}),
        ("{n}/*", "0123456789012345678/a", {"n": "0123456789012345678"}),  # too long for a number of SQLite's
        ("{n}/*", "٣/a", {"n": "٣"}),
        ("(a+)+{x}", "(a+)+b", {"x": "b"}),
    ],
)
def test_a_pattern_of_the_path(pattern, path, expected):
    assert of_path(Path("/docs") / path, Path("/docs"), pattern) == expected
    assert of_path(Path("/elsewhere") / path, Path("/docs"), pattern) == {}


@pytest.mark.parametrize("rule", ["", "no name/*", "{}", "{1a}", 7, ["{a}"]])
def test_a_rule_that_is_none(rule):
    with pytest.raises(UsageError, match="metadata"):
        MetadataRules(rule)


def test_a_name_twice():
    with pytest.raises(UsageError, match=r"each \{name\} may stand there once"):
        of_path(Path("/docs/a/b"), Path("/docs"), "{a}/{a}")


def test_what_wins(tmp_path):
    path = tmp_path / "paths" / "a.md"
    path.parent.mkdir()
    path.write_text("x")
    Path(f"{path}.meta.json").write_text(json.dumps({"b": "beside", "c": "beside", "d": "beside", "title": "Beside"}))
    document = Document(text="x", title="Own", metadata={"a": "own", "b": "own", "c": "own"})
    found, said = merged(document, path, tmp_path, MetadataRules("{a}/*"))
    assert (dict(found.metadata), found.title, said) == (
        {"a": "own", "b": "beside", "c": "beside", "d": "beside", "title": "Beside"}, "Beside", [],
    )  # fmt: skip
    rules = MetadataRules(lambda where, own: {"c": where.name, "e": own.title, "when": date(2024, 5, 1), "n": None})
    found, _ = merged(document, path, tmp_path, rules)
    assert dict(found.metadata) == {
        "a": "own", "b": "beside", "c": "a.md", "d": "beside", "title": "Beside", "e": "Own", "when": "2024-05-01",
    }  # fmt: skip
    assert merged(Document(text="x"), tmp_path / "other.md", tmp_path, MetadataRules()) == (Document(text="x"), [])


def test_only_what_lies_beside_a_file_is_its_metadata(tmp_path):
    (tmp_path / "a.md").write_text("x")
    for name in ("a.md.meta.json", "b.md.meta.json"):
        (tmp_path / name).write_text("{}")
    assert sidecar(tmp_path / "a.md") == tmp_path / "a.md.meta.json"
    assert sidecar(tmp_path / "b.md.meta.json") is None
    assert is_sidecar(tmp_path / "a.md.meta.json")
    assert not is_sidecar(tmp_path / "b.md.meta.json")  # a document like any other


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ("{", "cannot be read"),
        ("[1]", "has no JSON object"),
        ('{"a": {"b": 1}}', "'a' is {'b': 1}; expected a text"),
        ('{"a": []}', r"'a' is \(\)"),
        ('{"": 1}', "'' is 1"),
        ('{"a": NaN}', "'a' is nan"),
        ('{"a": ' + "[" * 100_000, "cannot be read"),
        (b"\xff", "cannot be read"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "has more than 1048576 bytes"),
    ],
)
def test_a_file_beside_that_cannot_be_read(tmp_path, beside, message):
    (tmp_path / "a.md").write_text("x")
    (tmp_path / "a.md.meta.json").write_bytes(beside if isinstance(beside, bytes) else beside.encode())
    with pytest.raises(DocumentError, match=message):
        merged(Document(text="x"), tmp_path / "a.md", tmp_path, MetadataRules())


@pytest.mark.parametrize("given", [None, 7, "text", [("a", 1)]])
def test_a_function_that_gives_no_mapping(given, tmp_path):
    with pytest.raises(DocumentError, match="expected a mapping"):
        merged(Document(text="x"), tmp_path / "a", tmp_path, MetadataRules(lambda path, document: given))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("hr", ("hr",)), ("hr, legal ,hr", ("hr", "legal")), (("a.b", "x@y"), ("a.b", "x@y")), ("größe", ("größe",))],
)
def test_labels(value, expected):
    assert labels({"access": value}) == expected
    assert labels({}) == ()


@pytest.mark.parametrize("value", ["", " ", "a,,b", ",", "a b", "a/b", (), (1,), 5, True, ("",), "x" * 101, "a\nb"])
def test_labels_that_cannot_be_read_are_not_none(value):
    with pytest.raises(DocumentError, match="access"):
        labels({"access": value})
