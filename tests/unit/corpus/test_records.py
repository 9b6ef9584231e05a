import json

import pytest

from bifolio.corpus.readers import read
from bifolio.errors import DocumentError
from bifolio.types import Mark


@pytest.fixture
def records(tmp_path):
    def all_of(name, data, **options):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return list(read(path, **options))

    return all_of


def test_jsonl_records_become_documents(records):
    first, second, third = records(
        "a.jsonl",
        '{"id": "x", "title": " T ", "text": "one\\r\\ntwo", "n": 3, "f": 1.5, "b": true, "s": "v",'
        ' "l": [1], "z": null}\n'
        '\n{"text": "no id"}\r\n{"id": 7, "text": "number", "title": null, "nan": NaN}',
    )
    assert (first.member, first.title, first.text, first.whole) == ("x", "T", "one\ntwo", False)
    assert first.metadata == {"n": 3, "f": 1.5, "b": True, "s": "v"}
    assert first.marks == (Mark(0, line=1),)
    assert (second.member, second.title, second.marks) == ("3", "", (Mark(0, line=3),))
    assert (third.member, third.metadata) == ("7", {})


def test_records_may_be_passages(records):
    assert [r.whole for r in records("a.ndjson", '{"id":"1","text":"x"}\n', as_passages=True)] == [True]
    assert [r.whole for r in records("a.tsv", "id\ttext\n1\tx\n", as_passages=True)] == [True]


def test_separators_of_other_kinds_do_not_end_a_line(records):
    (one,) = records("a.jsonl", json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False))
    assert one.text == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": 1, "text": ', "line 2: malformed JSON"),
        ("[1]", "line 2: expected a JSON object, got a list"),
        ('{"id": "a"}', "line 2: field 'text' is missing"),
        ('{"text": 5}', "line 2: field 'text' must be a string, got a number"),
        ('{"text": null}', "line 2: field 'text' must be a string, got null"),
        ('{"text": "x", "title": []}', "line 2: field 'title' must be a string"),
        ('{"text": "x", "id": {}}', "line 2: field 'id' must be a string or an integer, got an object"),
        ('{"id": "first", "text": "x"}', "line 2: id 'first' is already that of line 1"),
        ("[" * 100_000, "line 2: "),
        ('{"text": "x", "n": ' + "9" * 5_000 + "}", "line 2: JSON beyond what can be read"),
    ],
)
def test_a_bad_line_is_named(records, line, reason):
    with pytest.raises(DocumentError, match=reason):
        records("a.jsonl", '{"id": "first", "text": "x"}\n' + line + "\n")


def test_bytes_that_are_not_utf8_are_named(records):
    with pytest.raises(DocumentError, match="line 2: byte 0xe9 is not UTF-8"):
        records("a.jsonl", b'{"text": "x"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(DocumentError, match="line 2: byte 0xe9 is not UTF-8"):
        records("a.tsv", b"id\ttext\n1\tcaf\xe9\n")


@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(records, charset):
    (one,) = records("a.jsonl", '{"id": "é", "text": "ü"}\n'.encode(charset))
    assert (one.member, one.text) == ("é", "ü")
    (one,) = records("a.tsv", "id\ttext\né\tü\n".encode(charset))
    assert (one.member, one.text) == ("é", "ü")


def test_escaped_surrogates_and_controls_are_cleaned(records):
    (one,) = records("a.jsonl", r'{"text": "a\ud800b\u0000c \ud83d\ude00", "title": "t\u0000"}')
    assert (one.text, one.title) == ("a\ufffdbc 😀", "t")


def test_an_empty_text_is_a_warning_not_a_failure(records):
    found = records("a.jsonl", '{"text": " "}\n{"text": "x"}')
    assert {one.text: one.warnings for one in found} == {"x": (), " ": ("line 1: no text",)}


@pytest.mark.parametrize(
    ("name", "head", "empty", "line"), [("a.jsonl", "", '{"text": ""}\n', 1), ("a.tsv", "text\tid\n", "\t{}\n", 2)]
)
def test_many_empty_texts_are_counted(records, name, head, empty, line):
    found = records(name, head + "".join(empty.replace("{}", str(number)) for number in range(20_000)))
    ids = range(1, 20_001) if name == "a.jsonl" else range(20_000)
    assert [one.member for one in found] == [str(number) for number in ids]
    assert [one.warnings for one in found[:-1]] == [()] * 19_999
    assert found[-1].warnings == (f"lines {line}, {line + 1}, {line + 2} and 19997 more: no text",)


def test_records_are_streamed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\nbroken\n')
    stream = read(path)
    assert next(stream).text == "good"
    with pytest.raises(DocumentError, match="line 2"):
        next(stream)


def test_tsv_as_dpr_writes_it(records):
    first, second = records(
        "psgs.tsv", 'id\ttext\ttitle\n1\t"He said ""hi""\tand\nleft."\t"A ""B"""\n2\tplain \'text\'\tC\n'
    )
    assert (first.member, first.text, first.title) == ("1", 'He said "hi"\tand\nleft.', 'A "B"')
    assert first.marks == (Mark(0, line=2),)
    assert (second.member, second.text, second.title) == ("2", "plain 'text'", "C")
    assert second.marks == (Mark(0, line=4),)


def test_tsv_columns_in_any_order_and_more_of_them(records):
    (one,) = records("a.tsv", '"text"\tlang\tid\r\nhello\ten\t9\r\n')
    assert (one.member, one.text, one.title, one.metadata) == ("9", "hello", "", {"lang": "en"})


def test_tsv_without_the_header_is_plain_text(records):
    (one,) = records("a.tsv", "name\tvalue\nx\t1\n")
    assert (one.media_type, one.text) == ("text/plain", "name\tvalue\nx\t1\n")
    with pytest.raises(
        DocumentError, match="line 1: expected a header with the columns id and text, got 'name, value'"
    ):
        records("a.tsv", "name\tvalue\nx\t1\n", as_passages=True)


def test_tsv_fields_may_be_long(records):
    (one,) = records("a.tsv", f"id\ttext\n1\t{'word ' * 100_000}\n")
    assert len(one.text) == 500_000


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("1\tx\n2\n", "line 3: expected 2 columns as in the header, got 1"),
        ("1\tx\n1\ty\n", "line 3: id '1' is already that of line 2"),
        ('1\t"open\n2\ty\n3\tz\n', "lines 2-4: malformed TSV"),
        ('1\tx\n2\t"a" b\n', "line 3: malformed TSV"),
    ],
)
def test_a_bad_row_is_named(records, rows, reason):
    with pytest.raises(DocumentError, match=reason):
        records("a.tsv", "id\ttext\n" + rows)
