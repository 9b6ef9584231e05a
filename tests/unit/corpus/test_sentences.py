import pytest

from bifolio.corpus.sentences import ends_clause, ends_sentence


@pytest.mark.parametrize(
    ("word", "following"),
    [
        ("end.", "The"),
        ("end?!", "The"),
        ('end."', "The"),
        ("end.)", "The"),
        ("(end.)", "(The"),
        ("etc.", "The"),
        ("3.14.", "The"),
        ("wait...", "Then"),
        ("wait…", "Then"),
        ("No.", "He"),
        ("हैं।", "वे"),
        ("end.", "“The"),
        ("end.", "3"),
        ("¿Qué?", "¡Sí!"),
        ("done!", ""),
    ],
)
def test_ends(word, following):
    assert ends_sentence(word, following)


@pytest.mark.parametrize(
    ("word", "following"),
    [
        ("Dr.", "Smith"),
        ("(e.g.", "The"),
        ("i.e.", "The"),
        ("U.S.", "Army"),
        ("J.", "Smith"),
        ("No.", "5"),
        ("Fig.", "3"),
        ("3.14", "The"),
        ("end", "The"),
        ("wait...", "then"),
        ("“Why?”", "he"),
        ("vs.", "Goliath"),
        ("z.B.", "Berlin"),
        ("...", "and"),
        ('"', "The"),
    ],
)
def test_does_not_end(word, following):
    assert not ends_sentence(word, following)


def test_clauses():
    assert ends_clause("word,") and ends_clause("word;”") and ends_clause("—")
    assert not ends_clause("word") and not ends_clause('"')
