import pytest

from bifolio.corpus.readers.markdown import read_markdown

PAGE = """\
Intro

# The *first* `title` #

Setext one
==========

Sub
---

```
# not a heading
```

> # quoted

- # in a list

#hashtag
   ### Indented
"""


def read(text):
    return read_markdown(text.encode())


def test_headings_are_those_of_commonmark():
    found = read(PAGE)
    assert [(h.level, h.title) for h in found.headings] == [
        (1, "The first title"),
        (1, "Setext one"),
        (2, "Sub"),
        (3, "Indented"),
    ]
    assert [found.text[h.start :].split("\n")[0] for h in found.headings] == [
        "The *first* `title` #",
        "Setext one",
        "Sub",
        "Indented",
    ]
    assert found.title == "The first title"
    assert found.text == PAGE


def test_headings_after_crlf_and_controls_are_where_they_are_in_the_text():
    found = read("a\x07b\r\n\r\n# One\x0c\r\n\r\ntext\r\n## Two\r\n")
    assert [found.text[h.start : h.start + 3] for h in found.headings] == ["One", "Two"]


def test_front_matter_becomes_metadata_and_empty_lines():
    found = read(
        '---\ntitle: "A: b"  \nyear: 2020\nratio: 1.5 # comment\ndraft: false\ntags: [a, b]\nnested:\n  key: 1\n'
        "list:\n- a\nempty:\nnothing: null\ndate: 2020-01-02\nurl: http://x/#y\n---\n\n## Body\n"
    )
    assert found.metadata == {
        "title": "A: b",
        "year": 2020,
        "ratio": 1.5,
        "draft": False,
        "date": "2020-01-02",
        "url": "http://x/#y",
        "tags": ("a", "b"),
        "list": ("a",),
    }
    assert type(found.metadata["year"]) is int
    assert found.title == "A: b"
    assert found.text == "\n" * 15 + "\n## Body\n"
    assert found.text.split("\n").index("## Body") == 16


def test_prose_between_two_rules_is_no_front_matter():
    text = "---\nThis is prose: with a colon.\nAnd more.\n---\nBody\n"
    found = read(text)
    assert (found.text, found.metadata) == (text, {})
    assert read("---\nkey: never closed\n").metadata == {}


@pytest.mark.parametrize(
    "inside",
    [
        "\nkey: after a blank line\n",
        "key: before a blank line\n\n",
        "key: value\n\nother: value\n",
        "# Slide one\n\n- point\n",
        "# Slide one\n",
        "- a\n- b\n",
        "    code: x\n    more: y\n",
        "key: value\n- bullet\n",
        "key: value\n}\n",
        "Warning: do not open\n",
        "Q: what is it?\nA: a dialogue\n",
        "this is no key: really\n",
        "see: http\nand then some prose\n",
    ],
)
def test_what_may_be_content_is_content(inside):
    text = f"---\n{inside}---\nBody\n"
    found = read(text)
    assert (found.text, found.metadata) == (text, {})


def test_scalars_of_front_matter():
    found = read(
        "---\nTitle: C# SECRET #3\nabout: |\n  one\n\n    two\nfolded: >-\n  a\n  b\n\n  c\nplain: it goes\n  on here\n"
        "n: 3 # three\nq: 'it''s' # said\nd: \"a \\\"b\\\" #c\"\nflow: [a,\n  b,\n]\n# comment\n"
        "deep:\n  x: 1\n---\nBody\n"
    )
    assert found.metadata == {
        "Title": "C# SECRET #3",
        "about": "one\n\n  two",
        "folded": "a b\nc",
        "plain": "it goes on here",
        "n": 3,
        "q": "it's",
        "d": 'a "b" #c',
        "flow": ("a", "b"),
    }
    assert found.text.strip() == "Body"


def test_hostile_markdown_is_read_in_time():
    for text in (">" * 20_000 + " x", "- " * 20_000, "[" * 20_000, "#" * 20_000 + "\n" + "*" * 20_000):
        assert read(text).text == text
    many = read("# T\n\ntext\n\n" * 2_000)
    assert len(many.headings) == 2_000


def test_a_line_on_access_in_the_body_is_content():
    """Only what may be front matter is looked at: between rules at the beginning, or the first lines behind one."""
    for text in ("access: by the door\n", "# Door\n\naccess: by the door\n", "---\na: b\n---\naccess: door\n"):
        assert read(text).text.strip().endswith(text.split("\n")[-2])
