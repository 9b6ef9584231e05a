import codecs
import random

import pytest

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean
from bifolio.errors import DocumentError, SkippedDocument

RUSSIAN = "В начале было слово, и слово было у Бога. Все люди рождаются свободными и равными в достоинстве. "
JAPANESE = "日本語の文章です。これは試験のための段落であり、漢字とかなが混ざっています。" * 2
CHINESE = "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。" * 2


@pytest.mark.parametrize(
    ("text", "stored", "named"),
    [
        ("café", "latin-1", "cp1252"),
        ("L'été était très chaud – « oui » – 15 €.", "cp1252", "cp1252"),
        ("Tous les êtres humains naissent libres et égaux en dignité et en droits. " * 5, "latin-1", "cp1252"),
        ("Größe 5 µm ± 3 °C, “zitiert”", "cp1252", "cp1252"),
        ("Zażółć gęślą jaźń. Wszyscy ludzie rodzą się wolni i równi.", "cp1250", "cp1250"),
        ("Привет, мир", "cp1251", "cp1251"),
        (RUSSIAN, "cp1251", "cp1251"),
        (RUSSIAN, "koi8-r", "koi8_r"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "euc_jp", "euc_jp"),
        (CHINESE, "gb18030", "gb18030"),
        ("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.", "euc_kr", "cp949"),
        ("כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.", "cp1255", "cp1255"),
        ("Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.", "cp1253", "cp1253"),
    ],
)
def test_charsets_other_than_utf8_are_recognised_and_named(text, stored, named):
    decoded = decode(text.encode(stored))
    assert decoded.text == text
    assert decoded.warnings == (f"decoded as {named}",)


def test_utf8_needs_no_warning():
    assert decode("naïve 日本 🙂".encode()) == ("naïve 日本 🙂", "utf-8", ())
    assert decode(codecs.BOM_UTF8 + b"abc") == ("abc", "utf-8", ())


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_byte_order_marks(charset):
    decoded = decode("\ufeffLine é 日\n".encode(charset))
    assert decoded == ("Line é 日\n", charset, (f"decoded as {charset}",))


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark(charset):
    assert decode("Doylestown, PA 18901\n".encode(charset)).text == "Doylestown, PA 18901\n"


def test_a_file_that_its_mark_does_not_fit_names_the_offset():
    with pytest.raises(DocumentError, match=r"utf-16-le, but byte 0x61 at offset 6"):
        decode(codecs.BOM_UTF16_LE + b"a\0b\0a")


def test_declared_charset_counts_for_markup_only():
    page = b'<meta charset="iso-8859-2"><p>\xb3\xf3d\xbc</p>'
    assert "łódź" in decode(page, markup=True).text
    assert decode(page, markup=True).warnings == ("decoded as iso-8859-2",)
    assert "łódź" not in decode(page).text


@pytest.mark.parametrize("label", ["no-such", "base64", "utf-8", "rot13"])
def test_wrong_declarations_do_no_harm(label):
    page = f'<meta charset="{label}"><p>caf\xe9 au lait</p>'.encode("latin-1")
    assert decode(page, markup=True).text.endswith("<p>café au lait</p>")


def test_implausible_bytes_are_an_error_with_the_first_bad_offset():
    with pytest.raises(DocumentError, match=r"byte 0x93 at offset 5\b") as caught:
        decode(b"abcd " + bytes([0x93, 0xFF, 0x81, 0xA0, 0xFE, 0x80, 0xFD, 0x8D, 0xFF, 0x90, 0xFF]) * 9)
    assert not isinstance(caught.value, SkippedDocument)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_never_text(seed):
    with pytest.raises(DocumentError):
        decode(random.Random(seed).randbytes(64 + 40 * seed))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(20), "ELF"),
        (b"PK\x03\x04\x14\x00", "zip"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"text\x00text", "control bytes"),
        (bytes(range(1, 9)) * 3 + b"abc", "control bytes"),
    ],
)
def test_binary_data_is_named(data, kind):
    with pytest.raises(SkippedDocument, match=f"binary data .*{kind}"):
        decode(data)


@pytest.mark.parametrize(
    "text", ["MZ is a label.", "RIFF and raff", "ID3 tags explained", "BZh\n", "\x1b[31mred\x1b[0m log"]
)
def test_text_that_begins_like_a_binary_format_is_text(text):
    assert decode(text.encode()).text == text


def test_cleaning_keeps_lines_and_characters():
    assert clean("\ufeffa\r\nb\rc\n\nd") == "a\nb\nc\n\nd"
    assert clean("x\x00y\x07z\x7f") == "xyz"
    assert clean("page\x0cpage\x0bline") == "page page line"
    assert clean("lone \ud800 surrogate") == "lone \ufffd surrogate"
    assert clean("e\u0301\ttab \u2028 \ufeffinner") == "e\u0301\ttab \u2028 \ufeffinner"
