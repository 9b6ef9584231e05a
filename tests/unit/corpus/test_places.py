import pytest

from bifolio.corpus.places import Places
from bifolio.corpus.splitting import place
from bifolio.types import Document, Mark, Span

TEXT = "one\ntwo\n\nfour\nfive"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 3, "a.md:1"),
        (0, 4, "a.md:1"),
        (4, 7, "a.md:2"),
        (0, 13, "a.md:1-4"),
        (9, 18, "a.md:4-5"),
        (14, 18, "a.md:5"),
    ],
)
def test_lines_of_text_are_those_of_the_file(start, end, expected):
    assert place(Document(TEXT), Span(start, end), "a.md") == expected


def test_lines_by_marks():
    places = Places(Document(TEXT, marks=(Mark(0, line=10), Mark(4, line=12), Mark(9, line=11))), "p.html")
    assert places.of(Span(0, 3)) == "p.html:10"
    assert places.of(Span(0, 7)) == "p.html:10-12"
    assert places.of(Span(4, 18)) == "p.html:11-12"


def test_pages():
    places = Places(Document(TEXT, marks=(Mark(0, page=3), Mark(9, page=5))), "a b.pdf")
    assert places.of(Span(0, 7)) == "a b.pdf p. 3"
    assert places.of(Span(4, 13)) == "a b.pdf p. 3-5"


def test_records():
    assert place(Document(TEXT, member="x", marks=(Mark(0, line=7),)), Span(4, 18), "file.jsonl") == "file.jsonl:7"


def test_without_any_place():
    assert place(Document(TEXT, marks=(Mark(0),)), Span(0, 3), "a.bin") == "a.bin"
