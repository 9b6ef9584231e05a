from dataclasses import fields
from typing import get_type_hints

import pytest

from bifolio.corpus.readers.html import read_html
from bifolio.corpus.readers.markdown import read_markdown
from bifolio.corpus.splitting import SplitOptions, split
from bifolio.errors import UsageError
from bifolio.types import Document


def passages(document, **options):
    document = Document(document) if isinstance(document, str) else document
    return [document.text[span.start : span.end] for span in split(document, SplitOptions(**options))]


def prose(words, first="Word"):
    """Sentences of ten words."""
    return " ".join(f"{first if n % 10 == 0 else 'word'}{'.' if n % 10 == 9 else ''}" for n in range(words))


def markdown(text, **options):
    document = read_markdown(text.encode())
    return [(span.heading, document.text[span.start : span.end]) for span in split(document, SplitOptions(**options))]


@pytest.mark.parametrize(
    "options", [{"words": 0}, {"words": -5}, {"words": 1.5}, {"words": True}, {"mode": "chapters"}]
)
def test_options_that_cannot_be_used(options):
    with pytest.raises(UsageError):
        SplitOptions(**options)


def test_options_explain_themselves():
    hints = get_type_hints(SplitOptions, include_extras=True)
    assert all(hints[field.name].__metadata__[0].endswith(".") for field in fields(SplitOptions))
    assert SplitOptions() == SplitOptions(words=100, mode="sentence")


@pytest.mark.parametrize("text", ["", " \n\t\u3000\n"])
@pytest.mark.parametrize("mode", ["sentence", "words"])
def test_white_space_has_no_passages(text, mode):
    assert passages(text, mode=mode) == []
    assert split(Document(text, whole=True)) == []


def test_ready_made_passages_stay_whole():
    text = "\n " + prose(1_000) + " \n"
    assert [text[s.start : s.end] for s in split(Document(text, whole=True))] == [text.strip()]


def test_words_mode_is_the_papers():
    words = [f"w{n}" for n in range(250)]
    assert passages(" \n".join(words), mode="words") == [
        " \n".join(words[:100]),
        " \n".join(words[100:200]),
        " \n".join(words[200:]),
    ]


def test_passages_end_at_sentence_ends():
    text = " ".join(f"This is sentence number {n} of Dr. Smith, who paid 3.50 to the U.S. Army." for n in range(60))
    found = passages(text, words=50)
    assert len(found) > 10
    assert all(passage.startswith("This is") and passage.endswith("Army.") for passage in found)
    assert all(30 <= len(passage.split()) <= 75 for passage in found)


def test_paragraph_ends_are_better_than_sentence_ends():
    text = prose(80) + "\n\n" + prose(70, "Second")
    assert passages(text) == [prose(80), prose(70, "Second")]


def test_long_sentences_are_cut_at_clauses_then_anywhere():
    clauses = ", ".join(" ".join(["word"] * 30) for _ in range(20))
    found = passages(clauses)
    assert all(passage.endswith(",") for passage in found[:-1])
    assert {len(passage.split()) for passage in passages(" ".join(["word"] * 1_000))} == {100}


def test_a_text_without_spaces_is_cut():
    found = passages("QWxs" * 250_000)
    assert "".join(found) == "QWxs" * 250_000
    assert max(map(len, found)) <= 800
    assert min(map(len, found)) >= 100


def test_chinese_and_japanese_end_at_full_stops():
    sentence = "日本語の文章はこのように続き、「ここで終わる。」と書かれている。"
    found = passages(sentence * 60)
    assert "".join(found) == sentence * 60
    assert all(passage.endswith("。") and passage.startswith("日") for passage in found)
    assert all(100 <= len(passage) <= 225 for passage in found[:-1])


@pytest.mark.parametrize("text", ["ภาษาไทย" * 500, "ພາສາລາວ" * 500, "ភាសាខ្មែរ" * 500, "漢字" * 2_000, "한국어" * 1_000])
def test_scripts_without_spaces_count_characters(text):
    found = passages(text, words=60)
    assert "".join(found) == text
    assert all(len(passage) <= 60 * 1.5 * 1.5 for passage in found)
    assert all(len(passage) >= 45 for passage in found[:-1])


@pytest.mark.parametrize(
    "grapheme", ["e\u0301\u0323", "👩\u200d👩\u200d👧", "👍🏽", "❤\ufe0f", "🇩🇪", "กำ", "\u1100\u1161\u11a8"]
)
def test_no_grapheme_is_cut(grapheme):
    found = passages(grapheme * 1_001, words=11)
    assert "".join(found) == grapheme * 1_001
    assert len(found) > 5
    assert all(passage == grapheme * (len(passage) // len(grapheme)) for passage in found)


def test_a_section_begins_a_passage_with_its_heading():
    text = f"# Manual\n\n{prose(60)}\n\n## Setup\n\n{prose(70)}\n\n## Use\n\n{prose(40)}\n"
    assert markdown(text) == [
        ("Manual", f"# Manual\n\n{prose(60)}"),
        ("Manual > Setup", f"## Setup\n\n{prose(70)}"),
        ("Manual > Use", f"## Use\n\n{prose(40)}"),
    ]


def test_a_short_section_goes_with_what_follows_under_the_same_heading():
    assert markdown(f"# A\n\nShort.\n\n## B\n\n{prose(60)}\n") == [("A", f"# A\n\nShort.\n\n## B\n\n{prose(60)}")]
    assert markdown(f"# A\n\nShort.\n\n# B\n\n{prose(60)}\n") == [("A", "# A\n\nShort."), ("B", f"# B\n\n{prose(60)}")]
    assert markdown("# T\n\n## A\n\nOne.\n\n## B\n\nTwo.\n") == [("T > A", "# T\n\n## A\n\nOne.\n\n## B\n\nTwo.")]


def test_headings_do_not_stand_alone():
    assert markdown(f"# A\n\n# B\n\n{prose(60)}\n\n# C\n") == [("B", f"# A\n\n# B\n\n{prose(60)}\n\n# C")]
    long = markdown(f"# A\n\n## B\n\n### C\n\n{prose(400)}\n")
    assert all(heading == "A > B > C" for heading, _ in long)
    assert long[0][1].startswith("# A\n\n## B\n\n### C\n\nWord")
    assert len(long) == 4


def test_heading_paths_follow_levels():
    body = prose(30)
    text = f"Before. {body}\n\n## Two\n\n{body}\n\n#### Four\n\n{body}\n\n### Three\n\n{body}\n\nOne\n===\n\n{body}\n"
    assert [heading for heading, _ in markdown(text)] == ["", "Two", "Two > Four", "Two > Three", "One"]


def test_setext_underlines_belong_to_their_heading():
    assert markdown(f"Title\n=====\n\nSub\n---\n\n{prose(30)}") == [
        ("Title > Sub", f"Title\n=====\n\nSub\n---\n\n{prose(30)}")
    ]


def test_list_items_and_rows_are_not_divided():
    items = "\n".join(f"- item {n} has a few words. And more" for n in range(40))
    assert all(passage.startswith("- item") and passage.endswith("more") for passage in passages(items))
    rows = "".join(f"<tr><td>{n}</td><td>a b c d e</td></tr>" for n in range(60))
    document = read_html(f"<table>{rows}</table>".encode())
    assert all(passage.endswith("| a b c d e") for passage in passages(document))


def test_a_numbered_item_keeps_its_number():
    steps = "\n".join(f"{n}. Press the button labelled {n} and wait for the lamp to go out" for n in range(1, 30))
    assert all(passage.split()[0].rstrip(".").isdigit() and passage.endswith("out") for passage in passages(steps))


@pytest.mark.parametrize(
    "text",
    [
        "Lorem ipsum dolor, sit amet. " * 100_000,
        "Lorem ipsum dolor, sit amet.\n" * 100_000,
        "x" * 3_000_000,
        "文章。" * 300_000,
        "e" + "\u0301" * 1_000_000,
    ],
    ids=["one line", "many lines", "one word", "Chinese", "accents"],
)
@pytest.mark.timeout(120)  # seconds if it takes linear time, hours if quadratic
def test_megabytes_are_split_to_their_end(text):
    spans = split(Document(text))
    assert spans[-1].end == len(text.rstrip())
