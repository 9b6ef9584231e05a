"""The index of a collection: its hits, what it is made of and when, and classes of third parties."""

import os
import random
import sys
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from bifolio import registry
from bifolio.collection import Collection
from bifolio.errors import CollectionDamagedError
from bifolio.indexes.exact import ExactIndex
from fakes import FakeEncoder, bag, write_files
from unit.test_collection import INDEXES, QUESTION, answers, build, reopen


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    return tmp_path


def saved(path="c"):
    """Names of the saved dense indexes."""
    return [name for name in os.listdir(f"{path}/index") if name.startswith("dense-")]


@pytest.fixture
def many(here):
    """400 passages of random words, each in a record with an id."""
    dice = random.Random(5)
    lines = [
        f'{{"id": "p{i}", "text": "{" ".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=6))} n{i}"}}'
        for i in range(400)
    ]
    write_files(here, {"many.jsonl": "\n".join(lines)})
    return here


@pytest.mark.parametrize("index", INDEXES)
def test_hits_are_those_of_brute_force(many, index):
    with build("many.jsonl", as_passages=True, index=index) as collection:
        texts = {f"p{i}": collection.passage(f"p{i}").text for i in range(400)}
        vectors = np.stack([bag(text) for text in texts.values()])
        for question in ("a b c d e f", "n17", "q n399 z"):
            scores = vectors.astype(np.float64) @ bag(question)
            order = np.argsort(-scores, kind="stable")[:20]
            hits = collection.retrieve(question, 20, mode="dense", collapse=False)
            assert [hit.passage.id for hit in hits] == [f"p{i}" for i in order]
            assert [hit.score for hit in hits] == pytest.approx(scores[order].tolist(), abs=1e-5)
            prior = np.exp(10 * scores[order] - np.logaddexp.reduce(10 * scores[order]))
            assert [np.exp(hit.log_prior) for hit in hits] == pytest.approx(prior.tolist(), abs=1e-4)
            assert all(hit.passage.text == texts[hit.passage.id] for hit in hits)


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_follows_updates(many, index):
    with build("many.jsonl", as_passages=True, index=index) as collection:
        collection.ingest(["docs"])  # added
        Collection.build(["many.jsonl"], "oracle", encoder=FakeEncoder(), as_passages=True).close()
        with reopen("oracle") as oracle:
            oracle.ingest(["docs"])
            assert answers(collection, k=8) == answers(oracle, k=8)
        write_files(many / "docs", {"cat.txt": "Which valve has closed? None.\n"})
        collection.ingest(["docs"])  # replaced
        (hit, *_) = collection.retrieve(QUESTION, 3)
        assert hit.passage.text == "Which valve has closed? None."
        with reopen() as opened:
            assert answers(opened) == answers(collection)
            assert len(opened.retrieve(QUESTION, 10_000, collapse=False)) == 403
    assert len(saved()) == (index != "exact")  # what came in later is searched beside it


@pytest.mark.parametrize("index", INDEXES[1:])
@pytest.mark.parametrize("damage", ["deleted", "garbage", "cut", "another"])
def test_a_saved_index_that_cannot_be_used_is_built_anew(here, index, damage, caplog):
    with build(index=index) as collection:
        before = answers(collection)
    (name,) = saved()
    path = here / "c/index" / name
    if damage == "another":  # an index of another state of the collection
        Collection.build(["docs/cat.txt"], "d", encoder=FakeEncoder(), index=index).close()
        (other,) = saved("d")
        path.write_bytes((here / "d/index" / other).read_bytes())
    elif damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"garbage" if damage == "garbage" else path.read_bytes()[:-10])
    with reopen() as opened:
        assert answers(opened) == before
    assert "built anew" in caplog.text
    with reopen() as opened:  # and an update goes on from there
        write_files(here / "docs", {"new.txt": "Which valve has closed?\n"})
        opened.ingest(["docs"])
        assert opened.retrieve(QUESTION, 1)[0].passage.source == "docs/new.txt"
        assert len(opened.retrieve(QUESTION, 9)) == 4


class Plain:
    """An index of a third party that can do what it must and has no ``load``."""

    made: ClassVar[list] = []

    def __init__(self, dimension, argument=""):
        self.inner = ExactIndex(dimension)
        self.made.append(self)

    def add(self, vectors, ids):
        self.inner.add(vectors, ids)

    def search(self, queries, k, allowed=None):
        return self.inner.search(queries, k, allowed)

    def save(self, path):
        path.write_bytes(b"plain")

    def __len__(self):
        return len(self.inner)


class Broken(Plain):
    @classmethod
    def load(cls, path):
        raise AttributeError("not mine")


@pytest.mark.parametrize("kind", [Plain, Broken])
def test_an_index_that_cannot_be_loaded_is_built_from_the_vectors(here, monkeypatch, kind):
    monkeypatch.setitem(registry._BUILT_IN["index"], "theirs", registry._Entry("theirs:Index", "", ""))
    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(Index=kind))
    Collection.build(["docs"], "oracle", encoder=FakeEncoder()).close()
    with reopen("oracle") as oracle:
        before = answers(oracle)
    with build(index="theirs") as collection:
        assert answers(collection) == before
        write_files(here / "docs", {"new.txt": "Which valve has closed?\n"})
        collection.ingest(["docs"])
        with reopen() as opened:
            assert answers(opened, k=9) == answers(collection, k=9)
            assert opened.retrieve(QUESTION, 1)[0].passage.source == "docs/new.txt"


def test_many_small_updates_are_few_blocks(here, monkeypatch):
    with build() as collection:
        for turn in range(30):
            write_files(here / "docs", {f"t{turn}.txt": f"Text of turn {turn}.\n"})
            collection.ingest(["docs"])
    adds = []
    real = ExactIndex.add
    monkeypatch.setattr(
        ExactIndex, "add", lambda self, *args, **given: (adds.append(len(args[1])), real(self, *args, **given))[1]
    )
    with reopen() as opened:
        assert len(opened.snapshot().catalogue.blocks(1)) == 31
        assert len(os.listdir("c/vectors")) == 1
        assert opened.retrieve("text of turn 17", 1)[0].passage.source == "docs/t17.txt"
    assert adds == [33]


# ---- checksums ----


def spoil(path):
    """Change one number of a file of vectors: it is a number still."""
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)


def test_a_saved_index_is_never_built_from_changed_vectors(here):
    with build(index="faiss:flat") as collection:
        before = answers(collection)
        (path,) = (here / "c/vectors").iterdir()
        spoil(path)
        (here / "c/index" / saved()[0]).unlink()
        with pytest.raises(CollectionDamagedError, match=f"{path.name}: vectors 0 to 2 .* not as they were written"):
            collection.compact()
        assert (answers(collection), collection.generation) == (before, "1")
        assert os.listdir("c/vectors") == [path.name]


def test_a_changed_vector_is_never_copied(here):
    write_files(here / "docs", {"r.jsonl": '{"text": "One."}\n{"text": "Two."}\n'})
    with build() as collection:
        (path,) = (here / "c/vectors").iterdir()
        spoil(path)
        write_files(here / "docs", {"r.jsonl": '{"text": "One."}\n{"text": "Three."}\n'})
        with pytest.raises(CollectionDamagedError, match=f"{path.name}: vectors 0 to 4 .* not as they were written"):
            collection.ingest(["docs"])
