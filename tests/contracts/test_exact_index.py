"""What the exact index does beyond the contract."""

import numpy as np
import pytest

from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.indexes.exact import ExactIndex
from contracts.dense_index import D, check, draw


def test_it_has_no_options():
    with pytest.raises(UsageError, match="no options; got 'flat'"):
        ExactIndex(D, "flat")


def test_exact_keeps_memory_maps_and_halves_without_copying(tmp_path):
    stored = np.memmap(tmp_path / "v.f16", dtype=np.float16, mode="w+", shape=(50, D))
    stored[:] = draw(0, 50)
    index = ExactIndex(D)
    index.add(stored, np.arange(50))
    assert np.shares_memory(index._parts[0].vectors, stored)
    check(index, draw(1, 3), np.asarray(stored, np.float32), np.arange(50), 5)
    index.save(tmp_path / "index.bin")
    assert (tmp_path / "index.bin").stat().st_size == 64 + 50 * (8 + 2 * D)
    loaded = ExactIndex.load(tmp_path / "index.bin")
    assert isinstance(loaded._parts[0].vectors, np.memmap)
    check(loaded, draw(1, 3), np.asarray(stored, np.float32), np.arange(50), 5)


def test_exact_notices_values_that_rotted(tmp_path):
    index = ExactIndex(D)
    index.add(draw(0, 3), np.arange(3))
    index.save(tmp_path / "index.bin")
    content = bytearray((tmp_path / "index.bin").read_bytes())
    content[-4:] = np.float32(np.nan).tobytes()
    (tmp_path / "index.bin").write_bytes(content)
    with pytest.raises(CollectionDamagedError, match=r"index\.bin: row 2"):
        ExactIndex.load(tmp_path / "index.bin")
