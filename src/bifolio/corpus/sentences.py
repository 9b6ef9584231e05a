"""Where sentences and clauses end, judged from a word and the beginning of the next one."""

from __future__ import annotations

import re

_CLOSERS = "\"'”’»)]}›*_`"
_OPENERS = "\"'“‘„«‹([{¿¡*_`#—–-"
_ENDERS = ".!?…。！？‼⁇⁈⁉؟۔।॥።"
_CLAUSE_MARKS = frozenset(",;:，；：、،؛—–")
_NEVER_LAST = frozenset(  # something always follows: a name, a number, an example
    "dr mr mrs ms mx prof rev fr sr. st gen col maj capt lt sgt cmdr adm gov sen rep hon pres messrs mme mlle "
    "e.g i.e cf vs v viz approx ca c resp incl excl esp cp z.b d.h u.a bzw vgl p.ex hr fr herr".split()
)
_BEFORE_NUMBERS = frozenset(
    "no nos nr fig figs eq eqs sec secs sect ch chap vol vols art p pp pg para ex tab par ver v §".split()
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")  # J. and U.S. and i.e.


def ends_sentence(word: str, following: str) -> bool:
    """Whether ``word`` ends a sentence when ``following`` is how the next word begins."""
    core = word.rstrip(_CLOSERS)
    if not core or core[-1] not in _ENDERS:
        return False
    begin = following.lstrip(_OPENERS)[:1]
    if begin.islower():
        return False
    if core[-1] != ".":
        return True
    if core.endswith(("...", "?.", "!.")):
        return True
    bare = core.lstrip(_OPENERS)
    stem = bare[:-1].lower()
    if stem in _NEVER_LAST or (stem in _BEFORE_NUMBERS and (begin.isdigit() or begin in {"", "§"})):
        return False
    return not _INITIALS.fullmatch(bare)


def ends_clause(word: str) -> bool:
    """Whether a long sentence can be divided after ``word``."""
    return word.rstrip(_CLOSERS)[-1:] in _CLAUSE_MARKS
