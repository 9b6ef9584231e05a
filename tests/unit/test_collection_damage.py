"""Damaged collections: what is missing or wrong is told, and what still works goes on working."""

import os
import sqlite3

import pytest

from bifolio import seals
from bifolio.errors import CollectionDamagedError, CollectionVersionError
from fakes import write_files
from unit.test_collection import QUESTION, answers, build, reopen


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    return tmp_path


def test_a_newer_format(here):
    build().close()
    connection = sqlite3.connect("c/catalogue.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(CollectionVersionError, match="format 99"):
        reopen()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM generations",
        "DELETE FROM meta WHERE key = 'next_row'",
        "UPDATE encoders SET spec = '[]'",
        "UPDATE meta SET value = '\"x\"' WHERE key = 'next_row'",
        "UPDATE meta SET value = '{' WHERE key = 'index'",
        "UPDATE meta SET value = '7' WHERE key = 'index'",
    ],
)
def test_facts_that_are_missing_or_wrong(here, statement):
    build().close()
    connection = sqlite3.connect("c/catalogue.sqlite")
    seals.register(connection)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(CollectionDamagedError, match="restore it from a backup|Restore it from a backup"):
        reopen()


@pytest.mark.parametrize("data", [None, b"", b"abc", bytes(32 * 4 * 3 - 1)], ids=lambda d: d and len(d))
def test_vectors_that_are_missing_or_wrong(here, data):
    build().close()
    (path,) = (here / "c/vectors").iterdir()
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with reopen() as collection:
        assert len(collection.files()) == 3  # what needs no vectors still works
        with pytest.raises(CollectionDamagedError, match=r"vectors.*(ingest again|backup)"):
            collection.retrieve(QUESTION)


def test_a_file_too_many_is_left_alone_by_readers_and_removed_by_the_next_writer(here):
    with build() as collection:
        before = answers(collection)
        write_files(here / "c", {"vectors/000000000003-dead.f32": bytes(128), "index/stray.index": b"x"})
        assert answers(collection) == before
        with reopen() as opened:
            assert answers(opened) == before
        assert len(os.listdir("c/vectors")) == 2
        collection.ingest(["docs"])
        assert [len(os.listdir("c/vectors")), len(os.listdir("c/index"))] == [1, 1]
        assert answers(collection) == before
