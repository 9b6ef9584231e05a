"""Names of charsets as pages declare them: those of the WHATWG Encoding Standard, and no other codec of Python."""

from __future__ import annotations

import codecs

_ISO = (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)
_CODECS = {  # Python's name of a codec -> the one to decode with: browsers take a larger charset of the same family
    **{f"iso8859-{part}": f"iso-8859-{part}" for part in _ISO},
    **{f"cp{page}": f"cp{page}" for page in (866, 932, 949, *range(1250, 1259))},
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    "iso8859-9": "cp1254",
    **dict.fromkeys(("cp874", "iso8859-11", "tis-620"), "cp874"),
    **dict.fromkeys(("koi8-r", "koi8_r"), "koi8_r"),
    **dict.fromkeys(("koi8-u", "koi8_u"), "koi8_u"),
    **dict.fromkeys(("mac-roman", "mac_roman"), "mac_roman"),
    **dict.fromkeys(("mac-cyrillic", "mac_cyrillic"), "mac_cyrillic"),
    **dict.fromkeys(("gb2312", "gbk", "gb18030"), "gb18030"),
    **dict.fromkeys(("big5", "big5hkscs"), "big5hkscs"),
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "euc_jp": "euc_jp",
    "iso2022_jp": "iso2022_jp",
    "utf-8": "utf-8",
}
_UNKNOWN_TO_PYTHON = {
    **dict.fromkeys(("iso-8859-6-e", "iso-8859-6-i", "csiso88596e", "csiso88596i"), "iso-8859-6"),
    **dict.fromkeys(("iso-8859-8-e", "iso-8859-8-i", "csiso88598e", "csiso88598i", "logical", "visual"), "iso-8859-8"),
    **dict.fromkeys(("koi", "koi8"), "koi8_r"),
    "koi8-ru": "koi8_u",
    **dict.fromkeys(("mac", "csmacintosh", "x-mac-roman"), "mac_roman"),
    **dict.fromkeys(("x-mac-cyrillic", "x-mac-ukrainian"), "mac_cyrillic"),
    **dict.fromkeys(("dos-874", "windows-874"), "cp874"),
    "iso88591": "cp1252",
    "iso88592": "iso-8859-2",
    "csisolatin9": "iso-8859-15",
    "sun_eu_greek": "iso-8859-7",
    **dict.fromkeys(("csgb2312", "gb_2312", "gb_2312-80", "x-gbk"), "gb18030"),
    **dict.fromkeys(("cn-big5", "x-x-big5"), "big5hkscs"),
    **dict.fromkeys(("cseucpkdfmtjapanese", "x-euc-jp"), "euc_jp"),
    **dict.fromkeys(("windows-31j", "x-sjis"), "cp932"),
    **dict.fromkeys(("cseuckr", "csksc56011987", "iso-ir-149", "ks_c_5601-1989", "ksc_5601", "windows-949"), "cp949"),
    **dict.fromkeys(("unicode-1-1-utf-8", "unicode11utf8", "x-unicode20utf8"), "utf-8"),
}


def codec_of(label: str) -> str:
    """Python's name of the codec for a declared charset; "" if it is none that the web knows."""
    label = label.strip().lower()
    if label in _UNKNOWN_TO_PYTHON:
        return _UNKNOWN_TO_PYTHON[label]
    try:
        return _CODECS.get(codecs.lookup(label.removeprefix("x-")).name, "")
    except (LookupError, ValueError):
        return ""
