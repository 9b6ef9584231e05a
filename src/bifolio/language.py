"""Is a question in a language that a model is known to handle? A guess that only ever leads to a warning.

A language identifier of any quality is a model of megabytes. Here the script decides first, and among languages in
Latin letters their commonest function words; a question with too little to go by passes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_WORDS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")

_FUNCTION_WORDS: dict[str, frozenset[str]] = {
    "en": frozenset(
        "the of and to in is was for on that by with are what which who whom whose when where why how does did do it "
        "from at as an be this have has can not or many much".split()
    ),
    "de": frozenset(
        "der die das und ist nicht ein eine einen einem einer den dem des von mit für auf wie was wer wo wann warum "
        "welche welcher welches wird werden wurde sich auch im zum zur wieviel".split()
    ),
    "fr": frozenset(
        "le la les des une est et du que qui quoi dans pour pas sur avec quand où comment pourquoi quel quelle quels "
        "quelles au aux ce cette sont combien se ne".split()
    ),
    "es": frozenset(
        "el la los las una es y que quién qué en por para con cuándo dónde cómo cuál cuáles del se no fue son cuántos "
        "cuánto al está".split()
    ),
    "it": frozenset(
        "il lo la gli le una è e che chi cosa di per con quando dove come quale quali del della dei nel sono si non "
        "perché quanti quanto".split()
    ),
    "pt": frozenset(
        "o os as uma é e que quem em para por com quando onde como qual quais do da dos das não foi são se ao quantos "
        "quanto no na".split()
    ),
    "nl": frozenset(
        "de het een en is van wat wie waar wanneer hoe waarom welke niet met voor op zijn werd wordt dat die naar aan "
        "hoeveel".split()
    ),
}
_NAMES = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "nl": "Dutch",
}


def unfamiliar(question: str, languages: Sequence[str]) -> str | None:
    """Name of the language or script of a question that is in none of ``languages``; None if it may be in one.

    Nothing is said where ``languages`` is empty (unknown) or names a language that is not in the table here.
    """
    if not languages or any(language not in _FUNCTION_WORDS for language in languages):
        return None
    question = unicodedata.normalize("NFKC", question)  # half-width kana, mathematical letters
    letters = [character for character in question if character.isalpha()]
    foreign = [character for character in letters if not _is_latin(character)]
    if len(foreign) > len(letters) / 2:
        return f"{_script(foreign)} script"
    words = {word.lower() for word in _WORDS.findall(question)}
    hits = {language: len(words & known) for language, known in _FUNCTION_WORDS.items()}
    familiar = max(hits[language] for language in languages)
    best = max(hits, key=lambda language: hits[language])
    if hits[best] >= 2 and hits[best] >= familiar + 2:
        return _NAMES[best]
    return None


def _is_latin(character: str) -> bool:
    return character.isascii() or "LATIN" in unicodedata.name(character, "")


def _script(characters: Sequence[str]) -> str:
    name = unicodedata.name(characters[0], "unknown").split()[0]
    return "Chinese, Japanese or Korean" if name in {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"} else name.capitalize()
