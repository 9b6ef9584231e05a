"""Pairs of encoders: what is stored depends on the passage encoder, so the question encoder may be exchanged."""

import shutil

import numpy as np
import pytest

from bifolio.collection import Collection
from bifolio.errors import EncoderMismatchError
from bifolio.loading import load_encoder
from bifolio.rag_checkpoint import read_rag_checkpoint
from fakes import FakeEncoder, write_files
from unit.encoder_folders import write_dpr, write_sentence_transformer
from unit.rag_checkpoints import write_rag

pytest.importorskip("pyarrow", reason="comes with the [datasets] extra")

from unit.datasets_fakes import SENTENCES, save_to_disk, table


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_dpr(tmp_path / "q", passages=False, seed=1)
    write_dpr(tmp_path / "p", passages=True, seed=2)
    write_files(tmp_path / "docs")
    return tmp_path


def load(model):
    return load_encoder(model, device="cpu", dtype="float32")


def test_a_collection_of_a_pair_is_opened_with_a_rag_checkpoint_s_question_encoder(here):
    write_rag(here / "rag")
    tuned = load(read_rag_checkpoint("./rag").encoder_id("./p"))
    pair = load("./q,./p")
    assert tuned.spec.fingerprint != pair.spec.fingerprint
    assert tuned.passage_fingerprint == pair.passage_fingerprint
    with Collection.build(["docs"], "c", encoder=pair) as collection:
        ids = [passage.id for passage in collection.passages()]
        vectors = collection.snapshot().vectors(ids)
    with Collection.open("c", encoder=tuned) as collection:
        scores = {hit.passage.id: hit.score for hit in collection.retrieve("the cat sat", 9, mode="dense")}
        expected = vectors @ tuned.encode_questions(["the cat sat"])[0]
        np.testing.assert_allclose([scores[name] for name in ids], expected, rtol=1e-5)
        write_files(here / "docs", {"new.txt": "A new stone.\n"})
        assert collection.ingest(["docs"]).added == 1
    with Collection.open("c", dtype="float32") as collection:  # the one that it was built with stays its own
        assert collection.encoder.spec.fingerprint == pair.spec.fingerprint
        assert len(collection.retrieve("stone", 9)) == 4


def test_another_passage_encoder_is_refused(here):
    write_dpr(here / "p2", passages=True, seed=3)
    Collection.build(["docs"], "c", encoder=load("./q,./p")).close()
    with pytest.raises(EncoderMismatchError, match="their vectors cannot be compared"):
        Collection.open("c", encoder=load("./q,./p2"))
    with pytest.raises(EncoderMismatchError):
        Collection.open("c", encoder=FakeEncoder())


def test_a_question_encoder_that_changes_in_its_place_is_noticed(here):
    Collection.build(["docs"], "c", encoder=load("./q,./p")).close()
    shutil.rmtree("q")
    write_dpr(here / "q", passages=False, seed=9)
    with Collection.open("c") as collection, pytest.raises(EncoderMismatchError, match="was built with encoder"):
        collection.encoder  # noqa: B018


def test_one_encoder_for_both_has_one_fingerprint(here):
    write_sentence_transformer(here / "st")
    encoder = load("./st")
    assert encoder.passage_fingerprint == encoder.spec.fingerprint


def test_a_data_set_that_a_dpr_encoder_made_is_taken_and_its_titles_matter(here):
    pair = load("./q,./p")
    from bifolio.types import Passage

    passages = [Passage(str(n), text, title=title) for n, (title, text) in enumerate(SENTENCES)]
    columns = {
        "id": [passage.id for passage in passages],
        "title": [passage.title for passage in passages],
        "text": [passage.text for passage in passages],
        "embeddings": list(pair.encode_passages(passages)),
    }
    save_to_disk(here / "data", table(columns))
    with Collection.build(["data"], "c", encoder=pair, vectors="embeddings") as collection:
        assert [file.status for file in collection.report.files] == ["ok"]
        np.testing.assert_array_equal(collection.snapshot().vectors(columns["id"]), np.stack(columns["embeddings"]))
    write_dpr(here / "p2", passages=True, seed=3)
    with pytest.raises(Exception, match="passages that were encoded anew have other vectors in column 'embeddings'"):
        Collection.build(["data"], "d", encoder=load("./q,./p2"), vectors="embeddings")
