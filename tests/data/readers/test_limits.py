"""Files that swell, never end, or hold what no reader expects: a sentence within seconds, never a traceback."""

from __future__ import annotations

import importlib
import io
import json
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from training_pro.core.errors import DataError, StoppedError
from training_pro.data import load
from training_pro.data.readers import html, reader_process, row_files, subtitles
from training_pro.data.readers.paragraphs import Paragraph, join_paragraphs
from training_pro.data.readers.process import Budget, as_data_error, budget, exceeds_depth
from training_pro.data.readers.process.frames import pack, unpack
from training_pro.data.rows import row_schema
from training_pro.settings.columns import Columns
from training_pro.train_utils import natural_key

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ENDLESS = "with recursive r(n) as (select 1 union all select n + 1 from r) select 'a' as text from r order by n"


reader_process_module = importlib.import_module("training_pro.data.readers.process.reader_process")
launch = importlib.import_module("training_pro.data.readers.process.launch")


def rows_of(path, query=""):
    return list(row_files.read_table(path, path.name, Columns(query=query)).rows())


def problems(path):
    return [row.problem for row in rows_of(path)]


def repacked(name: str, part: str, content: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(EXAMPLES / name) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            new.writestr(entry, content if entry == part else old.read(entry))
    return stream.getvalue()


def open_document(body: str) -> bytes:
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text")
    )
    content = f"<office:document-content {names}><office:body><office:text>{body}</office:text></office:body>"
    return repacked("lamp-keeper.odt", "content.xml", f"{content}</office:document-content>")


def database(path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


@pytest.mark.parametrize("query", [ENDLESS, "select hex(zeroblob(400000000)) as text"])
def test_a_select_that_never_ends_or_swells_is_refused(tmp_path, query, monkeypatch):
    monkeypatch.setattr(budget, "SECONDS", 1)
    path = database(tmp_path / "a.db", "create table a (text text)")
    with pytest.raises(DataError, match=r"a\.db") as error:
        rows_of(path, query)
    assert "seconds of CPU time" in str(error.value) or "memory" in str(error.value) or "MB" in str(error.value)


def test_a_view_without_an_end_stops_after_its_rows(tmp_path):
    endless = ENDLESS.removesuffix(" order by n")
    path = database(tmp_path / "a.db", f"create view a as {endless}")
    with pytest.raises(DataError, match=r"a\.db has more than [\d,]+ rows"):
        rows_of(path)


def test_stop_ends_the_reading_of_a_view_without_an_end(tmp_path):
    path, stopped = database(tmp_path / "a.db", f"create view a as {ENDLESS}"), threading.Event()
    threading.Timer(0.7, stopped.set).start()
    started = time.process_time()
    with reader_process(stopped.is_set), pytest.raises(StoppedError, match=r"Stopped while reading a\.db"):
        rows_of(path)
    assert time.process_time() - started < 2


def test_the_next_file_is_read_after_one_that_ended_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "SECONDS", 1)
    endless = database(tmp_path / "a.db", f"create view a as {ENDLESS}")
    good = database(tmp_path / "b.db", "create table a (text text); insert into a values ('b c')")
    with reader_process():
        with pytest.raises(DataError):
            rows_of(endless)
        assert [row.columns for row in rows_of(good)] == [{"text": "b c"}]


def test_the_process_ends_with_the_program_that_started_it(tmp_path):
    psutil = pytest.importorskip("psutil")
    path = database(tmp_path / "a.db", f"create view a as {ENDLESS}")
    script = Path(__file__).resolve().parents[3] / "script.py"
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("extensions_of_webui", {str(script)!r})
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from extensions_of_webui.data.readers import row_files
from extensions_of_webui.settings.columns import Columns
from pathlib import Path
print("reading", flush=True)
list(row_files.read_table(Path({str(path)!r}), "a.db", Columns()).rows())
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"reading\n"
    while not (children := psutil.Process(program.pid).children()):
        time.sleep(0.05)
    program.kill()
    program.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_a_python_that_does_not_start_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    path = database(tmp_path / "a.db", "create table a (text text); insert into a values ('b c')")
    with pytest.raises(DataError, match=r"a\.db can't be read: the process that reads it could not be started"):
        rows_of(path)


def test_a_few_kilobytes_do_not_swell_to_gigabytes(tmp_path):
    path = tmp_path / "a.odt"
    path.write_bytes(open_document('<text:p>a<text:s text:c="1000"/></text:p>' * 100_000))
    assert path.stat().st_size < 50_000
    with pytest.raises(DataError, match=r"a\.odt (expands|takes)"):
        load.read_texts(path)


@pytest.mark.parametrize("value", ["word " * 20_000, None])
def test_a_small_parquet_does_not_swell_to_gigabytes(tmp_path, value):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = arrow.array([value] * 1000, arrow.string()).dictionary_encode()
    with parquet.ParquetWriter(tmp_path / "a.parquet", arrow.schema([("text", column.type)])) as writer:
        for _ in range(5 if value else 400):
            writer.write_table(arrow.table({"text": column}))
    with pytest.raises(DataError, match=r"a\.parquet (expands|takes|has more)"):
        rows_of(tmp_path / "a.parquet")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts writable memory against a limit")
def test_the_system_ends_a_parquet_that_swells_faster_than_the_watch_looks(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["word " * 40_000_000]}), tmp_path / "a.parquet", compression="zstd")
    monkeypatch.setattr(budget, "MEMORY_BYTES", 50 * budget.MB)
    monkeypatch.setattr(reader_process_module.Meter, "memory", lambda _: 0)  # the watch sees nothing
    with pytest.raises(DataError, match=r"a\.parquet takes more than 50 MB of memory to read"):
        rows_of(tmp_path / "a.parquet")


def test_the_process_that_reads_files_does_not_load_the_rest_of_the_program():
    others = "print([name for name in sys.modules if name.startswith('training_pro.')])"
    program = launch.BOOTSTRAP.replace(".serve()", f"\n{others}")
    module = "training_pro.data.readers.process.child"
    command = [sys.executable, "-c", program, json.dumps(sys.path), str(launch.SCRIPT), module]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "training_pro.data.readers.pdf" in modules
    assert "arrow_store" not in modules and "core.host" not in modules


def test_numbers_of_thousands_of_digits_in_documents(tmp_path):
    digits = "9" * 5000
    (tmp_path / "a.odt").write_bytes(
        open_document(
            f'<text:h text:outline-level="{digits}">A</text:h><text:p>b<text:s text:c="{digits}"/>c</text:p>'
        )
    )
    (tmp_path / "b.srt").write_text(f"1\n00:00:01,000 --> 00:00:02,000\na &#{digits}; b\n")
    first, second = load.read_texts(tmp_path)
    assert first.text.startswith("A\n\nb ") and second.text == "a \ufffd b"
    assert natural_key(f"a{digits}") > natural_key("a9")


def test_dates_that_python_does_not_have_are_a_row_with_a_reason(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    dates = arrow.array([0, 10**8], arrow.int32()).cast(arrow.date32())
    parquet.write_table(arrow.table({"text": ["a b", "c d"], "day": dates}), tmp_path / "a.parquet")
    first, second = rows_of(tmp_path / "a.parquet")
    assert (first.columns["text"], first.problem) == ("a b", "")
    assert second.problem.startswith("has a value that can't be read")


def test_rows_that_are_nested_too_deeply_are_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n{"text": ' + "[" * 600 + "]" * 600 + "}\n")
    assert problems(tmp_path / "a.jsonl")[1].startswith("is nested more than 64 levels deep")
    assert not exceeds_depth({"messages": [{"tool_calls": [{"function": {"arguments": {"a": [1]}}}]}]})


@pytest.mark.parametrize(
    "export",
    [
        {"mapping": {"a": {"parent": ["b"], "message": {}}}},
        {"chat_messages": [{"sender": ["human"], "text": "a"}]},
        {"mapping": {"a": {"message": {}}}, "current_node": ["a"]},
    ],
)
def test_an_export_with_lists_in_place_of_names_is_a_message(tmp_path, export):
    (tmp_path / "conversations.json").write_text(json.dumps([export]))
    assert all(problems(tmp_path / "conversations.json"))


def test_many_citation_marks_and_messages_of_one_role_take_linear_time(tmp_path):
    messages = [{"sender": "human", "text": f"{number}" * 20} for number in range(20_000)]
    marks = {"sender": "assistant", "text": "【" + "†" * 100_000}
    (tmp_path / "a.json").write_text(json.dumps([{"chat_messages": [*messages, marks]}]))
    started = time.process_time()
    [row] = rows_of(tmp_path / "a.json")
    assert len(row.columns["messages"]) == 2 and time.process_time() - started < 10


@pytest.mark.parametrize("encoding", ["undefined", "punycode", "idna", "rot13", "unicode_escape"])
def test_an_encoding_that_no_page_is_in_is_overlooked(encoding):
    source, _ = html.decode_page(f"<meta charset={encoding}><p>Käthe größer".encode("cp1252"), "a.html")
    assert source.endswith("Käthe größer")


@pytest.mark.parametrize("tag", ["<td>", "<td>\n", "<td>a<br>", "<font><p>a", "<h1>a"])
def test_tags_that_nothing_closes_take_linear_time(tag):
    started = time.process_time()
    join_paragraphs(html.read_paragraphs(tag * 60_000, "a.html"), "\n\n\n")
    assert time.process_time() - started < 10


@pytest.mark.parametrize("line", ["<v a", "<v.a", "<v ", "<v \t", "天"])
def test_subtitles_of_one_long_block_take_linear_time(tmp_path, line):
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n" + line * 60_000 + "\n天\n地" * 60_000)
    started = time.process_time()
    subtitles.read_paragraphs(tmp_path / "a.vtt", "a.vtt")
    assert time.process_time() - started < 10


def test_many_headings_take_linear_time():
    started = time.process_time()
    _, parts, _ = join_paragraphs([Paragraph("a", 1)] * 60_000, "\n\n\n")
    assert parts == 1 and time.process_time() - started < 10


def test_many_empty_columns_take_linear_time(tmp_path):
    (tmp_path / "a.csv").write_text("a,b" + "," * 100_000 + "\n" + "x,y" + "," * 100_000 + "\n")
    started = time.process_time()
    assert rows_of(tmp_path / "a.csv")[0].columns == {"a": "x", "b": "y"}
    assert time.process_time() - started < 10


def test_a_literal_that_is_too_long_or_too_deep_stays_a_text():
    deep = "[{'a': " + "[" * 90 + "]" * 90 + "}]"
    long = "[{'a': " + "1," * 300_000 + "}]"
    assert [row_schema._parse_list(text) for text in (deep, long)] == [deep, long]


def test_what_no_reader_foresees_becomes_a_sentence_with_the_name_of_the_file(caplog):
    with pytest.raises(DataError, match=r"a\.csv can't be read \(KeyError: 'x'\)"), as_data_error("a.csv"):
        raise KeyError("x")
    assert "Traceback" in caplog.text
    with pytest.raises(DataError) as error, as_data_error("a.csv"):
        raise DataError("a.csv: " + "x" * 1_000_000)
    assert len(str(error.value)) <= 1000


def test_values_keep_their_types_between_the_processes():
    import datetime
    import decimal
    import uuid

    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)
    values = [
        *(None, True, 3, 2**70, 0.1, "a\ud800", b"\xff", moment, moment.date(), moment.time()),
        *(datetime.timedelta(-1, 2, 3), decimal.Decimal("1.20"), uuid.UUID(int=7), (1, "a"), [{"b": [moment]}]),
    ]
    again = unpack(pack(values))
    assert again == values and list(map(type, again)) == list(map(type, values))


def test_two_files_are_read_at_the_same_time(tmp_path):
    script = "begin; create table a (text text);" + "insert into a values ('b c');" * 3000 + "commit;"
    paths = [database(tmp_path / f"{number}.db", script) for number in range(2)]
    with reader_process():
        tables = [iter(row_files.read_table(path, path.name, Columns()).rows()) for path in paths]
        assert sum(1 for rows in zip(*tables, strict=True) for _ in rows) == 6000


def test_the_limits_grow_with_the_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a" * 1_000_000)
    limits = Budget.of(tmp_path / "a.txt", "a.txt")
    assert (limits.seconds, limits.memory, limits.characters, limits.rows) == (
        14,
        401 * 10**6,
        120 * 10**6,
        1_100_000,
    )
