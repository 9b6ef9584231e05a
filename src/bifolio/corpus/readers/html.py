"""HTML: the main content as lines of text, each with its line in the source.

``boilerplate`` decides what is not content; this file parses, and ``layout`` writes the text.
"""

from __future__ import annotations

import re
from typing import Any

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean, without_controls
from bifolio.corpus.readers.boilerplate import Level, Page
from bifolio.corpus.readers.layout import Rendered, render
from bifolio.errors import MissingExtraError
from bifolio.types import Document

_PROLOGUE = re.compile(
    r"\s+|<!--.*?-->|(?P<declaration><\?[^>]*>)|(?P<subset><!doctype[^>\[]*\[.*?\]\s*>)", re.IGNORECASE | re.DOTALL
)
_MAIN_SHARE = 0.5  # of the body without its boilerplate
_LEAST_SHARE = 0.2  # of the body with it: below that, what was removed was the content
_FEW = 0.5  # of the page: less is worth a warning
_NESTING = re.compile(r"</?(?!(?:h[1-6]|p|br|pre|script|style|title|head|body|html|!)\b)[a-z][^<>]*>", re.IGNORECASE)
_TOO_DEEP = "HTML nested too deeply: read without its structure"


def read_html(data: bytes) -> Document:
    """Read the main content of an HTML or XHTML page. Nothing is fetched, and no entity but HTML's own is expanded.

    Raises:
        SkippedDocument: The bytes are no text.
        DocumentError: No charset fits.
        MissingExtraError: lxml is not installed.
    """
    decoded = decode(data, markup=True)
    source = _without_declarations(clean(decoded.text))
    root, too_deep = _parse(source)
    if too_deep:
        root, _ = _parse(_NESTING.sub(_blank, source))
    rendered, title = Rendered(), ""
    warnings = [*decoded.warnings, *((_TOO_DEEP,) if too_deep else ())]
    if root is not None:
        page = Page(root)
        rendered = _main_content(page)
        title = _title(root)
        if rendered.size < _FEW * page.size:
            share = 100 * (1 - rendered.size / page.size)
            warnings.append(f"{share:.0f} % of the page's text was taken for navigation")
    if not title:
        title = next((heading.title for heading in rendered.headings if heading.level == 1), "")
    return Document(
        text=rendered.text,
        title=title,
        media_type="text/html",
        headings=rendered.headings,
        marks=rendered.marks,
        warnings=tuple(warnings),
    )


def _blank(match: re.Match[str]) -> str:
    """As many lines without anything on them."""
    return " " + "\n" * match[0].count("\n")


def _without_declarations(source: str) -> str:
    """The page with blanks for what XML has before the root element and HTML does not."""
    parts, position = [], 0
    while match := _PROLOGUE.match(source, position):
        parts.append(_blank(match) if match.lastgroup else match[0])
        position = match.end()
    return "".join((*parts, source[position:]))


def _parse(source: str) -> tuple[Any, bool]:
    """The root element (None for a page without any), and whether libxml2 gave up at a depth."""
    try:
        from lxml import etree
    except ImportError as error:
        raise MissingExtraError("lxml", "docs", "reading HTML") from error
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, no_network=True, remove_pis=True)
    try:
        root = etree.fromstring(source.encode("utf-8"), parser)
    except etree.XMLSyntaxError:
        root = None
    return root, any("depth" in entry.message.lower() for entry in parser.error_log)


def _main_content(page: Page) -> Rendered:
    """The text at the strictest level of removal that does not lose the content."""
    strict = render(page.body, page.dropped(Level.LINKS))
    main = page.main()
    if main is not None:
        inner = render(main, page.dropped(Level.NAMES))
        if inner.size and inner.size >= _MAIN_SHARE * strict.size:
            return inner
    for level in (Level.LINKS, Level.NAMES, Level.TAGS):
        text = strict if level is Level.LINKS else render(page.body, page.dropped(level))
        if text.size and text.size >= _LEAST_SHARE * page.size:
            return text
    return render(page.body, page.dropped(Level.INVISIBLE))


def _title(root: Any) -> str:
    for title in root.iter("title"):
        parent = title.getparent()
        if parent is None or parent.tag in {"head", "html", "body"}:  # not the title of an SVG drawing
            return " ".join(without_controls(title.text or "").split())
    return ""
