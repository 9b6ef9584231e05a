"""The collection: opening, searching, showing, its indexes, and what is wrong with a damaged one."""

import errno
import os
import sqlite3

import numpy as np
import pytest

from bifolio import building, catalogue_file, seals
from bifolio.catalogue import Catalogue
from bifolio.collection import Collection
from bifolio.errors import (
    BifolioError,
    CollectionBusyError,
    CollectionError,
    CollectionExistsError,
    CollectionMissingError,
    EncoderMismatchError,
    ModelMissingError,
    NotFoundError,
    UsageError,
)
from bifolio.write_lock import write_lock
from fakes import TEXTS, FakeEncoder, write_files
from unit.test_catalogue import without_rights

INDEXES = ["exact", "faiss:flat", "faiss:hnsw"]
QUESTION = "which valve has closed"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    return tmp_path


def build(*paths, **options):
    return Collection.build(list(paths) or ["docs"], "c", **{"encoder": FakeEncoder(), **options})


def reopen(path="c", **options):
    return Collection.open(path, **{"encoder": FakeEncoder(), **options})


def answers(collection, question=QUESTION, k=3):
    return [(hit.passage.id, hit.score, hit.log_prior) for hit in collection.retrieve(question, k, mode="dense")]


def test_what_was_built_is_what_is_opened(here):
    with build() as built:
        with reopen() as opened:
            assert (len(opened), opened.counts(), opened.generation) == (3, (3, 3), "1")
            assert answers(opened) == answers(built)
            assert [(f.source, f.passages) for f in opened.files()] == [(f"docs/{name}", 1) for name in sorted(TEXTS)]
            assert opened.retrieve(QUESTION, 1)[0].passage.source == "docs/pump.md"
    assert sorted(os.listdir("c")) == [
        "catalogue.sqlite",
        "index",
        "vectors",
        "writer.lock",
    ]  # no log is left when all are closed


def test_a_collection_can_be_moved(here):
    with build() as built:
        before = answers(built)
    (here / "elsewhere").mkdir()
    os.rename("c", "elsewhere/d")
    with reopen("elsewhere/d") as opened:
        assert answers(opened) == before


def test_an_open_collection_does_not_depend_on_the_current_folder(here, monkeypatch):
    build().close()
    with reopen() as opened:
        monkeypatch.chdir(here / "docs")
        assert len(answers(opened)) == 3
        assert opened.ingest(["."]).added == 0
        assert sorted(os.listdir(".")) == sorted(TEXTS)


@pytest.mark.parametrize("index", INDEXES)
def test_a_writer_that_opened_before_another_one_wrote_loses_nothing(here, index):
    with build(index=index) as first, reopen() as second:
        answers(first)
        write_files(here / "more", {"m.txt": "One more of the kind.\n"})
        second.ingest(["more"])
        write_files(here / "most", {"n.txt": "And the last of the kind.\n"})
        first.ingest(["most"])
        assert {hit.passage.source for hit in first.retrieve("kind", 9)} == {
            *(f"docs/{name}" for name in TEXTS),
            "more/m.txt",
            "most/n.txt",
        }
        with reopen() as third:
            assert answers(third, "kind", 9) == answers(first, "kind", 9)


@pytest.mark.parametrize("index", INDEXES)
def test_a_reader_keeps_its_generation(here, index):
    with build(index=index) as writer, reopen() as reader, reopen() as late:
        before = answers(reader)
        write_files(here / "docs", {"cat.txt": "Which valve has closed?\n", "more.txt": "Another valve.\n"})
        writer.ingest(["docs"])
        assert (answers(reader), reader.generation, len(reader)) == (before, "1", 3)
        assert (answers(late), late.generation) == (before, "1")  # had not searched yet
        assert answers(writer) != before
        assert (writer.generation, len(writer)) == ("2", 4)
        with pytest.raises(NotFoundError):
            writer.passage(next(hit[0] for hit in before if "cat" in reader.passage(hit[0]).text))
        with reopen() as fresh:
            assert answers(fresh) == answers(writer)


def test_a_failed_ingest_moves_on_to_the_newest_generation(here):
    with build() as first, reopen() as second:
        answers(first)  # its index is in memory
        write_files(here / "docs", {"cat.txt": "Which valve has closed?\n"})
        second.ingest(["docs"])
        write_files(here, {"bad.bin": bytes(range(256))})
        assert first.ingest(["bad.bin"]).files[0].status == "skipped"
        assert answers(first) == answers(second)


def test_a_second_writer_is_told_so_and_can_go_on_reading(here, monkeypatch):
    monkeypatch.setattr(catalogue_file, "BUSY_SECONDS", 0.2)
    build().close()
    with reopen() as second:
        before = answers(second)
        with write_lock(here / "c", "sync"):
            write_files(here / "docs", {"new.txt": "New.\n"})
            told = rf"another process is writing to this collection \(sync, process {os.getpid()}, since 20"
            with pytest.raises(CollectionBusyError, match=told):
                second.ingest(["docs"], wait=0.1)
            assert answers(second) == before
        catalogue = Catalogue.open(here / "c/catalogue.sqlite")
        with catalogue.writing(), pytest.raises(CollectionBusyError, match="another process is writing"):
            second.ingest(["docs"])
        catalogue.close()
        assert second.ingest(["docs"]).added == 1


# ---- questions ----


def test_more_passages_than_there_are(here):
    with build() as collection:
        for k in (4, 10_000, 10**12, 10**30):
            hits = collection.retrieve(QUESTION, k)
            assert len({hit.passage.id for hit in hits}) == len(hits) == 3
            assert sum(np.exp(hit.log_prior) for hit in hits) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("question", ["", " ", "\n\t", "\0", "\u200b \u2060"])
def test_an_empty_question(here, question):
    with build() as collection, pytest.raises(UsageError, match="the question is empty"):
        collection.retrieve(question)


@pytest.mark.parametrize("question", ["valve\0closed", "\x1b[31mvalve\x1b[0m", "?", "🦉", "ok " * 5000])
def test_odd_questions_are_questions(here, question):
    with build() as collection:
        assert len(collection.retrieve(question, 2)) == 2


def test_a_question_of_bytes_that_are_no_text(here):
    with build() as collection, pytest.raises(UsageError, match="the question is no text from character 7 on"):
        collection.retrieve("valve \udcff\udcfe")


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one(here, k):
    with build() as collection, pytest.raises(UsageError, match=f"k {k}: expected"):
        collection.retrieve(QUESTION, k)


# ---- passages in their documents ----


def test_a_passage_is_shown_within_its_document(here):
    text = "".join(f"Sentence number {i} stands here. " for i in range(120)).strip()
    write_files(here, {"long.txt": f"\ufeff{text}\r\nThe end 🦉.\r\n"})
    with build("long.txt") as collection:
        canonical = f"{text}\nThe end 🦉.\n"
        passages = [hit.passage for hit in collection.retrieve("sentence", 99)]
        assert len(passages) > 4
        for passage in passages:
            start, end = passage.span
            assert passage.text == canonical[start:end]
            before, after = collection.context(passage.id, 50)
            assert before == canonical[max(0, start - 50) : start]
            assert after == canonical[end : end + 50]
            assert collection.passage(passage.id) == passage
        first = min(passages, key=lambda p: p.span)
        assert collection.context(first.id)[0] == ""


@pytest.mark.parametrize("passage_id", ["", "nobody", "%", "\udcff", "x" * 100_000])
def test_a_passage_that_is_not_there(here, passage_id):
    with build() as collection:
        with pytest.raises(NotFoundError, match="ids are in the output of search and ask"):
            collection.passage(passage_id)
        with pytest.raises(NotFoundError):
            collection.context(passage_id)


# ---- where a collection can be, and cannot ----


def test_what_is_there_is_never_overwritten(here):
    build().close()
    with pytest.raises(CollectionExistsError, match="c is a collection already; add to it with ingest"):
        build()
    write_files(here / "full", {"x": "x"})
    write_files(here, {"file": "x"})
    for name in ("full", "file", "docs"):
        with pytest.raises(CollectionExistsError, match=f"{name} exists already and will not be overwritten"):
            Collection.build(["docs"], name, encoder=FakeEncoder())
    assert sorted(os.listdir(here)) == ["c", "docs", "file", "full"]


def test_an_empty_folder_or_a_link_to_one_can_be_the_place(here):
    (here / "empty").mkdir()
    (here / "disk/big").mkdir(parents=True)
    os.symlink("disk/big", here / "link")
    for name in ("empty", "link", "new/deep/c"):
        with Collection.build(["docs"], name, encoder=FakeEncoder()) as collection:
            assert len(answers(collection)) == 3
    assert (here / "disk/big/catalogue.sqlite").is_file()
    assert (here / "link").is_symlink()


def test_the_current_folder_and_a_mount_point_cannot_be_replaced(here, monkeypatch):
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    with pytest.raises(UsageError, match=r"\. is the current folder, which cannot be replaced: name a new folder"):
        Collection.build(["../docs"], ".", encoder=FakeEncoder())
    monkeypatch.chdir(here)
    monkeypatch.setattr(type(here), "is_mount", lambda self: self.name == "empty")
    with pytest.raises(UsageError, match="empty is a mount point, which cannot be replaced"):
        Collection.build(["docs"], "empty", encoder=FakeEncoder())
    assert os.listdir(here / "empty") == []


def test_something_that_appears_during_the_build_wins(here, monkeypatch):
    real = building._begin

    def appear(*arguments):
        write_files(here / "c", {"theirs": "x"})
        real(*arguments)

    monkeypatch.setattr(building, "_begin", appear)
    with pytest.raises(CollectionExistsError, match="c appeared while it was being built"):
        build()
    assert sorted(os.listdir(here)) == ["c", "docs"]
    assert os.listdir("c") == ["theirs"]


def test_a_folder_that_cannot_be_put_in_place_says_why(here, monkeypatch):
    def rename(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("bifolio.staging.os.rename", rename)
    with pytest.raises(CollectionError, match="c was built and cannot be put there: Input/output error") as caught:
        build()
    assert not isinstance(caught.value, CollectionExistsError)
    assert os.listdir(here) == ["docs"]


def test_what_was_built_is_on_the_disk_before_it_is_put_in_place(here, monkeypatch):
    steps = []
    real = os.rename
    monkeypatch.setattr("bifolio.staging.sync_folder", lambda folder: steps.append(folder.name))
    monkeypatch.setattr("bifolio.staging.os.rename", lambda *names: (steps.append("rename"), real(*names))[1])
    build(index="faiss:flat").close()
    first, rename, parent = steps
    assert first.startswith(".c.building-")
    assert (rename, parent) == ("rename", here.name)


def test_odd_names_of_collections(here):
    for name in ("with space", "ü🦉", "new\nline", "-c", "a'b", "q?x=1#y%20", "x" * 250, "集" * 80, "集" * 85):
        with Collection.build(["docs"], name, encoder=FakeEncoder()) as built, reopen(name) as opened:
            assert answers(opened) == answers(built)
        with without_rights(here / name), reopen(name) as opened:
            assert len(answers(opened)) == 3


def test_there_is_no_collection(here):
    for name in ("nowhere", "docs", "docs/cat.txt", ""):
        with pytest.raises(CollectionMissingError, match="no collection at .*bifolio ingest PATH"):
            Collection.open(name)
    assert not Collection.exists("docs")
    assert sorted(os.listdir(here)) == ["docs"]


@pytest.mark.parametrize("index", INDEXES)
def test_a_read_only_collection_is_searched(here, index):
    with build(index=index) as collection:
        before = answers(collection)
    write_files(here / "new", {"n.txt": "New.\n"})
    for folder in (here / "c/vectors", here / "c/index") if index != "exact" else (here / "c/vectors",):
        folder.chmod(0o555)
    with without_rights(here / "c"):
        for _ in range(2):
            with reopen() as opened:
                assert answers(opened) == before
                for change in (opened.ingest, opened.sync):
                    with pytest.raises(BifolioError, match="cannot be written"):
                        change(["new"])
                with pytest.raises(BifolioError, match="cannot be written"):
                    opened.tag("a")
                assert answers(opened) == before


# ---- encoders ----


def test_another_encoder_is_refused_with_both_fingerprints(here):
    build().close()
    message = r"c was built with encoder sha256:fake \(fake-encoder-fake\), and this is sha256:b \(fake-encoder-b\)"
    with pytest.raises(EncoderMismatchError, match=message):
        reopen(encoder=FakeEncoder("b"))


def test_the_encoder_is_loaded_late_and_must_be_the_same(here, monkeypatch):
    build().close()
    asked = []

    def load(model, *, device, dtype):
        asked.append((model, device, dtype))
        return FakeEncoder("b")

    monkeypatch.setattr("bifolio.collection.load_encoder", load)
    with Collection.open("c", device="cpu", dtype="float32") as collection:
        assert [f.source for f in collection.files()] == [f"docs/{name}" for name in sorted(TEXTS)]
        assert asked == []
        with pytest.raises(EncoderMismatchError, match="sha256:fake.*sha256:b"):
            collection.retrieve(QUESTION)
        assert collection.ingest(["docs"]).added == 0  # nothing new: no encoder
        assert len(asked) == 1
        write_files(here / "docs", {"cat.txt": "Another cat.\n"})
        with pytest.raises(EncoderMismatchError):
            collection.ingest(["docs"])
        assert len(asked) == 2
        assert asked[0] == ("fake-encoder-fake", "cpu", "float32")


def test_a_missing_encoder_names_the_command(here, monkeypatch):
    build().close()
    connection = sqlite3.connect("c/catalogue.sqlite")
    seals.register(connection)
    (spec,) = connection.execute("SELECT spec FROM encoders").fetchone()
    connection.execute("UPDATE encoders SET spec = ?", [spec.replace("fake-encoder-fake", "o/m")])
    connection.commit()
    connection.close()
    monkeypatch.setenv("BIFOLIO_HOME", str(here / "home"))
    with Collection.open("c") as collection, pytest.raises(ModelMissingError, match="bifolio models pull o/m"):
        collection.retrieve(QUESTION)


def test_other_settings_are_refused(here):
    with build(index="exact") as collection:
        collection.require()
        collection.require(encoder="fake-encoder-fake", index="exact")
        with pytest.raises(
            UsageError, match="c has index exact, not faiss:flat: leave it out, or make a new collection"
        ):
            collection.require(index="faiss:flat")
        with pytest.raises(UsageError, match="c has encoder fake-encoder-fake, not b"):
            collection.require(encoder="b")
