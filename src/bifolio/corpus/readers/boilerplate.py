"""What of an HTML page is not content: navigation, banners, side bars, controls, lists of links.

Everything is decided in one pass over the tree that does not recurse, so that depth does not matter.
"""

from __future__ import annotations

import enum
import re
from typing import Any, NamedTuple

_INVISIBLE_TAGS = frozenset(
    "script style template noscript head title meta link iframe object embed svg canvas audio video map "
    "button input select option datalist textarea rp".split()
)
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_BOILERPLATE_TAGS = frozenset({"nav", "footer", "aside", "menu", "dialog"})
_BOILERPLATE_ROLES = frozenset(
    "navigation banner contentinfo complementary search menu menubar toolbar dialog alertdialog tablist".split()
)
_SECTIONS = frozenset({"main", "article", "section"})
_NOTES = re.compile(
    r"\b(?:foot|end)?notes?\b|admonition|callout|\btip\b|warning|caution|important|starlight-aside", re.I
)
_PLACES = re.compile(  # class names, or parts of them between hyphens and underscores, that content has too
    r"""(?:^|[\s_-])(?:
        nav | navbar | navigation | navlinks? | menu | submenu | sidebar\w* | footer | masthead | toc | tableofcontents
    )(?=$|[\s_-])""",
    re.VERBOSE | re.IGNORECASE,
)
_NAMES = re.compile(
    r"""(?:^|[\s_-])(?:
        navheader | navfooter | navbox\w* | sphinxsidebar\w* | breadcrumbs? | crumbs? | cookies? | consent | gdpr
      | related | recommended | share | sharing | social | newsletter | subscribe
      | promo | adverts? | advertisement | ads | sponsored | banner | popup | modal | pager | pagination | paginator
      | skip-?(?:link|nav|to)\w* | headerlink | permalink | anchorjs-link | hash-link | viewcode-(?:link|back)
      | editsection | mw-jump-link | catlinks | printfooter | noprint | copybtn | copybutton
      | sr-only | screen-reader-text | visually-?hidden
    )(?=$|[\s_-])""",
    re.VERBOSE | re.IGNORECASE,
)
_CONTENT = re.compile(  # classes of Sphinx, DocBook, Pandoc and Asciidoctor
    r"(?:^|\s)(?:body|article|chapter|preface|appendix|glossary|bibliography|refentry|(?:ref)?sect(?:ion|[1-6])?|level[1-6])"
    r"(?=$|\s)"
)
_TAB_PANEL = re.compile(r"(?:^|[\s_-])tab-?(?:pane|panel|content)s?(?=$|[\s_-])", re.IGNORECASE)
_QUOTES = frozenset({"blockquote", "figure"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_IDS = re.compile(  # whole ids only, since an id is often made from the words of a heading
    r"(?:main-?|top-?|left-?|right-?|site-?|page-?)?(?:nav|navbar|navigation|menu|sidebar|footer)"
    r"|breadcrumbs?|toc|table-of-contents|catlinks|siteSub|cookie-?(?:banner|notice|consent)",
    re.IGNORECASE,
)
_WITH_IDS = frozenset({"div", "ul", "ol", "table"})
_NO_CONTAINER = frozenset(
    {"html", "body", "main", "article", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "code", "tr", "td", "th"}
)
_LISTS = frozenset({"div", "ul", "ol", "dl", "table", "section", "p"})
_MOST = 0.5  # an element with more of the text than this is no boilerplate, whatever its name
_LINK_SHARE = 0.75
_LEAST_LINKS = 4
_PERMALINKS = frozenset("¶ # § 🔗 ⚓ ∞".split())


class Level(enum.IntEnum):
    """How much is removed; each level includes those before it."""

    INVISIBLE = 0
    TAGS = 1
    NAMES = 2
    LINKS = 3


class _Size(NamedTuple):
    text: int
    linked: int
    links: int


class Page:
    """A parsed page and, for each of its elements, the level from which on it is removed.

    Args:
        root: lxml's root element.
    """

    def __init__(self, root: Any) -> None:
        self.body = next(root.iter("body"), root)
        _write_formulas(self.body)
        self._sizes: dict[Any, _Size] = {}
        self._levels: dict[Any, Level] = {}
        self._mains: list[Any] = []
        self._measure()
        self._judge()

    @property
    def size(self) -> int:
        """Characters of visible text, white space aside."""
        return self._sizes[self.body].text if self.body in self._sizes else 0

    def dropped(self, level: Level) -> frozenset[Any]:
        """Elements that are removed at ``level``."""
        return frozenset(element for element, own in self._levels.items() if own <= level)

    def main(self) -> Any:
        """The element that says it is the main content: the largest <main>, else what holds the articles; or None."""
        explicit = [element for element in self._mains if element.tag != "article"]
        if explicit:
            return max(explicit, key=lambda element: self._sizes[element].text)
        common: Any = None
        for article in self._mains:
            size = self._sizes[article]
            if size.linked >= _LINK_SHARE * size.text:  # a teaser
                continue
            if common is None:
                common = article
                lineage = {common, *common.iterancestors()}
            elif common not in (inside := [article, *article.iterancestors()]):
                common = next(element for element in inside if element in lineage)
        return None if common is self.body else common

    def _measure(self) -> None:
        """Text, linked text and links of each visible element, in post-order."""
        totals: list[list[int]] = []
        inside = links = 0
        for event, element in _walk(self.body):
            tag = element.tag
            if not isinstance(tag, str):
                if totals and not inside:  # the text after a comment
                    _add(totals[-1], element.tail, links)
                continue
            if event == "start":
                hidden = tag in _INVISIBLE_TAGS or _is_hidden(element)
                inside += hidden
                links += tag == "a"
                if hidden:
                    self._levels[element] = Level.INVISIBLE
                totals.append([0, 0, int(tag == "a")])
                if not inside:
                    _add(totals[-1], element.text, links)
                continue
            own = totals.pop()
            inside -= self._levels.get(element) is Level.INVISIBLE
            links -= tag == "a"
            self._sizes[element] = _Size(*own)
            if totals:
                for index in range(3):
                    totals[-1][index] += own[index]
                if not inside:
                    _add(totals[-1], element.tail, links)

    def _judge(self) -> None:
        """The level of each element, knowing where it stands."""
        sections = contents = 0
        for event, element in _walk(self.body):
            if element not in self._sizes:
                continue
            step = (event == "start") - (event == "end")
            is_main = element.tag in {"main", "article"} or element.get("role") == "main"
            inside = bool(contents)
            sections += step if element.tag in _SECTIONS else 0
            contents += step if is_main or _CONTENT.search(element.get("class", "")) else 0
            if event == "end" or element in self._levels:
                continue
            if is_main:
                self._mains.append(element)
            elif element is not self.body:
                level = self._level(element, bool(sections), inside)
                if level is not None:
                    self._levels[element] = level

    def _level(self, element: Any, in_section: bool, in_content: bool) -> Level | None:
        size = self._sizes[element]
        names = element.get("class", "")
        role = element.get("role", "").strip().lower()
        is_aside = element.tag == "aside" or role == "complementary"
        is_prose = size.text > 2 * size.linked and not _NAMES.search(names)
        if is_aside and is_prose and in_content:
            return None
        if role in _BOILERPLATE_ROLES or _is_permalink(element):
            return Level.TAGS
        if element.tag in _BOILERPLATE_TAGS:
            is_note = role == "note" or role.startswith("doc-") or bool(_NOTES.search(names))
            is_source = element.tag == "footer" and element.getparent().tag in _QUOTES
            return None if is_note or is_source else Level.TAGS
        if element.tag == "header" and not in_section:
            has_title = size.links < _LEAST_LINKS and next(element.iter("h1", "h2"), None) is not None
            return None if has_title else Level.TAGS
        if element.tag in _NO_CONTAINER or size.text > _MOST * self.size:
            return None
        if _NAMES.search(names):
            return Level.NAMES
        if _PLACES.search(names) or (element.tag in _WITH_IDS and _IDS.fullmatch(element.get("id", ""))):
            return None if is_prose and (in_content or _is_section(element)) else Level.NAMES
        if in_content or _CONTENT.search(names):
            return None
        linked = size.linked >= _LINK_SHARE * size.text and size.links >= _LEAST_LINKS
        return Level.LINKS if linked and element.tag in _LISTS else None


def _walk(body: Any) -> Any:
    from lxml import etree

    return etree.iterwalk(body, events=("start", "end", "comment"))


def _add(total: list[int], text: str | None, linked: int) -> None:
    count = len("".join(text.split())) if text else 0
    total[0] += count
    total[1] += count if linked else 0


def _is_hidden(element: Any) -> bool:
    """Whether no reader gets to see an element: not so the panel of a tab, and text that is found by searching."""
    names = element.get("class", "")
    if element.get("role") == "tabpanel" or _TAB_PANEL.search(names) or "mwe-math" in names:
        return False
    if "katex-html" in names.split():  # the formula again, unless it stands alone
        twin = element.getprevious()
        return twin is not None and next(twin.iter("math"), None) is not None
    return (
        element.get("hidden", "until-found").lower() != "until-found"
        or element.get("aria-hidden", "").lower() == "true"
        or bool(_HIDDEN_STYLE.search(element.get("style", "")))
    )


def _is_section(element: Any) -> bool:
    """Whether a section begins here: with a heading, and with a class or an id that sections have."""
    for inner in element.iter():
        if inner.tag in _HEADINGS:
            slug = re.sub(r"\W+", "-", "".join(inner.itertext()).lower()).strip("-")
            is_named = element.get("id", "").lower().replace("_", "-") == slug
            return element.tag == "section" or is_named or bool(_CONTENT.search(element.get("class", "")))
        if isinstance(inner.tag, str) and (inner.text or "").strip():
            return False
    return False


def _write_formulas(body: Any) -> None:
    """One copy of each formula: its TeX source if it has one, otherwise what is visible."""
    for formula in list(body.iter("math")):
        sources = [note.text for note in formula.iter("annotation") if "tex" in note.get("encoding", "").lower()]
        source = " ".join((next(filter(None, sources), "") or formula.get("alttext", "")).split())
        if source:
            lines = sum(text.count("\n") for text in formula.itertext())
            for child in list(formula):
                formula.remove(child)
            formula.text = "\n" * lines + source
        else:
            for note in list(formula.iter("annotation", "annotation-xml")):
                note.text = None
                note[:] = []


def _is_permalink(element: Any) -> bool:
    """A link from a heading to itself, which shows on hovering."""
    return element.tag == "a" and not len(element) and (element.text or "").strip() in _PERMALINKS
