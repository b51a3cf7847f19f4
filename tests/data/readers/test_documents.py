"""Web pages, e-books, PDF and Word documents: the text that is read, its order, and where chapters begin."""

from __future__ import annotations

import zipfile

import pytest
from training_pro.chunking import find_sections
from training_pro.core.errors import DataError
from training_pro.data import load
from training_pro.data.arrow_store import Store
from training_pro.data.cleaning import Cleaning
from training_pro.data.readers import documents
from training_pro.data.readers.paragraphs import Paragraph, join_paragraphs

CUT = "\n@\n"


def read_text(path, content=None):
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (document,) = load.read_texts(path, CUT)
    return document.text


def test_the_visible_text_of_a_web_page(tmp_path):
    page = """<!doctype html><html><head><title>Tab</title><style>p {}</style></head><body>
    <p>One &amp; two&nbsp;three,<br>four <b>bold</b>ly. <!-- no -->
    <p>Unclosed <script>if (a < b) document.write("<p>no</p>")</script>paragraph
    <div hidden>no <div>no</div> no</div><div style="color: red; display: none">no</div>
    <noscript>no</noscript><template><p>no</p></template><select><option>no</select>
    <ul><li>first</li><li>second <i>item</i></li></ul>
    <pre>  kept
    as it is</pre><table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table></body></html>"""
    assert read_text(tmp_path / "a.html", page) == (
        "One & two\xa0three,\nfour boldly.\n\nUnclosed paragraph\n\nfirst\nsecond item\n\n  kept\n    as it is\n\n"
        "a\tb\nc\td"
    )


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-16"])
def test_the_encoding_that_a_page_declares(tmp_path, encoding):
    page = f'<meta charset="{encoding}"><p>Für Käthe – „schön“</p>'
    assert read_text(tmp_path / "a.htm", page.encode(encoding)) == "Für Käthe – „schön“"


def test_chapters_begin_at_the_first_heading_level_that_occurs_more_than_once(tmp_path):
    page = "<h1>Book</h1><h2>One</h2><p>a</p><h3>x</h3><p>b</p><h2>Two</h2><h3>y</h3><p>c</p><hr><p>d</p>"
    assert read_text(tmp_path / "a.html", page) == f"Book\n\nOne\n\na\n\nx\n\nb{CUT}Two\n\ny\n\nc{CUT}d"


def test_one_heading_alone_cuts_nothing_and_an_empty_hard_cut_cuts_nothing():
    parts = [Paragraph("Book", 1), Paragraph("a"), Paragraph("b")]
    assert join_paragraphs(parts, CUT) == ("Book\n\na\n\nb", 1, ())
    assert join_paragraphs([Paragraph("a", 1), Paragraph("b"), Paragraph("c", 1)], "") == ("a\n\nb\n\nc", 2, ())


def test_no_note_counts_sections_because_a_text_may_have_hard_cuts_of_its_own(tmp_path):
    page = tmp_path / "a.html"
    page.write_text(f"<h2>One</h2><pre>code{CUT}more code</pre><h2>Two</h2><p>b</p>")
    (document,) = load.read_texts(page, CUT)
    assert len(find_sections(document.text, CUT)) == 3
    assert document.notes == ("a.html was read as a web page. Hard cuts separate its chapters.",)


MENU = '<a href="/">Home</a> | <a href="/b">Next</a>'
MENUS = {
    "a line of links": f"<p>{MENU}</p>",
    "a nav element": "<nav><h2>Menu</h2><p>You are here</p></nav>",
    "a navigation role": "<div role='navigation'><div>Next: Two</div></div>",
    "a navigation class": "<div class='top navigation'><b>Next:</b> Two</div>",
    "the header of the page": "<header><p>The site of Anna</p></header>",
    "the footer of the page": "<footer><p>All rights reserved</p></footer>",
    "a list of links": "<ul><li><a href='1'>One</a><li><a href='2'>Two</a><ul><li><a href='3'>Three</a></ul></ul>",
}


@pytest.mark.parametrize("menu", MENUS.values(), ids=MENUS)
def test_menus_of_a_web_page_are_named_and_dropped_on_request(tmp_path, menu):
    page = tmp_path / "a.html"
    page.write_text(f"<h2>One</h2>{menu}<p>a</p>{menu}<h2>Two</h2>{menu}<p>b</p>{menu}")
    (document,) = load.read_texts(page, CUT)
    words = menus_in(document)
    assert len(words) >= 3 and document.boilerplate.startswith(f"{len(words)} navigation menus (")
    (rest,) = load.read_texts(page, CUT, cleaning=Cleaning(drop_boilerplate=True))
    assert rest.text.split() == ["One", "a", "@", "Two", "b"]


def menus_in(document):
    return [document.text[start:end] for start, end in document.menus]


def test_a_page_that_is_only_a_menu_is_dropped_from_a_folder(tmp_path):
    (tmp_path / "1.html").write_text(f"<p>{MENU}</p>")
    (tmp_path / "2.html").write_text(f"<p>{MENU}</p><p>a</p>")
    (page,) = load.read_texts(tmp_path, CUT, cleaning=Cleaning(drop_boilerplate=True))
    assert (page.name, page.text) == ("2.html", "a")
    assert "1.html: everything in it looks like boilerplate." in page.notes
    assert [text.name for text in load.read_texts(tmp_path, CUT)] == ["1.html", "2.html"]


@pytest.mark.parametrize(
    "content",
    [
        "<p><a href='1'>One link</a></p>",
        "<p>Prose with <a href='1'>one</a> and <a href='2'>two</a> links.</p>",
        "<h3><a href='1'>A</a> <a href='2'>heading</a></h3><p>text</p>",
        "<ul><li><a href='1'>One</a>, a site<li><a href='2'>Two</a>, another<li><a href='3'>Three</a>, too</ul>",
        "<p><a name='1'>Marks</a> <a name='2'>without links</a></p>",
        "<article><header><h1>Title</h1><p>By Anna</p></header><aside>A remark</aside></article>",
    ],
)
def test_the_content_of_a_web_page_is_no_menu(tmp_path, content):
    page = tmp_path / "a.html"
    page.write_text(f"<body class='nav'><p>Before</p>{content}<p>After</p>")
    (document,) = load.read_texts(page, CUT)
    assert (menus_in(document), document.boilerplate) == ([], "")


def test_a_stored_web_page_still_knows_its_menus(tmp_path):
    page, store = tmp_path / "a.html", Store(tmp_path / "store")
    page.write_text(f"<p>a</p><p>{MENU}</p>")
    first, second = (load.read_texts(page, CUT, store) for _ in range(2))
    assert list((tmp_path / "store").iterdir()) and first == second and menus_in(second[0]) == ["Home | Next"]


def test_a_book_is_read_in_the_order_of_its_spine(tmp_path):
    path = tmp_path / "a.epub"
    files = {"z one.xhtml": "<h1>First</h1><p>a</p>", "b.xhtml": "<p>second</p>", "nav.xhtml": "<p>contents</p>"}
    write_epub(path, files, spine=["nav.xhtml", "z one.xhtml", "b.xhtml"])
    assert read_text(path) == f"First\n\na{CUT}second"
    (document,) = load.read_texts(path, "")
    assert document.notes == (
        "a.epub was read as an e-book. Its chapters are not separated, because Hard cut is empty.",
    )


def test_titles_and_notes_of_an_e_book_are_no_menus(tmp_path):
    chapter = "<header><h2>The Bell</h2></header><p>It rang.</p><aside><p>A note.</p></aside><footer>E.</footer>"
    write_epub(tmp_path / "a.epub", {"a.xhtml": f"{chapter}<nav><p>Next</p></nav>"}, ["a.xhtml"])
    (document,) = load.read_texts(tmp_path / "a.epub", CUT)
    assert document.text == "The Bell\n\nIt rang.\n\nA note.\n\nE.\n\nNext"
    assert menus_in(document) == ["Next"]


def write_epub(path, files, spine):
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("META-INF/container.xml", '<container><rootfile full-path="in/a.opf"/></container>')
        items = "".join(
            f'<item id="{n}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"'
            f"{' properties=' + chr(34) + 'nav' + chr(34) if name == 'nav.xhtml' else ''}/>"
            for n, name in enumerate(files)
        )
        order = "".join(f'<itemref idref="{list(files).index(name)}"/>' for name in spine)
        book.writestr("in/a.opf", f"<package><manifest>{items}</manifest><spine>{order}</spine></package>")
        for name, body in files.items():
            book.writestr(f"in/{name}", f"<html><head><title/></head><body>{body}</body></html>")


def test_a_word_document_with_tracked_changes_page_breaks_and_a_table(tmp_path):
    docx = pytest.importorskip("docx")
    from docx.oxml import parse_xml

    document = docx.Document()
    document.add_heading("The Book", 0)
    document.add_heading("One", 1)
    paragraph = document.add_paragraph("He ")
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    paragraph._p.append(parse_xml(f"<w:ins {namespace}><w:r><w:t>never</w:t></w:r></w:ins>"))
    paragraph._p.append(parse_xml(f"<w:del {namespace}><w:r><w:delText>always</w:delText></w:r></w:del>"))
    paragraph.add_run(" came.\tSo.")
    document.add_heading("Two", 1)
    document.add_paragraph("b").add_run().add_break(docx.enum.text.WD_BREAK.PAGE)
    document.add_paragraph("c")
    table = document.add_table(rows=2, cols=2)
    for cell, word in zip([c for row in table.rows for c in row.cells], "wxyz", strict=True):
        cell.text = word
    document.save(tmp_path / "a.docx")
    content = read_text(tmp_path / "a.docx")
    assert content == f"The Book\n\nOne\n\nHe never came.\tSo.{CUT}Two\n\nb{CUT}c\n\nw\tx\ny\tz"


def test_a_pdf_without_its_running_heads_and_with_its_words_joined(tmp_path):
    pymupdf = pytest.importorskip("pymupdf")
    document = pymupdf.open()
    page_texts = [
        "It was a long jour-\nney, and the road",
        "went on. It ended.",
        "A new one began.",
        "It is over.",
    ]
    for number, words in enumerate(page_texts, 1):
        page = document.new_page(width=300, height=300)
        page.insert_text((20, 20), f"MY BOOK {number}")
        page.insert_text((20, 60), words.split("\n"))
        page.insert_text((20, 290), f"- {number} -")
    document.set_toc([[1, "One", 1], [1, "Two", 3]])
    document.save(tmp_path / "a.pdf")
    assert (
        read_text(tmp_path / "a.pdf")
        == f"It was a long journey, and the road went on. It ended.{CUT}A new one began.\n\nIt is over."
    )


def test_a_pdf_whose_page_breaks_before_a_name(tmp_path):
    pymupdf = pytest.importorskip("pymupdf")
    document = pymupdf.open()
    broken = ["It was late, and the old keeper of the light had told his daughter", "Mary of it"]
    rest = ", who went down the stairs to look at the sea. It was calm."
    for words in (
        broken[0],
        broken[1] + rest,
        "A TABLE OF THE STAIRS AND THEIR STEPS, AS THE KEEPER COUNTED THEM",
        "One",
    ):
        document.new_page(width=900).insert_text((20, 60), words)
    document.save(tmp_path / "a.pdf")
    assert read_text(tmp_path / "a.pdf").split("\n\n")[0] == f"{broken[0]} {broken[1]}{rest}"
    assert read_text(tmp_path / "a.pdf").endswith("COUNTED THEM\n\nOne")


def test_a_table_inside_a_table_is_read_once(tmp_path):
    docx = pytest.importorskip("docx")
    document = docx.Document()
    outer = document.add_table(1, 2)
    outer.cell(0, 0).text, outer.cell(0, 1).text = "left", "right"
    inner = outer.cell(0, 1).add_table(2, 1)
    inner.cell(0, 0).text, inner.cell(1, 0).text = "up", "down"
    document.save(tmp_path / "a.docx")
    assert read_text(tmp_path / "a.docx") == "left\tright up down"


def test_the_lines_and_pages_of_a_chinese_pdf_are_joined_without_spaces(tmp_path):
    pymupdf = pytest.importorskip("pymupdf")
    sentence = "春天的早晨他沿着河边慢慢地走着看见对岸的灯一盏一盏地熄灭了于是他想起很多年以前在这里等过的人"
    pages = [sentence * 2, "他每年都来。", sentence + "。", "她没有回来。"]
    document = pymupdf.open()
    for words in pages:
        page = document.new_page()
        page.insert_textbox((72, 72, 400, 500), words, fontname="china-s", fontsize=12)
    document.save(tmp_path / "a.pdf")
    assert read_text(tmp_path / "a.pdf") == "\n\n".join([pages[0] + pages[1], *pages[2:]])


def test_a_line_break_in_the_source_of_a_page_is_no_space_in_chinese(tmp_path):
    chinese, korean = (
        "春天的早晨，\n  他沿着河边\n慢慢地走着。“好。”\n他说\nHello\nto me.",
        "오늘은 날씨가\n정말 좋네요.",
    )
    (tmp_path / "a.html").write_text(f"<p>{chinese}</p><p>{korean}</p>", encoding="utf-8")
    assert read_text(tmp_path / "a.html") == (
        "春天的早晨，他沿着河边慢慢地走着。“好。”他说 Hello to me.\n\n오늘은 날씨가 정말 좋네요."
    )


@pytest.mark.parametrize(
    ("ending", "module", "package"),
    [
        (".html", "lxml.etree", "lxml"),
        (".epub", "lxml.etree", "lxml"),
        (".docx", "docx", "python-docx"),
        (".pdf", "pymupdf", "pymupdf"),
    ],
)
def test_a_missing_library_is_a_sentence(tmp_path, monkeypatch, ending, module, package):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    path = tmp_path / f"a{ending}"
    write_epub(path, {"a": "b"}, ["a"]) if ending == ".epub" else path.write_text("<p>a</p>")
    with pytest.raises(DataError) as error:
        next(documents.extract_text(str(path), path.name, CUT))  # as the reader process calls it
    assert f"the {package} package (pip install {package})" in str(error.value)


def test_a_folder_takes_all_kinds_of_text_in_natural_order_and_no_placeholders(tmp_path):
    for name, content in {
        "10.txt": "ten",
        "2.html": "<p>two",
        "put-trainer-datasets-here.txt": "",
        "1.MD": "one",
    }.items():
        (tmp_path / name).write_text(content)
    assert [document.text for document in load.read_texts(tmp_path)] == ["one", "two", "ten"]
