"""Broken files of every kind: each loads or gets one message that names it, without changing anything."""

from __future__ import annotations

import io
import sqlite3
import subprocess
import sys
import zipfile
from functools import cache, partial
from pathlib import Path

import pytest
from training_pro.core.host import ModelCard
from training_pro.data.prepare import check_datasets
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import family
from training_pro.tests.tiny import read_tree

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOADS = ""
LONG = "word " * 1_100_000


@cache
def example_bytes(name: str) -> bytes:
    return (EXAMPLES / name).read_bytes()


def damaged(name: str, position: float, replacement: bytes = b"\xff" * 64) -> bytes:
    data = example_bytes(name)
    offset = int(len(data) * position)
    return data[:offset] + replacement + data[offset + len(replacement) :]


def repacked(name: str, change: dict[str, bytes | None], *, level: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive with some files changed, added or (None) removed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(example_bytes(name))) as old, zipfile.ZipFile(stream, "w", level) as new:
        for entry in old.namelist():
            if entry not in change:
                new.writestr(entry, old.read(entry))
        for entry, content in change.items():
            if content is not None:
                new.writestr(entry, content)
    return stream.getvalue()


def oversized(name: str) -> bytes:
    """An archive whose first file claims to unpack to 4 GB."""
    data = bytearray(example_bytes(name))
    offset = data.find(b"PK\x01\x02")
    data[offset + 24 : offset + 28] = b"\xf0\xff\xff\xff"
    return bytes(data)


def write_database(script: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


BAD_LETTERS = "create table a (text); insert into a values (cast(x'61ff62' as text))"
VIEW_ON_NOTHING = "create table t (text); create view a as select * from t; drop table t"
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.read()
"""


def locked_database(path: Path) -> subprocess.Popen[bytes]:
    """A database that another program is writing to."""
    write_database("create table a (text text); insert into a values ('b c d')", path)
    command = [sys.executable, "-c", LOCK, str(path)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"locked\n"
    return program


def write_parquet(rows: list[dict], path: Path, **options) -> None:
    pa = pytest.importorskip("pyarrow")
    write_table = pytest.importorskip("pyarrow.parquet").write_table
    write_table(pa.Table.from_pylist(rows), path, **options)


def parquet_of_bad_letters(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    column = pa.array([b"\xff\xfe", b"fine words"], pa.binary()).view(pa.string())
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"text": column}), path)


def odt_of(body: str, kind: str = "text") -> bytes:
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text")
    )
    content = f"<office:document-content {names}><office:body><office:{kind}>{body}</office:{kind}></office:body>"
    return repacked(ODT, {"content.xml": f"{content}</office:document-content>".encode()})


def locked_pdf(path: Path) -> None:
    pymupdf = pytest.importorskip("pymupdf")
    with pymupdf.open(stream=example_bytes("geese.pdf"), filetype="pdf") as document:
        document.save(path, encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="x", owner_pw="y")


def empty_pdf(path: Path) -> None:
    pymupdf = pytest.importorskip("pymupdf")
    with pymupdf.open() as document:
        document.new_page()
        document.save(path)


BOOK, WORD, ODT = "fourth-stroke.epub", "winter-rope.docx", "lamp-keeper.odt"
PAGE, DOCUMENT = "OEBPS/text/chapter 1.xhtml", "word/document.xml"
NO_WORD, NO_ODT = "is not a valid Word document", "is not a valid OpenDocument text document"
DRM = b'<a><CipherReference URI="OEBPS/text/chapter%201.xhtml"/></a>'
PDF_LOOP = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[2 0 R]/Count 1>>endobj\ntrailer<</Root 1 0 R>>"
)
CASES: list[tuple[str, str, object, str]] = [
    ("txt", "NUL bytes", b"a few words\x00\x00 and more" * 50, "control characters"),
    ("txt", "broken bytes", b"Many good words \xff\xfe\xfd here and there. \xc3\xa4" * 20, LOADS),
    ("json", "cut off", example_bytes("ferry-questions.json")[:700], "ends too early"),
    ("json", "a wrong encoding", '[{"text": "Käthe größer Straße schön"}]'.encode("cp1252"), LOADS),
    ("json", "a long row", f'[{{"text": "{LONG}"}}]', "is more than the limit of 5,000,000. Split it"),
    ("json", "deep objects", '{"a":' * 50_000 + "1" + "}" * 50_000, "nested too deeply"),
    (
        "json",
        "a number of thousands of digits",
        '[{"text": "a", "n": ' + "1" * 5_000 + "}]",
        "thousands of digits",
    ),
    ("json", "the same key twice", '[{"text": "a b", "text": "c d e"}]', LOADS),
    ("json", "half a character", '[{"text": "a b \\ud800 c"}]', "an incomplete character"),
    (
        "jsonl",
        "nobody answers",
        '{"messages": [{"role": "user", "content": "a"}]}',
        "no message from the assistant",
    ),
    (
        "jsonl",
        "objects over many lines",
        '{\n"text": "a b c"\n}\n' * 2,
        "line 4: at column 1 ('{'): there is extra",
    ),
    ("csv", "a quote inside a cell", 'question,answer\n"a "b" c",d\n', 'line 2: the row has a " inside a cell.'),
    ("csv", "NUL bytes", "question,answer\na,b\n" * 400 + "c\x00c,d\n", "line 801: "),
    ("csv", "a long row", f"question,answer\na,{LONG}\n", "line 2: the row has"),
    ("csv", "too many cells", "question,answer\na,b\nc,d,e\n", "line 3: the row has 3 columns instead of 2"),
    ("csv", "empty cells", "question,answer\na,b\nc,\n", "line 3: 'answer' is empty"),
    ("csv", "the same name twice", "text,text\na b c,d\n", "columns 1, 2"),
    ("csv", "an Excel file", b"PK\x03\x04" + b"\x00" * 50, "ZIP archive (or an Excel"),
    ("tsv", "commas after all", "question,answer\na,b\n", LOADS),
    ("db", "cut off", example_bytes("ferry-log.db")[:1500], "damaged"),
    ("db", "a damaged page", damaged("ferry-log.db", 0.4, b"\xff" * 900), "a.db"),
    ("db", "no database", b"question,answer\na,b\n", "is not a SQLite database"),
    ("db", "empty", b"", "is empty"),
    ("db", "no tables", partial(write_database, "create table a (b); drop table a"), "has no tables"),
    ("db", "no rows", partial(write_database, "create table a (text text)"), "no row"),
    ("db", "letters that are none", partial(write_database, BAD_LETTERS), "an incomplete character"),
    ("db", "locked", locked_database, "another program is writing to this database"),
    ("db", "a view on nothing", partial(write_database, VIEW_ON_NOTHING), "a.db"),
    ("parquet", "cut off", example_bytes("ferry-talk.parquet")[:-20], "not a Parquet file"),
    ("parquet", "a damaged page", damaged("ferry-talk.parquet", 0.2), "a.parquet"),
    ("parquet", "a damaged foot", damaged("ferry-talk.parquet", 0.8), "a.parquet"),
    ("parquet", "empty", b"", "is empty"),
    ("parquet", "no rows", partial(write_parquet, []), "a.parquet"),
    ("parquet", "null", partial(write_parquet, [{"question": "a", "answer": None}]), "row 1: 'answer' is null"),
    ("parquet", "letters that are none", parquet_of_bad_letters, "row 1: byte 1 of a string is not UTF-8"),
    ("parquet", "lists for text", partial(write_parquet, [{"text": ["a", "b"]}]), "is a list"),
    ("html", "cut off in a tag", b"<html><body><p>Some words and more of them.</p><div cla", LOADS),
    ("html", "wrong quotes", '<p class=\'a"b>Some words</p><p title="x>lost</p>', "without any text"),
    ("html", "deep nesting", "<div>" * 50_000 + "Some words" + "</div>" * 50_000, LOADS),
    ("html", "many remarks that do not end", "<p>Some words</p>" + "<!--" * 300_000, LOADS),
    ("html", "many tags that do not end", "<p>Some words</p>" + "<a" * 500_000, LOADS),
    ("html", "a PDF by this name", example_bytes("geese.pdf"), "is a PDF document"),
    ("epub", "cut off", example_bytes(BOOK)[:1500], "its archive is damaged"),
    ("epub", "damaged inside", damaged(BOOK, 0.45, b"\xff" * 300), "a.epub"),
    ("epub", "an empty container", repacked(BOOK, {"META-INF/container.xml": b""}), "container.xml"),
    (
        "epub",
        "no package",
        repacked(BOOK, {"OEBPS/book.opf": None}),
        "OEBPS/book.opf is listed in the book but missing",
    ),
    ("epub", "no spine", repacked(BOOK, {"OEBPS/book.opf": b"<package/>"}), "lists no pages to read"),
    (
        "epub",
        "no chapter",
        repacked(BOOK, {PAGE: None}),
        "chapter 1.xhtml is listed in the book but missing from the",
    ),
    ("epub", "a chapter of NUL bytes", repacked(BOOK, {PAGE: b"\x00" * 1000}), LOADS),
    ("epub", "a deep chapter", repacked(BOOK, {PAGE: b"<div>" * 50_000}), LOADS),
    ("epub", "a bomb", repacked(BOOK, {PAGE: b"<p>" + b"word " * 11_000_000}), "unpacks to more than 50 MB"),
    ("epub", "locked by its seller", repacked(BOOK, {"META-INF/encryption.xml": DRM}), "protected by DRM"),
    ("docx", "cut off", example_bytes(WORD)[:9000], NO_WORD),
    ("docx", "damaged inside", damaged(WORD, 0.3, b"\xff" * 3000), "a.docx"),
    ("docx", "an old document", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\x00" * 600, "old Word format"),
    ("docx", "no document", repacked(WORD, {DOCUMENT: None}), NO_WORD),
    ("docx", "broken markup", repacked(WORD, {DOCUMENT: b"<w:document><w:body>"}), NO_WORD),
    ("docx", "an e-book by this name", example_bytes(BOOK), NO_WORD),
    ("docx", "a bomb", oversized(WORD), "too large for a document"),
    ("odt", "no archive", b"Some words", NO_ODT),
    ("odt", "cut off", example_bytes(ODT)[:300], NO_ODT),
    ("odt", "no text", odt_of(""), "without any text"),
    ("odt", "broken markup", odt_of("<text:p>unclosed"), NO_ODT),
    ("odt", "a drawing", odt_of("<text:p>a</text:p>", "drawing"), "is an OpenDocument spreadsheet or drawing"),
    (
        "odt",
        "a password",
        repacked(ODT, {"META-INF/manifest.xml": b"<encryption-data/>"}),
        "protected by a password",
    ),
    ("odt", "a bomb", odt_of('<text:p>a<text:s text:c="1000"/></text:p>' * 30_000), "a.odt"),
    ("pdf", "cut off", example_bytes("geese.pdf")[:1500], "a.pdf"),
    ("pdf", "no document", b"Some words", "a.pdf"),
    ("pdf", "damaged inside", damaged("geese.pdf", 0.2, b"\xff" * 1200), LOADS),
    ("pdf", "no end", example_bytes("geese.pdf").replace(b"startxref", b"startxxxx"), LOADS),
    ("pdf", "protected by a password", locked_pdf, "is protected by a password"),
    ("pdf", "pictures of pages", empty_pdf, "has only images and no text (1 page)"),
    ("pdf", "a loop of pages", PDF_LOOP, "a.pdf"),
]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [pytest.param(kind, *rest, id=f"{kind}: {case}") for kind, case, *rest in CASES],
)
def test_it_loads_or_gets_its_message(tmp_path, kind, content, message):
    folders, tokenizer = make_folders(tmp_path), family("ChatML")
    path = folders.datasets / f"a.{kind}"
    content = content.encode() if isinstance(content, str) else content
    program = content(path) if callable(content) else path.write_bytes(content)
    before = read_tree(tmp_path)
    settings = training_settings({"name": "a", "data": [path.name], "too_long": "cut_end"})
    card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
    report = check_datasets(settings, folders, card, tokenizer, lambda *_: None)
    if isinstance(program, subprocess.Popen):
        program.communicate()
        (path.parent / f"{path.name}-journal").unlink(missing_ok=True)
    assert read_tree(tmp_path) == before
    if message == LOADS:
        assert (report.problems, report.examples > 0) == ((), True)
        return
    problem, *skipping = report.problems
    assert [advice.partition(":")[0] for advice in skipping] in ([], ["Invalid rows"])
    assert message in problem and path.name in problem and problem.endswith((".", ")")) and len(problem) < 600
