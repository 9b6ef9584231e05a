"""Where sentences end, seen from the prefix alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifolio.errors import UsageError
from bifolio.segments import SentenceBoundary, boundary, segment_ids


def run(pieces):
    """Sentences of a text given as pieces, one piece a token, and the segment of each token."""
    rule = SentenceBoundary(lambda ids: "".join(pieces[i] for i in ids))
    tokens = tuple(range(len(pieces)))
    whole = "".join(pieces)
    cuts = [0, *rule.ends(tokens), len(whole)]
    sentences = [whole[a:b].strip() for a, b in zip(cuts, cuts[1:], strict=False)]
    return [s for s in sentences if s], segment_ids(tokens, rule)


@pytest.mark.parametrize(
    ("pieces", "sentences", "segments"),
    [
        (["Close", " it", ".", " Now"], ["Close it.", "Now"], [0, 0, 0, 1]),
        (["It", " is", " 3", ".", "14", " bar"], ["It is 3.14 bar"], [0] * 6),
        (["In", " 1970", ".", " The", " end"], ["In 1970.", "The end"], [0, 0, 0, 0, 1]),
        (["Ask", " Dr", ".", " Smith", " now"], ["Ask Dr. Smith now"], [0] * 5),
        (["the", " U", ".", "S", ".", " Army"], ["the U.S. Army"], [0] * 6),
        (["by", " J", ".", " Smith"], ["by J. Smith"], [0] * 4),
        (["3", ".", " Close", " it"], ["3. Close it"], [0] * 4),
        (["e", ".g", ".", " this", " one"], ["e.g. this one"], [0] * 5),
        (["Acme", " Inc", ".", " Then", " it"], ["Acme Inc.", "Then it"], [0, 0, 0, 0, 1]),
        (["Why", "?", "!", " So"], ["Why?!", "So"], [0, 0, 1, 1]),
        (['"', "Stop", "!", '"', " he"], ['"Stop!"', "he"], [0, 0, 0, 0, 1]),
        (["(see", " it", ".)", " Yes"], ["(see it.)", "Yes"], [0, 0, 0, 1]),
        (["one", "\n", "two"], ["one", "two"], [0, 0, 1]),
        (["Wait", "...", " Then", " go"], ["Wait...", "Then go"], [0, 0, 0, 1]),
        (["弁を", "閉じる", "。", "次"], ["弁を閉じる。", "次"], [0, 0, 0, 1]),
        (["at", " example", ".com", " now"], ["at example.com now"], [0] * 4),
        ([".", ".", "."], ["..."], [0, 0, 0]),
    ],
)
def test_sentences(pieces, sentences, segments):
    assert run(pieces) == (sentences, segments)


@given(
    st.lists(
        st.sampled_from(["Close", " it", ".", " The", "3", "?", '"', "\n", " ", "(", ")", "Dr", "。"]), max_size=12
    )
)
def test_a_boundary_depends_on_the_prefix_alone_and_is_never_taken_back(pieces):
    def fresh():
        return SentenceBoundary(lambda ids: "".join(pieces[i] for i in ids))

    whole = tuple(range(len(pieces)))
    incremental = fresh()
    seen = [incremental(whole[:i]) for i in range(1, len(whole) + 1)]
    assert seen == [fresh()(whole[:i]) for i in range(1, len(whole) + 1)]
    counts = [len(fresh().ends(whole[:i])) for i in range(len(whole) + 1)]
    assert counts == sorted(counts)
    assert counts[-1] == sum(seen)


def test_schemes_and_an_unknown_one():
    def text(ids):
        return "Yes." * len(ids)

    assert segment_ids((1, 1, 1), boundary("token", text)) == [0, 1, 2]
    assert segment_ids((1, 1, 1), boundary("sequence", text)) == [0, 0, 0]
    assert segment_ids((1, 1, 1), boundary("sentence", text)) == [0, 1, 2]
    with pytest.raises(UsageError, match="paragraph"):
        boundary("paragraph", text)
