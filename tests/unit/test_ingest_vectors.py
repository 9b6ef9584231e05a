"""Passages that come with their vectors: taken as they are, checked, in the same transaction as everything else."""

import io
import json
import os
import re
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import rich.console

from bifolio import console, imported
from bifolio.collection import Collection
from bifolio.corpus.readers.arrow import find_shards, read_vectors
from bifolio.errors import DocumentError, MissingExtraError, MissingPathError, SkippedDocument
from bifolio.ingest_report import IngestProgress
from fakes import DIMENSION, FakeEncoder, bag, write_files

pa = pytest.importorskip("pyarrow", reason="comes with the [datasets] extra")

from unit.datasets_fakes import rows, save_dict, save_to_disk, table, write_parquet, write_stream  # noqa: E402

TESTS = Path(__file__).parents[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(*paths, encoder=None, **options):
    return Collection.build(
        list(paths) or ["data"], "c", encoder=encoder or FakeEncoder(), vectors="embeddings", **options
    )


def statuses(report):
    return {file.path: (file.status, file.passages) for file in report.files}


def reason(collection_or_path, path="data/data-00000-of-00001.arrow"):
    """Why a file of a data set is refused when it is added to a collection that has another one."""
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        before = stored(collection)
        report = collection.ingest([collection_or_path], vectors="embeddings")
        (found,) = report.files
        assert (found.path, found.status) == (path, "failed")
        assert stored(collection) == before
        assert set(os.listdir("c/vectors")) == {block.file for block in blocks(collection)}
    return found.reason


def blocks(collection):
    return collection.snapshot().catalogue.blocks(1)


def stored(collection):
    """Passages with their vectors."""
    found = list(collection.passages())
    vectors = collection.snapshot().vectors([passage.id for passage in found]) if found else []
    return {p.id: (p.title, p.text, v.tolist()) for p, v in zip(found, vectors, strict=True)}


def expected(columns):
    keys = ("id", "title", "text", "embeddings")
    return {i: (t, x, [float(n) for n in v]) for i, t, x, v in zip(*(columns[key] for key in keys), strict=True)}


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_vectors_of_a_saved_data_set_are_taken_as_they_are(here, batch):
    first, second = rows(5), rows(4, first=6)
    save_to_disk(here / "data", table(first), table(second), batch=batch)
    write_files(here / "data", {"index.faiss": b"IxFI", "README.md": "# no passage"})
    write_stream(here / "data/cache-1234.arrow", table(rows(3, first=90)))
    encoder, steps = FakeEncoder(), []
    with build(encoder=encoder, on_progress=steps.append) as collection:
        assert stored(collection) == expected(first) | expected(second)
        report = collection.report
        assert (report.passages, report.added, report.documents) == (9, 9, 9)
        assert statuses(report) == {
            "data/data-00000-of-00002.arrow": ("ok", 5),
            "data/data-00001-of-00002.arrow": ("ok", 4),
        }
        assert encoder.seen == ["p1", "p2", "p4", "p6", "p7", "p9"]  # a sample alone
        hit = collection.retrieve("the valve closes before the pump", 1)[0]
        assert (hit.passage.id, hit.passage.place) == ("p5", "data/data-00000-of-00002.arrow:5")
        assert [(block.first_row, block.rows) for block in blocks(collection)] == [(0, 5), (5, 4)]
    assert [(s.done, s.total) for s in steps if s.stage == "encode"] == [(0, 9), (9, 9)]


@pytest.mark.parametrize("index", ["exact", "faiss:flat", "faiss:hnsw"])
def test_every_index_finds_them(here, index):
    save_dict(here / "data", train=table(rows(5)), test=table(rows(4, first=6)))
    with build(index=index) as collection:
        assert collection.retrieve("river under the stone bridge", 1)[0].passage.title == "Rivers"
        save_to_disk(here / "more", table(rows(3, first=10)), table(rows(3, first=13)))
        assert collection.ingest(["more"], vectors="embeddings").added == 6
        found = collection.retrieve("milk and water", 15)
        assert len(found) == 15
        best = [hit.passage.id for hit in found if hit.score == found[0].score]
        assert {"p9"} <= {hit.passage.id for hit in found[:3]}
        assert best


def test_parquet_as_the_hub_keeps_it(here):
    columns = rows(7)
    write_parquet(here / "data/data/train-00000-of-00002.parquet", table(columns).slice(0, 4), row_group_size=2)
    write_parquet(here / "data/data/train-00001-of-00002.parquet", table(columns).slice(4))
    with build() as collection:
        assert stored(collection) == expected(columns)
    os.rename("c", "old")
    with build("data/data/train-00001-of-00002.parquet") as collection:
        assert list(stored(collection)) == ["p5", "p6", "p7"]


@pytest.mark.parametrize(
    ("kind", "id_kind"),
    [
        (pa.list_(pa.float64()), pa.large_string()),
        (pa.list_(pa.float32(), DIMENSION), pa.int64()),
        (pa.large_list(pa.float32()), pa.dictionary(pa.int8(), pa.string())),
    ],
)
def test_types_that_mean_the_same(here, kind, id_kind):
    columns = rows(5)
    if id_kind == pa.int64():
        columns["id"] = [10, 11, 12, 13, 14]
    found = table(columns, embeddings=kind, id=id_kind, title=pa.large_string())
    write_stream(here / "data/a.arrow", found.slice(1, 3))
    with build() as collection:
        assert stored(collection) == {str(k): v for k, v in list(expected(columns).items())[1:4]}


def test_half_precision_is_widened(here):
    columns = rows(3)
    columns["embeddings"] = [np.asarray(v, dtype=np.float16) for v in columns["embeddings"]]
    save_to_disk(
        here / "data", pa.table({**columns, "embeddings": pa.array(columns["embeddings"], pa.list_(pa.float16()))})
    )
    with build() as collection:
        assert stored(collection) == expected(columns)


def test_arrow_s_other_format_is_read_as_well(here):
    columns = rows(5)
    found = table(columns)
    (here / "data").mkdir()
    with pa.OSFile("data/a.arrow", "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
        for part in found.to_batches(max_chunksize=2):
            writer.write_batch(part)
    with build() as collection:
        assert stored(collection) == expected(columns)


def test_without_ids_and_titles_and_with_other_columns(here):
    """A knowledge data set as the RAG examples make it has no ids; equal texts are two passages."""
    columns = rows(3, ids=False)
    del columns["title"]
    columns |= {"text": [columns["text"][0]] * 3, "embeddings": [columns["embeddings"][0]] * 3}
    columns |= {"year": [1984, None, 2020], "good": [True, False, None], "score": [0.5, float("nan"), 1.0]}
    columns |= {"note": ["a\r\nb", "", "c"], "tags": [["x"], [], ["y"]]}
    save_to_disk(here / "data", table(columns))
    with build() as collection:
        found = list(collection.passages())
        assert len({passage.id for passage in found}) == 3
        assert [passage.title for passage in found] == ["", "", ""]
        assert [dict(passage.metadata) for passage in found] == [
            {"year": 1984, "good": True, "score": 0.5, "note": "a\nb", "tags": ("x",)},
            {"good": False, "note": ""},
            {"year": 2020, "score": 1.0, "note": "c", "tags": ("y",)},
        ]
        ids = [passage.id for passage in found]
        assert collection.ingest(["data"], vectors="embeddings").added == 0
    os.rename("c", "old")
    with build() as again:
        assert [passage.id for passage in again.passages()] == ids


@pytest.mark.parametrize(
    ("access", "seen"),
    [(["hr", "board", "hr"], [0, 2]), ([["hr", "x"], ["x"], ["board"]], [0]), (["hr, x", "x", "board"], [0])],
)
def test_access_labels_in_a_column(here, access, seen):
    columns = rows(3)
    save_to_disk(here / "data", table(columns | {"access": access}))
    with build() as collection:
        assert len(collection) == 3
    with Collection.open("c", encoder=FakeEncoder(), labels=["hr"]) as reader:
        assert [passage.text for passage in reader.passages()] == [columns["text"][at] for at in seen]


@pytest.mark.parametrize(
    "access",
    [
        ["hr", None, "hr"],
        ["hr", "", "hr"],
        [["hr"], [], ["hr"]],
        [["hr"], None, ["hr"]],
        [["hr"], [None], ["x"]],
        [1, 2, 3],
        [True, True, True],
        [[1], [2], [3]],
        [{"a": 1}, {"a": 2}, {"a": 3}],
    ],
)
def test_rows_whose_access_labels_cannot_be_read_are_seen_by_nobody(here, access):
    save_to_disk(here / "data", table(rows(3) | {"access": access}))
    with pytest.raises(MissingPathError, match="access"):
        build()


def test_rows_without_a_text_are_left_out_with_their_vectors(here):
    columns = rows(9)
    for at in (0, 3, 4, 8):
        columns["text"][at] = " \n"
    save_to_disk(here / "data", table(columns), batch=4)
    with build() as collection:
        kept = {i: v for i, v in expected(columns).items() if i not in {"p1", "p4", "p5", "p9"}}
        assert stored(collection) == kept
        (report,) = collection.report.files
        assert (report.status, report.reason, report.passages) == ("warning", "rows 1, 4, 5 and 1 more: no text", 5)


def test_unchanged_changed_and_other_columns(here):
    columns = rows(5)
    columns["other"] = columns["embeddings"]
    save_to_disk(here / "data", table(columns, other=pa.list_(pa.float32())))
    with build() as collection:
        assert statuses(collection.ingest(["data"], vectors="embeddings")) == {
            "data/data-00000-of-00001.arrow": ("unchanged", 5)
        }
        assert statuses(collection.ingest(["data"], vectors="other"))["data/data-00000-of-00001.arrow"] == ("ok", 5)
        save_to_disk(here / "data", table(rows(4, first=3)))
        report = collection.ingest(["data"], vectors="embeddings")
        assert (report.passages, report.added, list(stored(collection))) == (4, 4, ["p3", "p4", "p5", "p6"])
        assert collection.generation == "3"


def test_beside_passages_that_were_encoded(here):
    save_to_disk(here / "data", table(rows(5)))
    write_files(here / "docs")
    encoder = FakeEncoder()
    with Collection.build(["docs"], "c", encoder=encoder) as collection:
        collection.ingest(["data"], vectors="embeddings")
        assert len(collection.retrieve("cat", 99, collapse=False)) == len(collection) == 8
        write_files(here / "docs", {"cat.txt": "The dog ran.\n"})
        assert collection.ingest(["docs"]).added == 1
        assert len(collection.retrieve("cat", 99, collapse=False)) == 8


@pytest.fixture
def other(here):
    """A collection that has something already; what is refused must leave it alone."""
    save_to_disk(here / "first", table(rows(2, first=50)))
    build("first").close()
    return here


def change(columns, name, at, value):
    columns[name] = [value if n == at else v for n, v in enumerate(columns[name])]
    return columns


@pytest.mark.parametrize(
    ("columns", "types", "words"),
    [
        (change(rows(), "embeddings", 3, [float("nan")] * 32), {}, "row 4: column 'embeddings' has NaN or infinity"),
        (change(rows(), "embeddings", 0, [float("inf")] * 32), {}, "row 1: column 'embeddings' has NaN or infinity"),
        (
            change(rows(), "embeddings", 1, [1e300] * 32),
            {"embeddings": pa.list_(pa.float64())},
            "row 2: column 'embeddings' has NaN or infinity, or a value beyond float32",
        ),
        (change(rows(), "embeddings", 2, [1.0] * 31), {}, "row 3: column 'embeddings' has 31 values, 32 in the rows"),
        (change(rows(), "embeddings", 2, None), {}, "row 3: column 'embeddings' has no value there"),
        (change(rows(), "embeddings", 4, [None] * 32), {}, "row 5: column 'embeddings' has a gap among its values"),
        (change(rows(), "text", 2, None), {}, "row 3: column 'text' has no value there"),
        (change(rows(), "id", 1, None), {}, "row 2: column 'id' has no value there"),
        (
            rows() | {"embeddings": [[1.0] * 16] * 5},
            {},
            "row 1: column 'embeddings' has 16 values; the encoder fake-encoder-fake has 32 dimensions",
        ),
        (rows() | {"embeddings": [[]] * 5}, {}, "row 1: column 'embeddings' has 0 values; the encoder"),
        (
            rows() | {"embeddings": [[[1.0] * 32]] * 5},
            {"embeddings": pa.list_(pa.list_(pa.float32()))},
            r"column 'embeddings' is of type list<item: list<item: float>>; expected a list of floats in every row",
        ),
        (
            rows() | {"embeddings": [[1] * 32] * 5},
            {"embeddings": pa.list_(pa.int64())},
            "column 'embeddings' is of type list<item: int64>; expected",
        ),
        (rows() | {"embeddings": ["1 2"] * 5}, {"embeddings": pa.string()}, "column 'embeddings' is of type string"),
        (rows() | {"text": [["a"]] * 5}, {}, "column 'text' is of type list<item: string>; expected string"),
        (rows() | {"title": [1] * 5}, {}, "column 'title' is of type int64; expected string"),
        (rows() | {"id": [0.5] * 5}, {}, "column 'id' is of type double; expected string or integers"),
        (
            {k: v for k, v in rows().items() if k != "embeddings"},
            {},
            "no column 'embeddings': its columns are id, title, text",
        ),
        ({k: v for k, v in rows().items() if k != "text"}, {}, "no column 'text': its columns are id, title, emb"),
        (rows() | {"id": ["a", "b", "a", "c", "d"]}, {}, r"passage id 'a' is already used by data/.*\.arrow:1"),
        (rows() | {"id": ["a", "p50", "b", "c", "d"]}, {}, r"passage id 'p50' is already used by first/.*\.arrow:1"),
    ],
)
def test_what_cannot_be_taken_is_named_and_leaves_everything_as_it_was(other, columns, types, words):
    save_to_disk(other / "data", table(columns, **types), batch=2)
    assert re.search(words, reason("data"))


def test_the_same_column_twice(other):
    found = table(rows())
    save_to_disk(other / "data", found.append_column("text", found.column("text")))
    assert reason("data").startswith("several columns 'text'")


def test_an_empty_data_set(other):
    save_to_disk(other / "data", table(rows(0)))
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        (found,) = collection.ingest(["data"], vectors="embeddings").files
        assert (found.status, found.reason) == ("skipped", "no passage with a text in it")
    with pytest.raises(MissingPathError, match="nothing readable: data/.*: no passage with a text in it"):
        Collection.build(["data"], "new", encoder=FakeEncoder(), vectors="embeddings")
    assert not os.path.exists("new")


def test_a_stream_that_is_damaged_or_cut(other):
    data = save_to_disk(other / "data", table(rows(50)), batch=10) / "data-00000-of-00001.arrow"
    whole = data.read_bytes()
    for cut in (whole[:-8], whole[:-1], whole[: len(whole) // 2], whole[:100], b"", b"no arrow at all"):
        data.write_bytes(cut)
        assert reason("data").startswith("cut short, or not Arrow")
    data.write_bytes(whole[: len(whole) // 2] + whole[-8:])
    assert reason("data").startswith("damaged or cut short after row ")
    for at in range(400, len(whole) - 8, len(whole) // 40):  # offsets and lengths too: never a crash
        spoiled = bytearray(whole)
        spoiled[at : at + 4] = b"\xff\xff\xff\x7f"
        data.write_bytes(spoiled)
        with Collection.open("c", encoder=FakeEncoder()) as collection:
            (found,) = collection.ingest(["data"], vectors="embeddings").files
            assert found.status in ("ok", "failed", "warning")
            if found.status != "failed":  # a float of a vector
                assert found.passages == 50
    write_parquet(other / "p/a.parquet", table(rows(50)))
    parquet = (other / "p/a.parquet").read_bytes()
    for cut in (parquet[:-1], parquet[: len(parquet) // 2], b"PAR1", parquet[:-200] + parquet[-100:]):
        (other / "p/a.parquet").write_bytes(cut)
        assert reason("p", "p/a.parquet").startswith("damaged or cut short after row 0")


def test_offsets_that_point_outside_are_refused(tmp_path):
    """Arrow trusts its files: unchecked, such a list is read beyond its buffer."""
    columns = {"text": ["a", "b"], "embeddings": [[1.0, 2.0], [3.0, 4.0]]}
    path = write_stream(tmp_path / "a.arrow", table(columns))
    good, bad = (np.array([0, 2, end], dtype=np.int32).tobytes() for end in (4, 4_000_000))
    assert path.read_bytes().count(good) == 1
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(DocumentError, match="damaged or cut short after row 0"):
        list(read_vectors(tmp_path / "a.arrow", "embeddings"))


def test_one_bad_file_does_not_cost_the_others(here):
    bad = change(rows(4, first=6), "embeddings", 3, [float("nan")] * 32)
    save_to_disk(here / "data", table(rows(5)), table(bad), table(rows(3, first=10)))
    with build() as collection:
        assert [file.status for file in collection.report.files] == ["ok", "failed", "ok"]
        assert stored(collection) == expected(rows(5)) | expected(rows(3, first=10))
        assert [(block.first_row, block.rows) for block in blocks(collection)] == [(0, 5), (5, 3)]
        save_to_disk(here / "data", table(rows(5)), table(rows(4, first=6)), table(rows(3, first=10)))
        assert collection.ingest(["data"], vectors="embeddings").added == 4
        assert stored(collection) == expected(rows(12))


def test_vectors_of_another_encoder_are_refused_by_their_cosine(other):
    columns = rows(20)
    columns["embeddings"] = [bag(f"other {n}") for n in range(20)]
    save_to_disk(other / "data", table(columns))
    said = reason("data")
    assert said.startswith("5 of 5 passages that were encoded anew have other vectors in column 'embeddings': for p")
    assert "of fake-encoder-fake; expected at least 0.9 and about 1. Use the encoder that made them" in said
    columns["embeddings"] = [3 * vector for vector in rows(20)["embeddings"]]
    save_to_disk(other / "data", table(columns))
    assert "the cosine is 1.00 and the length 3.00 times" in reason("data")
    columns["embeddings"] = [0 * vector for vector in rows(20)["embeddings"]]
    save_to_disk(other / "data", table(columns))
    assert "the cosine is 0.00 and the length 0.00 times" in reason("data")


def test_a_few_that_differ_are_a_warning(here):
    columns = change(rows(20), "embeddings", 3, bag("something else"))
    save_to_disk(here / "data", table(columns))
    with build() as collection:
        (found,) = collection.report.files
        assert found.status == "warning"
        assert found.reason.startswith("1 of 5 passages that were encoded anew have other vectors in column")
        assert ": for p4 the cosine is " in found.reason
        assert len(collection) == 20


def test_rounding_is_no_difference(here):
    columns = rows(20)
    columns["embeddings"] = [(1.05 * vector + 0.02).astype(np.float16) for vector in columns["embeddings"]]
    save_to_disk(here / "data", table({**columns, "embeddings": [v.astype(np.float32) for v in columns["embeddings"]]}))
    with build() as collection:
        assert [file.status for file in collection.report.files] == ["ok"]


def test_files_of_the_hub_s_cache_have_no_suffix(here):
    write_parquet(here / "blobs/0a1b", table(rows(3)))
    write_stream(here / "blobs/2c3d", table(rows(2, first=4)))
    (here / "snapshot").mkdir()
    for name, blob in (("train.parquet", "0a1b"), ("data.arrow", "2c3d")):
        os.symlink(here / "blobs" / blob, here / "snapshot" / name)
    with build("snapshot/train.parquet", "snapshot/data.arrow") as collection:
        assert list(stored(collection)) == [f"p{n}" for n in range(1, 6)]
        assert collection.passage("p1").source == "snapshot/train.parquet"


def test_a_file_s_name_is_no_markup(monkeypatch):
    written = io.StringIO()
    terminal = rich.console.Console(file=written, force_terminal=True, width=200)
    monkeypatch.setattr(console, "messages", lambda: terminal)
    with console.ingest_progress(quiet=False) as told:
        told(IngestProgress("read", 0, 2, "[bold]p[/x].tsv", passages=20_000))
    assert "20,000 passages of [bold]p[/x].tsv" in written.getvalue()


def test_what_a_folder_must_have(here):
    save_to_disk(here / "data", table(rows(2)), table(rows(2, first=3)))
    os.unlink("data/data-00001-of-00002.arrow")
    with pytest.raises(MissingPathError, match="names data-00001-of-00002.arrow, which is not there"):
        find_shards(["data"])
    (here / "data/state.json").write_text(json.dumps({"_data_files": [{"filename": "../x.arrow"}]}))
    with pytest.raises(MissingPathError, match="names files outside of its folder"):
        find_shards(["data"])
    for text in ("[]", "{", '{"_data_files": 3}'):
        (here / "data/state.json").write_text(text)
        with pytest.raises(MissingPathError, match="state.json cannot be read"):
            find_shards(["data"])
    write_files(here / "docs")
    with pytest.raises(MissingPathError, match="no data set in docs: expected what save_to_disk writes"):
        find_shards(["docs"])
    with pytest.raises(MissingPathError, match="no such file or folder: nothing"):
        find_shards(["nothing"])
    assert [source for _, source in find_shards(["docs/cat.txt"])] == ["docs/cat.txt"]
    with pytest.raises(SkippedDocument, match=r"not a data set file: expected \.arrow or \.parquet"):
        next(read_vectors(here / "docs/cat.txt", "embeddings"))


def test_without_the_extra(here, monkeypatch):
    save_to_disk(here / "data", table(rows(2)))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"needs pyarrow, .*pip install 'bifolio\[datasets\]'"):
        next(read_vectors(here / "data/data-00000-of-00001.arrow", "embeddings"))
    with pytest.raises(MissingPathError, match=r"nothing readable: .*pip install 'bifolio\[datasets\]'"):
        build()


def test_memory_does_not_grow_with_the_data_set(here):
    def peak(count):
        path = write_stream(here / f"{count}.arrow", table(rows(count)), batch=100)
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        total = largest = 0
        for documents, vectors in read_vectors(path, "embeddings"):
            assert len(documents) == len(vectors)
            total += len(documents)
            largest = max(largest, pa.total_allocated_bytes() - before)
        assert total == count
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, largest

    peak(100)
    (small, small_arrow), (large, large_arrow) = peak(500), peak(4000)
    assert large < small + 50_000
    assert large_arrow < small_arrow + 50_000


def test_passages_of_a_large_file_are_told(here):
    (here / "p.tsv").write_text("id\ttext\n" + "".join(f"{n}\tword {n}\n" for n in range(25_000)))

    class Quick(FakeEncoder):
        def encode_passages(self, passages, on_batch=None):
            on_batch(len(passages))
            return np.ones((len(passages), DIMENSION), dtype=np.float32)

    steps = []
    with Collection.build(["p.tsv"], "c", encoder=Quick(), as_passages=True, on_progress=steps.append) as collection:
        assert len(collection) == 25_000
    read = [(s.done, s.total, s.passages, s.current) for s in steps if s.stage == "read"]
    assert read == [(0, 1, 0, "p.tsv"), (0, 1, 10_000, "p.tsv"), (0, 1, 20_000, "p.tsv"), (1, 1, 0, "")]


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from bifolio import vector_files
from bifolio.collection import Collection
from fakes import FakeEncoder

real = vector_files.BlockWriter.finish
def finish(self):
    blocks = real(self)
    if {moment} == blocks[0].first_row:
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks
vector_files.BlockWriter.finish = finish
Collection.open("c", encoder=FakeEncoder()).ingest(["data"], vectors="embeddings")
"""


@pytest.mark.parametrize("moment", [2, 7])
def test_an_import_that_is_killed_leaves_what_was_there(other, moment):
    save_to_disk(other / "data", table(rows(5)), table(rows(4, first=6)))
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        before = stored(collection)
    script = textwrap.dedent(KILLED).format(tests=str(TESTS), moment=moment)
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -9
    before_it = os.path.getsize(next((other / "c/vectors").iterdir()))
    assert before_it == (2 if moment == 2 else 2 + 5) * DIMENSION * 4 + (5 if moment == 2 else 4) * DIMENSION * 4
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        assert (stored(collection), collection.generation) == (before, "1")
        collection.ingest(["data"], vectors="embeddings")
        assert stored(collection) == before | expected(rows(9))
        assert [(block.first_row, block.offset) for block in blocks(collection)] == [(0, 0), (2, 2), (7, 7)]


def test_an_encoder_that_fails_undoes_everything(other, monkeypatch):
    save_to_disk(other / "data", table(rows(5)), table(rows(4, first=6)))
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        before, files = stored(collection), sorted(os.listdir("c/vectors"))

        def fails(self, rows, stored, real=imported.Importer._compare):
            if rows[0] > 4:
                raise KeyboardInterrupt
            return real(self, rows, stored)

        monkeypatch.setattr(imported.Importer, "_compare", fails)
        with pytest.raises(KeyboardInterrupt):
            collection.ingest(["data"], vectors="embeddings")
        assert (stored(collection), collection.generation) == (before, "1")
    assert sorted(os.listdir("c/vectors")) == files
