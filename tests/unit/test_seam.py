"""Where an answer begins among a server's tokens."""

import pytest

from bifolio.generators.seam import Cover, ServerToken, UnalignedError, head, tail


def tokens(*texts, log_probs=None):
    values = log_probs or [-float(i + 1) for i in range(len(texts))]
    return [ServerToken(text, value) for text, value in zip(texts, values, strict=True)]


def test_the_answer_is_the_last_tokens():
    found = tail(tokens("Answer", ":", " Par", "is"), " Paris")
    assert found == Cover(2, 4, (" Par", "is"), (-3.0, -4.0))


def test_a_token_over_the_seam_is_refused_with_the_reason():
    with pytest.raises(UnalignedError, match="': P' holds the end of the prompt and the beginning of the answer"):
        tail(tokens("Answer", ": P", "aris"), " Paris")
    with pytest.raises(UnalignedError, match="': ' holds the end"):  # the space was not lost: it is in another token
        tail(tokens("Answer", ": ", "Paris"), " Paris")


@pytest.mark.parametrize("wrong", [("Answer", ":", " Lon", "don"), ("Answer",), (), ("is",)])
def test_other_tokens_are_refused(wrong):
    with pytest.raises(UnalignedError):
        tail(tokens(*wrong), " Paris")


def test_a_token_without_log_probability_is_refused_only_within_the_answer():
    assert tail(tokens("a", "b", log_probs=[None, -1.0]), "b").log_probs == (-1.0,)
    with pytest.raises(UnalignedError, match="no log-probability"):
        tail(tokens("a", "b", log_probs=[None, -1.0]), "ab")


def test_bytes_of_one_character_are_one_piece():
    fragments = tokens("é", " ", "\ufffd", "\ufffd", "\ufffd", "\ufffd", "!")
    assert head(fragments, "é 🙂!") == Cover(0, 7, ("é", " ", "🙂", "!"), (-1.0, -2.0, -18.0, -7.0))
    assert tail(fragments, "🙂!") == Cover(2, 7, ("🙂", "!"), (-18.0, -7.0))
    assert tail(fragments[:-1], "🙂") == Cover(2, 6, ("🙂",), (-18.0,))
    assert head(fragments[:-1], "é 🙂") == Cover(0, 6, ("é", " ", "🙂"), (-1.0, -2.0, -18.0))


def test_characters_of_unknown_fragments_are_one_piece():
    six = tokens("a", *["\ufffd"] * 6, "b")
    assert head(six, "a🙂éb") == Cover(0, 8, ("a", "🙂é", "b"), (-1.0, -27.0, -8.0))
    with pytest.raises(UnalignedError, match="within one character"):
        tail(tokens("a", *["\ufffd"] * 6), "é")


def test_half_a_character_behind_the_text_is_not_of_it():
    assert head(tokens("\ufffd", "\ufffd", "\ufffd"), "é") == Cover(0, 2, ("é",), (-3.0,))


def test_bytes_as_openai_writes_them_and_as_lists():
    written = tokens(r"bytes:\xf0\x9f", r"bytes:\x99\x82", "!")
    assert head(written, "🙂!").pieces == ("🙂", "!")
    listed = [ServerToken("\ufffd", -1.0, b" \xc3"), ServerToken("\ufffd", -2.0, b"\xa9")]
    assert tail([ServerToken("x", None), *listed], " é") == Cover(1, 3, (" é",), (-3.0,))


def test_a_text_that_holds_the_replacement_character_itself():
    assert head(tokens("a", "\ufffd", "b"), "a\ufffdb").pieces == ("a", "\ufffd", "b")


def test_sentencepiece_tokens_have_lost_their_space_or_have_a_sign_for_it():
    assert tail(tokens("Answer", ":", "Par", "is"), " Paris").pieces == (" Par", "is")
    assert tail(tokens("▁Answer", ":", "▁Par", "is", "▁now"), " Paris now").pieces == (" Par", "is", " now")
    # A space that is a token of its own is not given to the next one.
    assert tail(tokens(":", " ", "Paris"), " Paris") == Cover(1, 3, (" ", "Paris"), (-2.0, -3.0))


def test_a_stop_string_cuts_the_last_token():
    found = head(tokens(" Paris", ".\n", "x"), " Paris.")
    assert found == Cover(0, 2, (" Paris", "."), (-1.0, -2.0), cut=True)


def test_an_empty_text_takes_no_token():
    assert head(tokens("</s>"), "") == Cover(0, 0, (), ())
    assert tail(tokens("a"), "") == Cover(1, 1, (), ())


def test_pieces_are_the_text_whatever_its_characters():
    text = "añ日本\U0001f600\ud800z\n"
    single = tokens(*text)
    assert "".join(head(single, text).pieces) == text
    assert "".join(tail([ServerToken("?", None), *single], text).pieces) == text
