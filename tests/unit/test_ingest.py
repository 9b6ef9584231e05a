"""Ingest: what is read, encoded, kept and reported, file by file."""

import os
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

import bifolio
from bifolio.catalogue import FileWriter
from bifolio.collection import Collection
from bifolio.corpus.splitting import SplitOptions
from bifolio.errors import CollectionError, MissingPathError, ModelError, UsageError
from fakes import TEXTS, FakeEncoder, write_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(*paths, encoder=None, **options):
    return Collection.build(list(paths) or ["docs"], "c", encoder=encoder or FakeEncoder(), **options)


def statuses(report):
    return {file.path: (file.status, file.passages) for file in report.files}


def reasons(report):
    return {file.path: file.reason for file in report.files if file.reason}


def texts(collection):
    """All passages by id, as they are found."""
    found = collection.retrieve("the", 10_000, mode="dense", collapse=False)
    return {hit.passage.id: hit.passage.text for hit in found}


def test_a_report_says_what_was_done(here):
    write_files(here / "docs")
    steps = []
    with build(on_progress=steps.append) as collection:
        report = collection.report
        assert (report.collection, report.generation, report.documents, report.passages) == ("c", "1", 3, 3)
        assert (report.added, report.seconds > 0) == (3, True)
        assert statuses(report) == {f"docs/{name}": ("ok", 1) for name in TEXTS}
    read = [(s.done, s.total) for s in steps if s.stage == "read"]
    encode = [(s.done, s.total) for s in steps if s.stage == "encode"]
    assert read == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert encode == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [s.current for s in steps if s.stage == "read"] == ["docs/cat.txt", "docs/pump.md", "docs/river.txt", ""]


def test_an_update_encodes_only_what_changed(here):
    docs = write_files(here / "docs")
    encoder = FakeEncoder()
    with build(encoder=encoder) as collection:
        assert len(encoder.seen) == 3
        report = collection.ingest(["docs"])
        assert (report.added, report.generation, len(encoder.seen)) == (0, "1", 3)
        assert {status for status, _ in statuses(report).values()} == {"unchanged"}

        (docs / "cat.txt").write_text("The dog ran in the park.\n")
        write_files(docs, {"new.txt": "A new stone.\n"})
        report = collection.ingest(["docs"])
        assert (report.added, report.passages, report.generation) == (2, 4, "2")
        assert statuses(report) == {
            "docs/cat.txt": ("ok", 1),
            "docs/new.txt": ("ok", 1),
            "docs/pump.md": ("unchanged", 1),
            "docs/river.txt": ("unchanged", 1),
        }
        assert len(encoder.seen) == len(set(encoder.seen)) == 5
        found = texts(collection)
        assert "The dog ran in the park." in found.values()
        assert not any("cat" in text for text in found.values())
        (docs / "new.txt").unlink()
        assert collection.ingest(["docs"]).passages == 4  # nothing is ever deleted


def test_a_file_that_fails_now_keeps_its_old_version(here):
    docs = write_files(here / "docs")
    with build() as collection:
        before = texts(collection)
        (docs / "cat.txt").write_bytes(b"\0\1\2\3" * 100)
        report = collection.ingest(["docs"])
        assert statuses(report)["docs/cat.txt"] == ("skipped", 1)
        assert reasons(report)["docs/cat.txt"].endswith("; the version that was there before is kept")
        assert (texts(collection), collection.generation) == (before, "1")
        (docs / "cat.txt").write_text(TEXTS["cat.txt"])
        assert statuses(collection.ingest(["docs"]))["docs/cat.txt"] == ("unchanged", 1)


def test_other_options_mean_reading_again(here):
    write_files(here / "docs", {"a.txt": "one two three four five six seven eight nine ten. " * 8})
    with build() as collection:
        assert len(collection) == 1
        report = collection.ingest(["docs"], split=SplitOptions(words=20, mode="words"))
        assert (statuses(report), len(collection)) == ({"docs/a.txt": ("ok", 4)}, 4)
        assert [len(text.split()) for text in texts(collection).values()] == [20, 20, 20, 20]
        assert collection.ingest(["docs"], split=SplitOptions(words=20, mode="words")).added == 0


def test_rows_are_never_used_again(here):
    docs = write_files(here / "docs")
    with build() as collection:
        rows = [np.flatnonzero(collection.snapshot().visible).tolist()]
        for turn in range(3):
            (docs / "cat.txt").write_text(f"Turn {turn} of the cat.\n")
            collection.ingest(["docs"])
            rows.append(np.flatnonzero(collection.snapshot().visible).tolist())
        assert rows == [[0, 1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 5]]
        blocks = collection.snapshot().catalogue.blocks(1)
        assert [(block.first_row, block.rows, block.offset) for block in blocks] == [
            (0, 3, 0),
            (3, 1, 3),
            (4, 1, 4),
            (5, 1, 5),
        ]
        assert len({block.file for block in blocks}) == 1
        (hit, *_) = collection.retrieve("turn of the cat", 1)
        assert hit.passage.text == "Turn 2 of the cat."


def records(*rows):
    return "".join(f'{{"id": "{name}", "title": "T", "text": "{text}"}}\n' for name, text in rows)


def test_ready_made_passages_keep_their_ids_and_are_not_split(here):
    long = "word " * 500
    write_files(here, {"p.jsonl": records(("p1", "The cat sat."), ("p2", long))})
    with build("p.jsonl", as_passages=True) as collection:
        assert statuses(collection.report) == {"p.jsonl": ("warning", 2)}
        assert (
            "1 of 2 passages are longer than the 64 tokens that the encoder reads"
            in reasons(collection.report)["p.jsonl"]
        )
        assert collection.passage("p1").text == "The cat sat."
        assert collection.passage("p2").text == long.strip()
        assert collection.passage("p1").title == "T"


def test_an_id_that_another_file_has_is_reported(here):
    write_files(here, {"a.jsonl": records(("p1", "One.")), "b.jsonl": records(("p0", "Nought."), ("p1", "Other."))})
    with build("a.jsonl", "b.jsonl", as_passages=True) as collection:
        assert statuses(collection.report) == {"a.jsonl": ("ok", 1), "b.jsonl": ("failed", 0)}
        assert reasons(collection.report) == {
            "b.jsonl": "passage id 'p1' is already used by a.jsonl:1. If it has moved here from a file that is "
            "read after this one, ingest again; otherwise give it another id"
        }
        assert texts(collection) == {"p1": "One."}  # of a file that failed nothing is taken
        write_files(here, {"b.jsonl": records(("p2", "Other."))})
        collection.ingest(["b.jsonl"], as_passages=True)
        assert texts(collection) == {"p1": "One.", "p2": "Other."}


def test_the_same_name_from_two_folders_is_two_files(here, monkeypatch):
    for folder in ("x", "y"):
        write_files(here / folder, {"a.txt": f"The {folder} file.\n"})
    monkeypatch.chdir(here / "x")
    with Collection.build(["a.txt"], here / "c", encoder=FakeEncoder()) as collection:
        monkeypatch.chdir(here / "y")
        report = collection.ingest(["a.txt"])
        assert statuses(report) == {"a.txt": ("ok", 1)}
        assert [file.source for file in collection.files()] == [str(here / "y" / "a.txt"), "a.txt"]
        assert collection.ingest(["a.txt"]).added == 0
        monkeypatch.chdir(here / "x")
        assert collection.ingest(["a.txt"]).added == 0
        assert sorted(texts(collection).values()) == ["The x file.", "The y file."]


def test_ids_that_move_between_changed_files_arrive_with_the_next_ingest(here):
    write_files(here, {"a.jsonl": records(("p1", "One.")), "b.jsonl": records(("p2", "Two."))})
    with build("a.jsonl", "b.jsonl", as_passages=True) as collection:
        write_files(here, {"a.jsonl": records(("p2", "Two!")), "b.jsonl": records(("p3", "Three."))})
        report = collection.ingest(["a.jsonl", "b.jsonl"], as_passages=True)
        assert statuses(report) == {"a.jsonl": ("failed", 1), "b.jsonl": ("ok", 1)}
        assert "used by b.jsonl:1. If it has moved here" in reasons(report)["a.jsonl"]
        report = collection.ingest(["a.jsonl", "b.jsonl"], as_passages=True)
        assert statuses(report) == {"a.jsonl": ("ok", 1), "b.jsonl": ("unchanged", 1)}
        assert texts(collection) == {"p2": "Two!", "p3": "Three."}


# ---- remarks ----


def test_remarks_about_a_file_are_bounded(here, monkeypatch):
    write_files(here / "docs", {"a.txt": "word " * 200})

    def read(path, *, as_passages=False):
        for document in bifolio.corpus.readers.read(path, as_passages=as_passages):
            yield replace(document, warnings=("one", "two " * 200, "two " * 200, "three", "four", "five"), whole=True)

    monkeypatch.setattr(bifolio.taking, "read", read)
    with build() as collection:
        assert reasons(collection.report)["docs/a.txt"] == (
            f"1 of 1 passages are longer than the 64 tokens that the encoder reads; one; {'two ' * 75}…; and 3 more"
        )
        assert collection.files()[0].reason == reasons(collection.report)["docs/a.txt"]


def test_the_reason_of_a_failure_is_bounded(here, monkeypatch):
    write_files(here / "docs")
    real = bifolio.taking.read

    def read(path, *, as_passages=False):
        if path.name == "cat.txt":
            raise ValueError("x" * 10_000)
        return real(path, as_passages=as_passages)

    monkeypatch.setattr(bifolio.taking, "read", read)
    with build() as collection:
        assert len(reasons(collection.report)["docs/cat.txt"]) == 301


def test_a_collection_does_not_read_itself(here):
    write_files(here / "docs")
    with Collection.build(["docs"], "docs/collection", encoder=FakeEncoder()) as collection:
        write_files(here / "docs/collection", {"vectors/stray.txt": "Never read this.", "notes.txt": "Nor this."})
        report = collection.ingest(["docs"])
        assert sorted(statuses(report)) == [f"docs/{name}" for name in sorted(TEXTS)]
        with pytest.raises(MissingPathError, match="no file to read in docs/collection"):
            collection.ingest(["docs/collection"])


def test_odd_names_are_read(here):
    docs = here / "docs"
    names = ["a b.txt", "ü🦉.txt", "new\nline.txt", "\x1b[31mred.txt", "-rf.txt", "'; DROP TABLE files;--.txt"]
    write_files(docs, {name: f"Text {i} here.\n" for i, name in enumerate(names)})
    (docs / os.fsdecode(b"raw\xff.txt")).write_text("Raw bytes.\n")
    (docs / os.fsdecode(b"raw\xfe.txt")).write_text("Other bytes.\n")
    with build() as collection:
        assert {status for status, _ in statuses(collection.report).values()} == {"ok"}
        assert len(collection) == 8
        assert {file.source for file in collection.files()} >= {f"docs/{name}" for name in names} | {
            "docs/raw\ufffd.txt"
        }
        assert collection.ingest(["docs"]).added == 0


def test_what_is_not_text_is_told_and_the_rest_is_read(here):
    bad = {"image.png": b"\x89PNG\r\n\x1a\n" + bytes(100), "empty.txt": b"", "blank.md": b" \n\n", "j.jsonl": b"{\n"}
    write_files(here / "docs", {"good.txt": "Good text.\n", **bad})
    with build() as collection:
        assert statuses(collection.report) == {
            "docs/blank.md": ("skipped", 0),
            "docs/empty.txt": ("skipped", 0),
            "docs/good.txt": ("ok", 1),
            "docs/image.png": ("skipped", 0),
            "docs/j.jsonl": ("failed", 0),
        }
        assert all(reasons(collection.report)[f"docs/{name}"] for name in bad)


def test_a_readers_bug_costs_one_file(here, monkeypatch):
    write_files(here / "docs")
    real = bifolio.taking.read

    def read(path, *, as_passages=False):
        if path.name == "cat.txt":
            raise ZeroDivisionError("oops")
        return real(path, as_passages=as_passages)

    monkeypatch.setattr(bifolio.taking, "read", read)
    with build() as collection:
        assert reasons(collection.report) == {"docs/cat.txt": "could not be read: ZeroDivisionError: oops"}
        assert len(collection) == 2


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database or disk is full"), ModelError("broken")])
def test_what_is_no_fault_of_the_file_ends_the_ingest(here, monkeypatch, error):
    write_files(here / "docs")
    with build() as collection:
        before = texts(collection)
        write_files(here / "docs", {"new.txt": "More."})

        def add(*_):
            raise error

        monkeypatch.setattr(FileWriter, "add", add)
        with pytest.raises(
            ModelError if isinstance(error, ModelError) else CollectionError, match="broken|disk is full"
        ):
            collection.ingest(["docs"])
        assert (texts(collection), collection.generation) == (before, "1")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda v: v[:-1], "shape"),
        (lambda v: v[:, :-1], "shape"),
        (lambda v: v * np.float32(np.nan), "NaN or infinity"),
    ],
    ids=["too few", "too narrow", "nan"],
)
def test_what_is_no_vector_is_never_stored(here, fault, message):
    write_files(here / "docs")

    class Broken(FakeEncoder):
        def encode_passages(self, passages, on_batch=None):
            return fault(super().encode_passages(passages, on_batch))

    with pytest.raises(ModelError, match=message):
        build(encoder=Broken())
    assert sorted(os.listdir(here)) == ["docs"]


@pytest.mark.parametrize("name", ["nowhere", "docs", "docs/only.bin"])
def test_nothing_to_read_leaves_nothing(here, name):
    (here / "docs").mkdir()
    if name != "docs":
        write_files(here / "docs", {"only.bin": bytes(range(256)) * 4})
    with pytest.raises(MissingPathError, match=name):
        build(name)
    assert sorted(os.listdir(here)) == ["docs"]


def test_paths_are_a_list(here):
    write_files(here / "docs")
    with pytest.raises(UsageError, match=r"expected a list of paths, such as \['docs'\]"):
        Collection.build("docs", "c", encoder=FakeEncoder())
    with build() as collection, pytest.raises(UsageError, match="expected a list of paths"):
        collection.ingest("docs")
    with pytest.raises(MissingPathError, match="no file to read in no path at all"):
        Collection.build([], "d", encoder=FakeEncoder())


def test_what_is_wrong_is_told_before_a_model_is_loaded(here, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(here / "home"))
    write_files(here / "docs")
    with pytest.raises(MissingPathError, match="no such file or folder: nowhere"):
        Collection.build(["nowhere"], "c")
    with pytest.raises(UsageError, match="unknown index 'annoy'"):
        Collection.build(["docs"], "c", index="annoy")
    with pytest.raises(UsageError, match="unknown faiss index 'ivf'"):
        Collection.build(["docs"], "c", index="faiss:ivf")


def test_links_that_are_not_followed_are_reported(here):
    write_files(here / "docs", {"a.txt": "The cat sat on the mat.\n"})
    write_files(here / "outside", {"secret.txt": "The key is under the stone.\n"})
    (here / "docs" / "b.txt").symlink_to(here / "outside" / "secret.txt")
    (here / "docs" / "c.txt").symlink_to(here / "nowhere")
    with build("docs") as collection:
        assert statuses(collection.report) == {
            "docs/a.txt": ("ok", 1),
            "docs/b.txt": ("skipped", 0),
            "docs/c.txt": ("skipped", 0),
        }
        assert "a link out of the folder" in reasons(collection.report)["docs/b.txt"]
        assert reasons(collection.report)["docs/c.txt"] == "a dangling link"
        assert len(collection) == 1
