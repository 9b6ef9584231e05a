"""What looks like boilerplate and is content, and the other way round."""

import pytest

from bifolio.corpus.readers.html import read_html

PROSE = "<p>" + "The content of the page is a sentence like this one. " * 12 + "</p>"
LINKS = "".join(f"<li><a href={n}>Entry {n}</a></li>" for n in range(6))


def read(page):
    return read_html(page.encode())


@pytest.mark.parametrize(
    "content",
    [
        "<div class='section' id='menu'><h2>Menu</h2><p>kept</p></div>",
        "<div id='navigation'><h2>Navigation</h2><p>kept</p></div>",
        "<div id='table_of_contents'><h2><a id='x'></a>Table of contents</h2>kept</div>",
        "<section class='sidebar'><h2>The side bar</h2><p>kept</p></section>",
        "<section id='footer' class='footer'><h3>Footer</h3><p>kept</p></section>",
        "<section class='toc'><h3>TOC</h3><p>kept</p></section>",
        "<div class='sect1'><div class='titlepage'></div><div class='sidebar'><p><b>A title</b></p>kept</div></div>",
        "<main><aside class='topic'><p>Topic</p>kept</aside></main>",
        "<main><aside class='sidebar'><p>Side</p>kept</aside></main>",
        "<article><div role='complementary'>kept</div></article>",
        "<div class='body'><aside>kept</aside></div>",
        "<div role='tablist'><button>One</button></div><div role='tabpanel' hidden>kept</div>",
        "<div class='tab-pane' style='display:none'>kept</div>",
        "<div hidden='until-found'>kept</div>",
        "<header><h2>kept</h2></header>",
        "<blockquote><p>Quoted</p><footer>kept</footer></blockquote>",
        "<figure>Shown<footer>kept</footer></figure>",
        f"<div class='sect2'><h3>See Also</h3><ul>{LINKS}<li><a href=9>kept</a></li></ul></div>",
        f"<div class='refsect1'><h2>Bibliography</h2><div><ul>{LINKS}<li><a href=9>kept</a></ul></div></div>",
    ],
)
@pytest.mark.parametrize("around", ["<body>{}</body>", "<main>{}</main>"])
def test_content_stays(content, around):
    found = read(around.format(PROSE + content + PROSE))
    assert "kept" in found.text
    assert found.warnings == ()


@pytest.mark.parametrize(
    "boilerplate",
    [
        "<aside>gone</aside>",
        "<div class='sidebar'><h3>About us</h3><p>gone</p></div>",
        "<div class='footer'>gone</div>",
        "<div id='toc'><h2>Contents</h2><ul><li><a href=1>gone</a></ul></div>",
        f"<section class='menu'><h2>Menu</h2><ul>{LINKS}<li><a href=9>gone</a></ul></section>",
        "<section class='newsletter'><h2>Subscribe</h2><p>gone</p></section>",
        "<div class='section related'><h2>More</h2><p>gone</p></div>",
        "<header><div>gone</div></header>",
        "<footer>gone</footer>",
        "<div aria-hidden='true'>gone</div>",
        f"<h2>Pages</h2><ul>{LINKS}<li><a href=9>gone</a></ul>",
    ],
)
def test_boilerplate_with_headings_goes(boilerplate):
    assert "gone" not in read(f"<body>{boilerplate}{PROSE}{boilerplate}</body>").text


def test_all_articles_are_the_content():
    page = (
        f"<div>site</div><div><article>{PROSE * 3}</article><article>{PROSE}<p>second</p></article>"
        "<article><a href=x>teaser</a></article></div><div>info</div>"
    )
    text = read(page).text
    assert text.startswith("The content") and "second" in text
    assert "site" not in text and "info" not in text


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("<math><mi>x</mi><mo>=</mo><mn>1</mn></math>", "x=1"),
        ("<math alttext='x=1'><mi>x</mi><mo>=</mo><mn>1</mn></math>", "x=1"),
        (
            "<math><semantics><mi>&#x3b1;</mi><annotation encoding='application/x-tex'>\\alpha</annotation>"
            "</semantics></math>",
            "\\alpha",
        ),
        (
            "<math><semantics><mi>y</mi><annotation-xml encoding='MathML-Content'><ci>y</ci></annotation-xml>"
            "</semantics></math>",
            "y",
        ),
        (
            "<span class='katex'><span class='katex-mathml'><math><semantics><mi>&#x3b1;</mi>"
            "<annotation encoding='application/x-tex'>\\alpha</annotation></semantics></math></span>"
            "<span class='katex-html' aria-hidden='true'>&#x3b1;</span></span>",
            "\\alpha",
        ),
        ("<span class='katex'><span class='katex-html' aria-hidden='true'>&#x3b1;</span></span>", "α"),
        (
            "<span class='mwe-math-element'><span class='mwe-math-mathml-a11y' style='display: none;'>"
            "<math alttext='{\\displaystyle x}'><mi>x</mi></math></span><img aria-hidden='true' alt='x'></span>",
            "{\\displaystyle x}",
        ),
    ],
)
def test_a_formula_is_read_once(formula, text):
    assert read(f"<p>before {formula} after</p>").text == f"before {text} after"


def test_lines_after_a_formula():
    found = read("<p>a\n<math alttext='x'>\n<mi>x</mi>\n</math>\nb</p>")
    assert found.text == "a x b"
    assert [mark.line for mark in found.marks if found.text[mark.start] == "b"] == [5]


def test_a_page_of_which_little_is_kept_says_so():
    page = f"<nav>{'navigation ' * 90}</nav><main><p>{'content ' * 50}</p></main>"
    found = read(page)
    assert found.text == ("content " * 50).strip()
    assert found.warnings == ("72 % of the page's text was taken for navigation",)
    assert read(f"<nav>{'navigation ' * 9}</nav><main><p>{'content ' * 50}</p></main>").warnings == ()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        "<span class='katex-html' aria-hidden='true'>x</span>",
        "<article>x y z</article>",
        "<div class='sidebar'><b></b><i></i></div>",
        "<math><annotation>",
        "<aside><h2>",
    ],
)
def test_hostile_pages_are_read_in_time(piece):
    assert isinstance(read(piece * 20_000).text, str)
