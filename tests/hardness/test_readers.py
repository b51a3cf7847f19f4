"""Hostile files of every kind: each is read, or refused with a sentence, within seconds and 500 MB of memory.

TRAINING_PRO_HARDNESS_CASES is the number of cases for each reader.
"""

from __future__ import annotations

import io
import os
import sqlite3
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelCard
from training_pro.data.prepare import prepare
from training_pro.data.readers import reader_process
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import make_folders
from training_pro.tests.hardness.conftest import MEASURED, run_cases
from training_pro.tests.rowing import family

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes the cases")
psutil = pytest.importorskip("psutil", reason="the reader process is measured by psutil")
resource = pytest.importorskip("resource", reason="CPU time and memory are measured by POSIX")
from hypothesis import strategies as st  # noqa: E402

CASES = int(os.environ.get("TRAINING_PRO_HARDNESS_CASES", "50"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_SECONDS, MAX_MEGABYTES = 30, 500
"""Of CPU time, and above the file's size: the reader as a whole, and this program above its start."""
ROW_LIMITED = ("parquet",)
"""Its rows may hold 100 times the file's characters, which this program encodes."""
MAX_CHARACTERS = 400_000
SOURCES = {
    "txt": "story.txt", "html": "landing.html", "epub": "fourth-stroke.epub", "docx": "winter-rope.docx",
    "odt": "lamp-keeper.odt", "pdf": "geese.pdf", "srt": "six-o-clock.srt", "vtt": "six-o-clock.srt",
    "json": "ferry-questions.json", "jsonl": "ferry-chats.jsonl", "csv": "ferry-answers.csv",
    "tsv": "ferry-lessons.tsv", "db": "ferry-log.db", "parquet": "ferry-talk.parquet",
}  # fmt: skip
TAGS = [*(f"<{tag}>" for tag in ("td", "font", "p", "div", "h1", "table", "br", "pre")), "</p>", "<!--", "<a "]
TAGS += ["&#x1", "&#1111111;"]
JSON_PARTS = [
    '{"text": ', '{"messages": ', '[{"role": "user", "content": ', '"a b c"', ": ", "NaN", "-Infinity", "1" * 5000,
    '"\\ud800"', '{"mapping": ', '"parent": [', '"current_node": ', '{"chat_messages": ', '"sender": []', '"【†"',
    "null", "true", "1e999", '"instruction": "a", "output": "b"', *"[]{},\n",
]  # fmt: skip
WORD_PARTS = [f"<{end}w:{tag}>" for tag in ("p", "r", "tbl", "tr", "tc", "pPr") for end in ("", "/")]
WORD_PARTS += ["<w:t>words</w:t>", "<!--x-->", '<w:br w:type="page"/>', '<w:pStyle w:val="Heading1"/>']
TIME = "00:00:01.000 --> 00:00:02.000\n"
SUBTITLE_PARTS = [TIME, "<v ", "<v.a", ">", "{\\", "words\n", "NOTE\n", "\n", f"&#{'1' * 5000};"]
CELLS = [*"\",\t;\n\r'\x00é", "a b", "text,", "question,answer\n", ",,,,,,,,"]
WORDS = [*" .\u200d\U0001f468\ufeff\x1b", "word", "\n\n\n", "e\u0301", "* * *\n", "Chapter 1\n", "[1]"]
PARTS = {
    "txt": WORDS, "html": TAGS, "epub": TAGS, "docx": WORD_PARTS,
    "srt": SUBTITLE_PARTS, "vtt": SUBTITLE_PARTS, "json": JSON_PARTS, "jsonl": JSON_PARTS, "csv": CELLS,
    "tsv": CELLS,
}  # fmt: skip
QUERIES = [
    "with recursive r(n) as (select 1 union all select n + 1 from r) select n as text from r",
    "with recursive r(n) as (select 1 union all select n + 1 from r) select 'a' as text from r order by n",
    "select zeroblob(900000000) as text",
    "select hex(zeroblob(300000000)) as text",
    "select replace(hex(zeroblob(9000)), '0', hex(zeroblob(9000))) as text",
    "select a.text from t a, t b, t c, t d where a.text < b.text",
    "select 'x' as text limit 5",
    "select nothing from nowhere",
]


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    with reader_process():
        yield


@cache
def example_bytes(kind: str) -> bytes:
    return (EXAMPLES / SOURCES[kind]).read_bytes()


def repeated(kind: str) -> st.SearchStrategy[str]:
    """A few parts of a format, each repeated: nothing closes, everything grows."""
    run = st.tuples(st.sampled_from(PARTS[kind]), st.sampled_from([1, 1, 2, 70, 700, 5000, 20_000]))
    return st.lists(run, min_size=1, max_size=5).map(joined)


def joined(runs: list[tuple[str, int]]) -> str:
    """The parts as often as they fit; a longer text, cut afterwards, would fill the memory that is measured."""
    fitting = (part * min(count, MAX_CHARACTERS // len(part)) for part, count in runs)
    return "".join(fitting)[:MAX_CHARACTERS]


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """A real file with some bytes replaced, removed or doubled."""
    for _ in range(draw(st.integers(1, 6))):
        position, length = draw(st.integers(0, len(data))), draw(st.sampled_from([0, 1, 2, 16, 500]))
        new = draw(
            st.one_of(st.binary(max_size=8), st.just(data[position : position + 300]), st.just(b"\xff" * 64))
        )
        data = data[:position] + new + data[position + length :]
    return data


def packed(kind: str, content: str) -> bytes:
    """The text as the content of a document of this kind."""
    if kind == "epub":
        return repacked(kind, "chapter 1", f"<html><body>{content}</body></html>")
    if kind == "docx":
        name = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        body = f'<w:document xmlns:w="{name}"><w:body>{balanced(content)}</w:body></w:document>'
        return repacked(kind, "word/document.xml", body)
    start = {"html": "<meta charset=undefined>\xe9", "vtt": "WEBVTT\n\n"}.get(kind, "")
    return (start + content).encode("latin-1" if kind == "html" else "utf-8")


def balanced(markup: str) -> str:
    """XML with every opened element closed; an end without a beginning is dropped."""
    opened, out = [], []
    for piece in markup.replace(">", ">\0").split("\0"):
        text, bracket, tag = piece.partition("<")
        name = tag.strip("/>").split(" ")[0]
        if tag.startswith("/"):
            piece = text
            while name in opened:
                piece += f"</{opened[-1]}>"
                if opened.pop() == name:
                    break
        elif bracket and not tag.startswith("!") and not tag.endswith("/>"):
            opened.append(name)
        out.append(piece)
    return "".join(out) + "".join(f"</{name}>" for name in reversed(opened))


def repacked(kind: str, part: str, content: str) -> bytes:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(example_bytes(kind))) as old,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.namelist():
            new.writestr(entry, content if part in entry else old.read(entry))
    return stream.getvalue()


def database(view: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (text text)")
    connection.executemany("insert into t values (?)", [(str(number),) for number in range(300)])
    with suppress(sqlite3.Error):
        connection.execute(f"create view v as {view}")
        connection.execute("drop table t") if " t " not in view else None
    connection.commit()
    return connection.serialize()


def hostile(kind: str) -> st.SearchStrategy[bytes]:
    broken = mutated(example_bytes(kind))
    if kind == "db":
        return st.one_of(broken, st.sampled_from(QUERIES).map(database))
    if kind in PARTS:
        return st.one_of(broken, repeated(kind).map(partial(packed, kind)), st.binary(max_size=300))
    return st.one_of(broken, st.binary(max_size=300))


def read(path: Path, folders: object) -> str:
    """How a file was read; the sentences where it was refused."""
    tokenizer, settings = family("ChatML"), training_settings({"name": "a", "data": [path.name], "cutoff": "auto"})
    card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
    try:
        return "\n".join(prepare(settings, folders, card, tokenizer, lambda *_: None, keep=False).report.problems)
    except DataError as error:
        return str(error)


def used() -> tuple[float, float]:
    """CPU seconds of this process and of those that read files for it; the memory that the latter have, in MB."""
    seconds, megabytes = time.process_time(), 0.0
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:2])
            megabytes = max(megabytes, child.memory_info().rss / 1e6)
    return seconds, megabytes


def own_peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_hostile_file_is_read_or_refused_within_limits(kind, tmp_path, record_property):
    """The limits are asserted where they are measured for docs/reliability.md: elsewhere the machine is shared."""
    folders = make_folders(tmp_path)
    path = folders.datasets / f"a.{kind}"
    path.write_bytes(example_bytes(kind))
    assert not read(path, folders)
    worst_seconds = worst_reader = worst_own = 0.0
    base = own_peak()

    def try_file(content: bytes) -> None:
        nonlocal worst_seconds, worst_reader, worst_own
        path.write_bytes(content)
        started, _ = used()
        refusal = read(path, folders)
        ended, reader = used()
        worst_seconds, worst_reader = max(worst_seconds, ended - started), max(worst_reader, reader)
        worst_own = own_peak() - base
        assert not refusal or path.name in refusal
        assert all(len(line) <= 1100 for line in refusal.splitlines())
        if MEASURED:
            assert ended - started < MAX_SECONDS
            assert worst_reader < MAX_MEGABYTES + len(content) / 1e6
            assert kind in ROW_LIMITED or worst_own < MAX_MEGABYTES + len(content) / 1e6

    run_cases(try_file, hostile(kind), CASES)
    record_property("what", f"Hostile .{kind} files")
    record_property("cases", CASES)
    record_property("failures", 0)
    record_property("worst_seconds", round(worst_seconds, 2))
    record_property("worst_megabytes", round(max(worst_own, worst_reader), 1))
