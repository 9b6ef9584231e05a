"""HTML: the main content as lines of text, each with its line in the source.

``boilerplate`` decides what is not content; this file parses, and ``layout`` writes the text.
"""

from __future__ import annotations

import re
from typing import Any

from bifolio.corpus.charset import decode
from bifolio.corpus.cleaning import clean
from bifolio.corpus.readers.boilerplate import Level, Page
from bifolio.corpus.readers.layout import Rendered, render
from bifolio.errors import MissingExtraError
from bifolio.types import Document

_PROLOGUE = re.compile(r"\s*<\?xml[^>]*\?>|<!doctype[^>\[]*\[.*?\]\s*>", re.IGNORECASE | re.DOTALL)
_MAIN_SHARE = 0.5  # of the body without its boilerplate
_LEAST_SHARE = 0.2  # of the body with it: below that, what was removed was the content
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
    source = _PROLOGUE.sub(_blank, clean(decoded.text), count=2)
    root, too_deep = _parse(source)
    if too_deep:
        root, _ = _parse(_NESTING.sub(_blank, source))
    rendered, title = Rendered(), ""
    if root is not None:
        rendered = _main_content(Page(root))
        title = _title(root)
    if not title:
        title = next((heading.title for heading in rendered.headings if heading.level == 1), "")
    return Document(
        text=rendered.text,
        title=title,
        media_type="text/html",
        headings=rendered.headings,
        marks=rendered.marks,
        warnings=(*decoded.warnings, *((_TOO_DEEP,) if too_deep else ())),
    )


def _blank(match: re.Match[str]) -> str:
    """As many lines without anything on them."""
    return " " + "\n" * match[0].count("\n")


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
            return " ".join((title.text or "").split())
    return ""
