"""Verifying, backups, and collections of an older format."""

import json
import os
import random
import shutil
import sqlite3
import tarfile
from dataclasses import asdict

import numpy as np
import pytest

from bifolio import seals
from bifolio.backup import restore
from bifolio.collection import Collection
from bifolio.errors import BifolioError, CollectionDamagedError, CollectionExistsError, MissingPathError
from bifolio.indexes.lexical import BM25Index
from fakes import FakeEncoder, bag, write_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {f"{name}.txt": f"Text {name} of the valve.\n" for name in "abcdef"}
    write_files(tmp_path / "docs", {**files, "m.md": "---\nyear: 2024\naccess: hr\n---\n# Title\n\nThe pump.\n"})
    return tmp_path


def build(**options):
    return Collection.build(["docs"], "c", **{"encoder": FakeEncoder(), **options})


def everything(path):
    """All that a reader can see, of every generation."""
    found = []
    with Collection.open(path, encoder=FakeEncoder()) as collection:
        found.append([(g.number, g.action, g.changes, g.passages, g.tags, g.live) for g in collection.log()])
        numbers = [g.number for g in collection.log()]
    for number in numbers:
        with Collection.open(path, encoder=FakeEncoder(), generation=number) as old:
            now = old.snapshot()
            passages = list(old.passages())
            found.append([asdict(passage) for passage in passages])
            found.append([(f.source, f.hash, f.status, f.reason, f.passages, f.documents) for f in old.files()])
            found.append(now.vectors([p.id for p in passages]).tolist())
            found.append([(h.passage.id, h.score) for h in old.retrieve("the valve text", 9, mode="dense")])
            found.append(np.flatnonzero(old.snapshot().allowed("year=2024")).tolist())
    for label in ("hr", "x"):
        with Collection.open(path, labels=[label]) as reader:
            found.append(len(reader))
    return found


def two_generations(here):
    with build(index="faiss:flat") as collection:
        write_files(here / "docs", {"a.txt": "Another text.\n"})
        collection.sync(["docs"])
        collection.tag("first", 1)
        assert collection.verify() == []


def test_any_damaged_byte_that_matters_is_found(here):
    """Whatever byte of the catalogue or the vectors is changed: it is told, or everything reads as before."""
    two_generations(here)
    before = everything("c")
    told = quiet = 0
    files = ["catalogue.sqlite", *(f"vectors/{name}" for name in os.listdir("c/vectors"))]
    for seed in range(150):
        dice = random.Random(seed)
        shutil.rmtree("d", ignore_errors=True)
        shutil.copytree("c", "d")
        path = here / "d" / files[seed % 3 > 1]
        data = bytearray(path.read_bytes())
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        try:
            with Collection.open("d") as collection:
                damage = collection.verify()
        except BifolioError as error:
            damage = [str(error)]
        if damage:
            told += 1
            assert all(len(line) > 20 for line in damage)
        else:
            quiet += 1
            assert everything("d") == before
    assert told > 50  # every byte of a vector, and of the catalogue where something stands
    assert told + quiet == 150


@pytest.mark.parametrize("table", ["meta", "encoders", "generations", "tags", "events", "files", "lives", "blocks"])
def test_every_value_has_a_seal(here, table):
    two_generations(here)
    connection = sqlite3.connect("c/catalogue.sqlite")
    connection.execute("PRAGMA foreign_keys = OFF")
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    for trigger in ("came", "changed", "went"):
        connection.execute(f"DROP TRIGGER {table}_{trigger}")
    whole = connection.execute(f"SELECT * FROM {table}").fetchall()
    assert whole
    seals.register(connection)

    def ask(query):
        return connection.execute(query).fetchall()

    assert seals.broken(ask) == []
    for column in columns:
        connection.execute("SAVEPOINT s")
        key = f'"{columns[0]}" || "{columns[1]}"'
        connection.execute(f'UPDATE {table} SET "{column}" = 99 WHERE {key} = (SELECT min({key}) FROM {table})')
        assert seals.broken(ask), column
        connection.execute("ROLLBACK TO s")
    connection.execute(f"DELETE FROM {table}")
    assert len(seals.broken(ask)) == len(whole)
    connection.close()


def test_damaged_indexes_are_told_and_made_again(here):
    two_generations(here)
    for name in os.listdir("c/index"):
        shutil.rmtree("d", ignore_errors=True)
        shutil.copytree("c", "d")
        path = here / "d/index" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with Collection.open("d", encoder=FakeEncoder()) as collection:
            (line,) = collection.verify()
            assert (str(path) in line, line.endswith("the next ingest or compact makes it again")) == (True, True)
            collection.compact(keep=9)
            assert collection.verify() == []


def test_a_backup_has_what_is_live_and_tagged(here):
    two_generations(here)
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        write_files(here / "docs", {"b.txt": "Text b again.\n"})
        collection.sync(["docs"])
        expected = sorted((p.id, p.text, p.place, p.metadata) for p in collection.passages())
        assert collection.export("backup.tar") == here / "backup.tar"
        with pytest.raises(CollectionExistsError, match="exists already"):
            collection.export("backup.tar")
        with pytest.raises(MissingPathError, match="no such folder"):
            collection.export("nowhere/backup.tar")
    assert sorted(os.listdir(here)) == ["backup.tar", "c", "docs"]
    shutil.rmtree("c")
    restore(here / "backup.tar", here / "moved")
    with Collection.open("moved", encoder=FakeEncoder()) as collection:
        assert sorted((p.id, p.text, p.place, p.metadata) for p in collection.passages()) == expected
        assert ([g.number for g in collection.log()], collection.generation) == ([3, 1], "3")
        assert collection.verify() == []
        for passage in collection.passages():
            assert np.array_equal(collection.snapshot().vectors([passage.id])[0], bag(passage.text))
        assert collection.retrieve("Text b again.", 1)[0].passage.text == "Text b again."
        assert collection.swap("first") == "1"
        assert {file.status for file in collection.sync(["docs"]).files} == {"ok", "unchanged"}
    with pytest.raises(CollectionExistsError):
        restore(here / "backup.tar", here / "moved")


def test_a_damaged_backup_is_refused_and_leaves_nothing(here):
    two_generations(here)
    with Collection.open("c") as collection:
        collection.export("backup.tar")
    data = (here / "backup.tar").read_bytes()
    names = sorted(os.listdir(here))
    for seed in range(40):
        dice = random.Random(seed)
        broken = bytearray(data)
        broken[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        (here / "broken.tar").write_bytes(broken if seed % 2 else data[: dice.randrange(len(data))])
        try:
            restore(here / "broken.tar", here / "r")
        except CollectionDamagedError as error:
            assert "broken.tar" in str(error)
        else:  # padding, or the owner's name: nothing that is read
            with Collection.open("r") as collection:
                assert (collection.verify(), len(collection)) == ([], 7)
            shutil.rmtree("r")
        (here / "broken.tar").unlink()
        assert sorted(os.listdir(here)) == names


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "vectors/../../evil", "vectors/a/b", "other"])
def test_a_backup_writes_nowhere_else(here, name):
    with tarfile.open("evil.tar", "w") as tar:
        for entry, content in (
            ("bifolio-backup.json", json.dumps({"bifolio_backup": 1, "files": {name: {"size": 1, "sha256": "x"}}})),
            (name, "x"),
        ):
            (here / "part").write_text(content)
            info = tar.gettarinfo("part", arcname=entry)
            info.name = entry
            with open("part", "rb") as file:
                tar.addfile(info, file)
    with pytest.raises(CollectionDamagedError, match="which its list does not name so"):
        restore(here / "evil.tar", here / "r")
    assert not (here / "r").exists()


FORMAT_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, source TEXT NOT NULL UNIQUE, hash TEXT NOT NULL,
    options TEXT NOT NULL, added TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL);
CREATE INDEX files_hash ON files (hash);
CREATE TABLE documents (id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    member TEXT NOT NULL, title TEXT NOT NULL, media_type TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX documents_file ON documents (file);
CREATE TABLE passages (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE, start INTEGER NOT NULL, end INTEGER NOT NULL,
    heading TEXT NOT NULL, place TEXT NOT NULL);
CREATE INDEX passages_document ON passages (document);
CREATE TABLE segments (name TEXT PRIMARY KEY, first_row INTEGER NOT NULL, rows INTEGER NOT NULL, sha256 TEXT NOT NULL);
PRAGMA application_id = 1651074671;
PRAGMA user_version = 1;
"""


def older(here):
    """The live generation of a collection, as format 1 had it."""
    (here / "old/vectors").mkdir(parents=True)
    connection = sqlite3.connect("old/catalogue.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(FORMAT_1)
    connection.execute("ATTACH 'c/catalogue.sqlite' AS new")
    (spec,) = connection.execute("SELECT spec FROM new.encoders").fetchone()
    facts = {"encoder": json.loads(spec), "passage_encoder": "", "index": "exact", "generation": 4, "next_row": 8}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()])
    alive = "SELECT file FROM new.lives WHERE died IS NULL"
    columns = "id, path, source, hash, options, added, status, reason"
    connection.execute(f"INSERT INTO files SELECT {columns} FROM new.files WHERE id IN ({alive})")
    columns = "id, file, member, title, media_type, metadata, text"
    connection.execute(f"INSERT INTO documents SELECT {columns} FROM new.documents WHERE file IN ({alive})")
    columns = "row, id, document, start, end, heading, place"
    connection.execute(
        f"INSERT INTO passages SELECT {columns} FROM new.passages WHERE document IN (SELECT id FROM documents)"
    )
    for number, (first, rows, file, offset, sha256) in enumerate(
        connection.execute('SELECT first_row, rows, file, "offset", sha256 FROM new.blocks').fetchall()
    ):
        data = (here / "c/vectors" / file).read_bytes()[offset * 128 : (offset + rows) * 128]
        (here / f"old/vectors/{number}.f32").write_bytes(data)
        connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", (f"{number}.f32", first, rows, sha256))
    connection.commit()
    connection.close()


def test_a_collection_of_format_1_is_migrated(here):
    two_generations(here)
    older(here)
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        expected = [asdict(passage) for passage in collection.passages()]
        hits = [(hit.passage.id, hit.score) for hit in collection.retrieve("the valve", 9, mode="dense")]
    with Collection.open("old", encoder=FakeEncoder()) as collection:
        assert [asdict(passage) for passage in collection.passages()] == expected
        assert [(hit.passage.id, hit.score) for hit in collection.retrieve("the valve", 9, mode="dense")] == hits
        assert ([g.action for g in collection.log()], collection.verify()) == (["migrate"], [])
        report = collection.sync(["docs"])
        assert ({file.status for file in report.files}, report.added) == ({"unchanged"}, 0)
        write_files(here / "docs", {"b.txt": "Text b of the bridge.\n"})
        assert collection.sync(["docs"]).generation == "2"
        assert collection.retrieve("Text b of the bridge.", 1)[0].passage.text == "Text b of the bridge."
        assert collection.verify() == []


def test_a_migration_that_fails_leaves_the_old_one(here):
    two_generations(here)
    older(here)
    (here / "old/vectors/1.f32").unlink()
    with pytest.raises(CollectionDamagedError, match=r"1\.f32"):
        Collection.open("old")
    connection = sqlite3.connect("old/catalogue.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM segments").fetchone() == (2,)
    connection.close()


def test_rows_that_were_dropped_at_the_end_are_not_missed(here, caplog):
    """The last file's passages go: the lexical index is complete without them, and is used as it stands."""
    with build() as collection:
        collection.remove(["docs/m.md"])
        collection.compact(keep=1)
        catalogue = collection.snapshot().catalogue
        assert (catalogue.rows_end(), catalogue.meta()["next_row"]) == (6, 7)
        collection.export("c.tar")
    restore(here / "c.tar", here / "back")
    for path in ("c", "back"):
        with Collection.open(path, encoder=FakeEncoder()) as reader:
            hits = reader.retrieve("text f of the valve", 9, mode="lexical")
            assert (len(hits), hits[0].passage.text) == (6, "Text f of the valve.")
            assert isinstance(reader.snapshot()._lexical, BM25Index)
            assert reader.snapshot()._lexical._folder is not None  # the one on the disk
    with Collection.open("c", encoder=FakeEncoder()) as writer:
        write_files(here / "docs", {"z.txt": "A pump at last.\n"})
        writer.ingest(["docs/z.txt"])
        assert [hit.passage.text for hit in writer.retrieve("pump", 9, mode="lexical")] == ["A pump at last."]
    assert [record.getMessage() for record in caplog.records] == []
