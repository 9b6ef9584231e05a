"""The catalogue: transactions, snapshots, and every way in which its file can be wrong."""

import os
import random
import sqlite3
import threading
from contextlib import contextmanager

import pytest

from bifolio import catalogue_file
from bifolio.catalogue import Block, Catalogue, FileWriter, file_digest
from bifolio.errors import (
    CollectionBusyError,
    CollectionDamagedError,
    CollectionError,
    CollectionMissingError,
    CollectionVersionError,
)
from bifolio.types import Document, Span

TEXT = "Ein Tag.\n\nZwei Tage 🦉 und eine Nacht."


@pytest.fixture
def path(tmp_path):
    """A catalogue file with one document of two passages."""
    path = tmp_path / "catalogue.sqlite"
    catalogue = Catalogue.create(path)
    with catalogue.writing():
        catalogue.set_meta({"generation": 1, "name": "ä"})
        add(catalogue, "/d/a.txt", "a.txt", {"a-1": Span(0, 8, "Tage"), "a-2": Span(10, 37)}, row=0)
    catalogue.close()
    return path


def add(catalogue, path, source, passages, row, text=TEXT):
    facts = {"path": path, "source": source, "hash": "h", "options": "o", "added": "2026-01-01T00:00:00+00:00"}
    writer = FileWriter(catalogue, row, {**facts, "size": 5, "mtime": 6})
    document = Document(text, title="T", metadata={"year": 1999, "ok": True, "tags": ("a", "b")})
    places = [(name, span, f"{source}:{number}") for number, (name, span) in enumerate(passages.items(), start=1)]
    writer.add(document, ("hr",), places)
    writer.finish("ok", "")
    return writer.id


def counts(catalogue):
    """Documents and passages of all versions."""
    return catalogue.scalar("SELECT count(*) FROM documents"), catalogue.scalar("SELECT count(*) FROM passages")


@contextmanager
def opened(path):
    catalogue = Catalogue.open(path)
    try:
        yield catalogue
    finally:
        catalogue.close()


def test_passages_are_spans_of_their_document(path):
    with opened(path) as catalogue:
        first, second = catalogue.by_rows([1, 0, 7]).values()
        assert (first.text, second.text) == ("Ein Tag.", "Zwei Tage 🦉 und eine Nacht.")
        assert (second.id, second.span, second.place, second.source) == ("a-2", (10, 37), "a.txt:2", "a.txt")
        assert (first.title, first.heading, dict(first.metadata)) == (
            "T",
            "Tage",
            {"year": 1999, "ok": True, "tags": ("a", "b")},
        )
        assert catalogue.rows_by_id(["a-2", "x", "a-1"]) == [("a-1", 0), ("a-2", 1)]
        assert list(catalogue.passages_between(0, 9)) == [(0, first), (1, second)]
        assert list(catalogue.passages_between(1, 2)) == [(1, second)]
        assert catalogue.document_text(1) == TEXT
        assert catalogue.meta() == {"generation": 1, "name": "ä"}
        (file,) = catalogue.versions("path = ?", ["/d/a.txt"])
        assert (file.source, file.path, file.first_row, file.passages, file.status) == ("a.txt", "/d/a.txt", 0, 2, "ok")
        assert (file.size, file.mtime) == (5, 6)
        assert catalogue.versions("path = ?", ["/d/b.txt"]) == []
        assert catalogue.query("SELECT access, first_row, rows FROM documents") == [(",hr,", 0, 2)]
        attributes = catalogue.query("SELECT key, text, number FROM attributes ORDER BY 1, 2")
        assert attributes == [("ok", "true", None), ("tags", "a", None), ("tags", "b", None), ("year", "1999", 1999.0)]


@pytest.mark.parametrize("name", ["nobody", "", "a-1' OR '1'='1", "\udcff", "a\0b"])
def test_an_unknown_id_is_nothing(path, name):
    with opened(path) as catalogue:
        assert catalogue.rows_by_id([name]) == []


def test_many_rows_are_fetched_in_parts(tmp_path):
    catalogue = Catalogue.create(tmp_path / "c.sqlite")
    with catalogue.writing():
        add(catalogue, "/d/l", "l", {f"l-{i}": Span(i, i + 1) for i in range(2500)}, row=0, text="abcde" * 500)
    passages = catalogue.by_rows(range(2500))
    assert "".join(passages[row].text for row in range(2500)) == "abcde" * 500
    assert [p.id for _, p in catalogue.passages_between(900, 2400)] == [f"l-{i}" for i in range(900, 2400)]
    catalogue.close()


def test_nothing_of_a_failed_transaction_stays(path):
    with opened(path) as catalogue:
        with pytest.raises(ZeroDivisionError), catalogue.writing():
            add(catalogue, "/d/b.txt", "b.txt", {"b-1": Span(0, 3)}, row=2)
            catalogue.set_meta({"generation": 2})
            catalogue.change("INSERT INTO encoders VALUES (1, '', '')")
            catalogue.add_block(1, Block(0, 1, "x", 0, 1.0, ""))
            raise ZeroDivisionError
        assert catalogue.meta()["generation"] == 1
        assert counts(catalogue) == (1, 2)
        assert catalogue.blocks(1) == []
        with catalogue.writing():  # and it can be written again
            catalogue.set_meta({"generation": 3})
        assert catalogue.meta()["generation"] == 3


def test_a_part_can_be_undone_alone(path):
    with opened(path) as catalogue, catalogue.writing():
        with pytest.raises(ZeroDivisionError), catalogue.undoing():
            catalogue.change("DELETE FROM files")
            assert counts(catalogue) == (0, 0)
            raise ZeroDivisionError
        assert counts(catalogue) == (1, 2)
        with catalogue.undoing():
            add(catalogue, "/d/b.txt", "b.txt", {"b-1": Span(0, 3)}, row=2)
        assert counts(catalogue) == (2, 3)


def test_a_reader_keeps_its_generation(path):
    with opened(path) as reader, opened(path) as writer:
        with writer.writing():
            writer.set_meta({"generation": 2})
            add(writer, "/d/a.txt", "a.txt", {"new": Span(0, 3)}, row=2)
        assert writer.meta()["generation"] == 2
        assert (reader.meta()["generation"], sorted(reader.by_rows(range(9)))) == (1, [0, 1])
        reader.pin()
        assert (reader.meta()["generation"], sorted(reader.by_rows(range(9)))) == (2, [0, 1, 2])


def test_a_second_writer_is_told_so(path, monkeypatch):
    assert catalogue_file.BUSY_SECONDS == 5.0
    monkeypatch.setattr(catalogue_file, "BUSY_SECONDS", 0.2)
    with opened(path) as first, opened(path) as second:
        with first.writing():
            with pytest.raises(CollectionBusyError, match="another process is writing to this collection"):
                with second.writing():
                    raise AssertionError("two writers at once")
            assert second.meta()["generation"] == 1  # it can still read
            first.set_meta({"generation": 2})
        with second.writing():
            assert second.meta()["generation"] == 2
            second.set_meta({"generation": 3})


def test_many_threads_read_through_one_connection(path):
    wrong = []
    with opened(path) as catalogue:

        def read():
            for _ in range(50):
                if [p.id for p in catalogue.by_rows([0, 1]).values()] != ["a-1", "a-2"]:
                    wrong.append(1)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# ---- files that are no catalogue, or not any more ----


def test_there_is_no_catalogue(tmp_path):
    with pytest.raises(CollectionMissingError, match=r"no collection at .*Build one with: bifolio ingest PATH"):
        Catalogue.open(tmp_path / "catalogue.sqlite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 4096, b"not a database at all", random.Random(1).randbytes(20_000)], ids=lambda d: len(d)
)
def test_garbage_is_no_catalogue(tmp_path, data):
    path = tmp_path / "catalogue.sqlite"
    path.write_bytes(data)
    with pytest.raises(
        CollectionDamagedError, match=r"catalogue\.sqlite is (not a bifolio catalogue|damaged: file is not)"
    ):
        Catalogue.open(path)
    assert path.read_bytes() == data


def test_another_programs_database_is_no_catalogue(tmp_path):
    connection = sqlite3.connect(tmp_path / "c.sqlite")
    connection.execute("CREATE TABLE meta (key, value)")
    connection.commit()
    connection.close()
    with pytest.raises(CollectionDamagedError, match="not a bifolio catalogue"):
        Catalogue.open(tmp_path / "c.sqlite")


def test_a_newer_format(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(CollectionVersionError, match=r"has collection format 3; this bifolio reads up to 2.*--upgrade"):
        Catalogue.open(path)


def test_a_lost_table(path):
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE meta")
    connection.close()
    with pytest.raises(CollectionDamagedError, match="no such table: meta"):
        Catalogue.open(path)


def everything(path):
    """Read all there is, so that whatever is damaged is met."""
    with opened(path) as catalogue:
        catalogue.meta()
        versions = catalogue.versions("1 = 1", [])
        digests = [file_digest(catalogue.query, version.id) for version in versions]
        return [catalogue.by_rows(range(9)), versions, digests, catalogue.blocks(1), counts(catalogue)]


def test_a_catalogue_cut_anywhere_is_reported(path):
    whole, data = everything(path), path.read_bytes()
    assert len(data) > 20_000
    for keep in (1, 15, 100, 4096, 8192, len(data) // 2):
        path.write_bytes(data[:keep])
        with pytest.raises(CollectionDamagedError):
            everything(path)
    for keep in range(len(data) // 2, len(data), 1000):  # what is cut off may be an index that nobody asked
        path.write_bytes(data[:keep])
        try:
            found = everything(path)
        except CollectionDamagedError:
            continue
        assert found == whole


def test_overwritten_bytes_never_end_in_a_foreign_exception(path):
    whole, told = everything(path), 0
    data = path.read_bytes()
    for seed in range(150):
        dice = random.Random(seed)
        broken = bytearray(data)
        at = dice.randrange(len(data))
        broken[at : at + 200] = dice.randbytes(min(200, len(data) - at))
        path.write_bytes(broken)
        try:
            everything(path)
        except CollectionError:
            told += 1
    path.write_bytes(data)
    assert everything(path) == whole
    assert told > 5


def test_broken_json_inside_is_damage(path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE documents SET metadata = '{'")
    connection.commit()
    connection.close()
    with (
        opened(path) as catalogue,
        pytest.raises(CollectionDamagedError, match=r"is damaged.*Restore it from a backup"),
    ):
        catalogue.by_rows([0])


# ---- without the right to write ----


@contextmanager
def without_rights(folder):
    """As a user who may read ``folder`` and not write there (root may write everywhere, so it becomes nobody)."""
    root = os.geteuid() == 0
    above = [p for p in folder.parents if root and p.stat().st_uid == 0 and not p.stat().st_mode & 1]
    modes = {p: p.stat().st_mode for p in [folder, *folder.iterdir(), *above]}
    for p in modes:
        p.chmod(0o555 if p.is_dir() else 0o444)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for p, mode in modes.items():
            p.chmod(mode)


def test_a_read_only_catalogue_is_read(path):
    whole = everything(path)
    with without_rights(path.parent):
        assert everything(path) == whole
        with opened(path) as catalogue:
            with pytest.raises(
                CollectionError, match="cannot be written: attempt to write a readonly database"
            ) as caught:
                with catalogue.writing():
                    catalogue.set_meta({"generation": 2})
            assert not isinstance(caught.value, CollectionBusyError | CollectionDamagedError)
            assert catalogue.meta()["generation"] == 1


@pytest.mark.parametrize("shared", [True, False])
def test_a_read_only_catalogue_with_a_log_is_not_read_in_half(path, shared):
    with opened(path) as holder:
        with holder.writing():
            holder.set_meta({"generation": 3})
        files = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    assert sorted(files) == ["catalogue.sqlite", "catalogue.sqlite-shm", "catalogue.sqlite-wal"]
    assert len(files["catalogue.sqlite-wal"]) > 0
    for name, data in files.items():
        if shared or not name.endswith("-shm"):
            (path.parent / name).write_bytes(data)
    with without_rights(path.parent):
        if shared:  # the log can be read with what its readers share
            with opened(path) as catalogue:
                assert catalogue.meta()["generation"] == 3
        else:
            with pytest.raises(CollectionDamagedError, match="catalogue.sqlite cannot be read: unable to open"):
                Catalogue.open(path)
    with opened(path) as catalogue:
        assert catalogue.meta()["generation"] == 3


def test_a_closed_catalogue_says_so(path):
    with opened(path) as catalogue:
        assert sorted(catalogue.by_rows([0, 1])) == [0, 1]
    with pytest.raises(CollectionError, match="was closed: open it again"):
        catalogue.meta()


def test_a_catalogue_that_nobody_holds_is_closed(path):
    catalogue = Catalogue.open(path)
    connection, passages = catalogue._connection, catalogue.passages_between(0, 9)
    del catalogue
    assert next(passages)[1].id == "a-1"  # who reads from it holds it
    passages.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
