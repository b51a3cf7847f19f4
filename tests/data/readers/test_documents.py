"""Documents and subtitles: the text, its order, and where chapters begin; unsupported files are named."""

from __future__ import annotations

import zipfile

import pytest
from training_pro.core.errors import DataError
from training_pro.data import dataset_index, load
from training_pro.data.readers import unsupported
from training_pro.settings.definitions import TextSettings
from training_pro.tests.data.readers.reading import CUT, one_process, read_text, refusal, write  # noqa: F401
from training_pro.tests.fakes import make_folders

DROP = TextSettings(drop_boilerplate=True)


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


def test_marks_of_notes_and_page_numbers_are_no_text(tmp_path):
    page = """<p>St. Ives.<a epub:type="noteref" href="#n1">1</a> A <span epub:type="pagebreak" title="5"/>nights
    <sup class="reference"><a href="#c">[2]</a></sup> even<a class="fnanchor" href="#f">[2]</a>ing x<sup>2</sup>
    <h2><a role="doc-backlink" href="#toc">Geography</a><span class="mw-editsection">[edit]</span></h2>
    <p><span class="pagenum">[Pg 1]</span>The river</p>
    <p>A <a epub:type="noteref" href="#n2">village</a>. <a role="doc-backlink" href="#r">back</a></p>"""
    expected = "St. Ives. A nights evening x2\n\nGeography\n\nThe river\n\nA village."
    assert read_text(tmp_path / "a.html", page) == expected


@pytest.mark.parametrize("declared", ["cp1252", "utf-8", "utf-16", "punycode", "unicode_escape", "undefined"])
def test_the_encoding_that_a_page_declares_unless_no_page_can_be_in_it(tmp_path, declared):
    page = f'<meta charset="{declared}"><p>Für Käthe – „schön“</p>'
    encoding = declared if declared in ("cp1252", "utf-8", "utf-16") else "cp1252"
    assert read_text(tmp_path / "a.htm", page.encode(encoding)) == "Für Käthe – „schön“"


def test_characters_that_nobody_sees_are_left_out_and_control_characters_are_those_of_windows(tmp_path):
    page = b'<meta charset="iso-8859-1"><p>\x93Hi\x94\x81, a&#150;z&#x200b;\x85</p>'
    assert read_text(tmp_path / "a.html", page) == "“Hi”, a–z\u200b…"
    page = "<p>He waited\ufeff—then the ex\xadtra\xador\xaddi\xadnary\u2060 man</p>"
    assert read_text(tmp_path / "b.html", page) == "He waited—then the extraordinary man"
    assert read_text(write_odt(tmp_path / "c.odt", "<text:p>ex\xadtra</text:p>")) == "extra"


def test_chapters_begin_at_the_first_heading_level_that_occurs_more_than_once(tmp_path):
    page = "<h1>Book</h1><h2>One</h2><p>a</p><h3>x</h3><p>b</p><h2>Two</h2><h3>y</h3><p>c</p><hr><p>d</p>"
    assert read_text(tmp_path / "a.html", page) == f"Book\n\nOne\n\na\n\nx\n\nb{CUT}Two\n\ny\n\nc{CUT}d"
    (document,) = load.read_texts(tmp_path / "a.html", "")
    assert document.notes[0].endswith("Its chapters are not separated, because Hard cut is empty.")
    assert read_text(tmp_path / "b.html", "<h1>Book</h1><p>a</p><p>b</p>") == "Book\n\na\n\nb"
    assert read_text(tmp_path / "c.html", "<h1>a" * 20_000).count("@") == 0


MENU = '<a href="/">Home</a> | <a href="/b">Next</a>'
MENUS = {
    "a line of links": f"<p>{MENU}</p>",
    "a nav element": "<nav><h2>Menu</h2><p>You are here</p></nav>",
    "a navigation class": "<div class='top navigation'><b>Next:</b> Two</div>",
    "the header of the page": "<header><p>The site of Anna</p></header>",
    "a list of links": "<ul><li><a href='1'>One</a><li><a href='2'>Two</a><ul><li><a href='3'>Three</a></ul></ul>",
}


def menus_in(document):
    return [document.text[start:end] for start, end in document.menus]


@pytest.mark.parametrize("menu", MENUS.values(), ids=MENUS)
def test_menus_of_a_web_page_are_named_and_dropped_on_request(tmp_path, menu):
    page = write(tmp_path / "a.html", f"<h2>One</h2>{menu}<p>a</p>{menu}<h2>Two</h2>{menu}<p>b</p>{menu}")
    (document,) = load.read_texts(page, CUT)
    words = menus_in(document)
    assert len(words) >= 3 and document.boilerplate.startswith(f"{len(words)} navigation menus (")
    (rest,) = load.read_texts(page, CUT, settings=DROP)
    assert rest.text.split() == ["One", "a", "@", "Two", "b"]


@pytest.mark.parametrize(
    "content",
    [
        "<p>Prose with <a href='1'>one</a> and <a href='2'>two</a> links.</p>",
        "<ul><li><a href='1'>One</a>, a site<li><a href='2'>Two</a>, another<li><a href='3'>Three</a>, too</ul>",
        "<article><header><h1>Title</h1><p>By Anna</p></header><aside>A remark</aside></article>",
    ],
)
def test_the_content_of_a_web_page_is_no_menu(tmp_path, content):
    page = write(tmp_path / "a.html", f"<body class='nav'><p>Before</p>{content}<p>After</p>")
    (document,) = load.read_texts(page, CUT)
    assert (menus_in(document), document.boilerplate) == ([], "")


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


def test_a_book_is_read_in_the_order_of_its_spine(tmp_path):
    files = {"z one.xhtml": "<h1>First</h1><p>a</p>", "b.xhtml": "<p>second</p>", "nav.xhtml": "<p>contents</p>"}
    write_epub(tmp_path / "a.epub", files, spine=["nav.xhtml", "z one.xhtml", "b.xhtml"])
    assert read_text(tmp_path / "a.epub") == f"First\n\na{CUT}second"


def test_a_word_document_with_tracked_changes_page_breaks_and_tables(tmp_path):
    docx = pytest.importorskip("docx")
    from docx.oxml import parse_xml

    document = docx.Document()
    document.add_heading("The Book", 0)
    document.add_heading("One", 1)
    paragraph = document.add_paragraph("He ")
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    for change, tag, word in (("ins", "t", "never"), ("del", "delText", "always")):
        xml = f"<w:{change} {namespace}><w:r><w:{tag}>{word}</w:{tag}></w:r></w:{change}>"
        paragraph._p.append(parse_xml(xml))
    paragraph.add_run(" ca\xadme.\tSo.")
    document.add_heading("Two", 1)
    document.add_paragraph("b").add_run().add_break(docx.enum.text.WD_BREAK.PAGE)
    document.add_paragraph("c")
    table = document.add_table(rows=2, cols=2)
    for cell, word in zip([c for row in table.rows for c in row.cells], "wxyz", strict=True):
        cell.text = word
    inner = table.cell(1, 1).add_table(2, 1)
    inner.cell(0, 0).text, inner.cell(1, 0).text = "up", "down"
    for text in ("", "c", "", "", "d", ""):  # two empty lines are the author's hard cut
        document.add_paragraph(text)
    document.paragraphs[-1]._p.append(parse_xml(f"<w:r {namespace}><w:drawing/></w:r>"))  # and a picture is none
    for text in ("", "e"):
        document.add_paragraph(text)
    document.save(tmp_path / "a.docx")
    expected = f"The Book\n\nOne\n\nHe never came.\tSo.{CUT}Two\n\nb{CUT}c\n\nw\tx\ny\tz up down\n\nc\n\nd\n\ne"
    assert read_text(tmp_path / "a.docx") == expected
    (own,) = load.read_texts(tmp_path / "a.docx", "\n\n\n")
    assert str(own.text) == expected.replace(CUT, "\n\n\n").replace("c\n\nd", "c\n\n\nd")


def test_a_pdf_without_its_running_heads_and_with_its_words_joined(tmp_path):
    document = pytest.importorskip("pymupdf").open()
    texts = (
        "It was a long jour- \nney, and the road",
        "went on. It ended.",
        "A well-\nknown one.",
        "A well-known end of pre-\nand post-war days.",
    )
    for number, words in enumerate(texts, 1):
        page = document.new_page(width=300, height=300)
        page.insert_text((20, 20), f"MY BOOK {number}")
        page.insert_text((20, 60), words.split("\n"))
        page.insert_text((20, 290), f"- {number} -")
    document.set_toc([[1, "One", 1], [1, "Two", 3]])
    document.save(tmp_path / "a.pdf")
    heads = {(1, 90): "Chapter 2", (1, 120): "The Storm", (1, 150): "Rain fell."}
    for (page, height), words in heads.items():
        document[page].insert_text((20, height), words)
    document.set_toc([[1, "One", 1], [1, "2. The Storm", 2]])  # its page begins inside a sentence
    document.save(tmp_path / "b.pdf")
    chapters = read_text(tmp_path / "b.pdf").split(CUT)
    assert len(chapters) == 2 and chapters[0].startswith("It was a long journey, and the road went on. It ended.")
    assert chapters[1].startswith("Chapter 2\n\nThe Storm\n\nRain fell.")
    expected = "It was a long journey, and the road went on. It ended.{}A well-known one.\n\n"
    expected += "A well-known end of pre- and post-war days."
    assert read_text(tmp_path / "a.pdf") == expected.format(CUT)


def test_a_pdf_of_a_novel_has_its_paragraphs_without_the_heads_of_left_and_right_pages(tmp_path):
    document = pytest.importorskip("pymupdf").open()
    for number in range(6):
        page = document.new_page(width=300, height=300)
        page.insert_text((20, 20), ("THE LONG ROAD", "JANE AUTHOR")[number % 2])
        words = "abcdef"[number]
        for place, line in enumerate(
            (f'"{words}," he said.', '"No?"', '"Why not?"', f'"Well, {words}," she said.')
        ):
            page.insert_text((35, 60 + 12 * place), line)
    document.save(tmp_path / "a.pdf")
    text = read_text(tmp_path / "a.pdf")
    assert "AUTHOR" not in text and "ROAD" not in text and text.count('"No?"\n\n"Why not?"') == 6


KINDS = {"office": "office", "text": "text", "table": "table", "style": "style", "fo": "xsl-fo-compatible"}
SPACES = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for short, name in KINDS.items()
)
BODY = """<text:h text:outline-level="1">One</text:h>
<text:p>A <text:span>bold</text:span><text:s text:c="2"/>step,<text:line-break/>a
second<text:note><text:p>a foot</text:p></text:note> line.<office:annotation>no</office:annotation></text:p>
<text:list><text:list-item><text:p>first</text:p></text:list-item>
<text:list-item><text:p>second</text:p></text:list-item></text:list>
<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>
<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>
<table:table-cell><text:p>b</text:p><table:table><table:table-row><table:table-cell><text:p>c</text:p>
</table:table-cell></table:table-row></table:table></table:table-cell></table:table-row></table:table>
<text:h text:outline-level="1">Two</text:h><text:p>End.</text:p>
<text:p text:style-name="P1">New page.</text:p>"""


def write_odt(path, body=BODY):
    styles = '<style:style style:name="P1"><style:paragraph-properties fo:break-before="page"/></style:style>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "content.xml",
            f"<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles>"
            f"<office:body><office:text>{body}</office:text></office:body></office:document-content>",
        )
    return path


def test_an_open_document(tmp_path):
    assert read_text(write_odt(tmp_path / "a.odt")) == (
        "One\n\nA bold  step,\na second line.\n\nfirst\nsecond\na\tb c\n@\nTwo\n\nEnd.\n@\nNew page."
    )


SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Where is</i>
the boat?

2
00:00:03,000 --> 00:00:04,000 X1:10
- Gone.
- {\\an8}When?
"""
VTT = """WEBVTT - harbour

STYLE
::cue {color: white}

intro
00:01.000 --> 00:02.500 align:start
<v Anna>Where is <b>the boat</b> &amp; the crew?</v>

NOTE not this

00:04.000 --> 00:05.000
Gone<00:03.500><c> at nine</c>
"""


def srt(*cues: str) -> str:
    return "".join(
        f"{number}\n00:00:{number:02d},000 --> 00:00:{number + 1:02d},500\n{cue}\n\n"
        for number, cue in enumerate(cues, start=1)
    )


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (SRT, "Where is the boat?\n- Gone.\n- When?"),
        (VTT, "Anna: Where is the boat & the crew?\nGone at nine"),
        (srt("It rained.", "42", "He left."), "It rained.\n42\nHe left."),
        (srt("It rained.", "42", "He left.").replace("\n", "\r\r\n"), "It rained.\n42\nHe left."),
        (srt(f"a &#{'9' * 5000}; b"), "a \ufffd b"),
        (srt("오늘은 날씨가 정말\n좋네요."), "오늘은 날씨가 정말 좋네요."),
        (srt("他说：“好。”\n然后走了。"), "他说：“好。”然后走了。"),
        (srt("Run!", "Run!", "Where?\nThere.", "There.", "La la\nLa la"),
         "Run!\nRun!\nWhere? There.\nThere.\nLa la La la"),
        (srt("and we went", "and we went", "and we went\ndown to", "down to", "down to\nNo.", "No.", "No.\nnever"),
         "and we went down to\nNo.\nnever"),
        (srt("It was small,", "720p at that time."), "It was small, 720p at that time."),
        (srt("Well,", "- Gone."), "Well,\n- Gone."),
    ],
)  # fmt: skip
def test_subtitles_are_read_as_speech(tmp_path, content, lines):
    name = "a.vtt" if content.startswith("WEBVTT") else "a.srt"
    assert read_text(tmp_path / name, content) == lines


def test_a_file_without_times_is_no_subtitles(tmp_path):
    message = refusal(tmp_path / "a.srt", "Only some words.")
    assert message.startswith("a.srt has no timestamps, ") and "rename it to end in .txt" in message


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    names = ("a.rtf", "b.AZW3", "log", "story.txt", "picture.png", ".hidden.doc", "book/two.doc")
    for name in (*names, "book/one.txt"):
        write(result.datasets / name, "Some words. And more of them.")
    return result


def test_unsupported_files_are_named_with_what_to_do(folders):
    described = unsupported.describe_unsupported(folders.datasets)
    word, remedy = "save it as .docx or .odt, or save its text as .txt", "convert it to .epub"
    assert f"a.rtf ({word}); b.AZW3 ({remedy}, for example with Calibre); book/two.doc ({word}); " in described
    assert described.endswith("log (if it is plain text, rename it to end in .txt).")
    assert "story" not in described and "picture" not in described and "hidden" not in described
    for number in range(9):
        write(folders.datasets / f"c{number}.zip", "")
    assert unsupported.describe_unsupported(folders.datasets).endswith("; and 9 more.")


@pytest.mark.parametrize("name", ["a.rtf", "b.AZW3", "book/two.doc"])
def test_an_unsupported_dataset_is_refused_by_its_kind(folders, name):
    with pytest.raises(DataError, match=rf"{name}: \.\w+ files are not supported\. To train on this file, "):
        dataset_index.find_datasets([name], folders)
    with pytest.raises(DataError, match="files are not supported"):
        load.read_texts(folders.datasets / name)
