"""A class and an entry point are enough: for the registry, a collection, and the contract suite."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bifolio import registry
from bifolio.collection import Collection
from contracts.third_party import PlainIndex
from fakes import FakeEncoder, write_files

TESTS = Path(__file__).parents[1]


@pytest.fixture
def installed(tmp_path):
    """A folder that looks as if a package with the entry point had been installed in it."""
    info = tmp_path / "site" / "plain_index-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-index\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bifolio.index]\nplain = contracts.third_party:PlainIndex\n")
    return info.parent


def test_a_collection_uses_it(installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    assert "plain" in registry.names("index")
    assert registry.resolve("index", "plain:x") == (PlainIndex, "x")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    found = {}
    for index in ("exact", "plain"):
        Collection.build(["docs"], index, encoder=FakeEncoder(), index=index)
        with Collection.open(index, encoder=FakeEncoder()) as opened:
            found[index] = [(hit.passage.id, hit.score) for hit in opened.retrieve("which valve has closed", 3)]
    assert found["plain"] == found["exact"]
    assert len(found["plain"]) == 3
    assert list((tmp_path / "plain" / "index").glob("*.index"))


def test_the_contract_suite_runs_on_it_and_it_passes(installed):
    """In another process, as its author would; only what the suite has for this index."""
    suite = TESTS / "contracts" / "test_dense_index.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "[plain", str(suite)],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 40, done.stdout
