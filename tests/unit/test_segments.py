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
        (["Edit", " postgresql", ".", "conf", " now"], ["Edit postgresql.conf now"], [0, 0, 0, 1, 1]),
        (["see", " www", ".", "a", ".", "org", "?", "q", "."], ["see www.a.org?q."], [0, 0, 0, 1, 1, 1, 1, 2, 2]),
        (["No", ".", " The", " valve"], ["No.", "The valve"], [0, 0, 0, 1]),
        (["valve", " No", ".", " 7", " now"], ["valve No. 7 now"], [0] * 5),
        (["Rev", ".", " King", " Jr", ".", " He", " won"], ["Rev. King Jr.", "He won"], [0] * 6 + [1]),
        (["version", " 3", ".", "5", ".", " Then", " go"], ["version 3.5.", "Then go"], [0] * 6 + [1]),
        (['a 5"', " valve", "!", " So"], ['a 5" valve!', "So"], [0, 0, 0, 1]),
        (["a)", " first", "!", " So"], ["a) first!", "So"], [0, 0, 0, 1]),
        (["(see", " it", "!", " Then", " go"], ["(see it!", "Then go"], [0, 0, 0, 0, 1]),
        (["“", "Stop", "!", "”", " he"], ["“Stop!”", "he"], [0, 0, 0, 0, 1]),
        (["Mrs", ".", " Lee", " and", " Prof", ".", " Ray"], ["Mrs. Lee and Prof. Ray"], [0] * 7),
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
def test_a_boundary_depends_on_the_prefix_alone(pieces):
    def fresh():
        return SentenceBoundary(lambda ids: "".join(pieces[i] for i in ids))

    whole = tuple(range(len(pieces)))
    incremental = fresh()
    seen = [incremental(whole[:i]) for i in range(1, len(whole) + 1)]
    assert seen == [fresh()(whole[:i]) for i in range(1, len(whole) + 1)]
    # Every end that people see was a reset, apart from those that were withdrawn ("postgresql." + "conf").
    assert len(incremental.ends(whole)) <= sum(seen)
    text = "".join(pieces)
    for end in incremental.ends(whole):
        assert not text[:end].endswith(" ")
        assert text[end : end + 1] in ("", " ", "\n") or text[end - 1] not in ".!?" or not text[end].isalnum()


def test_schemes_and_an_unknown_one():
    def text(ids):
        return "Yes. " * len(ids)

    assert segment_ids((1, 1, 1), boundary("token", text)) == [0, 1, 2]
    assert segment_ids((1, 1, 1), boundary("sequence", text)) == [0, 0, 0]
    assert segment_ids((1, 1, 1), boundary("sentence", text)) == [0, 1, 2]
    assert segment_ids((1, 1, 1), boundary("requery", text)) == [0, 1, 2]
    assert segment_ids((1,) * 7, boundary("requery", text, 3)) == [0, 0, 0, 1, 1, 1, 2]
    with pytest.raises(UsageError, match="paragraph"):
        boundary("paragraph", text)
