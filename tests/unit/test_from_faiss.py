"""Collections of a FAISS index that was made elsewhere and a file of its passages."""

import gzip
import json

import numpy as np
import pytest

from bifolio.collection import Collection
from bifolio.errors import DocumentError, MissingPathError
from fakes import DIMENSION, FakeEncoder, bag

faiss = pytest.importorskip("faiss", reason="comes with the [faiss] extra")

TEXTS = [f"{thing} number {n}" for n, thing in enumerate(["valve", "river", "cat", "pump", "stone"] * 3)]
VECTORS = np.stack([bag(text) for text in TEXTS])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"p{n}", "text": text, "title": "T"}) + "\n" for n, text in enumerate(TEXTS)]
    (tmp_path / "p.jsonl").write_text("".join(lines))
    return tmp_path


def save(index, vectors=VECTORS):
    if vectors is not None:
        index.add(vectors)
    faiss.write_index(index, "made.faiss")


def from_faiss(passages="p.jsonl", **options):
    return Collection.from_faiss("made.faiss", passages, "c", encoder=FakeEncoder(), **options)


KINDS = {
    "flat": lambda: faiss.IndexFlatIP(DIMENSION),
    "flat, Euclidean": lambda: faiss.IndexFlatL2(DIMENSION),
    "hnsw": lambda: faiss.IndexHNSWFlat(DIMENSION, 8, faiss.METRIC_INNER_PRODUCT),
    "flat in a map": lambda: faiss.IndexIDMap2(faiss.IndexFlatIP(DIMENSION)),
}


@pytest.mark.parametrize("index", ["exact", "faiss:hnsw"])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_come_back_by_place(kind, index):
    made = KINDS[kind]()
    if kind == "flat in a map":
        made.add_with_ids(VECTORS, np.arange(len(VECTORS)))
    save(made, None if kind == "flat in a map" else VECTORS)
    with from_faiss(index=index) as collection:
        ids = [f"p{n}" for n in range(len(TEXTS))]
        assert [(p.id, p.text) for p in collection.passages()] == list(zip(ids, TEXTS, strict=True))
        np.testing.assert_array_equal(collection.snapshot().vectors(ids), VECTORS)
        assert collection.retrieve("stone number 9", 1)[0].passage.id == "p9"
        assert [file.status for file in collection.report.files] == ["ok"]


def test_passages_in_gzip_and_in_dpr_s_table(here):
    save(KINDS["flat"]())
    table = "id\ttext\ttitle\n" + "".join(f'{n}\t"{text}"\t"T"\n' for n, text in enumerate(TEXTS))
    (here / "p.tsv.gz").write_bytes(gzip.compress(table.encode()))
    with from_faiss("p.tsv.gz") as collection:
        assert collection.passage("7").text == TEXTS[7]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (14, "it has more passages than made.faiss has vectors, 14"),
        (16, "it has 15 passages, and made.faiss 16 vectors"),
    ],
)
def test_not_as_many_passages_as_vectors(here, count, words):
    save(KINDS["flat"](), np.concatenate([VECTORS, VECTORS])[:count])
    with pytest.raises(MissingPathError, match=f"nothing readable: p.jsonl: {words}"):
        from_faiss()
    assert not (here / "c").exists()


def test_a_passage_without_a_text_makes_the_order_unclear(here):
    save(KINDS["flat"]())
    lines = (here / "p.jsonl").read_text().splitlines(keepends=True)
    lines[3] = '{"id": "p3", "text": ""}\n'
    (here / "p.jsonl").write_text("".join(lines))
    with pytest.raises(MissingPathError, match="line 4: no text, so which vector is whose cannot be told"):
        from_faiss()


def test_the_wrong_order_is_noticed():
    save(KINDS["flat"](), VECTORS[::-1].copy())
    with pytest.raises(MissingPathError, match="passages that were encoded anew have other vectors in made.faiss"):
        from_faiss()


def test_another_dimension():
    save(faiss.IndexFlatIP(8), np.ones((15, 8), dtype=np.float32))
    with pytest.raises(MissingPathError, match="row 1: made.faiss has 8 values; the encoder .* has 32 dimensions"):
        from_faiss()


def test_indexes_that_cannot_be_used(here):
    compressed = faiss.IndexPQ(DIMENSION, 4, 2)
    compressed.train(VECTORS)
    save(compressed)
    with pytest.raises(DocumentError, match=r"made\.faiss is a IndexPQ, which keeps no whole vectors; expected a flat"):
        from_faiss()
    mapped = faiss.IndexIDMap(faiss.IndexFlatIP(DIMENSION))
    mapped.add_with_ids(VECTORS, np.arange(len(VECTORS))[::-1].copy())
    save(mapped, None)
    with pytest.raises(DocumentError, match="has ids of its own"):
        from_faiss()
    (here / "made.faiss").write_bytes(b"no index")
    with pytest.raises(DocumentError, match="cannot be read as a FAISS index"):
        from_faiss()
    (here / "made.faiss").unlink()
    with pytest.raises(MissingPathError, match=r"no such file: made\.faiss"):
        from_faiss()
    assert not (here / "c").exists()
