"""Writers that are killed or interrupted anywhere: what they leave, and that the work can be finished."""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import crashing
from bifolio.collection import Collection
from bifolio.errors import CollectionMissingError
from fakes import FakeEncoder, write_files

TESTS = Path(__file__).parents[1]
POINTS = 4
"""Of each action; ``python tests/crashing.py`` takes as many as wanted."""


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    return crashing.trials(tmp_path_factory.mktemp("crash"))


@pytest.mark.parametrize("action", crashing.ACTIONS)
def test_a_writer_that_is_killed(trials, action):
    trial = trials[action]
    assert trial.before != trial.after or action == "compact"
    drawn = random.Random(action)
    points = [drawn.randint(1, trial.calls - 1) for _ in range(POINTS - 1)]
    outcomes = [trial.kill_at(point) for point in (*points, trial.calls - 1)]
    assert set(outcomes) <= {"before", "after"}


SCRIPT = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from bifolio import cli, collection, exits
    from fakes import FakeEncoder

    class Slow(FakeEncoder):
        def encode_passages(self, passages, on_batch=None):
            os.kill(os.getpid(), signal.SIGINT)
            return super().encode_passages(passages, on_batch)

    collection.load_encoder = lambda *_, **__: Slow()
    cli.main()
    """
).format(tests=str(TESTS))


@pytest.mark.parametrize("begun", [True, False])
def test_an_ingest_that_is_interrupted_goes_on_where_it_was(tmp_path, monkeypatch, begun):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    if not begun:
        Collection.build(["docs"], "c", encoder=FakeEncoder()).close()
        write_files(tmp_path / "docs", {"new.txt": "New.\n"})
    command = [sys.executable, "-c", SCRIPT, "ingest", "docs", "-c", "c"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = "interrupted: the collection is as it was; what was done is kept, and the same command goes on with it\n"
    assert (done.returncode, done.stdout, done.stderr.lstrip()) == (130, "", told)
    if begun:
        assert not Collection.exists("c")
        with pytest.raises(CollectionMissingError, match="was begun and has no generation yet: run the same ingest"):
            Collection.open("c")
        with Collection.build(["docs"], "c", encoder=FakeEncoder()) as collection:
            assert (len(collection), collection.generation, collection.verify()) == (3, "1", [])
    else:
        with Collection.open("c", encoder=FakeEncoder()) as collection:
            assert (len(collection), collection.generation) == (3, "1")
            assert collection.ingest(["docs"]).added == 1
            assert (len(collection), collection.generation, collection.verify()) == (4, "2", [])


def test_what_was_begun_with_other_settings_begins_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    command = [sys.executable, "-c", SCRIPT, "ingest", "docs", "-c", "c"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 130
    with Collection.build(["docs"], "c", encoder=FakeEncoder("other"), precision="float16") as collection:
        assert (len(collection), collection.verify()) == (3, [])
        assert collection.snapshot().meta["encoder"]["fingerprint"] == "sha256:other"
