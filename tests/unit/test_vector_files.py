"""Files of vectors: what is written is what is read, and what is missing is told."""

import hashlib

import numpy as np
import pytest

from bifolio import vector_files
from bifolio.catalogue import Segment
from bifolio.errors import CollectionDamagedError
from bifolio.vector_files import SegmentWriter, drop_strangers, live_blocks, vectors_of, verify, worth_copying

D = 3


def write(folder, first, rows):
    with SegmentWriter(folder, first) as writer:
        writer.append(np.arange(first, first + rows, dtype=np.float32)[:, None] + np.zeros(D, dtype=np.float32))
        return writer.finish()


def read(folder, segments, live):
    blocks = [(v.copy(), r) for v, r in live_blocks(folder, segments, D, np.array(live, dtype=np.int64))]
    return {int(row): vector.tolist() for vectors, rows in blocks for vector, row in zip(vectors, rows, strict=True)}


def test_a_segment_is_its_rows_and_their_checksum(tmp_path):
    with SegmentWriter(tmp_path / "vectors", 7) as writer:
        writer.append(np.array([[1, 2, 3]], dtype=np.float32))
        writer.append(np.array([[4, 5, 6], [7, 8, 9]], dtype=np.float32))
        segment = writer.finish()
    data = np.arange(1, 10, dtype="<f4").tobytes()
    assert (segment.first_row, segment.rows) == (7, 3)
    assert segment.sha256 == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "vectors" / segment.name).read_bytes() == data
    assert segment.name.startswith("000000000007-")


def test_the_same_first_row_never_means_the_same_file(tmp_path):
    assert write(tmp_path, 0, 1).name != write(tmp_path, 0, 1).name


def test_nothing_stays_of_a_segment_without_rows(tmp_path):
    with SegmentWriter(tmp_path, 0) as writer:
        assert writer.finish() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("finished", [False, True])
def test_nothing_stays_of_a_segment_that_failed(tmp_path, finished):
    with pytest.raises(KeyboardInterrupt), SegmentWriter(tmp_path, 0) as writer:
        writer.append(np.zeros((2, D), dtype=np.float32))
        if finished:
            writer.finish()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("small", [0, 3 * D * 4, 1 << 20])
@pytest.mark.parametrize("block", [D * 4, 3 * D * 4, 1 << 20])
def test_only_live_rows_come_back(tmp_path, monkeypatch, small, block):
    monkeypatch.setattr(vector_files, "_SMALL", small)
    monkeypatch.setattr(vector_files, "_BLOCK", block)
    segments = [write(tmp_path, 0, 4), write(tmp_path, 4, 3), write(tmp_path, 20, 2)]
    dice = np.random.default_rng(1)
    for live in ([0, 1, 3, 5, 6, 21], [20, 21], range(7), *([r for r in range(7) if dice.random() < 0.6],) * 5):
        assert read(tmp_path, segments, live) == {row: [float(row)] * D for row in live}
    assert read(tmp_path, segments, []) == {}


def test_long_runs_are_mapped_and_short_ones_are_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "_SMALL", 5 * D * 4)
    monkeypatch.setattr(vector_files, "_BLOCK", 8 * D * 4)
    segments = [write(tmp_path, 0, 10), *(write(tmp_path, row, 1) for row in range(10, 30))]
    live = np.array([row for row in range(30) if row not in (1, 8)], dtype=np.int64)
    blocks = list(live_blocks(tmp_path, segments, D, live))
    mapped = [rows.tolist() for vectors, rows in blocks if isinstance(vectors, np.memmap)]
    copied = [rows.tolist() for vectors, rows in blocks if not isinstance(vectors, np.memmap)]
    assert mapped == [[2, 3, 4, 5, 6, 7]]
    assert copied == [[0, 9, *range(10, 16)], [*range(16, 24)], [*range(24, 30)]]  # 22 runs are 3 blocks


def test_vectors_are_found_by_row(tmp_path):
    segments = [write(tmp_path, 0, 4), write(tmp_path, 4, 3)]
    rows = np.array([6, 0, 4, 0], dtype=np.int64)
    assert vectors_of(tmp_path, segments, D, rows).tolist() == [[float(row)] * D for row in rows]
    with pytest.raises(CollectionDamagedError, match="1 passages have no vector"):
        vectors_of(tmp_path, segments, D, np.array([6, 7], dtype=np.int64))


def test_copying_has_to_be_worth_the_check():
    segments = [Segment("a", 0, 2000, ""), Segment("b", 2000, 2001, ""), Segment("c", 4001, 5, "")]
    for rows, names in [([1, 5, 2000, 2001], ["a"]), ([4005, 2002, 2001, 2000], ["b", "c"]), ([], [])]:
        chosen = worth_copying(segments, lambda first, end, rows=rows: sum(first <= row < end for row in rows))
        assert [segment.name for segment in chosen] == names


def test_a_changed_byte_is_found_by_its_checksum(tmp_path):
    segment = write(tmp_path, 0, 2)
    verify(tmp_path, [segment])
    path = tmp_path / segment.name
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CollectionDamagedError, match=f"{segment.name} is not as it was written: its sha256"):
        verify(tmp_path, [segment])
    path.unlink()
    with pytest.raises(CollectionDamagedError, match=rf"{segment.name} is missing"):
        verify(tmp_path, [segment])


def test_a_missing_file_is_named(tmp_path):
    segment = write(tmp_path, 0, 2)
    (tmp_path / segment.name).unlink()
    with pytest.raises(CollectionDamagedError, match=rf"{segment.name} is missing"):
        read(tmp_path, [segment], [0])


@pytest.mark.parametrize(("size", "given"), [(0, 0), (5, 5), (23, 23), (25, 25), (48, 48)])
def test_a_file_of_a_wrong_size_is_named(tmp_path, size, given):
    segment = write(tmp_path, 0, 2)
    (tmp_path / segment.name).write_bytes(bytes(size))
    with pytest.raises(CollectionDamagedError, match=rf"{segment.name} has {given} bytes, expected 24"):
        read(tmp_path, [segment], [0])


def test_a_passage_without_a_vector_is_damage(tmp_path):
    with pytest.raises(CollectionDamagedError, match="2 passages have no vector"):
        read(tmp_path, [write(tmp_path, 0, 2)], [0, 1, 2, 5])
    with pytest.raises(CollectionDamagedError, match="1 passages have no vector"):
        read(tmp_path, [], [0])


def test_strangers_go_and_named_files_and_folders_stay(tmp_path):
    kept = write(tmp_path, 0, 2)
    write(tmp_path, 0, 2)
    (tmp_path / ".half.index.1234").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    drop_strangers(tmp_path, {kept.name})
    assert sorted(file.name for file in tmp_path.iterdir()) == [kept.name, "folder"]
    drop_strangers(tmp_path / "nowhere", set())
    assert read(tmp_path, [Segment(kept.name, 0, 2, kept.sha256)], [1]) == {1: [1.0] * D}
