"""Files of vectors: blocks are appended and named with checksums; only what is named is read."""

import hashlib

import numpy as np
import pytest

from bifolio.catalogue import Block
from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.vector_files import BlockWriter, Vectors, drop_strangers, end_of, verify

D = 4


def draw(seed, count):
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


def write(folder, file, offset, *parts):
    """Append vectors at rows: (first_row, vectors) each."""
    with BlockWriter(folder, file, offset, D) as writer:
        for first_row, vectors in parts:
            writer.append(first_row, vectors)
        return writer.finish()


def numbered(blocks, first=1):
    return [Block(*(getattr(b, n) for n in ("first_row", "rows", "file", "offset", "norm", "sha256")), number)
            for number, b in enumerate(blocks, first)]  # fmt: skip


def test_rows_that_follow_each_other_are_one_block(tmp_path):
    a, b, c = draw(0, 3), draw(1, 2), draw(2, 4)
    blocks = write(tmp_path, "x.f32", 0, (5, a), (8, b), (20, c))
    assert [(b.first_row, b.rows, b.offset) for b in blocks] == [(5, 5, 0), (20, 4, 5)]
    data = (tmp_path / "x.f32").read_bytes()
    assert data == np.concatenate([a, b, c]).astype("<f4").tobytes()
    assert [b.sha256 for b in blocks] == [hashlib.sha256(part).hexdigest() for part in (data[:80], data[80:])]
    assert blocks[0].norm == pytest.approx(np.linalg.norm(np.concatenate([a, b]), axis=1).max())


def test_what_was_not_named_is_written_over(tmp_path):
    first = write(tmp_path, "x.f32", 0, (0, draw(0, 3)))
    write(tmp_path, "x.f32", 3, (3, draw(1, 9)))  # its writer was killed before the catalogue knew of it
    second = write(tmp_path, "x.f32", 3, (3, draw(2, 2)))
    assert (tmp_path / "x.f32").stat().st_size == 5 * D * 4
    vectors = Vectors(tmp_path, numbered([*first, *second]), D)
    assert np.array_equal(vectors.of(np.arange(5)), np.concatenate([draw(0, 3), draw(2, 2)]))


@pytest.mark.parametrize("new", [True, False])
def test_nothing_stays_of_a_block_that_failed(tmp_path, new):
    if not new:
        write(tmp_path, "x.f32", 0, (0, draw(0, 3)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for finished in (False, True):
        with pytest.raises(ZeroDivisionError), BlockWriter(tmp_path, "x.f32", 0 if new else 3, D) as writer:
            writer.append(3, draw(1, 2))
            if finished:
                writer.finish()
            raise ZeroDivisionError
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with BlockWriter(tmp_path, "y.f32", 0, D) as writer:
        assert writer.finish() == []
    assert {path.name for path in tmp_path.iterdir()} == set(before)


def test_half_precision(tmp_path):
    given = draw(0, 5)
    vectors = Vectors(tmp_path, numbered(write(tmp_path, "x.f16", 0, (0, given))), D)
    assert (tmp_path / "x.f16").stat().st_size == 5 * D * 2
    assert np.array_equal(vectors.of(np.array([4, 0])), given.astype(np.float16).astype(np.float32)[[4, 0]])
    with pytest.raises(UsageError, match="NaN or infinity"):
        write(tmp_path, "y.f16", 0, (0, np.full((1, D), 1e6, np.float32)))


def test_vectors_are_found_by_row_wherever_they_stand(tmp_path):
    one = write(tmp_path, "a.f32", 0, (10, draw(0, 3)), (2, draw(1, 2)))
    two = write(tmp_path, "b.f32", 0, (40, draw(2, 2)))
    vectors = Vectors(tmp_path, numbered([*one, *two]), D)
    rows = np.array([41, 2, 12, 10, 3, 40])
    expected = [draw(2, 2)[1], draw(1, 2)[0], draw(0, 3)[2], draw(0, 3)[0], draw(1, 2)[1], draw(2, 2)[0]]
    assert np.array_equal(vectors.of(rows), np.stack(expected))
    assert len(vectors) == 7
    assert vectors.has(np.array([0, 1, 2, 3, 4, 10, 12, 13, 39, 40, 41, 42])).tolist() == [
        False, False, True, True, False, True, True, False, False, True, True, False,
    ]  # fmt: skip
    with pytest.raises(CollectionDamagedError, match="the passage of row 13 has no vector"):
        vectors.of(np.array([10, 13]))
    assert vectors.of(np.array([], dtype=np.int64)).shape == (0, D)
    assert not Vectors(tmp_path, [], D).has(np.array([0])).any()


def test_parts_are_few_and_know_what_came_later(tmp_path):
    blocks = []
    for number in range(6):
        blocks += write(tmp_path, "a.f32", number, (number if number < 3 else number + 10, draw(number, 1)))
    blocks = numbered(blocks)
    ((matrix, rows, norm),) = Vectors(tmp_path, blocks, D).parts()
    assert rows.tolist() == [0, 1, 2, 13, 14, 15]
    assert np.array_equal(matrix, np.concatenate([draw(number, 1) for number in range(6)]))
    assert norm == pytest.approx(np.linalg.norm(matrix, axis=1).max())
    assert isinstance(matrix, np.memmap)
    ((_, rows, _),) = Vectors(tmp_path, blocks, D).parts(after=4)
    assert rows.tolist() == [14, 15]


def test_where_the_next_block_goes(tmp_path):
    name, offset = end_of([], "float32")
    assert (name.endswith(".f32"), offset) == (True, 0)
    blocks = numbered([*write(tmp_path, "a.f32", 0, (0, draw(0, 3)), (9, draw(1, 2)))])
    assert end_of(blocks, "float32") == ("a.f32", 5)
    name, offset = end_of(blocks, "float16")
    assert (name.endswith(".f16"), offset) == (True, 0)


def test_any_changed_byte_is_found(tmp_path):
    blocks = numbered(write(tmp_path, "a.f32", 0, (0, draw(0, 3)), (9, draw(1, 2))))
    assert list(verify(tmp_path, blocks, D)) == []
    data = (tmp_path / "a.f32").read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        (tmp_path / "a.f32").write_bytes(changed)
        (told,) = verify(tmp_path, blocks, D)
        assert ("vectors 0 to 2 (rows 0 to 2)" if at < 48 else "vectors 3 to 4 (rows 9 to 10)") in told
    (tmp_path / "a.f32").unlink()
    assert len(list(verify(tmp_path, blocks, D))) == 2


def test_missing_and_short_files_are_named(tmp_path):
    blocks = numbered(write(tmp_path, "a.f32", 0, (0, draw(0, 3))))
    (tmp_path / "a.f32").write_bytes((tmp_path / "a.f32").read_bytes()[:-1])
    with pytest.raises(CollectionDamagedError, match=r"a\.f32 has 47 bytes, expected 48.*backup"):
        Vectors(tmp_path, blocks, D)
    (tmp_path / "a.f32").unlink()
    with pytest.raises(CollectionDamagedError, match=r"a\.f32 is missing.*backup"):
        Vectors(tmp_path, blocks, D)


def test_what_is_open_stays_readable(tmp_path):
    vectors = Vectors(tmp_path, numbered(write(tmp_path, "a.f32", 0, (0, draw(0, 3)))), D)
    (tmp_path / "a.f32").unlink()
    assert np.array_equal(vectors.of(np.arange(3)), draw(0, 3))


def test_strangers_go_and_named_files_and_folders_stay(tmp_path):
    for name in ("a.f32", "b.f32"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    drop_strangers(tmp_path, {"a.f32"})
    drop_strangers(tmp_path / "nowhere", set())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.f32", "folder"]
