"""The lexical index against BM25 and shares that are counted by hand, and with text of every kind.

Texts have at most 40 words: so many are kept exactly by tantivy, which rounds the lengths of longer ones.
"""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.indexes.lexical import BM25Index
from bifolio.protocols import LexicalIndex

TEXTS = [
    " ".join(f"w{word}" for word in np.random.default_rng(seed).zipf(1.4, size=1 + seed % 40) % 30)
    for seed in range(200)
]
QUESTIONS = ["w1 w2", "w7 w3 w7 w9", "w1 w2 w3 w4 w5 w6", "w29", "nothing here w11", "w2 w1 w2 w1"]
ROWS = np.random.default_rng(0).permutation(1000)[: len(TEXTS)]


def made(texts=TEXTS, rows=None, folder=None):
    index = BM25Index.create(folder)
    index.add(list(range(len(texts)) if rows is None else rows), texts)
    index.commit()
    return index


def rarity(count, n):
    return math.log(1 + (n - count + 0.5) / (count + 0.5))


def bm25(question, texts):
    """BM25 of every text, k1 = 1.2 and b = 0.75."""
    split = [text.split() for text in texts]
    mean = sum(map(len, split)) / len(split)
    total = np.zeros(len(texts))
    for word in dict.fromkeys(question.split()):
        count = sum(word in text for text in split)
        if count:
            for place, text in enumerate(split):
                tf = Counter(text)[word]
                total[place] += rarity(count, len(texts)) * 2.2 * tf / (tf + 1.2 * (0.25 + 0.75 * len(text) / mean))
    return total


def shares(question, texts):
    split = [text.split() for text in texts]
    counts = {word: sum(word in text for text in split) for word in question.split()}
    often = max(10, len(texts) / 10)
    total = bm25(question, texts)
    for pair in dict.fromkeys(pairwise(question.split())):
        if all(counts[word] for word in pair) and min(counts[word] for word in pair) <= often:
            having = np.array([pair in list(pairwise(text)) for text in split])
            total += 0.45 * rarity(having.sum(), len(texts)) * having if having.any() else 0.0
    return total / sum(rarity(count, len(texts)) for count in counts.values() if count)


def test_satisfies_the_protocol():
    assert isinstance(made(), LexicalIndex)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("k", [1, 7, 50, 500])
def test_values_and_order(question, k):
    expected = bm25(question, TEXTS)
    scores, rows = made(rows=ROWS).search(question, k)
    assert len(rows) == min(k, int((expected > 0).sum()))
    by_row = dict(zip(ROWS.tolist(), expected.tolist(), strict=True))
    assert scores.tolist() == pytest.approx([by_row[row] for row in rows.tolist()], rel=1e-5)
    assert scores.tolist() == pytest.approx(np.sort(expected)[::-1][: len(rows)].tolist(), rel=1e-5)
    pairs = list(zip((-scores).tolist(), rows.tolist(), strict=True))
    assert pairs == sorted(pairs)  # ties by smaller row


@pytest.mark.parametrize("question", QUESTIONS)
def test_shares(question):
    expected = shares(question, TEXTS)
    found = made(rows=ROWS).shares(question, ROWS.tolist())
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-7)
    assert made(rows=ROWS).shares(question, [5000, int(ROWS[3])]).tolist() == pytest.approx(
        [0.0, expected[3]], rel=1e-5
    )


def test_a_pair_counts_and_its_words_alone_do_not():
    texts = ["the new york pump", "york then is new", *(f"other text {i}" for i in range(30))]
    index = made(texts)
    both = index.shares("new york", [0, 1])
    assert both[0] - both[1] == pytest.approx(0.45 * rarity(1, 32) / (2 * rarity(2, 32)), rel=1e-5)
    alone = index.search("new york", 2)[0]
    assert alone[0] == pytest.approx(alone[1], rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.9, 1.0])
def test_only_what_is_allowed(share):
    index = made(rows=ROWS)
    allowed = np.random.default_rng(3).random(900) < share  # rows from 900 on are beyond the mask
    for question in QUESTIONS:
        everything = dict(zip(*(part.tolist() for part in index.search(question, 500)[::-1]), strict=True))
        wanted = [row for row in everything if row < 900 and allowed[row]]
        for k in (1, 10, 500):
            scores, rows = index.search(question, k, allowed)
            assert rows.tolist() == wanted[:k]
            assert scores.tolist() == [everything[row] for row in rows.tolist()]


def test_an_index_grows(tmp_path):
    index = made(TEXTS[:150], folder=tmp_path / "x")
    for first, last in ((150, 151), (151, 180), (180, 200)):
        index.add(range(first, last), TEXTS[first:last])
        index.commit()
    whole = made()
    for opened in (index, BM25Index.open(tmp_path / "x")):
        assert (len(opened), opened.upto) == (200, 200)
        for question in QUESTIONS:
            found, want = opened.search(question, 500), whole.search(question, 500)
            assert found[1].tolist() == want[1].tolist()
            assert found[0].tolist() == pytest.approx(want[0].tolist(), rel=1e-5)
            assert opened.shares(question, [3, 190]).tolist() == pytest.approx(
                whole.shares(question, [3, 190]).tolist(), rel=1e-5
            )


def test_a_reader_keeps_what_it_opened(tmp_path):
    writer = made(["one pump"], folder=tmp_path / "x")
    reader = BM25Index.open(tmp_path / "x")
    writer.add([1], ["two pumps"])
    writer.commit()
    assert reader.search("pump", 9)[1].tolist() == [0]
    assert BM25Index.open(tmp_path / "x").search("pump", 9)[1].tolist() == [0, 1]
    with pytest.raises(UsageError, match="write=True"):
        reader.add([2], ["three"])


def test_what_was_not_committed_is_given_up(tmp_path):
    writer = made(["one pump"], folder=tmp_path / "x")
    writer.add([1], ["two pumps"])
    writer.close()
    assert BM25Index.open(tmp_path / "x").search("pump", 9)[1].tolist() == [0]
    assert BM25Index.check(tmp_path / "x") == []


def test_an_index_without_passages_and_questions_without_words():
    empty = BM25Index.create(None)
    assert (len(empty), empty.upto) == (0, 0)
    assert empty.search("w1", 3)[1].tolist() == []
    assert empty.shares("w1", [0, 1]).tolist() == [0.0, 0.0]
    for question in ("", "   ", "?!", "unknown"):
        assert made().search(question, 3)[1].tolist() == []
        assert made().shares(question, [0]).tolist() == [0.0]
    assert made().shares("w1", []).tolist() == []
    with pytest.raises(UsageError, match="k is 0"):
        made().search("w1", 0)


@pytest.mark.parametrize(
    "question",
    [
        "C++ (foo",
        "a:b",
        "AND",
        "w1 AND NOT w2",
        '"w1',
        "w1^9 ~2",
        "[1 TO 2]",
        "*",
        "\\",
        "\0w1",
        "w1 " * 50_000,
        "é" * 9000,
    ],
)
def test_any_text_is_a_legal_question(question):
    index = made()
    scores, rows = index.search(question, 5)
    assert len(rows) <= 5 and np.isfinite(scores).all()
    assert np.isfinite(index.shares(question, [0, 1, 2])).all()


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("getUserName", 0), ("user name", 0), ("snake_case", 1), ("snake", 1), ("C++", 2), ("a:b", 3),
        ("std::vector", 3),
        ("北京", 4), ("京的", 4), ("CAFÉ", 5), ("cafe", 5), ("P-7", 6), ("v1.2.3", 7), ("прибор", 8), ("приборы", 9),
    ],
)  # fmt: skip
def test_words_of_every_kind_are_found(question, place):
    texts = [
        "call getUserName now", "a snake_case name here", "written in C++ of old", "the key a:b and std::vector",
        "我在北京的家", "le café noir", "pump P-7 starts", "release v1.2.3 is out", "один прибор", "эти приборы",
    ]  # fmt: skip
    assert made(texts).search(question, 1)[1].tolist() == [place]


def test_c_is_not_c_plus_plus():
    index = made(["written in C++", "written in C", "written in C#"])
    for place, name in enumerate(("C++", "C", "C#")):
        assert index.search(name, 1)[1].tolist() == [place]


@pytest.mark.parametrize("name", ["meta.json", "store"])
def test_damage_is_found(tmp_path, name):
    made(folder=tmp_path / "x").close()
    victim = next(path for path in (tmp_path / "x").iterdir() if path.name.endswith(name) or path.suffix == f".{name}")
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    try:
        complaints = BM25Index.check(tmp_path / "x")
    except CollectionDamagedError as error:
        complaints = [str(error)]
    assert complaints and str(tmp_path / "x") in complaints[0]


def test_no_index_and_one_of_another_version(tmp_path):
    with pytest.raises(CollectionDamagedError, match="there is no lexical index"):
        BM25Index.open(tmp_path / "none")
    made(folder=tmp_path / "x").close()
    meta = tmp_path / "x" / "meta.json"
    meta.write_text(meta.read_text().replace('"position"', '"freq"'))
    with pytest.raises(CollectionDamagedError, match="of another version"):
        BM25Index.open(tmp_path / "x")


def test_ten_threads(tmp_path):
    made(rows=ROWS, folder=tmp_path / "x").close()
    index = BM25Index.open(tmp_path / "x")
    alone = [(index.search(question, 10), index.shares(question, ROWS.tolist())) for question in QUESTIONS]
    with ThreadPoolExecutor(10) as pool:
        again = pool.map(lambda q: (index.search(q, 10), index.shares(q, ROWS.tolist())), QUESTIONS * 10)
        for place, (found, parts) in enumerate(again):
            want, want_parts = alone[place % len(QUESTIONS)]
            assert np.array_equal(found[0], want[0]) and np.array_equal(found[1], want[1])
            assert np.array_equal(parts, want_parts)
