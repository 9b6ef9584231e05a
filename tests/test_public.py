"""The public surface: names, versions, registry."""

import re
from importlib import metadata
from pathlib import Path

import pytest

import bifolio
from bifolio import registry
from bifolio.errors import BifolioError, MissingExtraError, UsageError

ROOT = Path(__file__).parents[1]


def test_all_names_exist_and_are_documented():
    for name in bifolio.__all__:
        thing = getattr(bifolio, name)
        assert name == "__version__" or thing.__doc__
    assert set(bifolio.__all__) <= set(dir(bifolio))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        bifolio.Nothing  # noqa: B018


def test_one_version():
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert newest is not None
    assert bifolio.__version__ == metadata.version("bifolio") == newest.group(1)


def test_registry_resolves_names_with_arguments():
    found, argument = registry.resolve("index", "exact")
    assert (found.__name__, argument) == ("ExactIndex", "")
    found, argument = registry.resolve("index", "faiss:hnsw")
    assert (found.__name__, argument) == ("FaissIndex", "hnsw")
    assert {"exact", "faiss"} <= set(registry.names("index"))


def test_registry_errors_say_what_is_expected(monkeypatch):
    with pytest.raises(UsageError, match="unknown index 'annoy': expected exact or faiss"):
        registry.resolve("index", "annoy")
    with pytest.raises(UsageError, match="kinds are"):
        registry.names("colour")
    monkeypatch.setitem(registry._BUILT_IN["index"], "gone", registry._Entry("no_such_module:X", "gone-db", "gone"))
    with pytest.raises(MissingExtraError, match=r"pip install 'bifolio\[gone\]'"):
        registry.resolve("index", "gone")


def test_every_error_of_ours_has_an_exit_code_and_one_root():
    from bifolio import errors

    classes = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert all(issubclass(error, BifolioError) for error in classes)
    assert {error.__name__: error.exit_code for error in classes if error.exit_code != 2} == {
        "NotFoundError": 1,
        "ModelMissingError": 3,
    }
    drawn = set(re.findall(r"\b(\w+Error|\w+Document)\b", errors.__doc__))
    assert {error.__name__ for error in classes} <= drawn
