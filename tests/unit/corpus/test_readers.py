import os
import sys

import pytest

from bifolio.corpus.readers import read
from bifolio.errors import DocumentError, MissingExtraError, MissingPathError, SkippedDocument


@pytest.fixture
def document(tmp_path):
    def one(name, data, **options):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        (found,) = read(path, **options)
        return found

    return one


def test_text_keeps_its_lines(document):
    found = document("a.txt", b"one\r\ntwo\rthree\n")
    assert (found.text, found.title, found.media_type, found.marks) == ("one\ntwo\nthree\n", "", "text/plain", ())


@pytest.mark.parametrize("name", ["script.py", "README", "data.unknown", "notes.TXT"])
def test_unknown_kinds_of_text_are_plain_text(document, name):
    assert document(name, "# not a heading\n").headings == ()


@pytest.mark.parametrize(
    "start",
    [
        "<!DOCTYPE html>\n<p>",
        "  <html><body><p>",
        '<?xml version="1.0"?>\n<!DOCTYPE html><p>',
        "\ufeff<!-- a --> <!-- b --><html><p>",
    ],
)
def test_html_is_recognised_without_a_suffix(document, start):
    found = document("page", start + "Hello</p>")
    assert (found.media_type, found.text) == ("text/html", "Hello")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("comment", ["<!---->", "<!-- x -->\n", " <!-- --> --> "])
def test_recognising_html_takes_no_time_after_many_comments(document, comment):
    many = comment * 400
    assert document("notes", many + "<x").media_type == "text/plain"


def test_xml_that_is_not_html_is_plain_text(document):
    assert document("a.xml", '<?xml version="1.0"?><a>b</a>').media_type == "text/plain"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.txt", b"", "empty file"),
        ("a.md", b" \n\t\n", "only white space"),
        ("a.html", b"<html><body><script>x()</script></body></html>", "no text in the page"),
        ("a.jsonl", b"\n\n", "no records"),
        ("a.txt", b"\x7fELF\x02", "ELF"),
        ("a.jsonl", b"PK\x03\x04", "zip"),
    ],
)
def test_what_has_no_text_is_skipped(document, name, data, reason):
    with pytest.raises(SkippedDocument, match=reason):
        document(name, data)


def test_only_record_files_hold_passages(document):
    with pytest.raises(SkippedDocument, match=r"not a passage file: expected \.jsonl or \.tsv"):
        document("a.md", "# Title", as_passages=True)


def test_missing_and_irregular_files(tmp_path):
    with pytest.raises(MissingPathError, match="no such file"):
        list(read(tmp_path / "nope.txt"))
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(SkippedDocument, match="not a regular file"):
        list(read(tmp_path / "pipe.txt"))


@pytest.mark.parametrize(
    ("name", "library", "package"), [("a.html", "lxml", "lxml"), ("a.pdf", "pypdfium2", "pypdfium2")]
)
def test_a_missing_library_names_the_pip_command(document, monkeypatch, name, library, package):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*pip install 'bifolio\[docs\]'"):
        document(name, "%PDF-1.4 <p>x</p>" if name == "a.pdf" else "<p>x</p>")


def test_undecodable_text_is_an_error_of_the_file(document):
    with pytest.raises(DocumentError, match="offset 0"):
        document("a.txt", bytes([0x93, 0xFF, 0x81, 0xA0, 0xFE, 0x80, 0xFD, 0x8D, 0xFF, 0x90, 0xFF]) * 9)
