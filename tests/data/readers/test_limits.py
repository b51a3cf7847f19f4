"""Files that swell, never end, or hold what no reader expects: a sentence with their name, never a traceback."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from training_pro.core.errors import DataError, StoppedError
from training_pro.data.readers import as_data_error, reader_process
from training_pro.tests.conftest import ROOT
from training_pro.tests.data.readers.reading import make_database, read_columns, read_table, read_text, refusal

ENDLESS = "with recursive r(n) as (select 1 union all select n + 1 from r) select 'a' as text from r order by n"
GOOD = "create table a (text text); insert into a values ('b c')"
PROGRAM = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("extension", {str(ROOT / "script.py")!r})
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


@pytest.mark.long
def test_the_next_file_is_read_after_one_that_never_ends(tmp_path):
    endless = make_database(tmp_path / "a.db", f"create view a as {ENDLESS}")
    good = make_database(tmp_path / "b.db", GOOD)
    with reader_process():
        assert "takes more than 4 seconds of CPU time to read" in refusal(endless)
        assert read_columns(good) == [{"text": "b c"}]


@pytest.mark.long
def test_a_select_that_swells_and_a_view_without_an_end_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.db .*(memory|MB)"):
        read_table(make_database(tmp_path / "a.db", GOOD), "select hex(zeroblob(400000000)) as text")
    path = make_database(tmp_path / "b.db", f"create view a as {ENDLESS.removesuffix(' order by n')}")
    assert "b.db has more than 10" in refusal(path)


def test_stop_ends_the_reading_of_a_view_without_an_end(tmp_path):
    path, looks = make_database(tmp_path / "a.db", f"create view a as {ENDLESS}"), itertools.count()
    with (
        reader_process(lambda: next(looks) > 3),
        pytest.raises(StoppedError, match=r"Stopped while reading a\.db"),
    ):
        read_table(path)


def test_the_process_ends_with_the_program_that_started_it(tmp_path):
    psutil = pytest.importorskip("psutil")
    path = make_database(tmp_path / "a.db", f"create view a as {ENDLESS}")
    code = f"""{PROGRAM}
from extension.data.readers import row_files
from extension.settings.columns import Columns
from pathlib import Path
import psutil, threading
def look():
    while not psutil.Process().children():
        pass
    print(psutil.Process().children()[0].pid, flush=True)
threading.Thread(target=look, daemon=True).start()
list(row_files.read_table(Path({str(path)!r}), "a.db", Columns()).rows())
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    reader = psutil.Process(int(program.stdout.readline()))
    program.kill()
    program.communicate()
    _, alive = psutil.wait_procs([reader], timeout=60)
    assert alive == []


@pytest.mark.long
@pytest.mark.parametrize(
    "content",
    [
        *(("a.html", tag * 60_000) for tag in ("<td>", "<td>\n", "<td>a<br>", "<font><p>a")),
        *(
            ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n" + line * 60_000 + "\n天\n地" * 60_000)
            for line in ("<v a", "<v.a", "<v \t", "天")
        ),
    ],
    ids=lambda content: content[1][:50].split("\n")[-1],
)
def test_what_nothing_closes_takes_linear_time(tmp_path, content):
    """A reader of quadratic time reaches the limit of CPU time, which is a message of another kind."""
    name, text = content
    try:
        read_text(tmp_path / name, text)
    except DataError as error:
        assert "without any text" in str(error)


def test_what_no_reader_foresees_becomes_a_sentence_with_the_name_of_the_file(caplog):
    with pytest.raises(DataError, match=r"a\.csv can't be read \(KeyError: 'x'\)"), as_data_error("a.csv"):
        raise KeyError("x")
    assert "Traceback" in caplog.text
    with pytest.raises(DataError) as error, as_data_error("a.csv"):
        raise DataError("a.csv: " + "x" * 1_000_000)
    assert len(str(error.value)) <= 1000
