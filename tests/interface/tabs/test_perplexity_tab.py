"""The Perplexity tab: which data it accepts, how it reads rows, and its tables and strips."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from training_pro.core.jobs import Advice, JobEnded, Note, PerplexityMeasured, RowScores, Segment, Session, Stage
from training_pro.interface.base import PageContext
from training_pro.interface.tabs import PerplexityTab, perplexity_tab
from training_pro.settings.parsing import ROW_SETTING_KEYS
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import open_tab

SIZES = {"tokens": 9, "max_length": 8, "seconds": 1.0, "right": 0.5, "perplexity": 2.0, "model": "m"}


class Engine:
    def __init__(self):
        self.requests = []

    def perplexity(self, request, settings, host, job):
        self.requests.append((Path(request.data).name, request.stride, settings.rows.train_on))
        return JobEnded(outcome="finished", text="done")


@pytest.fixture
def context(tmp_path):
    folders = make_folders(tmp_path)
    (folders.datasets / "rows.jsonl").write_text('{"text": "One."}', encoding="utf-8")
    (folders.datasets / "story.txt").write_text("One.", encoding="utf-8")
    return PageContext(FakeHost(folders=folders), Engine(), Session())


@pytest.fixture
def page(context):
    page = open_tab(PerplexityTab, context, "name", *ROW_SETTING_KEYS, "epochs")
    page.fill(perplexity_stride=7, perplexity_loras=[], train_on="last_reply")
    return page


def test_a_file_outside_the_datasets_folder_is_not_read(page, context, tmp_path):
    outside = tmp_path / "user" / "training" / "secret.txt"
    outside.write_text("the secret is here " * 20)
    for name in (str(outside), "../secret.txt"):
        said = page.press("perplexity-go", perplexity_data=name)["perplexity-said"]
        assert "is a path, but a name is needed" in said and context.session.latest("perplexity") is None


def test_rows_are_read_as_the_form_says(page, context):
    """Unfinished values of other settings do not matter."""
    for name in ("rows.jsonl", "story.txt"):
        page.press("perplexity-go", perplexity_data=name, epochs="", name="")
    assert context.engine.requests == [("rows.jsonl", 7, "last_reply"), ("story.txt", 7, "last_reply")]


def test_notes_stand_above_the_figures():
    events = [Note(text="2 rows are <cut>."), Stage(text="Measuring"), Advice(text="Not in the table.")]
    assert "2 rows are &lt;cut&gt;. Not in the table." in perplexity_tab.results_html(events)


def rows_result(lora, **losses):
    """A result with rows of these losses, the least known first."""
    rows = tuple(
        RowScores(place=place, read=f"<{place}?>", begins=f"{place}!", tokens=1234, loss=loss, right=0.5)
        for place, loss in sorted(losses.items(), key=lambda item: -item[1])
    )
    return PerplexityMeasured(lora=lora, dataset="a.jsonl", loss=1.0, stride=0, rows=rows, **SIZES)


def lines(*results):
    """The cells of each line of the tables of rows."""
    html = perplexity_tab.row_tables(results)
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", html)]


def test_best_and_worst_rows_with_their_perplexity_without_a_lora():
    table = lines(rows_result("b", a=0.0, b=1.0, c=2.0, d=3.0), rows_result("-", a=1.0, b=2.0, c=3.0, d=3.5))
    assert table[0][-1] == "without a LoRA" and table[5][-1] == "tokens"
    assert table[1] == ["highest perplexity", "d", "&lt;d?&gt;", "d!", "20.09", "50%", "1,234", "33.12"]
    assert [line[1] for line in table[1:5]] == ["d", "c", "a", "b"]
    missing = lines(rows_result("b", a=0.0, z=1.0), rows_result("-", a=1.0, b=2.0))
    assert [line[-1] for line in missing[1:3]] == ["", "2.718"]


def test_no_row_is_least_and_best_known_at_once():
    assert [line[1] for line in lines(rows_result("-", a=1.0, b=2.0, c=3.0))[1:]] == ["c", "a"]
    assert lines(rows_result("-", a=1.0)) == []


def test_all_strips_have_one_scale_and_name_their_extremes():
    results = []
    for lora, losses in (("b", (1.0, 2.0)), ("-", (3.0, 5.0))):
        parts = tuple(Segment(begins=f"<part {n}>", tokens=9, loss=x, right=0.5) for n, x in enumerate(losses))
        more = {"loss": sum(losses), "stride": 4, "stretches": parts}
        results.append(PerplexityMeasured(lora=lora, dataset="a.txt", **more, **SIZES))
    html = perplexity_tab.loss_strips(results)
    assert re.findall(r'fill-opacity="([0-9.]+)"', html) == ["1.00", "0.76", "0.53", "0.06"]
    assert "lowest perplexity “&lt;part 0&gt; …” (perplexity 20.09, 50% of tokens correct)" in html
