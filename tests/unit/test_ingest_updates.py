"""Ingesting again what has changed: files that moved, grew or are empty now."""

import os

import pytest

from bifolio.collection import Collection
from fakes import TEXTS, FakeEncoder, write_files
from unit.test_ingest import build, reasons, records, statuses, texts


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- files that moved ----


def test_a_project_that_moved_is_the_same_project(here, monkeypatch):
    write_files(here / "old/docs")
    encoder = FakeEncoder()
    monkeypatch.chdir(here / "old")
    build(encoder=encoder).close()
    os.rename(here / "old", here / "new")
    monkeypatch.chdir(here / "new")
    with Collection.open("c", encoder=encoder) as collection:
        before = texts(collection)
        report = collection.ingest(["docs"])
        assert {status for status, _ in statuses(report).values()} == {"unchanged"}
        assert (report.added, report.generation, texts(collection)) == (0, "1", before)
        assert [file.path for file in collection.files()] == [str(here / "new/docs" / name) for name in sorted(TEXTS)]
        write_files(here / "new/docs", {"cat.txt": "The dog.\n"})  # moved once more, and changed
        os.rename(here / "new/docs", here / "docs")
        monkeypatch.chdir(here)
        report = collection.ingest(["docs"])
        assert statuses(report) == {
            "docs/cat.txt": ("ok", 1),
            "docs/pump.md": ("unchanged", 1),
            "docs/river.txt": ("unchanged", 1),
        }
        assert sorted(texts(collection).values()) == sorted(
            ["The dog.", *(text for text in before.values() if "cat" not in text)]
        )


@pytest.mark.parametrize("as_passages", [True, False])
def test_a_file_that_was_renamed_is_the_same_file(here, as_passages):
    write_files(here, {"a.jsonl": records(("p1", "One."), ("p2", "Two."))})
    encoder = FakeEncoder()
    with build("a.jsonl", encoder=encoder, as_passages=as_passages) as collection:
        os.rename("a.jsonl", "b.jsonl")
        report = collection.ingest(["b.jsonl"], as_passages=as_passages)
        assert (statuses(report), report.added) == ({"b.jsonl": ("ok", 2)}, 0)
        assert [(file.source, file.passages) for file in collection.files()] == [("b.jsonl", 2)]
        assert [(p.source, p.place, p.text) for p in collection.passages()] == [
            ("b.jsonl", "b.jsonl:1", "One."),
            ("b.jsonl", "b.jsonl:2", "Two."),
        ]
        assert len(encoder.seen) == 2  # their vectors moved with them
        write_files(here, {"a.jsonl": records(("q1", "One."))})  # the old name can be used again
        assert statuses(collection.ingest(["a.jsonl"], as_passages=as_passages)) == {"a.jsonl": ("ok", 1)}
        assert len(collection) == 3


def test_a_copy_is_no_move(here):
    write_files(here, {"a.txt": "Same.\n", "b.txt": "Same.\n"})
    with build("a.txt") as collection:
        assert statuses(collection.ingest(["b.txt"])) == {"b.txt": ("ok", 1)}
        assert [file.source for file in collection.files()] == ["a.txt", "b.txt"]


# ---- vectors that are there already ----


def test_an_appended_record_is_all_that_is_encoded(here):
    rows = [(f"p{i}", f"Text of record {i}.") for i in range(500)]
    write_files(here, {"p.jsonl": records(*rows)})
    encoder = FakeEncoder()
    with build("p.jsonl", encoder=encoder, as_passages=True) as collection:
        write_files(
            here, {"p.jsonl": records(("p500", "The new one."), *rows[:7], *rows[8:], ("p7", "Another seven."))}
        )
        report = collection.ingest(["p.jsonl"], as_passages=True)
        assert (report.added, report.passages) == (2, 501)
        assert encoder.seen[500:] == ["p500", "p7"]
        Collection.build(["p.jsonl"], "fresh", encoder=FakeEncoder(), as_passages=True).close()
        with Collection.open("fresh", encoder=FakeEncoder()) as fresh:
            for question in ("text of record 77", "another seven", "the new one"):
                # Words are counted over old versions as well, until a compaction.
                hits, expected = (c.retrieve(question, 501, mode="dense", collapse=False) for c in (collection, fresh))
                assert [(hit.passage.id, hit.score) for hit in hits] == [(h.passage.id, h.score) for h in expected]


def test_another_title_is_another_text_to_the_encoder(here):
    line = '{{"title": "{}", "text": "One."}}\n'
    write_files(here, {"p.jsonl": line.format("A")})
    encoder = FakeEncoder()
    with build("p.jsonl", encoder=encoder) as collection:
        write_files(here, {"p.jsonl": line.format("B")})
        assert collection.ingest(["p.jsonl"]).added == 1
        write_files(here, {"p.jsonl": line.format("B") + "\n"})
        assert collection.ingest(["p.jsonl"]).added == 0


# ---- files that are empty now ----


@pytest.mark.parametrize(
    ("name", "full", "empty", "why"),
    [
        ("a.txt", "Text.", "", "empty file"),
        ("a.md", "Text.", " \n", "only white space"),
        ("a.html", "<html><p>Text.</p>", "<html><body></body></html>", "no text in the page"),
        ("a.jsonl", '{"text": "Text."}', "\n", "no records in the file"),
    ],
)
def test_a_file_without_text_now_has_no_passages(here, name, full, empty, why):
    write_files(here / "docs", {name: full, "other.txt": "Other."})
    with build() as collection:
        assert len(collection) == 2
        write_files(here / "docs", {name: empty})
        report = collection.ingest(["docs"])
        assert statuses(report)[f"docs/{name}"] == ("skipped", 0)
        assert reasons(report) == {f"docs/{name}": f"{why}; the version that was there before is removed"}
        assert (list(texts(collection).values()), report.passages, report.generation) == (["Other."], 1, "2")
        assert [file.source for file in collection.files()] == ["docs/other.txt"]
        assert reasons(collection.ingest(["docs"])) == {f"docs/{name}": why}
        write_files(here / "docs", {name: full})
        assert collection.ingest(["docs"]).passages == 2


def test_passages_that_are_none_keep_the_old_ones(here):
    write_files(here / "docs", {"a.txt": "Text.", "b.txt": "Other."})
    with build() as collection:
        before = texts(collection)
        report = collection.ingest(["docs"], as_passages=True)
        assert {status for status, _ in statuses(report).values()} == {"skipped"}
        assert texts(collection) == before


def test_another_file_of_the_same_name_is_no_move(here, monkeypatch):
    """Ingest report.txt, put it away, ingest the next report.txt from another folder: both stay."""
    write_files(here / "january", {"report.txt": "The revenue was ten million.\n"})
    write_files(here / "february", {"report.txt": "The roof leaked in the night.\n"})
    monkeypatch.chdir(here / "january")
    with Collection.build(["report.txt"], here / "reports", encoder=FakeEncoder()) as collection:
        (here / "january" / "report.txt").unlink()
        monkeypatch.chdir(here / "february")
        collection.ingest(["report.txt"])
        assert sorted(passage.text for passage in collection.passages()) == [
            "The revenue was ten million.",
            "The roof leaked in the night.",
        ]
