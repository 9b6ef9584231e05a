"""Which dense index a collection gets, and how good it is said to be."""

import importlib.util

import numpy as np
import pytest

from bifolio.collection import Collection
from bifolio.indexes import choosing
from bifolio.indexes.exact import ExactIndex
from fakes import FakeEncoder, write_files
from unit.test_collection import build, reopen


@pytest.mark.parametrize(
    ("count", "dimension", "name", "told"),
    [
        (0, 384, "exact", "0 vectors of 384 numbers are looked through"),
        (100_000, 384, "exact", "100,000 vectors of 384 numbers are looked through"),
        (100_001, 384, "faiss:hnsw", "a graph visits few of them"),
        (2**30 // 384, 384, "faiss:hnsw", "a graph visits few of them"),
        (2**30 // 384 + 1, 384, "faiss:ivfpq", "need 4 GiB in a graph"),
        (21_000_000, 768, "faiss:ivfpq", "need 60 GiB in a graph"),
    ],
)
def test_by_size(count, dimension, name, told):
    chosen, reason = choosing.choose(count, dimension)
    assert chosen == name
    assert told in reason


def test_without_faiss_it_is_exact_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choosing.choose(10**6, 384) == (
        "exact",
        "1,000,000 vectors of 384 numbers would be found faster by a graph: pip install 'bifolio[faiss]'",
    )


class Forgetful(ExactIndex):
    """Finds none of the rows that three divides."""

    def search(self, queries, k, allowed=None):
        return super().search(queries, k, np.arange(10**4) % 3 > 0)


@pytest.mark.parametrize("lot", [7, 65_536])
def test_recall_is_what_an_index_finds_of_the_exact_best(monkeypatch, lot):
    monkeypatch.setattr(choosing, "_LOT", lot)
    vectors, rows = np.random.default_rng(0).standard_normal((250, 8)).astype(np.float32), np.arange(250) * 4

    def vectors_of(wanted):
        return vectors[wanted // 4]

    whole, part = ExactIndex(8), Forgetful(8)
    for index in (whole, part):
        index.add(vectors, rows)
    assert choosing.measured_recall(whole, vectors_of, rows) == 1.0
    queries = vectors[np.linspace(0, 249, 100).astype(int)]
    _, best = whole.search(queries, 10)
    assert choosing.measured_recall(part, vectors_of, rows) == pytest.approx((best % 3 > 0).mean())
    assert choosing.measured_recall(ExactIndex(8), vectors_of, rows[:0]) == 1.0


def test_a_collection_that_grows_changes_its_index_and_says_so(tmp_path, monkeypatch):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    monkeypatch.chdir(tmp_path)
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    write_files(tmp_path / "docs", {f"{i}.txt": f"Text {words[i % 7]} {i}.\n" for i in range(60)})
    dimension = FakeEncoder().spec.dimension
    with build(index="auto") as collection:
        assert collection.stats()["index"]["index"] == "exact"
        assert collection.report.notes == ()
        for scanned, graphed, index in ((50, 1000, "faiss:hnsw"), (50, 55, "faiss:ivfpq")):
            monkeypatch.setattr(choosing, "SCANNED", scanned * dimension)
            monkeypatch.setattr(choosing, "GRAPHED", graphed * dimension)
            write_files(tmp_path / "docs", {f"{index[6:]}.txt": "One more text.\n"})
            report = collection.ingest(["docs"])
            (told,) = report.notes
            assert told.startswith(f"index {index}: ") and "recall@10 against exact search 1.000" in told
            facts = collection.stats()["index"]
            assert (facts["asked"], facts["index"], facts["recall"]) == ("auto", index, 1.0)
            with reopen() as opened:
                assert len(opened.retrieve("text three 3", 100, collapse=False)) == len(opened)
                assert opened.retrieve("three 3", 1)[0].passage.source == "docs/3.txt"
    assert Collection.open("c", encoder=FakeEncoder()).verify() == []
