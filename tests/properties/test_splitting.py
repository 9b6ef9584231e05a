"""What holds for every document, however it is written."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from bifolio.corpus import splitting
from bifolio.corpus.atoms import WORD, Atoms
from bifolio.corpus.cleaning import clean
from bifolio.corpus.places import place
from bifolio.corpus.readers.markdown import read_markdown
from bifolio.corpus.splitting import SplitOptions, split
from bifolio.types import Document, Heading

PIECES = st.sampled_from(
    [
        *("word", "Dr.", "end.", "end?!", "3.14", "e.g.", "(quoted.)", "«oui»", "a,b;c", "-", "1.", "#", "...", "…"),
        *("日本語の文", "章。", "「はい。」", "ภาษาไทย", "한국어", "漢字", "ABC中文", "é", "e\u0301\u0323", "\u0301"),
        *(
            "👩\u200d👩\u200d👧",
            "🇩🇪🇫🇷",
            "❤\ufe0f",
            "👍🏽",
            "\u200d",
            "x" * 45,
            "QWxs" * 60,
            "https://example.org/a/b?c=d&e=f#g",
        ),
        *(
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\u3000",
            "\u2028",
            "\n# Heading\n",
            "\n## Sub heading\n\n",
            "\n- item ",
            "\n| a | b |",
        ),
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=120).map("".join),
    st.lists(PIECES, max_size=120).map(" ".join),
    st.builds(lambda pieces, times: "".join(pieces) * times, st.lists(PIECES, max_size=8), st.integers(1, 150)),
    st.text(max_size=300),
).map(clean)
OPTIONS = st.builds(SplitOptions, words=st.integers(4, 120), mode=st.sampled_from(["sentence", "words"]))
ENDLESS_GRAPHEME = re.compile(
    "(?:\u200d.|[\u0300-\u036f\ufe0f\u200c\u200d]){20}", re.DOTALL
)  # cut after 64 code points
MARKS = re.compile("[\u0300-\u036f\ufe0f\u200d\U0001f3fb-\U0001f3ff]")


def words_of(text: str) -> float:
    """An own count: a word for 1.5 characters of CJK, Thai and Hangul, and one for each other run of non-space."""
    text = MARKS.sub("", text)
    spaceless = re.compile("[\u0e00-\u0eff\u1780-\u17ff\u3001-\u9fff\uac00-\ud7a3]")
    return len(spaceless.findall(text)) / 1.5 + len(spaceless.sub(" ", text).split())


def check(document, options):
    text, spans = document.text, split(document, options)
    position = 0
    for span in spans:
        passage = text[span.start : span.end]
        assert passage and passage == passage.strip()
        assert position <= span.start < span.end <= len(text)
        assert text[position : span.start].strip() == ""
        if options.words >= 16:  # below that a long grapheme may weigh more than a passage
            assert words_of(passage) <= 1.5 * options.words
            assert max(map(len, passage.split())) <= max(33, 8 * options.words + 16)
        if position == span.start and position and not ENDLESS_GRAPHEME.search(text):
            assert not MARKS.match(text[position])
            assert text[position - 1] != "\u200d"
        position = span.end
    assert text[position:].strip() == ""
    return spans


@given(TEXTS, OPTIONS)
@settings(max_examples=400, deadline=None)
def test_passages_are_the_text(text, options):
    check(Document(text), options)


@given(TEXTS, OPTIONS)
@settings(max_examples=150, deadline=None)
def test_passages_of_markdown_are_the_text_and_know_their_headings(text, options):
    document = read_markdown(text.encode())
    spans = check(document, options)
    titles = {heading.title for heading in document.headings}
    for span in spans:
        assert all(part in titles for part in span.heading.split(" > ") if part)


@given(TEXTS, OPTIONS, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 6)), max_size=12))
@settings(max_examples=150, deadline=None)
def test_headings_anywhere_do_no_harm(text, options, places):
    starts = sorted({start for start, _ in places if start < len(text)})
    levels = dict(places)
    headings = tuple(Heading(start, levels[start], text[start : start + 9].strip()) for start in starts)
    check(Document(text, headings=headings, media_type="text/html"), options)


@given(TEXTS, OPTIONS)
@settings(max_examples=100, deadline=None)
def test_splitting_is_repeatable_and_crlf_makes_no_difference(text, options):
    spans = split(Document(text), options)
    assert split(Document(text), options) == spans
    assert split(Document(clean(text.replace("\n", "\r\n"))), options) == spans


@given(TEXTS, OPTIONS)
@settings(max_examples=100, deadline=None)
def test_places_are_lines_as_an_editor_counts_them(text, options):
    document = Document(text)
    for span in split(document, options):
        first, last = (text[:end].count("\n") + 1 for end in (span.start, span.end))
        assert place(document, span, "f") == (f"f:{first}" if first == last else f"f:{first}-{last}")


@given(TEXTS, st.integers(4, 60))
@settings(max_examples=200, deadline=None)
def test_the_quick_choice_of_a_cut_is_as_good_as_looking_at_all(text, words):
    atoms = Atoms(text, words, lines_are_blocks=False)
    total, size = len(atoms.starts), words * WORD
    for low in range(0, total, 7):
        first = max(
            low + 1, next((i for i in range(low, total) if atoms.before[i] - atoms.before[low] >= size // 4), total)
        )
        reach = [i for i in range(first, total + 1) if atoms.before[i] - atoms.before[low] <= size * 3 // 2]
        if reach:
            cut = splitting._best_cut(atoms, low, total, size)
            assert splitting._worth(atoms, low, cut, total, size) == max(
                splitting._worth(atoms, low, index, total, size) for index in reach
            )
