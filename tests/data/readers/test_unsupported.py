"""Unsupported files are named with what to do; OpenDocument texts and subtitles are read."""

from __future__ import annotations

import zipfile

import pytest
from training_pro.core.errors import DataError
from training_pro.data import dataset_index, load
from training_pro.data.readers import unsupported
from training_pro.tests import rowing
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import family

SPACES = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
    for short, long in [
        ("office", "office"),
        ("text", "text"),
        ("table", "table"),
        ("style", "style"),
        ("fo", "xsl-fo-compatible"),
        ("draw", "drawing"),
    ]
)
BODY = """<text:h text:outline-level="1">One</text:h>
<text:p>A <text:span>bold</text:span><text:s text:c="2"/>step,<text:line-break/>a
second<text:note><text:p>a foot</text:p></text:note> line.<office:annotation>no</office:annotation></text:p>
<text:list><text:list-item><text:p>first</text:p></text:list-item>
<text:list-item><text:p>second</text:p></text:list-item></text:list>
<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>
<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>
<table:table-cell><text:p>b</text:p></table:table-cell></table:table-row></table:table>
<text:h text:outline-level="1">Two</text:h><text:p>End.</text:p>
<text:p text:style-name="P1">New page.</text:p>"""
SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Where is</i>
the boat?

2
00:00:03,000 --> 00:00:04,000
- Gone.
- When?

3
00:00:05,000 --> 00:00:06,000 X1:10
{\\an8}At nine
"""
VTT = """WEBVTT - harbour

STYLE
::cue {color: white}

NOTE made by hand

intro
00:01.000 --> 00:02.500 align:start
<v Anna>Where is <b>the boat</b> &amp; the crew?</v>

NOTE not this

00:03.000 --> 00:04.000
Gone<00:03.500><c> at nine</c>

00:04.000 --> 00:05.000
Gone at nine
and nobody said a word
"""


def write_odt(path, body=BODY, **files: bytes):
    styles = '<style:style style:name="P1"><style:paragraph-properties fo:break-before="page"/></style:style>'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "content.xml",
            f"<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles>"
            f"<office:body><office:text>{body}</office:text></office:body></office:document-content>",
        )
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), content)
    return path


def read_text(path, content: str = "") -> str:
    if content:
        path.write_text(content, encoding="utf-8")
    [document] = load.read_texts(path, "\n@\n")
    return document.text


def test_an_open_document(tmp_path):
    assert (
        read_text(write_odt(tmp_path / "a.odt"))
        == "One\n\nA bold  step,\na second line.\n\nfirst\nsecond\na\tb\n@\nTwo\n\nEnd.\n@\nNew page."
    )


def test_a_table_inside_a_table_is_read_once(tmp_path):
    cell = "<table:table-cell><text:p>%s</text:p>%s</table:table-cell>"
    row = "<table:table><table:table-row>%s</table:table-row></table:table>"
    inner = row % (cell % ("a", "") + cell % ("b", ""))
    body = row % (cell % ("left", "") + cell % ("right", inner))
    assert read_text(write_odt(tmp_path / "a.odt", body)) == "left\tright a b"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"no archive"), "is not a valid OpenDocument text document"),
        (lambda path: path.write_bytes(b""), "is not a valid OpenDocument text document"),
        (
            lambda path: path.write_bytes(write_odt(path).read_bytes()[:300]),
            "is not a valid OpenDocument text document",
        ),
        (lambda path: write_odt(path, "<text:p>unclosed"), "is not a valid OpenDocument text document"),
        (
            lambda path: write_odt(path, "<text:section>" * 5000 + "</text:section>" * 5000),
            "is not a valid OpenDocument text document",
        ),
        (lambda path: write_odt(path, ""), "without any text"),
        (
            lambda path: write_odt(path, **{"META-INF__manifest_xml": b"<encryption-data/>"}),
            "is protected by a password",
        ),
        (lambda path: zipfile.ZipFile(path, "w").close(), "is not a valid OpenDocument text document"),
    ],
)
def test_broken_open_documents(tmp_path, make, message):
    make(tmp_path / "a.odt")
    with pytest.raises(DataError, match=message):
        load.read_texts(tmp_path / "a.odt")


def test_a_sheet_with_this_suffix_is_refused(tmp_path):
    write_odt(tmp_path / "a.odt")
    with zipfile.ZipFile(tmp_path / "a.odt", "w") as archive:
        archive.writestr(
            "content.xml", f"<office:document-content {SPACES}><office:body/></office:document-content>"
        )
    with pytest.raises(DataError, match=("is an OpenDocument spreadsheet or drawing, not a text document")):
        load.read_texts(tmp_path / "a.odt")


def test_subtitles(tmp_path):
    assert read_text(tmp_path / "a.srt", SRT) == "Where is the boat?\n- Gone.\n- When?\nAt nine"
    assert read_text(tmp_path / "b.srt", SRT.replace("\n", "\r\n")) == read_text(tmp_path / "a.srt")
    assert read_text(tmp_path / "c.srt", SRT.replace("\n\n", "\n")) == read_text(tmp_path / "a.srt")
    assert (
        read_text(tmp_path / "a.vtt", VTT)
        == "Anna: Where is the boat & the crew?\nGone at nine and nobody said a word"
    )
    assert read_text(tmp_path / "d.srt", "1\n0:00:01,0 --> 0:00:02,0\n船は\nどこ？\n") == "船はどこ？"


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (["It was small,", "720p at that time."], ["It was small, 720p at that time."]),
        (["This is the part", "I can't explain."], ["This is the part I can't explain."]),
        (["We had a ship", "and a crew."], ["We had a ship and a crew."]),
        (["Well,", "- Gone."], ["Well,", "- Gone."]),
        (["Popeye", "Olive"], ["Popeye", "Olive"]),
        (["I know.", "I can't."], ["I know.", "I can't."]),
    ],
)
def test_subtitles_that_share_a_sentence_share_a_line(tmp_path, shown, lines):
    subtitles = "\n".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},500\n{line}\n" for n, line in enumerate(shown))
    assert read_text(tmp_path / "a.srt", subtitles).split("\n") == lines


def test_a_file_without_times_is_no_subtitles(tmp_path):
    (tmp_path / "a.srt").write_text("Only some words.")
    with pytest.raises(DataError, match=r"a\.srt has no timestamps, .* rename it to end in \.txt"):
        load.read_texts(tmp_path / "a.srt")


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    for name in (
        "a.rtf",
        "b.AZW3",
        "log",
        "story.txt",
        "picture.png",
        ".hidden.doc",
        "book/two.doc",
        "book/one.txt",
    ):
        path = result.datasets / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Some words. And more of them.")
    return result


def test_unsupported_files_are_named_with_what_to_do(folders):
    assert unsupported.describe_unsupported(folders.datasets) == (
        "These files are not supported: a.rtf (save it as .docx or .odt, or save its text as .txt); "
        "b.AZW3 (convert it to .epub, for example with Calibre); book/two.doc (save it as .docx or "
        ".odt, or save its text as .txt); log (if it is plain text, rename it to end in .txt)."
    )
    for number in range(9):
        (folders.datasets / f"c{number}.zip").write_text("")
    assert unsupported.describe_unsupported(folders.datasets).endswith("; and 9 more.")
    assert not unsupported.describe_unsupported(folders.datasets / "story.txt")


@pytest.mark.parametrize("name", ["a.rtf", "b.AZW3", "book/two.doc"])
def test_an_unsupported_dataset_is_refused_by_its_kind(folders, name):
    with pytest.raises(DataError, match=rf"{name}: \.\w+ files are not supported\. To train on this file, "):
        dataset_index.find_datasets([name], folders)
    with pytest.raises(DataError, match="files are not supported"):
        load.read_texts(folders.datasets / name)


def test_a_dump_of_a_database_is_named_with_what_to_do(folders):
    (folders.datasets / "dump.sql").write_text("INSERT INTO chats VALUES (1, 'Hi');")
    remedy = "import it into a database and save the database as .sqlite, or save the table as .csv"
    assert f"dump.sql ({remedy})" in unsupported.describe_unsupported(folders.datasets)
    with pytest.raises(
        DataError, match=rf"dump\.sql: \.sql files are not supported\. To train on this file, {remedy}\."
    ):
        dataset_index.find_datasets(["dump.sql"], folders)


def test_plain_text_with_another_suffix_is_read_when_asked_for(folders):
    assert [data.name for data in dataset_index.find_datasets(["log"], folders)] == ["log"]
    assert load.read_texts(folders.datasets / "log")


def test_a_folder_of_unsupported_files_names_them(folders):
    (folders.datasets / "book" / "one.txt").unlink()
    with pytest.raises(DataError, match=r"This file is not supported: two\.doc \(save it as \.docx"):
        load.read_texts(folders.datasets / "book")


def test_check_names_the_unsupported_files_of_a_folder(tmp_path):
    files = {"book/one.txt": "Some words. And more of them.", "book/two.doc": "x"}
    data = rowing.prepare_rows(tmp_path, family("ChatML"), files, data=["book"])
    assert (
        "In book/, this file is not supported: two.doc (save it as .docx or .odt, or save its text as .txt)."
        in data.report.advice
    )
