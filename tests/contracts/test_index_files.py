"""How the indexes of this package write their file."""

import numpy as np
import pytest

from contracts.dense_index import D, draw, index_class


@pytest.mark.parametrize("name", ["exact", "faiss:flat", "faiss:hnsw"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, name):
    cls, argument = index_class(name)
    index = cls(D, argument)
    index.add(draw(0, 4), np.arange(4))
    index.save(tmp_path / "index.bin")
    before = (tmp_path / "index.bin").read_bytes()

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    index.add(draw(1, 4), np.arange(4, 8))
    with pytest.raises(OSError, match="disk full"):
        index.save(tmp_path / "index.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["index.bin"]
    assert (tmp_path / "index.bin").read_bytes() == before
