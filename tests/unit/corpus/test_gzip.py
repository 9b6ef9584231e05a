"""Passages out of gzip: read as a stream, whole or with one reason, in memory that does not grow."""

import gzip
import json
import tracemalloc

import pytest

from bifolio.corpus.readers import read, records
from bifolio.errors import DocumentError, EmptyDocument, SkippedDocument

DPR = 'id\ttext\ttitle\n1\t"Aaron ( or ; ""Ahärôn"") is a prophet."\t"Aaron"\n2\t"two\nlines"\tAaron\n'


def packed(path, text, **options):
    path.write_bytes(gzip.compress(text.encode(), mtime=0, **options))
    return path


def members(path, **options):
    return [(d.member, d.title, d.text, d.whole) for d in read(path, **options)]


def test_dpr_s_file_is_read_as_it_is_and_out_of_gzip(tmp_path):
    (tmp_path / "psgs_w100.tsv").write_text(DPR)
    expected = [
        ("1", "Aaron", 'Aaron ( or ; "Ahärôn") is a prophet.', True),
        ("2", "Aaron", "two\nlines", True),
    ]
    assert members(tmp_path / "psgs_w100.tsv", as_passages=True) == expected
    assert members(packed(tmp_path / "psgs_w100.tsv.gz", DPR), as_passages=True) == expected


def test_jsonl_out_of_gzip(tmp_path):
    lines = [{"id": "a", "title": "T", "text": "one"}, {"id": 2, "text": "two", "year": 1984}]
    path = packed(tmp_path / "p.JSONL.GZ", "".join(json.dumps(line) + "\n" for line in lines))
    assert members(path, as_passages=True) == [("a", "T", "one", True), ("2", "", "two", True)]
    assert [(d.whole, d.metadata, d.marks[0].line) for d in read(path)] == [(False, {}, 1), (False, {"year": 1984}, 2)]


def test_several_members_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfid\ttext\n1\tone\n") + gzip.compress(b"2\ttwo\n") + b"\0" * 64)
    assert [text for _, _, text, _ in members(path)] == ["one", "two"]


def test_other_things_in_gzip_stay_skipped(tmp_path):
    for name in ("a.txt.gz", "a.tar.gz", "a.gz", "tsv.gz"):
        with pytest.raises(SkippedDocument, match="gzip archive"):
            members(packed(tmp_path / name, "id\ttext\n1\tx\n"))
    with pytest.raises(SkippedDocument, match=r"expected \.jsonl or \.tsv, or one of them with \.gz"):
        members(tmp_path / "a.txt.gz", as_passages=True)
    with pytest.raises(EmptyDocument, match="empty file"):
        members(packed(tmp_path / "empty.tsv.gz", ""))
    with pytest.raises(DocumentError, match="line 1: expected a header with the columns id and text, got 'a, b'"):
        members(packed(tmp_path / "headless.tsv.gz", "a\tb\n1\t2\n"))


def test_a_gzip_that_is_damaged_or_cut_has_one_reason(tmp_path):
    rows = "".join(f"{number}\ttext {number * 7919}\n" for number in range(5000))
    data = packed(tmp_path / "p.tsv.gz", f"id\ttext\n{rows}").read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    wrong_sum = data[:-8] + b"\0\0\0\0" + data[-4:]
    for damaged in (
        data[:-1],
        data[: len(data) // 2],
        data[:20],
        bytes(flipped),
        wrong_sum,
        data + b"rest",
        b"id\ttext\n",
    ):
        (tmp_path / "p.tsv.gz").write_bytes(damaged)
        with pytest.raises(DocumentError, match=r"^damaged gzip, or cut short \(.*\): fetch it again$"):
            members(tmp_path / "p.tsv.gz", as_passages=True)


def test_a_record_without_an_end_is_refused_before_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_LONGEST_RECORD", 100_000)
    bombs = {
        "line.jsonl.gz": '{"id": 1, "text": "' + "a" * 4_000_000,
        "header.tsv.gz": "id" * 2_000_000,
        "field.tsv.gz": "id\ttext\n1\t" + "a" * 4_000_000,
        "lines.tsv.gz": 'id\ttext\n1\t"' + "a\n" * 2_000_000,
    }
    for name, text in bombs.items():
        path = packed(tmp_path / name, text)
        assert path.stat().st_size < 100_000
        tracemalloc.start()
        with pytest.raises(DocumentError, match=r"line \d+: the record has more than 100,000 characters"):
            members(path, as_passages=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000


def test_records_up_to_the_bound_are_read_wherever_they_stand(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_LONGEST_RECORD", 100)
    text = "id\ttext\n" + "".join(f'{n}\t"{"a" * 40}\n{"b" * 40}"\n' for n in range(50))
    assert len(members(packed(tmp_path / "p.tsv.gz", text))) == 50
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"id": n, "text": "c" * 70}) + "\n" for n in range(50)))
    assert len(members(tmp_path / "p.jsonl")) == 50


@pytest.mark.parametrize("name", ["p.tsv", "p.jsonl", "p.tsv.gz", "p.jsonl.gz"])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    def text(rows):
        if ".tsv" in name:
            return "id\ttext\n" + "".join(f"{n:09}\t{'word ' * 20}\n" for n in range(rows))
        return "".join(json.dumps({"id": f"{n:09}", "text": "word " * 20}) + "\n" for n in range(rows))

    def peak(rows):
        path = tmp_path / f"{rows}-{name}"
        path.write_bytes(gzip.compress(text(rows).encode()) if name.endswith(".gz") else text(rows).encode())
        tracemalloc.start()
        assert sum(1 for _ in read(path, as_passages=True)) == rows
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(100)  # what is made once
    assert peak(8_000) < peak(1_000) + 50_000


def test_an_id_that_was_met_long_before_is_found(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("id\ttext\n" + "".join(f"{n}\tx\n" for n in range(30_000)) + "17\ty\n")
    with pytest.raises(DocumentError, match="line 30002: id '17' is already that of line 19"):
        members(path)
