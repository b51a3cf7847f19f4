"""Broken files of every kind: each loads or gets one message that names it, without hanging or changing anything."""

# ruff: noqa: E501 - one line per case

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import time
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
SLOWEST = 20  # seconds of CPU time
PAIR = '{"instruction": "Who?", "output": "Nobody."}'
LONG = "word " * 2_000_000


@cache
def example_bytes(name: str) -> bytes:
    return (EXAMPLES / name).read_bytes()


def patched(name: str, old: bytes, new: bytes) -> bytes:
    assert old in example_bytes(name)
    return example_bytes(name).replace(old, new)


def damaged(name: str, position: float, replacement: bytes = b"\xff" * 64) -> bytes:
    data = example_bytes(name)
    offset = int(len(data) * position)
    return data[:offset] + replacement + data[offset + len(replacement) :]


def nested(opening: str, closing: str = "", inside: str = "x") -> str:
    return opening * 50_000 + inside + closing * 50_000


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


def flagged_as_encrypted(name: str) -> bytes:
    data = bytearray(example_bytes(name))
    for signature, flag_offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        offset = data.find(signature)
        while offset >= 0:
            data[offset + flag_offset] |= 1
            offset = data.find(signature, offset + 4)
    return bytes(data)


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


def locked_pdf(path: Path) -> None:
    pymupdf = pytest.importorskip("pymupdf")
    with pymupdf.open(stream=example_bytes("geese.pdf"), filetype="pdf") as document:
        document.save(path, encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="x", owner_pw="y")


def empty_pdf(path: Path) -> None:
    pymupdf = pytest.importorskip("pymupdf")
    with pymupdf.open() as document:
        document.new_page()
        document.save(path)


def epub_with_text(text: str | bytes) -> bytes:
    return repacked(
        "fourth-stroke.epub", {"OEBPS/text/chapter 1.xhtml": text.encode() if isinstance(text, str) else text}
    )


def epub_with_opf(old: bytes, new: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(example_bytes("fourth-stroke.epub"))) as book:
        opf = book.read("OEBPS/book.opf")
    assert old in opf
    return repacked("fourth-stroke.epub", {"OEBPS/book.opf": opf.replace(old, new)})


def docx_with_body(body: str) -> bytes:
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    document = f"<w:document {namespace}><w:body>{body}</w:body></w:document>"
    return repacked("winter-rope.docx", {"word/document.xml": document.encode()})


GZ = b"\x1f\x8b\x08\x00" + b"\x00" * 40

CASES: dict[str, list[tuple[str, object, str]]] = {
    "txt": [
        ("cut off in the middle of a letter", "Käthe ging ü".encode()[:-1], LOADS),
        ("NUL bytes", b"a few words\x00\x00 and more" * 50, "control characters"),
        ("nothing but NUL", b"\x00" * 4000, "is not text"),
        ("a wrong encoding", "Käthe größer Straße. ".encode("cp1252") * 30, LOADS),
        ("UTF-16 cut off", "A few words of text.\n".encode("utf-16")[:-1], LOADS),
        ("10 MB in a line", LONG, LOADS),
        ("empty", b"", "is empty"),
        ("blank", b" \n\t\n", "is empty"),
        ("a picture", b"\x89PNG\r\n\x1a\n" + b"\x00\x01\x02" * 99, "is an image"),
        ("a compressed file", GZ, "is a compressed file"),
        ("a mark alone", b"\xef\xbb\xbf", "is empty"),
        ("broken bytes", b"Many good words \xff\xfe\xfd here and there. \xc3\xa4" * 20, LOADS),
    ],
    "json": [
        ("cut off", example_bytes("ferry-questions.json")[:700], "ends too early"),
        ("wrong quotes", "[{'instruction': 'a', 'output': 'b'}]", "straight double quotes"),
        ("NUL bytes", b'[{"text": "a\x00b"}]', "control characters"),
        ("a wrong encoding", '[{"text": "Käthe größer Straße schön"}]'.encode("cp1252"), LOADS),
        ("10 MB in a line", json.dumps([{"text": LONG}]), "is more than the limit of 5,000,000. Split it"),
        ("deep nesting", nested("["), "nested too deeply"),
        ("deep objects", nested('{"a":', "}", "1"), "nested too deeply"),
        ("thousands of digits", '[{"text": "a b c", "n": ' + "1" * 5_000 + "}]", "thousands of digits"),
        ("thousands of digits below", '{"rows": [{"text": "a", "n": ' + "1" * 5_000 + "}]}", "thousands of digits"),
        ("the same key twice", '[{"text": "a b", "text": "c d e"}]', LOADS),
        ("numbers for text", '[{"instruction": 5, "output": 6}]', "is a number (5). It must be text"),
        ("null", '[{"instruction": "a", "output": null}]', "'output' is null"),
        ("a null row", f"[{PAIR}, null]", "row 2: the row is null"),
        ("missing columns", f'[{PAIR}, {{"instruction": "b"}}]', "row 2: the row has no 'output'"),
        ("a comma too many", f"[{PAIR},]", "at column"),
        ("no rows", "[]", "has no rows"),
        ("a number", "5", "contains a number"),
        ("unknown columns", '[{"x": "a", "y": "b"}]', "and none of them is recognized"),
        ("half a character", '[{"text": "a b \\ud800 c"}]', "an incomplete character"),
        ("empty texts", '[{"instruction": "", "output": ""}]', "is empty"),
    ],
    "jsonl": [
        ("cut off", f'{PAIR}\n{PAIR}\n{{"instruction": "a", "out', "line 3: the row ends too early"),
        ("wrong quotes", f"{PAIR}\n{{'instruction': 'a'}}", "line 2: at column 2"),
        ("NUL bytes", f'{PAIR}\n{{"instruction": "a\x00", "output": "b"}}', "line 2: at column"),
        ("a wrong encoding", PAIR.encode() + b'\n{"instruction": "\xe4", "output": "b"}', "line 2: byte 18 is not UTF-8"),
        ("10 MB in a line", f"{PAIR}\n" + json.dumps({"instruction": "a", "output": LONG}), "line 2: the row has"),
        ("deep nesting", f"{PAIR}\n{nested('[')}", "line 2: the row is nested too deeply"),
        ("thousands of digits", f'{PAIR}\n{{"n": ' + "1" * 5_000 + "}", "line 2: the row contains a number with thousands"),
        ("the same key twice", '{"text": "a", "text": "b c d"}', LOADS),
        ("numbers for text", '{"prompt": 1, "completion": 2}', "is a number (1)"),
        ("null", f"{PAIR}\nnull", "line 2: the row is null"),
        ("missing columns", f'{PAIR}\n{{"output": "b"}}', "line 2: the row has no 'instruction'"),
        ("messages that are a text", '{"messages": [1, 2]}', "message 1 is a number"),
        ("an unknown role", '{"messages": [{"role": "wizard", "content": "a"}]}', "message 1 has the role 'wizard'"),
        ("nobody answers", '{"messages": [{"role": "user", "content": "a"}]}', "no message from the assistant"),
        ("empty", b"", "is empty"),
        ("an object over many lines", '{\n"text": "a b c"\n}\n', LOADS),
        ("objects over many lines", '{\n"text": "a b c"\n}\n' * 2, "line 4: at column 1 ('{'): there is extra text after the end"),
        ("no line ends, all in one", PAIR * 3, "there is extra text after the end"),
    ],
    "csv": [
        ("cut off in a quote", b'question,answer\nWho?,Me\nWhat?,"It ends', "line 3: the row ends too early: an opening \" has no"),
        ("wrong quotes", 'question,answer\n"a "b" c",d\n', 'line 2: the row has a " inside a cell. Write it twice'),
        ("NUL bytes", "question,answer\na,b\n" * 400 + "c\x00c,d\n", "line 801: "),
        ("a wrong encoding", "question,answer\nWie heißt Käthe?,Schön größer.\n".encode("cp1252"), LOADS),
        ("10 MB in a line", f"question,answer\na,{LONG}\n", "line 2: the row has a cell with more than"),
        ("a quote that nothing closes", 'question,answer\na,"b\n' + "c,d\n" * 1_000, "line 2: the row ends too early: an opening \" has no"),
        ("numbers for text", "question,answer\n1,2\n3,4\n", LOADS),
        ("missing cells", "question,answer\na,b\nc\n", "line 3: the row has 1 column instead of 2"),
        ("too many cells", "question,answer\na,b\nc,d,e\n", "line 3: the row has 3 columns instead of 2"),
        ("empty cells", "question,answer\na,b\nc,\n", "line 3: 'answer' is empty"),
        ("the same name twice", "text,text\na b c,d\n", "columns 1, 2"),
        ("names alone", "question,answer\n", "has no rows"),
        ("empty", b"", "is empty"),
        ("an Excel file by this name", b"PK\x03\x04" + b"\x00" * 50, "ZIP archive (or an Excel"),
        ("unknown names", "alpha,beta\na,b\n", "columns alpha, beta, and none of them is recognized"),
        ("UTF-16 cut off", "question,answer\na,b\n".encode("utf-16")[:-1], LOADS),
        ("half quotes of all kinds", "question,answer\n\"'`,”\n", "line 2: "),
    ],
    "tsv": [
        ("cut off in a quote", b'question\tanswer\nWho?\t"It ends', "line 2: the row ends too early"),
        ("wrong quotes", 'question\tanswer\n"a "b" c"\td\n', 'has a " inside a cell'),
        ("NUL bytes", "question\tanswer\na\tb\n" * 400 + "c\x00c\td\n", "line 801: "),
        ("a wrong encoding", "question\tanswer\nWie heißt Käthe?\tSchön größer.\n".encode("cp1252"), LOADS),
        ("10 MB in a line", f"question\tanswer\na\t{LONG}\n", "line 2: the row has"),
        ("numbers for text", "question\tanswer\n1\t2\n", LOADS),
        ("missing cells", "question\tanswer\na\tb\nc\n", "line 3: the row has 1 column instead of 2"),
        ("too many cells", "question\tanswer\na\tb\nc\td\te\n", "line 3: the row has 3 columns"),
        ("empty cells", "question\tanswer\na\tb\n\td\n", "line 3: 'question' is empty"),
        ("names alone", "question\tanswer", "has no rows"),
        ("blank", b"\n\n \n", "is empty"),
        ("commas after all", "question,answer\na,b\n", LOADS),
    ],
    "db": [
        ("cut off", example_bytes("ferry-log.db")[:1500], "damaged"),
        ("a damaged page", damaged("ferry-log.db", 0.4, b"\xff" * 900), "ferry-log.db"),
        ("no database", b"question,answer\na,b\n", "is not a SQLite database"),
        ("NUL bytes", b"\x00" * 4096, "is not a SQLite database"),
        ("a head alone", example_bytes("ferry-log.db")[:100], "a.db"),
        ("empty", b"", "is empty"),
        ("no tables", partial(write_database, "create table a (b); drop table a"), "has no tables"),
        ("a table without rows", partial(write_database, "create table a (text text)"), "no row"),
        ("several tables", partial(write_database, "create table a (text text); create table b (text text)"), "several tables"),
        ("unknown columns", partial(write_database, "create table a (x text, y text); insert into a values ('b', 'c')"), "none of them is recognized"),
        ("null", partial(write_database, "create table a (question, answer); insert into a values ('b', null)"), "row 1: 'answer' is null"),
        ("numbers for text", partial(write_database, "create table a (question, answer); insert into a values (1, 2)"), "is a number (1)"),
        ("binary data", partial(write_database, "create table a (text); insert into a values (x'ff00')"), "a.db"),
        ("letters that are none", partial(write_database, "create table a (text); insert into a values (cast(x'61ff62' as text))"), "an incomplete character"),
        ("locked", locked_database, "another program is writing to this database"),
        ("a view on nothing", partial(write_database, "create table t (text); create view a as select * from t; drop table t"), "a.db"),
    ],
    "parquet": [
        ("cut off", example_bytes("ferry-talk.parquet")[:-20], "not a Parquet file"),
        ("half", example_bytes("ferry-talk.parquet")[:700], "not a Parquet file"),
        ("a damaged page", damaged("ferry-talk.parquet", 0.2), "a.parquet"),
        ("a damaged foot", damaged("ferry-talk.parquet", 0.8), "a.parquet"),
        ("signs alone", b"PAR1PAR1", "not a Parquet file"),
        ("text", b"question,answer\na,b\n", "not a Parquet file"),
        ("empty", b"", "is empty"),
        ("NUL bytes", b"\x00" * 4000, "not a Parquet file"),
        ("no rows", partial(write_parquet, []), "a.parquet"),
        ("null", partial(write_parquet, [{"question": "a", "answer": None}, {"question": "a", "answer": "b"}]), "row 1: 'answer' is null"),
        ("numbers for text", partial(write_parquet, [{"question": 1, "answer": 2}]), "is a number (1)"),
        ("unknown columns", partial(write_parquet, [{"x": "a", "y": "b"}]), "none of them is recognized"),
        ("letters that are none", parquet_of_bad_letters, "row 1: byte 1 of a string is not UTF-8"),
        ("10 MB in a row", partial(write_parquet, [{"text": LONG}]), "row 1: the row has"),
        ("lists for text", partial(write_parquet, [{"text": ["a", "b"]}]), "is a list"),
    ],
    "html": [
        ("cut off in a tag", b"<html><body><p>Some words and more of them.</p><div cla", LOADS),
        ("cut off in a letter", "<p>Some words, größ".encode()[:-1], LOADS),
        ("wrong quotes", "<p class='a\"b>Some words</p><p title=\"x>lost</p>", "without any text"),
        ("NUL bytes", b"<p>Some words\x00 and more</p>", LOADS),
        ("a wrong encoding", "<p>Käthe größer Straße schön</p>".encode("cp1252"), LOADS),
        ("an encoding that is none", "<meta charset=wizard><p>Käthe größer</p>".encode("cp1252"), LOADS),
        ("10 MB in a line", "<p>" + ("word " + " " * 95) * 100_000 + "</p>", LOADS),
        ("deep nesting", nested("<div>", "</div>", "Some words"), LOADS),
        ("a remark that does not end", "<p>Some words</p><!-- " + "x" * 100_000, LOADS),
        ("many that do not end", "<p>Some words</p>" + "<!--" * 300_000, LOADS),
        ("many tags that do not end", "<p>Some words</p>" + "<a" * 500_000, LOADS),
        ("nothing to see", "<html><script>x</script></html>", "without any text"),
        ("empty", b"", "without any text"),
        ("a PDF by this name", example_bytes("geese.pdf"), "is a PDF document"),
        ("the same attribute twice", '<p id="a" id="b">Some words</p>', LOADS),
    ],
    "epub": [
        ("cut off", example_bytes("fourth-stroke.epub")[:1500], "its archive is damaged"),
        ("no archive", b"Some words", "its archive is damaged"),
        ("damaged inside", damaged("fourth-stroke.epub", 0.45, b"\xff" * 300), "a.epub"),
        ("empty", b"", "its archive is damaged"),
        ("no container", repacked("fourth-stroke.epub", {"META-INF/container.xml": None}), "container.xml is listed in the book but missing from the archive"),
        ("an empty container", repacked("fourth-stroke.epub", {"META-INF/container.xml": b""}), "container.xml"),
        ("no package", repacked("fourth-stroke.epub", {"OEBPS/book.opf": None}), "OEBPS/book.opf is listed in the book but missing from the archive"),
        ("no spine", epub_with_opf(b"itemref", b"nothing"), "lists no pages to read"),
        ("a chapter that does not exist", repacked("fourth-stroke.epub", {"OEBPS/text/chapter 2.xhtml": None}), "chapter 2.xhtml is listed in the book but missing from the archive"),
        ("a chapter of NUL bytes", epub_with_text(b"\x00" * 1000), LOADS),
        ("a chapter in a wrong encoding", epub_with_text("<p>größer Käthe</p>".encode("cp1252")), LOADS),
        ("a chapter that is nested deeply", epub_with_text(nested("<div>", "</div>")), LOADS),
        ("a bomb", lambda path: path.write_bytes(epub_with_text(b"<p>" + b"word " * 11_000_000)), "unpacks to more than 50 MB"),
        ("protected by a password", flagged_as_encrypted("fourth-stroke.epub"), "protected by a password"),
        ("locked by its seller", repacked("fourth-stroke.epub", {"META-INF/encryption.xml": b'<a><CipherReference URI="OEBPS/text/chapter%201.xhtml"/></a>'}), "protected by DRM"),
        ("entities that grow", epub_with_opf(b"<?xml version=\"1.0\" encoding=\"utf-8\"?>", b'<!DOCTYPE a [<!ENTITY b "xxxxxxxxxx"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;">]>'), LOADS),
    ],
    "docx": [
        ("cut off", example_bytes("winter-rope.docx")[:9000], "is not a valid Word document"),
        ("no archive", b"Some words", "is not a valid Word document"),
        ("damaged inside", damaged("winter-rope.docx", 0.3, b"\xff" * 3000), "a.docx"),
        ("empty", b"", "is not a valid Word document"),
        ("an old document", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\x00" * 600, "old Word format"),
        ("no document inside", repacked("winter-rope.docx", {"word/document.xml": None}), "is not a valid Word document"),
        ("no types", repacked("winter-rope.docx", {"[Content_Types].xml": None}), "is not a valid Word document"),
        ("broken markup", repacked("winter-rope.docx", {"word/document.xml": b"<w:document><w:body>"}), "is not a valid Word document"),
        ("an e-book by this name", example_bytes("fourth-stroke.epub"), "is not a valid Word document"),
        ("no text", docx_with_body("<w:p/>"), "without any text"),
        ("NUL bytes", repacked("winter-rope.docx", {"word/document.xml": b"\x00" * 500}), "is not a valid Word document"),
        ("deep nesting", docx_with_body(nested("<w:sdt>", "</w:sdt>", "")), "a.docx"),
        ("a bomb", oversized("winter-rope.docx"), "too large for a document"),
        ("protected by a password", flagged_as_encrypted("winter-rope.docx"), "is not a valid Word document"),
    ],
    "pdf": [
        ("cut off", example_bytes("geese.pdf")[:1500], "a.pdf"),
        ("a head alone", b"%PDF-1.7\n", "a.pdf"),
        ("no document", b"Some words", "a.pdf"),
        ("empty", b"", "a.pdf"),
        ("NUL bytes", b"\x00" * 4000, "a.pdf"),
        ("damaged inside", damaged("geese.pdf", 0.2, b"\xff" * 1200), LOADS),
        ("no end", example_bytes("geese.pdf").replace(b"%%EOF", b""), LOADS),
        ("a wrong table of objects", patched("geese.pdf", b"startxref", b"startxxxx"), LOADS),
        ("protected by a password", locked_pdf, "is protected by a password"),
        ("pictures of pages", empty_pdf, "has only images and no text (1 page)"),
        ("10 MB behind its end", example_bytes("geese.pdf") + LONG.encode(), LOADS),
        ("a loop of pages", b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[2 0 R]/Count 1>>endobj\ntrailer<</Root 1 0 R>>", "a.pdf"),
    ],
}  # fmt: skip
ALL = [
    pytest.param(kind, content, message, id=f"{kind}: {case}")
    for kind, cases in CASES.items()
    for case, content, message in cases
]


def test_there_are_ten_of_each_kind():
    assert all(len(cases) >= 10 for cases in CASES.values())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "content", "message"), ALL)
def test_it_loads_or_gets_its_message(tmp_path, kind, content, message):
    folders = make_folders(tmp_path)
    path = folders.datasets / f"a.{kind}"
    program = content(path) if callable(content) else path.write_bytes(_bytes(content))
    before, started = read_tree(tmp_path), time.process_time()
    tokenizer = family("ChatML")
    settings = training_settings({"name": "a", "data": [path.name], "too_long": "cut_end"})
    report = check_datasets(
        settings, folders, ModelCard("toy", {}, tokenizer.tokenizer, "auto"), tokenizer, lambda *_: None
    )
    assert time.process_time() - started < SLOWEST
    if isinstance(program, subprocess.Popen):
        program.communicate()
        (path.parent / f"{path.name}-journal").unlink(missing_ok=True)
    assert read_tree(tmp_path) == before
    if message == LOADS:
        assert (report.problems, report.examples > 0) == ((), True)
        return
    problem, *skipping = report.problems
    assert [advice.partition(":")[0] for advice in skipping] in ([], ["Invalid rows"])
    assert message.replace("ferry-log.db", path.name) in problem
    assert path.name in problem and problem.endswith((".", ")")) and len(problem) < 600


def _bytes(content):
    return content.encode() if isinstance(content, str) else content
