"""Sync: always in step with the files, and what belongs to it: globs, labels, metadata, filters."""

import json
import os
import time

import pytest

from bifolio.collection import Collection
from bifolio.errors import MissingPathError, NotFoundError, UsageError
from fakes import FakeEncoder, write_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs", {"a.txt": "Text a.\n", "b.txt": "Text b.\n", "deep/c.txt": "Text c.\n"})
    return tmp_path


def build(*paths, **options):
    return Collection.build(list(paths) or ["docs"], "c", **{"encoder": FakeEncoder(), **options})


def statuses(report):
    return {file.path.removeprefix("docs/"): file.status for file in report.files}


def texts(collection):
    return sorted(passage.text for passage in collection.passages())


def test_new_changed_moved_and_deleted_files(here):
    encoder = FakeEncoder()
    with build(encoder=encoder) as collection:
        write_files(here / "docs", {"new.txt": "Text new.\n", "b.txt": "Text b has changed.\n"})
        os.rename(here / "docs/deep/c.txt", here / "docs/moved.txt")
        (here / "docs/a.txt").unlink()
        report = collection.sync(["docs"])
        assert statuses(report) == {"b.txt": "ok", "moved.txt": "ok", "new.txt": "ok", "a.txt": "removed"}
        assert texts(collection) == ["Text b has changed.", "Text c.", "Text new."]
        assert len(encoder.seen) == 3 + 2  # what was moved has its vector
        again = collection.sync(["docs"])
        assert (set(statuses(again).values()), again.generation, again.added) == ({"unchanged"}, "2", 0)


def test_only_what_is_below_the_paths_is_removed(here):
    write_files(here / "other", {"o.txt": "Text o.\n"})
    with build("docs", "other") as collection:
        (here / "docs/deep/c.txt").unlink()
        (here / "docs/a.txt").unlink()
        (here / "other/o.txt").unlink()
        assert statuses(collection.sync(["docs/b.txt"])) == {"b.txt": "unchanged"}
        assert len(collection) == 4
        report = collection.sync(["docs"])
        assert [file.path for file in report.files if file.status == "removed"] == ["docs/a.txt", "docs/deep/c.txt"]
        assert texts(collection) == ["Text b.", "Text o."]


def test_a_file_that_is_named_and_gone_is_removed(here):
    with build() as collection:
        (here / "docs/a.txt").unlink()
        assert statuses(collection.sync(["docs/a.txt"])) == {"a.txt": "removed"}
        assert texts(collection) == ["Text b.", "Text c."]


def test_what_may_be_a_disk_that_is_not_mounted_removes_nothing(here):
    with build() as collection:
        for name in ("deep/c.txt", "a.txt", "b.txt"):
            (here / "docs" / name).unlink()
        with pytest.raises(MissingPathError, match="no file in folder: docs"):
            collection.sync(["docs"])
        (here / "docs/deep").rmdir()
        (here / "docs").rmdir()
        with pytest.raises(MissingPathError, match="no such file or folder: docs/deep"):
            collection.sync(["docs/deep"])
        assert len(collection) == 3
        with pytest.raises(MissingPathError, match=r"no such file or folder: docs/a\.txt"):
            collection.sync(["docs/a.txt"])  # not even the folder is there


def test_a_path_that_never_was_is_an_error_and_no_success(here):
    with build() as collection:
        for path in ("dosc", "docs/z.txt", "docs/deep/"):
            if path == "docs/deep/":
                (here / "docs/deep/c.txt").unlink()
                (here / "docs/deep").rmdir()
            with pytest.raises(MissingPathError, match="no such file or folder: " + path.rstrip("/")):
                collection.sync([path])
        assert (len(collection), collection.generation) == (3, "1")


def test_what_is_in_a_folder_that_cannot_be_listed_stays(here, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with build() as collection:
        (here / "docs/a.txt").unlink()
        monkeypatch.setattr(os, "scandir", refuse)
        report = collection.sync(["docs"])
        assert statuses(report) == {"b.txt": "unchanged", "deep": "failed", "a.txt": "removed"}
        assert [f.reason for f in report.files if f.status == "failed"] == ["cannot be listed: Permission denied"]
        assert texts(collection) == ["Text b.", "Text c."]


def test_all_may_be_removed(here):
    with build("docs/a.txt") as collection:
        (here / "docs/a.txt").unlink()
        report = collection.sync(["docs/a.txt"])
        assert (report.passages, report.generation, len(collection)) == (0, "2", 0)
        assert collection.retrieve("Text a") == ()
        write_files(here / "docs", {"a.txt": "Text a.\n"})
        assert (collection.sync(["docs/a.txt"]).added, texts(collection)) == (0, ["Text a."])


def test_files_are_removed_by_name_or_glob(here):
    with build() as collection:
        report = collection.remove(["docs/deep/*", "docs/a.txt"])
        assert statuses(report) == {"a.txt": "removed", "deep/c.txt": "removed"}
        assert (texts(collection), collection.generation) == (["Text b."], "2")
        assert (here / "docs/a.txt").exists()
        with pytest.raises(NotFoundError, match="no file 'docs/x' in .*: nothing is removed"):
            collection.remove(["docs/b.txt", "docs/x"])
        assert texts(collection) == ["Text b."]
        with pytest.raises(UsageError, match="expected a list"):
            collection.remove("docs/b.txt")


def test_a_file_that_looks_the_same_is_not_read(here, monkeypatch):
    old = time.time() - 3600
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        os.utime(here / "docs" / name, (old, old))
    with build() as collection:
        (here / "docs/a.txt").write_text("TEXT A.\n")  # as long, and its time is put back
        os.utime(here / "docs/a.txt", (old, old))
        assert set(statuses(collection.sync(["docs"])).values()) == {"unchanged"}
        assert statuses(collection.sync(["docs"], checksum=True))["a.txt"] == "ok"
        assert "TEXT A." in texts(collection)
        os.utime(here / "docs/b.txt", (old + 5, old + 5))  # touched and not changed
        assert statuses(collection.sync(["docs"]))["b.txt"] == "unchanged"
        assert collection.generation == "2"


def test_a_file_that_has_just_changed_is_always_read(here):
    with build() as collection:
        (here / "docs/a.txt").write_text("TEXT A.\n")
        assert statuses(collection.sync(["docs"]))["a.txt"] == "ok"


def test_globs_and_gitignore(here):
    files = {
        "x.md": "Text x.\n",
        "draft-1.txt": "Text d.\n",
        "deep/.gitignore": "*.log\n!keep.log\n",
        "deep/y.log": "Text y.\n",
    }
    write_files(
        here / "docs",
        {**files, "deep/keep.log": "Text keep.\n", ".gitignore": "draft-*\nout/\n", "out/z.txt": "Text z.\n"},
    )
    with build() as collection:
        assert texts(collection) == ["Text a.", "Text b.", "Text c.", "Text keep.", "Text x."]
        collection.sync(["docs"], gitignore=False)
        assert {"Text d.", "Text y.", "Text z."} <= set(texts(collection))
        report = collection.sync(["docs"], include=["*.txt"], exclude=["deep/", "b.*"])
        assert texts(collection) == ["Text a."]
        reasons = {file.reason for file in report.files if file.status == "removed"}
        assert reasons == {"it is there and not among the files to read any more"}
        with pytest.raises(MissingPathError, match="left out by globs"):
            collection.sync(["docs"], exclude=["*"])
        with pytest.raises(UsageError, match="expected a list of globs"):
            collection.sync(["docs"], include="*.txt")
        with pytest.raises(UsageError, match="unknown option 'globs'"):
            collection.sync(["docs"], globs=["*.txt"])


def test_how_it_was_split_is_remembered(here):
    from bifolio.corpus.splitting import SplitOptions

    write_files(here / "docs", {"long.txt": "One two three four five six. " * 40})
    with build(split=SplitOptions(words=20)) as collection:
        count = len(collection)
        assert (count > 10, set(statuses(collection.sync(["docs"])).values())) == (True, {"unchanged"})
        assert collection.split() == SplitOptions(words=20)


# ---- metadata, filters and labels ----


@pytest.fixture
def manuals(here):
    write_files(
        here / "m",
        {
            "pump/2023/a.md": "---\naccess: [hr, legal]\nyear: 2023\ntags: [red, blue]\n---\n"
            "# Secret\n\nThe secret pump.\n",
            "pump/2024/b.md": "---\nyear: 2024\nlang: de\n---\nThe german pump.\n",
            "valve/2024/c.txt": "The plain valve.\n",
            "valve/2024/d.txt": "The hidden valve.\n",
            "valve/2024/d.txt.meta.json": json.dumps({"access": "hr", "rev": 3, "title": "Hidden"}),
        },
    )
    return here


def found(collection, question="the pump valve", **options):
    both = [
        sorted(hit.passage.text.split()[-2] for hit in collection.retrieve(question, 9, mode=mode, **options))
        for mode in ("dense", "lexical", "hybrid")
    ]
    assert both[0] == both[1] == both[2]
    return both[0]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("product:pump", ["german", "secret"]),
        ("product=valve AND rev>=3", ["hidden"]),
        ("year>=2024", ["german", "hidden", "plain"]),
        ("NOT rev=3", ["german", "plain", "secret"]),
        ("source:m/pump/*", ["german", "secret"]),
        ("tags:blue OR lang=de", ["german", "secret"]),
        ("title:Hid*", ["hidden"]),
        ("media_type=text/plain and (year<2024 or year=2024)", ["hidden", "plain"]),
        ("product=none", []),
    ],
)
def test_filters_act_inside_retrieval(manuals, where, expected):
    with build("m", metadata="{product}/{year}/*") as collection:
        assert found(collection, where=where) == expected
        for number in range(1, len(expected) + 1):  # as many as were asked for, however few match
            assert len(collection.retrieve("the pump valve", number, mode="dense", where=where)) == number


def test_labels_hide_everything(manuals):
    build("m", metadata="{product}/{year}/*").close()
    seen = {None: 4, ("hr",): 4, ("legal",): 3, ("other",): 2, (): 2}
    for labels, count in seen.items():
        with Collection.open("c", encoder=FakeEncoder(), labels=labels) as collection:
            assert (len(found(collection)), len(collection), collection.counts()) == (count, count, (count, count))
            assert len(texts(collection)) == count
            assert len(collection.files()) == count
    with Collection.open("c", encoder=FakeEncoder()) as everything:
        secret = next(passage.id for passage in everything.passages() if "secret" in passage.text)
        assert everything.passage(secret).metadata["tags"] == ("red", "blue")
    with Collection.open("c", encoder=FakeEncoder(), labels=["other"]) as collection:
        for ask in (collection.passage, collection.context, lambda name: collection.snapshot().vectors([name])):
            with pytest.raises(NotFoundError, match="no passage"):
                ask(secret)
        assert found(collection, where="tags:red") == []
        assert found(collection, where="NOT lang=de") == ["plain"]
        assert all("secret" not in file.source and "d.txt" not in file.source for file in collection.files())
    with pytest.raises(UsageError, match="expected a list of labels"):
        Collection.open("c", labels="hr")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "---\naccess: {hr: true}\n---\nSecret.\n"),
        ("a.md", "---\naccess: 'a/b'\n---\nSecret.\n"),
        ("a.md", "---\naccess:\n---\nSecret.\n"),
        ("a.md", "---\naccess: 7\n---\nSecret.\n"),
        ("a.md", "---\nAccess: hr\n---\nSecret.\n"),
        ("a.md", "---\naccess: hr\n\nyear: 2024\n---\nSecret.\n"),
        ("a.md", "---\ntitle: x\n'Access': hr\n---\nSecret.\n"),
        ("a.md", "---\nmeta:\n  access: hr\n---\nSecret.\n"),
        ("a.md", "---\naccess: hr\nis never closed\n\nSecret.\n"),
        ("a.jsonl", '{"text": "Secret.", "access": {"hr": 1}}\n'),
        ("a.jsonl", '{"text": "Secret.", "access": null}\n'),
        ("a.jsonl", '{"text": "Secret.", "access": []}\n'),
    ],
)
def test_labels_that_cannot_be_read_never_open_a_document_to_all(here, name, text):
    write_files(here / "m", {name: text, "ok.txt": "Fine.\n"})
    with build("m") as collection:
        (report,) = [file for file in collection.report.files if file.path.endswith(name)]
        assert (report.status, texts(collection)) == ("failed", ["Fine."])
        assert "access" in report.reason


def test_a_changed_sidecar_is_a_changed_file(manuals):
    with build("m") as collection:
        write_files(manuals / "m", {"valve/2024/d.txt.meta.json": '{"access": "boss"}'})
        report = collection.sync(["m"])
        assert [file.path for file in report.files if file.status == "ok"] == ["m/valve/2024/d.txt"]
        with Collection.open("c", labels=["hr"]) as reader:
            assert len(reader) == 3
        write_files(manuals / "m", {"valve/2024/d.txt.meta.json": "{"})
        report = collection.sync(["m"])
        (failed,) = [file for file in report.files if file.status == "failed"]
        assert "d.txt.meta.json beside it cannot be read" in failed.reason
        assert "the version that was there before is kept" in failed.reason


def test_metadata_of_a_function(here):
    def meta(path, document):
        return {"name": path.stem, "words": len(document.text.split()), "none": None, "many": ["x", "y"]}

    with build(metadata=meta) as collection:
        (hit,) = collection.retrieve("text", 9, where="name=b AND many:y AND words=2", mode="dense")
        assert dict(hit.passage.metadata) == {"name": "b", "words": 2, "many": ("x", "y")}
    for bad, told in ((7, "expected a pattern"), ("no braces", "expected a pattern with a")):
        with pytest.raises(UsageError, match=told):
            Collection.build(["docs"], "d", encoder=FakeEncoder(), metadata=bad)
