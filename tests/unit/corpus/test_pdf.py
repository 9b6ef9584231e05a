import zlib

import pytest

from bifolio.corpus.readers import read
from bifolio.errors import DocumentError
from bifolio.types import Mark


def pdf(pages, title="", encrypt="", to_unicode=b""):
    """A small PDF: each page is a list of lines (bytes in WinAnsi)."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b""]
    mapping = b"/ToUnicode 4 0 R" if to_unicode else b""
    objects.append(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding" + mapping + b">>")
    objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(to_unicode), to_unicode))
    kids = []
    for lines in pages:
        shown = b"".join(b"(%s) Tj 0 -14 Td " % line for line in lines)
        stream = zlib.compress(b"BT /F1 12 Tf 72 700 Td %sET" % shown) if lines else zlib.compress(b"0 0 m 9 9 l S")
        objects.append(b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(stream), stream))
        kids.append(len(objects) + 1)
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>"
            % len(objects)
        )
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(b"%d 0 R" % kid for kid in kids))
    objects.append(b"<</Title(%s)>>" % title.encode("latin-1"))
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    trailer = b"<</Size %d/Root 1 0 R/Info %d 0 R%s>>" % (len(objects) + 1, len(objects), encrypt.encode())
    size = len(objects) + 1
    return data + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n%s\nstartxref\n%d\n%%%%EOF" % (
        size,
        table,
        trailer,
        len(data),
    )


@pytest.fixture
def document(tmp_path):
    def one(data, name="a.pdf"):
        path = tmp_path / name
        path.write_bytes(data)
        (found,) = read(path)
        return found

    return one


def test_pages_lines_and_marks(document):
    found = document(pdf([[b"First page.", b"Second line."], [b"Page two."]], title="A Manual"))
    assert found.text == "First page.\nSecond line.\n\nPage two."
    assert found.marks == (Mark(0, page=1), Mark(26, page=2))
    assert found.text[26:] == "Page two."
    assert (found.title, found.media_type, found.warnings) == ("A Manual", "application/pdf", ())


def test_words_broken_at_a_line_end_are_joined(document):
    found = document(pdf([[b"This is an exam-", b"ple of the Baden-", b"Baden kind, 1990-", b"2000."]]))
    assert found.text == "This is an example of the Baden-Baden kind, 1990-\n2000."


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["an e-", "mail with an x-", "ray"], "an e-mail with an x-ray"),
        (["the open-domain task.", "An open-", "domain task"], "the open-domain task.\nAn open-domain task"),
        (["low-dimensional and high-", "dimensional"], "low-dimensional and high-dimensional"),
        (["a dual model, an encoder: a dual-", "encoder"], "a dual model, an encoder: a dual-encoder"),
        (["this is well-", "known"], "this is well-known"),
        (["the state, state-of-the-", "art"], "the state, state-of-the-art"),
        (["a self-atten-", "tion layer"], "a self-attention layer"),
        (["in form, in-", "formed"], "in form, informed"),
        (["under stand understand under-", "stand"], "under stand understand understand"),
    ],
)
def test_a_hyphen_that_belongs_to_the_word_stays(document, lines, text):
    assert document(pdf([[line.encode() for line in lines]])).text == text


def test_a_glyph_without_a_known_letter_is_no_hyphen(document):
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def 1 begincodespacerange <00><FF> "
        b"endcodespacerange 1 beginbfrange <20><7D><0020> endbfrange 1 beginbfchar <7E><0000> endbfchar "
        b"endcmap end end"
    )
    lines = [b"It is di~cult to be e~cient in an exam-", b"ple of this kind. " + b"More text. " * 20]
    found = document(pdf([lines], to_unicode=cmap))
    assert found.text.startswith("It is di\ufffdcult to be e\ufffdcient in an example of this kind.")
    assert found.warnings == ("2 glyphs have no known letter: read as U+FFFD",)


def test_pages_without_text_are_named(document):
    found = document(pdf([[], [b"text"], [], []]))
    assert found.warnings == ("no text on pages 1, 3-4",)
    assert (found.text, found.marks) == ("text", (Mark(0, page=2),))


def test_a_scan_needs_ocr(document):
    with pytest.raises(DocumentError, match=r"no text layer \(a scan\?\): needs OCR"):
        document(pdf([[], []]))


@pytest.mark.parametrize("title", ["Microsoft Word - x.doc", "untitled", "scan.jpg", "Document1", "", "..."])
def test_titles_made_up_by_programs_are_none(document, title):
    assert document(pdf([[b"text"]], title=title)).title == ""


def test_titles_with_a_dot_are_titles(document):
    assert document(pdf([[b"text"]], title="An introduction to Node.js")).title == "An introduction to Node.js"


def test_encrypted_files_say_so(document):
    key = "<" + "41" * 32 + ">"
    with pytest.raises(DocumentError, match="encrypted: needs a password"):
        document(pdf([[b"text"]], encrypt=f"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O {key}/U {key}>>/ID[<41><41>]"))


@pytest.mark.parametrize("data", [b"%PDF-1.4\ngarbage", b"%PDF-", b"not a PDF at all"])
def test_damaged_files_say_so(document, data):
    with pytest.raises(DocumentError, match="damaged or not a PDF"):
        document(data)


def test_truncated_file_is_an_error_or_its_text(document):
    whole = pdf([[b"text"]])
    for cut in range(20, len(whole), 97):
        try:
            found = document(whole[:cut])
        except DocumentError as error:
            assert str(error)
        else:
            assert found.text == "text"


def test_cid_text_is_not_indexed(document):
    with pytest.raises(DocumentError, match=r"text layer is not text \(100 % of glyphs unreadable\)"):
        document(pdf([[rb"\(cid:12\)\(cid:7\) \(cid:40\)"]]))


def test_private_use_glyphs_are_not_indexed(document):
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def 1 begincodespacerange <00><FF> "
        b"endcodespacerange 1 beginbfrange <21><7E><E021> endbfrange endcmap end end"
    )
    with pytest.raises(DocumentError, match="text layer is not text"):
        document(pdf([[b"Hidden meaning"]], to_unicode=cmap))


def test_pdf_without_a_suffix_is_recognised(document):
    assert document(pdf([[b"text"]]), name="manual").media_type == "application/pdf"
