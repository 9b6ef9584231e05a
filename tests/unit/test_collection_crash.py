"""Builds and updates that are killed or interrupted: the collection is as it was, and nothing stays behind for ever."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bifolio.collection import Collection
from fakes import FakeEncoder, write_files

TESTS = Path(__file__).parents[1]
SCRIPT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, {tests!r})
    import bifolio.collection
    from bifolio import cli
    from fakes import FakeEncoder

    bifolio.collection.load_encoder = lambda *_, **__: FakeEncoder(delay=0.02)

    real = bifolio.collection.ingest

    def ingest(*arguments, on_progress, index, **options):
        def told(step):
            print(step.stage, step.done, flush=True, file=sys.stderr)
            on_progress(step)

        def indexed(*changes):
            print("index", flush=True, file=sys.stderr)
            index(*changes)

        return real(*arguments, on_progress=told, index=indexed, **options)

    bifolio.collection.ingest = ingest
    cli.main()
    """
).format(tests=str(TESTS))
NEW = {f"new{i:02}.txt": f"New text number {i} of the valve.\n" for i in range(30)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    return tmp_path


def state(path="c"):
    with Collection.open(path, encoder=FakeEncoder()) as collection:
        hits = collection.retrieve("which valve has closed", 1000)
        return collection.generation, [(hit.passage, hit.score, hit.log_prior) for hit in hits]


def run_until(moment, sign, *arguments):
    """Run an ingest in a process of its own and send it a signal when its trace reaches ``moment``."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "ingest", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    rest = []
    for line in process.stderr:
        rest.append(line)
        if line.strip() == moment:
            if sign == signal.SIGKILL:
                time.sleep(0.01)  # somewhere within what comes next
            process.send_signal(sign)
            break
    out, err = process.communicate(timeout=60)
    trace = {"read", "encode", "index"}
    return process.returncode, out, [x for x in ("".join(rest) + err).splitlines() if x and x.split()[0] not in trace]


MOMENTS = ["read 2", "encode 3", "encode 30"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_a_build_that_ends_early(here, moment, sign):
    write_files(here / "new", NEW)
    code, out, told = run_until(moment, sign, "new", "-c", "c")
    if moment == "encode 30" and (here / "c").exists():  # the last moment can be too late: then all of it is there
        assert len(state()[1]) == 30
        return
    assert not (here / "c").exists()
    left = sorted(set(os.listdir(here)) - {"docs", "new"})
    if sign == signal.SIGINT:
        assert (code, out, told) == (130, "", ["interrupted: what was being written was undone"])
        assert left == []
    else:
        assert code == -signal.SIGKILL
        assert len(left) == 1
        assert left[0].startswith(".c.building-")
    with Collection.build(["docs"], "c", encoder=FakeEncoder()) as collection:
        assert len(collection.retrieve("valve", 99)) == 3
    assert sorted(os.listdir(here)) == ["c", "docs", "new"]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
@pytest.mark.parametrize(
    ("index", "moment"),
    [("exact", "encode 3"), ("exact", "encode 31"), ("faiss:flat", "read 2"), ("faiss:flat", "index")],
)
def test_an_update_that_ends_early(here, moment, sign, index):
    Collection.build(["docs"], "c", encoder=FakeEncoder(), index=index).close()
    before = state()
    names = sorted(os.listdir("c/vectors")), os.listdir("c/index") if index != "exact" else []
    write_files(here / "new", NEW)
    write_files(here / "docs", {"cat.txt": "The cat has gone.\n"})
    code, out, told = run_until(moment, sign, "new", "docs", "-c", "c")
    if sign == signal.SIGINT and code == 130:
        assert (out, told) == ("", ["interrupted: what was being written was undone"])
        assert (sorted(os.listdir("c/vectors")), os.listdir("c/index") if index != "exact" else []) == names
        assert sorted(os.listdir(here)) == ["c", "docs", "new"]
    else:
        assert (sign, code) == (signal.SIGKILL, -signal.SIGKILL)
    if state()[0] == "2":  # the last moments can be too late: then all of the update is there
        assert moment in ("encode 31", "index")
        assert len(state()[1]) == 33
    else:
        assert state() == before
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        collection.ingest(["new", "docs"])
        found = {hit.passage.text for hit in collection.retrieve("valve", 999)}
        assert (len(found), len(collection), collection.generation) == (33, 33, "2")
        collection.ingest(["docs"])
        named = {segment.name for segment in collection.snapshot().catalogue.segments()}
        assert set(os.listdir("c/vectors")) == named
        assert len(os.listdir("c/index") if index != "exact" else "x") == 1


def test_a_leftover_of_a_live_build_is_not_touched(here):
    write_files(here / "new", NEW)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "ingest", "new", "-c", "c"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line.strip() == "encode 2":
            break
    (theirs,) = {name for name in os.listdir(here) if name.startswith(".c.building-")}
    Collection.build(["docs"], "d", encoder=FakeEncoder()).close()
    with Collection.build(["docs"], "c", encoder=FakeEncoder()):
        assert theirs in os.listdir(here)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.splitlines()[-1] == f"error: {here}/c appeared while it was being built: Directory not empty"
    assert sorted(os.listdir(here)) == ["c", "d", "docs", "new"]
    assert len(state()[1]) == 3


def test_other_peoples_folders_are_no_leftovers(here):
    for name in (".c.buildings", ".cc.building-1", ".c", "c.building-2"):
        (here / name).mkdir()
    (here / ".c.building-file").write_text("a file")
    os.symlink("docs", here / ".c.building-link")
    (here / ".c.building-killed").mkdir()
    Collection.build(["docs"], "c", encoder=FakeEncoder()).close()
    assert sorted(os.listdir(here)) == sorted(
        [".c", ".c.building-file", ".c.building-link", ".c.buildings", ".cc.building-1", "c", "c.building-2", "docs"]
    )
    assert len(os.listdir("docs")) == 3
