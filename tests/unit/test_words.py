"""What is a word of the lexical index."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifolio.indexes.words import LONGEST, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The valve closes.", ["the", "valve", "closes"]),
        ("Größe CAFÉ naïve", ["grosse", "cafe", "naive"]),
        ("ﬁne ①", ["fine", "1"]),  # NFKC
        ("getUserName", ["getusername", "get", "user", "name"]),
        ("HTTPServer2", ["httpserver2", "http", "server", "2"]),
        ("snake_case", ["snake_case", "snake", "case"]),
        ("__init__", ["__init__", "init"]),
        ("std::vector", ["std::vector", "std", "vector"]),
        ("a:b", ["a:b", "a", "b"]),
        ("C++ and C# but C", ["c++", "c", "and", "c#", "c", "but", "c"]),
        ("V-12, v1.2.3", ["v-12", "v", "12", "v1.2.3", "v1", "2", "3"]),
        ("user@example.org", ["user@example.org", "user", "example", "org"]),
        ("don't", ["don't", "don", "t"]),
        ("东京", ["东", "京", "东京"]),
        ("ガス管3号", ["ガ", "ス", "管", "ガス", "ス管", "3", "号"]),
        ("मज़बूत", ["मज़बूत"]),  # with its marks
        ("", []),
        ("... !? \x00 \ud7ff", []),
    ],
)
def test_words(text, expected):
    assert words(text) == [unicodedata.normalize("NFKC", word) for word in expected]


@given(st.text(max_size=200))
def test_any_text_has_words_that_are_stable(text):
    found = words(text)
    assert all(word and len(word) <= LONGEST for word in found)
    assert not any(character.isspace() for word in found for character in word)
    assert words(text + " ") == found


@given(st.lists(st.sampled_from(["valve", "pump", "getUserName", "C++", "东京", "V-12", "Größe"]), max_size=6))
def test_words_of_a_text_are_those_of_its_parts(parts):
    assert words(" ".join(parts)) == [word for part in parts for word in words(part)]


def test_a_name_is_found_by_each_way_of_writing_it():
    """What a question says in one way, a passage may say in another."""
    for passage, question in [
        ("call getUserName here", "get user name"),
        ("the user_name field", "user name"),
        ("Straße", "STRASSE"),
        ("résumé", "resume"),
        ("東京都庁舎", "都庁"),
        ("valve V-12", "v-12"),
        ("the C++ way", "C++"),
    ]:
        assert set(words(question)) <= set(words(passage)), passage
    assert set(words("C++")) - set(words("C")) == {"c++"}


def test_long_words_are_cut_and_long_texts_linear():
    assert words("x" * 1000) == ["x" * LONGEST]
    many = words("aB" * 100_000)
    assert len(many) <= 200_001
    assert len(words("- " * 100_000 + "-" * 100_000)) == 0
