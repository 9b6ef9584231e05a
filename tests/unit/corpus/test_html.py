import html
import re

import pytest

from bifolio.corpus.readers.html import read_html

PROSE = "<p>" + "The content of the page is a sentence like this one. " * 12 + "</p>"


def read(page):
    return read_html(page.encode() if isinstance(page, str) else page)


def lines(page):
    """Text without its blank lines."""
    return [line for line in read(page).text.split("\n") if line]


def test_blocks_lists_tables_and_breaks_become_lines():
    assert lines("<p>one\n  <b>bold</b>\nx</p><div>two</div>three<br>four") == ["one bold x", "two", "three", "four"]
    assert lines("<ul><li>one<ul><li>two</li></ul></li><li></li><li><p>three</p></li></ul>") == [
        "- one",
        "- two",
        "- three",
    ]
    assert lines("<dl><dt>Term</dt><dd>Meaning</dd></dl>") == ["Term", "Meaning"]
    assert lines(
        "<table><caption>Sizes</caption><tr><th>Name</th><th>Size</th><th>Note</th></tr>"
        "<tr><td>a<br>b</td><td></td><td><p>x</p><p>y</p></td></tr></table>after"
    ) == ["Sizes", "Name | Size | Note", "a b | | x y", "after"]


def test_paragraphs_are_apart_and_lines_of_a_list_together():
    assert read("<p>a</p><p>b</p><ul><li>c<li>d</ul><p>e").text == "a\n\nb\n\n- c\n- d\n\ne"


def test_layout_tables_are_blocks():
    page = (
        "<table><tr><td><h2>Left</h2><p>text</p></td><td><table><tr><td>a</td><td>b</td></tr></table></td></tr></table>"
    )
    assert lines(page) == ["Left", "text", "a | b"]


def test_code_keeps_its_lines_and_indentation():
    assert read("<p>x</p><pre>\ndef f():\n    <b>return</b>  1\n\n\nend  </pre>y").text == (
        "x\n\ndef f():\n    return  1\n\n\nend\n\ny"
    )


def test_entities_spaces_and_soft_hyphens():
    assert read("<p>caf&eacute;&nbsp;&amp; &#8364; exam&shy;ple &lt;b&gt;</p>").text == "café & € example <b>"


def test_headings_and_title():
    found = read("<title> The \n page </title><h1>One <em>two</em><a class='headerlink' href='#x'>¶</a></h1><p>t</p>"
                 "<h2> </h2><h3>Three<br>four</h3>")  # fmt: skip
    assert found.title == "The page"
    assert [(h.level, h.title) for h in found.headings] == [(1, "One two"), (3, "Three four")]
    assert all(found.text.startswith(h.title, h.start) for h in found.headings)
    assert "¶" not in found.text
    assert read("<svg><title>logo</title></svg><h1>First</h1>text").title == "First"


def test_marks_are_lines_of_the_source():
    page = (
        "<html>\n<body>\n<p\n  class='a'\n>first\nsecond <!-- c\n\n --> third</p>\n\n"
        "<pre>\ncode\n\nmore</pre><div>\n last</div>"
    )
    found = read(page)
    source = page.split("\n")
    assert len(found.marks) >= 6
    for mark in found.marks:
        word = re.match(r"\w+", found.text[mark.start :])[0]
        assert word in source[mark.line - 1], (mark, word)
    assert [m.start for m in found.marks] == sorted(m.start for m in found.marks)


@pytest.mark.parametrize(
    "between", ["<nav\n class='x'\n>gone\n<b\n>gone</b>\n</nav>", "<!--\n--><script\n\n>a\n</script>"]
)
def test_lines_after_what_is_left_out(between):
    found = read(f"<body>\n<p>first</p>\n<div>\n{between} tail\n second</div></body>")
    line = 4 + between.count("\n")
    assert [(mark.line, found.text[mark.start :].split()[0]) for mark in found.marks] == [
        (2, "first"),
        (line, "tail"),
        (line + 1, "second"),
    ]


def test_controls_from_entities_are_cleaned():
    found = read(
        "<title>a&#27;b&#1;&#11;c</title><h1>x&#27;y&#12;z</h1><p>one&#1;two&#11;three&#13;four</p><pre>a&#8;b</pre>"
    )
    assert (found.title, found.text) == ("ab c", "xy z\n\nonetwo three four\n\nab")
    assert found.headings[0].title == "xy z"


def test_marks_go_on_beyond_what_libxml2_counts():
    found = read("<p>x</p>\n" * 65_600 + "<p>last</p>")
    assert (found.marks[-1].line, found.text[found.marks[-1].start :]) == (65_601, "last")


@pytest.mark.parametrize(
    "boilerplate",
    [
        "<nav>gone</nav>",
        "<header>gone</header>",
        "<footer>gone</footer>",
        "<aside>gone</aside>",
        "<div role='navigation'>gone</div>",
        "<div class='navheader'><table><tr><td>gone</td></tr></table></div>",
        "<div class='sphinxsidebar'>gone</div>",
        "<ul class='breadcrumbs'><li>gone</ul>",
        "<div id='cookie-banner'>gone</div>",
        "<div class='main-menu'>gone</div>",
        "<div hidden>gone</div>",
        "<div style='color:red; display: none'>gone</div>",
        "<script>gone</script>",
        "<style>gone</style>",
        "<noscript>gone</noscript>",
        "<template><p>gone</p></template>",
        "<form><select><option>gone</select><button>gone</button><textarea>gone</textarea></form>",
        "<ul><li><a href=1>gone 1</a><li><a href=2>gone 2</a><li><a href=3>gone 3</a><li><a href=4>gone</a></ul>",
    ],
)
def test_boilerplate_goes_and_content_stays(boilerplate):
    text = read(f"<body>{boilerplate}{PROSE}<p>end</p>{boilerplate}</body>").text
    assert "gone" not in text
    assert text.startswith("The content") and text.endswith("end")


@pytest.mark.parametrize("main", ["<main>{}</main>", "<article>{}</article>", "<div role=main>{}</div>"])
def test_the_main_element_is_preferred(main):
    page = "<div>site name</div>" + main.format("<header><h1>Title</h1></header>" + PROSE) + "<div>site info</div>"
    text = read(page).text
    assert text.startswith("Title\n\nThe content")
    assert "site" not in text


def test_a_main_element_with_hardly_any_text_is_not():
    assert "The content" in read(f"<main>x</main><div>{PROSE}</div>").text


def test_the_content_is_never_lost_to_its_name():
    assert "The content" in read(f"<div class='menu sidebar'>{PROSE}</div><p>x</p>").text
    assert "The content" in read(f"<nav>{PROSE}{PROSE}</nav><p>x</p>").text
    links = "".join(f"<li><a href={n}>Chapter {n}</a></li>" for n in range(9))
    assert "- Chapter 8" in read(f"<h1>Contents</h1><ul>{links}</ul>").text


def test_ids_made_from_headings_do_not_remove_sections():
    section = "<section id='the-menu'><h2>The menu</h2><p>soup</p></section>"
    page = f"<main>{PROSE}{section}<div id='related-work'>kept</div></main>"
    assert "soup" in read(page).text
    assert "kept" in read(page).text


def test_notes_in_an_aside_stay():
    assert "Careful" in read(f"<main>{PROSE}<aside class='admonition note'>Careful</aside></main>").text


def test_tables_with_content_stay():
    table = "<table class='table'><tr><td>int4</td><td>4 bytes</td></tr></table>"
    assert "int4 | 4 bytes" in read(f"{PROSE}{table}").text


def test_entities_of_a_document_type_are_not_expanded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("leaked")
    bomb = "".join(f'<!ENTITY e{n} "&e{n - 1};&e{n - 1};">\n' for n in range(1, 40))
    page = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE html [\n<!ENTITY x SYSTEM "{secret.as_uri()}">\n'
        f'<!ENTITY e0 "expanded">\n{bomb}]>\n<html><body><p>before &x; &e39; after</p></body></html>'
    )
    found = read(page)
    assert found.text.startswith("before") and found.text.endswith("after")
    assert "leaked" not in found.text and "expanded" not in found.text
    assert found.marks[0].line == page.split("\n").index("<html><body><p>before &x; &e39; after</p></body></html>") + 1


def test_xhtml_with_empty_elements():
    page = b"""<?xml version="1.0" encoding="ISO-8859-1"?><html xmlns="http://www.w3.org/1999/xhtml"><head>
    <script src="a.js"/><title>T</title></head><body><p><a id="x"/>caf\xe9</p><p>more</p></body></html>"""
    found = read(page)
    assert (found.text, found.title, found.warnings) == ("café\n\nmore", "T", ("decoded as cp1252",))


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 10_000 + "deep text" + "</div>" * 10_000,
        "<span>" * 10_000 + "deep text",
        "<table><tr><td>" * 4_000 + "deep text",
        "<ul><li>" * 5_000 + "deep text",
    ],
)
def test_any_depth_is_read(page):
    found = read(page + "<p>and after</p>")
    assert "deep text" in found.text and "and after" in found.text
    assert found.warnings == ("HTML nested too deeply: read without its structure",)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "page",
    [
        "<!-- --> " * 20_000 + "x",
        "<!--" + "-->" * 20_000 + "x",
        "<!doctype html [" * 20_000 + "x",
        "<!doctype html [" + "] " * 20_000 + "x",
        "<?xml " * 20_000 + "x",
        "<?xml?>" * 20_000 + "x",
    ],
)
def test_hostile_prologues_are_read_in_time(page):
    assert isinstance(read(page).text, str)


def test_declarations_within_the_body_are_left_alone():
    found = read("<p>before</p>\n<p>x <?xml y?> z</p><p>a [b] &lt;!doctype html [kept]&gt; c</p>")
    assert found.text == "before\n\nx z\n\na [b] <!doctype html [kept]> c"
    kept = read("<p>before</p><!doctype html [ <p>in the middle</p> ]> <p>after</p>").text
    assert "in the middle" in kept and "after" in kept


@pytest.mark.parametrize(
    "page",
    ["", " ", "<", "<!--", "<p", "</p>", "<html>", "<!doctype html>", "<" * 20_000, "<a " * 20_000, "<!--" * 20_000],
)
def test_broken_pages_do_not_fail(page):
    found = read(page)
    assert found.text.strip("<") == ""


def test_unclosed_elements():
    assert read("<p>one <b>two <i>three<p>four").text == "one two three\n\nfour"


def test_text_is_as_in_the_page():
    words = [f"word{n}&amp;{n}" for n in range(500)]
    page = "<body>" + "".join(f"<p>{' '.join(words[n : n + 10])}</p>\n" for n in range(0, 500, 10)) + "</body>"
    assert read(page).text.split() == [html.unescape(word) for word in words]
