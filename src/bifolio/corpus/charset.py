"""Bytes to text: which charset, or what kind of binary data it is."""

from __future__ import annotations

import codecs
import re
import unicodedata
from typing import NamedTuple

import charset_normalizer

from bifolio.corpus.alphabets import cyrillic_charset, latin_charset
from bifolio.corpus.labels import codec_of
from bifolio.errors import DocumentError, SkippedDocument

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SIGNATURES = (
    (0, b"\x7fELF", "ELF program"),
    (0, b"MZ", "Windows program"),
    (0, b"PK\x03\x04", "zip archive, as in .docx, .xlsx, .epub and .jar"),
    (0, b"PK\x05\x06", "empty zip archive"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old or encrypted Office document"),
    (0, b"%PDF-", "PDF"),
    (0, b"\x89PNG", "PNG image"),
    (0, b"\xff\xd8\xff", "JPEG image"),
    (0, b"GIF8", "GIF image"),
    (0, b"II*\x00", "TIFF image"),
    (0, b"MM\x00*", "TIFF image"),
    (0, b"RIFF", "RIFF audio, video or WebP image"),
    (0, b"ID3", "MP3 audio"),
    (0, b"OggS", "Ogg media"),
    (0, b"fLaC", "FLAC audio"),
    (4, b"ftyp", "MP4 media"),
    (0, b"\x1f\x8b", "gzip archive"),
    (0, b"BZh", "bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "zstd archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (0, b"Rar!\x1a", "RAR archive"),
    (257, b"ustar", "tar archive"),
    (0, b"SQLite format 3\x00", "SQLite database"),
    (0, b"PAR1", "Parquet table"),
    (0, b"\x89HDF", "HDF5 data"),
    (0, b"\x93NUMPY", "NumPy array"),
    (0, b"\xca\xfe\xba\xbe", "Java class or macOS program"),
    (0, b"\xcf\xfa\xed\xfe", "macOS program"),
    (0, b"\x00asm", "WebAssembly"),
    (0, b"wOF", "web font"),
)
_CONTROLS = bytes({*range(32), 127} - set(b"\b\t\n\v\f\r\x1b"))  # terminal logs have backspaces and escapes
_CONTROL_SHARE = 0.01  # random bytes have a tenth, text has none
_HEAD = 8192
_CANDIDATES = [
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
    *("koi8_r", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
]  # what documents are found in; more candidates make short texts come out in rare ones
_LATIN = {"cp1250", "iso8859_2", "cp1252", "cp1254", "cp1257"}
_ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
_MANY = 4  # multibyte sequences for each that is broken: the text is UTF-8, and damaged
_DECLARED = re.compile(rb"""(?:<meta\b[^>]*?charset|^\s*<\?xml\b[^>]*?encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I)


class Decoded(NamedTuple):
    """Text and where it came from.

    Attributes:
        text: The text, not yet cleaned.
        charset: Python's name of the charset.
        warnings: Names the charset if it is not UTF-8.
    """

    text: str
    charset: str
    warnings: tuple[str, ...] = ()


def decode(data: bytes, *, markup: bool = False) -> Decoded:
    """Decode a text file: byte order mark, UTF-8, the charset that markup declares, then statistics.

    Args:
        data: The whole file.
        markup: Whether a charset declared in HTML or XML counts.

    Raises:
        SkippedDocument: The bytes are no text; the message says what they are.
        DocumentError: They may be text, and no charset fits.
    """
    refuse_binary(data[:_HEAD])
    mark, charset = next(((mark, charset) for mark, charset in _BOMS if data.startswith(mark)), (b"", ""))
    if mark:
        damaged = _damaged_utf8(data, declared=True) if charset == "utf-8" else None
        return damaged or _decoded(_strict(data.removeprefix(mark), charset, len(mark)), charset)
    charset = _utf16_without_mark(data) or ("iso2022_jp" if _ISO_2022_JP.search(data) else "utf-8")
    try:
        return _decoded(data.decode(charset), charset)
    except UnicodeDecodeError as error:
        bad = error.start
    refuse_binary(data)
    declared = _declared(data) if markup else ""
    damaged = _damaged_utf8(data, declared == "utf-8")
    if damaged is not None:
        return damaged
    found = _fitting(data, declared) or _guess(data)
    if found is None:
        raise DocumentError(
            f"not UTF-8 (byte 0x{data[bad]:02x} at offset {bad}) and no other charset gives plausible text: "
            "convert the file to UTF-8"
        )
    return _decoded(*found)


def refuse_binary(head: bytes) -> None:
    """Raise ``SkippedDocument`` if these first bytes of a file are not those of text."""
    for offset, signature, kind in _SIGNATURES:
        if head.startswith(signature, offset) and not (signature.isalnum() and _reads_on(head)):
            raise SkippedDocument(f"binary data ({kind})")
    if head.startswith(tuple(mark for mark, _ in _BOMS)) or _utf16_without_mark(head):
        return
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if b"\0" in head or controls > max(1, _CONTROL_SHARE * len(head)):
        raise SkippedDocument("binary data (control bytes that text does not have)")


def byte_order_mark(head: bytes) -> str:
    """Name of the charset whose byte order mark the file begins with; "" if there is none."""
    return next((charset for mark, charset in _BOMS if head.startswith(mark)), "")


def _reads_on(head: bytes) -> bool:
    """Whether a signature of letters only ("BZh", "MZ", "RIFF") merely begins a text."""
    return not head.translate(None, bytes(range(32, 127)) + b"\t\n\r")


def _decoded(text: str, charset: str) -> Decoded:
    controls = len(re.findall("[\x00-\x07\x0e-\x1a\x1c-\x1f]", text))
    if "\0" in text or controls > max(1, _CONTROL_SHARE * len(text)):
        raise SkippedDocument("binary data (control characters that text does not have)")
    return Decoded(text, charset, () if charset == "utf-8" else (f"decoded as {charset}",))


def _strict(data: bytes, charset: str, offset: int) -> str:
    try:
        return data.decode(charset)
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"begins with the byte order mark of {charset}, but byte 0x{data[error.start]:02x} at offset "
            f"{offset + error.start} does not fit it"
        ) from error


def _utf16_without_mark(data: bytes) -> str:
    """UTF-16 text of a Western language has a NUL in every second byte, and nearly none elsewhere."""
    head = data[:_HEAD]
    half = len(head) // 2
    even, odd = head[::2].count(0), head[1::2].count(0)
    if len(data) % 2 or half < 2 or max(even, odd) < 0.4 * half or min(even, odd) > 0.02 * half:
        return ""
    return "utf-16-be" if even > odd else "utf-16-le"


def _damaged_utf8(data: bytes, declared: bool) -> Decoded | None:
    """UTF-8 of which little is broken, such as a byte of another charset or a character that was cut at the end.

    None if nothing is broken, or so much that the text is in another charset.
    """
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        first, cut = error.start, error.reason == "unexpected end of data"
    else:
        return None
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
    valid = sum(len(run) for run in re.findall("[^\x00-\x7f]+", text)) - broken
    lone = len(data) - first == 1  # that may be the last letter of a Western text
    if valid < (1 if declared else _MANY) * broken and not (cut and (valid or declared or not lone)):
        return None
    which = "1 place is" if broken == 1 else f"{broken} places are"
    warning = f"{which} not UTF-8, the first at byte {first}: read as U+FFFD"
    return _decoded(text.removeprefix("\ufeff"), "utf-8")._replace(warnings=(warning,))


def _declared(data: bytes) -> str:
    """The charset that the page names, "" if it is none."""
    match = _DECLARED.search(data[:_HEAD])
    return codec_of(match[1].decode("ascii", "replace")) if match else ""


def _fitting(data: bytes, charset: str) -> tuple[str, str] | None:
    text = _text(data, charset)
    return (text, charset) if text and _plausible(text) else None


def _guess(data: bytes) -> tuple[str, str] | None:
    """The likeliest charset. Statistics are unreliable on short texts, so alphabets and Western accents come first."""
    latin = latin_charset(data)
    text = _text(data, latin)
    if text and _looks_western(text):
        return text, latin
    charset = cyrillic_charset(data) or _rival(data) or latin
    if charset == "cp1251" and not re.search(rb"[\xc0-\xdf\xfb-\xff]", data):
        charset = "cp1255"  # Cyrillic without a capital and without soft signs and vowels is Hebrew
    charset = latin if charset in _LATIN else charset
    text = _text(data, charset)
    if text and _plausible(text) and not (charset in _LATIN and _symbol_within_word(text)):
        return text, charset
    return None


def _rival(data: bytes) -> str:
    """The charset in which the letters are most like those of a language; "" if none is."""
    sample = data[: 1 << 20]
    high = len(sample) - len(sample.translate(None, bytes(range(128, 256))))
    letters = high + sum(map(sample.count, (bytes([code]) for code in b"etaoinsrhldcumfpgwybvkxjqzETAOINSRHLDCUM")))
    candidates = [name for name in _CANDIDATES if name not in _LATIN or high <= 0.5 * letters]
    best = charset_normalizer.from_bytes(sample, cp_isolation=candidates, preemptive_behaviour=False).best()
    return best.could_be_from_charset[0] if best else ""


def _text(data: bytes, charset: str) -> str:
    try:
        return data.decode(charset) if charset else ""
    except UnicodeDecodeError:
        return ""


def _looks_western(text: str) -> bool:
    """Whether accents stand where Western languages have them: in words of ASCII letters, in the words' case."""
    if _symbol_within_word(text):
        return False
    letters = accented = 0
    for word in re.findall(r"[^\W\d_]+", text):
        if not (word.isascii() or word.islower() or word.isupper() or word[1:].islower()):
            return False
        letters += len(word)
        accented += sum(character > "\x7f" for character in word)
    return accented <= 0.34 * letters


def _symbol_within_word(text: str) -> bool:
    """Whether a symbol stands between two letters: its byte is a letter in another charset."""
    return any(
        not match[0].isalpha()
        and text[match.start() - 1 : match.start()].isalpha()
        and text[match.end() : match.end() + 1].isalpha()
        for match in re.finditer(r"[^\x00-\x7f’‘´–—·…“”«»\xa0\xad]", text)
    )


def _plausible(text: str) -> bool:
    """Whether hardly a character is unassigned, for private use, or a control."""
    sample = text[:20_000].translate(dict.fromkeys(map(ord, "\n\r\t\f")))
    odd = sum(unicodedata.category(character) in {"Cn", "Co", "Cs", "Cc"} for character in sample)
    return odd <= _CONTROL_SHARE * len(sample)
