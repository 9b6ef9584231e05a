import codecs
import random

import pytest

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean
from bifolio.corpus.labels import codec_of
from bifolio.errors import DocumentError, SkippedDocument

RUSSIAN = "В начале было слово, и слово было у Бога. Все люди рождаются свободными и равными в достоинстве. "
CZECH = "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni rozumem. "
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
        (CZECH, "cp1250", "cp1250"),
        (CZECH, "iso8859-2", "iso8859_2"),
        ("Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i praw.", "iso8859-2", "iso8859_2"),
        ("Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i praw.", "cp1250", "cp1250"),
        ("Všetci ľudia sa rodia slobodní a sebe rovní, čo sa týka ich dôstojnosti.", "iso8859-2", "iso8859_2"),
        ("Всі люди народжуються вільними і рівними у своїй гідності та правах.", "koi8-u", "koi8_u"),
        ("Всі люди народжуються вільними і рівними у своїй гідності та правах.", "cp1251", "cp1251"),
        ("Minden emberi lény szabadon születik és egyenlő méltósága és joga van.", "iso8859-2", "cp1250"),
        ("Größe Höhe Größe Höhe", "cp1252", "cp1252"),
        (RUSSIAN, "iso8859-5", "iso8859_5"),
        (JAPANESE, "iso2022_jp", "iso2022_jp"),
        ("Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.", "cp1254", "cp1254"),
        ("Øll menniskju eru fødd fræls og jøvn til virðingar og mannarættindi.", "cp1252", "cp1252"),
        ("Tout moun fèt lib, egal ego pou diyite kou wè dwa.", "cp1252", "cp1252"),
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


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("text", ["Größe – „groß“ " * 3, CHINESE, RUSSIAN])
def test_one_bad_byte_does_not_turn_utf8_into_another_charset(charset, text):
    data = text.encode(charset)
    decoded = decode(data + b" \xff\xe9 " + text.encode())
    assert decoded.text == f"{text} \ufffd\ufffd {text}"
    assert decoded.charset == "utf-8"
    assert decoded.warnings == (f"2 places are not UTF-8, the first at byte {len(data) + 1}: read as U+FFFD",)


@pytest.mark.parametrize("text", ["naïve 日", "naïve é", "only one 日", "only one €"])
def test_utf8_cut_in_mid_character(text):
    data = text.encode()[:-1]
    decoded = decode(data)
    assert decoded.text == text[:-1] + "\ufffd"
    assert len(decoded.warnings) == 1 and decoded.warnings[0].startswith("1 place is not UTF-8, the first at byte ")


def test_a_page_that_says_it_is_utf8_is_believed_if_some_of_it_is():
    page = '<meta charset="utf-8"><p>é'.encode() + b"\xe9</p>"
    assert decode(page, markup=True).text.endswith("<p>é\ufffd</p>")


def test_a_western_text_with_its_only_accent_at_the_end_is_not_cut_utf8():
    assert decode("Un café".encode("latin-1")) == ("Un café", "cp1252", ("decoded as cp1252",))


@pytest.mark.parametrize(
    ("label", "charset"),
    [
        ("ISO_8859-2:1987", "iso-8859-2"),
        ("latin1", "cp1252"),
        ("x-cp1251", "cp1251"),
        ("windows-874", "cp874"),
        ("koi8-ru", "koi8_u"),
        ("x-sjis", "cp932"),
        ("ks_c_5601-1987", "cp949"),
        ("gbk", "gb18030"),
        ("macintosh", "mac_roman"),
        ("UTF8", "utf-8"),
        *((label, "") for label in ("unicode_escape", "utf-7", "utf-16", "punycode", "idna", "cp037", "hex", "x-", "")),
    ],
)
def test_labels_are_those_of_the_web(label, charset):
    assert codec_of(label) == charset


def test_python_only_codecs_are_not_honoured():
    page = b'<meta charset="unicode_escape"><p>\\u0041 caf\xe9 au lait</p>'
    assert decode(page, markup=True).text.endswith("<p>\\u0041 café au lait</p>")


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
