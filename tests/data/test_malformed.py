"""Broken files of every kind: each loads or gets one message that names it, without changing anything."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from functools import cache, partial
from pathlib import Path

import pytest
from training_pro.core.host import ModelCard
from training_pro.data.prepare import check_datasets
from training_pro.settings.parsing import training_settings
from training_pro.tests.data.readers.reading import make_database
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import family
from training_pro.tests.tiny import read_tree

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOADS = ""


@cache
def example_bytes(name: str) -> bytes:
    return (EXAMPLES / name).read_bytes()


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


BAD_LETTERS = "create table a (text); insert into a values (cast(x'61ff62' as text))"
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.read()
"""


def locked_database(path: Path) -> subprocess.Popen[bytes]:
    """A database that another program is writing to."""
    make_database(path, "create table a (text text); insert into a values ('b c d')")
    command = [sys.executable, "-c", LOCK, str(path)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"locked\n"
    return program


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
NO_WORD = "can't be read as a Word document"
DRM = b'<a><CipherReference URI="OEBPS/text/chapter%201.xhtml"/></a>'
PDF_LOOP = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[2 0 R]/Count 1>>endobj\ntrailer<</Root 1 0 R>>"
)
CASES: list[tuple[str, str, object, str]] = [
    ("jsonl", "rows over lines", '{\n"text": "a"\n}\n' * 2, "line 4: at column 1 ('{'): extra data"),
    ("csv", "too many cells", "question,answer\na,b\nc,d,e\n", "line 3: the row has 3 columns instead of 2"),
    ("csv", "an Excel file", b"PK\x03\x04" + b"\x00" * 50, "ZIP archive (or an Excel"),
    ("db", "no tables", partial(make_database, script="create table a (b); drop table a"), "has no tables"),
    ("db", "letters that are none", partial(make_database, script=BAD_LETTERS), "an incomplete character"),
    ("db", "locked", locked_database, "another program is writing to this database"),
    ("parquet", "cut off", example_bytes("ferry-talk.parquet")[:-20], "not a Parquet file"),
    ("html", "deep nesting", "<div>" * 50_000 + "Some words" + "</div>" * 50_000, LOADS),
    ("html", "many tags that do not end", "<p>Some words</p>" + "<a" * 500_000, LOADS),
    ("html", "a PDF by this name", example_bytes("geese.pdf"), "is a PDF document"),
    ("epub", "cut off", example_bytes(BOOK)[:1500], "can't be read as an e-book (File is not a zip file)"),
    ("epub", "no package", repacked(BOOK, {"OEBPS/book.opf": None}), "There is no item named 'OEBPS/book.opf'"),
    ("epub", "a deep chapter", repacked(BOOK, {PAGE: b"<div>" * 50_000}), LOADS),
    ("epub", "a bomb", repacked(BOOK, {PAGE: b"<p>" + b"word " * 11_000_000}), "which is too much for a file of"),
    ("epub", "locked by its seller", repacked(BOOK, {"META-INF/encryption.xml": DRM}), "protected by DRM"),
    ("docx", "an old document", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\x00" * 600, "old Word format"),
    ("docx", "no document", repacked(WORD, {DOCUMENT: None}), NO_WORD),
    ("docx", "a false size", oversized(WORD), LOADS),
    ("odt", "no text", odt_of(""), "without any text"),
    ("odt", "a drawing", odt_of("<text:p>a</text:p>", "drawing"), "is an OpenDocument spreadsheet or drawing"),
    ("odt", "a password", repacked(ODT, {"META-INF/manifest.xml": b"<encryption-data/>"}), "by a password"),
    ("pdf", "cut off", example_bytes("geese.pdf")[:1500], "a.pdf"),
    ("pdf", "protected by a password", locked_pdf, "is protected by a password"),
    ("pdf", "pictures of pages", empty_pdf, "has only images and no text (1 page)"),
    ("pdf", "a loop of pages", PDF_LOOP, "a.pdf"),
]


@pytest.mark.long
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
