"""Which single-byte charset fits a text in Latin or Cyrillic script, from the letters of languages.

General statistics take the charsets of a family for one another, above all in short texts: they differ in few letters.
"""

from __future__ import annotations

import re

_ALPHABETS = {  # the letters beyond ASCII of the languages of each charset, the likeliest charset first
    "cp1252": (
        *("àâæçéèêëîïôœùûüÿ", "äöüßé", "áéíñóúüçàèòï", "áâãàçéêíóôõú", "àèéìîòù", "åäöæøéüàô"),
        *("áðéíóúýþæöø", "äöõüšž", "ëïéèöüó"),
    ),
    "cp1250": ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "čćđšž", "ăâîşţ", "çë"),
    "iso8859_2": ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "čćđšž", "ăâîşţ"),
    "cp1254": ("çğıöşüâîû",),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūž"),
}
_NO_LETTERS = re.compile("[\x00-\x7f’‘“”„‚–—…«»‹›·•°§©®™€\xa0\xad]+")
_LEAST_LETTERS = 4
_LEAST_DIFFERENT = 3  # below these two, Western accents are likelier than any others
_CLEARLY = 0.05
_CYRILLIC = ("cp1251", "koi8_r", "koi8_u", "iso8859_5")
_FREQUENT = "оеаинтсрвлі"  # two thirds of the letters of a Slavic text
_FREQUENT_SHARE = 0.5
_MIXED_WORD = re.compile(r"[a-zA-Z][^\x00-\x7f\W]|[^\x00-\x7f\W][a-zA-Z]")
_SAMPLE = 1 << 18


def latin_charset(data: bytes) -> str:
    """The charset in which one language's alphabet has most of the letters; "cp1252" if none is clearly better."""
    best, found = 0.0, "cp1252"
    for charset, alphabets in _ALPHABETS.items():
        try:
            text = data[:_SAMPLE].decode(charset)
        except UnicodeDecodeError:
            continue
        letters = _NO_LETTERS.sub("", text).lower()
        known, different = max(
            (sum(map(letters.count, alphabet)), len(set(alphabet) & set(letters))) for alphabet in alphabets
        )
        share = known / max(1, len(letters))
        if charset == "cp1252":
            best = share + _CLEARLY
        elif known >= _LEAST_LETTERS and different >= _LEAST_DIFFERENT and share > best:
            best, found = share, charset
    return found


def cyrillic_charset(data: bytes) -> str:
    """The charset in which the text is mostly of the frequent small letters of Slavic languages; "" if none is."""
    best, found = _FREQUENT_SHARE, ""
    for charset in _CYRILLIC:
        text = data[:_SAMPLE].decode(charset, "replace")
        letters = _NO_LETTERS.sub("", text)
        if len(_MIXED_WORD.findall(text)) > 0.05 * len(letters):
            continue
        share = sum(map(letters.count, _FREQUENT)) / max(1, len(letters))
        if share > best:
            best, found = share, charset
    return found
