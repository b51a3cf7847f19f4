"""The report of Check as HTML: it is complete, and user text is escaped."""

from __future__ import annotations

import re
from dataclasses import replace

from training_pro.core.engine import PreviewQuery
from training_pro.data.report import DatasetReport, LengthHistogram, preview_examples
from training_pro.interface.run import plan_svg, report_view
from training_pro.tests.chapters import CHAPTERS
from training_pro.tests.rowing import chat, family, prepare_rows

EVIL = "<img src=x onerror=alert(1)>"


def test_user_text_is_escaped(tmp_path):
    rows = [chat(f"Hi {EVIL}", f"No {EVIL}"), chat("a", "b")]
    data = prepare_rows(tmp_path, family("ChatML"), {"rows.jsonl": rows, "a.txt": f"Text {EVIL}."})
    tokenizer = family("ChatML")
    report = data.report.__class__(
        **{
            **vars(data.report),
            "shown": preview_examples(data.examples, PreviewQuery(3), tokenizer.decode, tokenizer.stops),
        }
    )
    page = report_view.html(report)
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", page)


def test_the_parts_of_a_report(tmp_path):
    data = prepare_rows(
        tmp_path, family("ChatML"), {"rows.jsonl": [chat("Hi", f"No{' no' * n}.") for n in range(20)]}
    )
    page = report_view.html(data.report)
    for words in (
        "Check: ready",
        "trained tokens per epoch",
        "Stop tokens: all 20 rows end with a stop token, which teaches the model to stop there",
        "Padding makes the examples of a batch equally long",
    ):
        assert words in page
    assert page.count("<rect") == len(data.report.lengths.counts)
    assert re.search(r'data-tp-set="{&#34;epochs&#34;: [\d.]+}">Use \d+</button>', page)


def test_suggestions_that_fit_are_folded_with_and_without_others(tmp_path):
    for number, rows in enumerate([100, 20]):  # with 100 rows all settings fit, with 20 there are few steps
        data = {"rows.jsonl": [chat("Hi", f"No{' no' * (n % 9)}.") for n in range(rows)]}
        report = prepare_rows(tmp_path / str(number), family("ChatML"), data).report
        changes = [suggestion for suggestion in report.suggestions if not suggestion.keep]
        page = report_view.html(report)
        assert bool(changes) == bool(number)
        others = "other " if changes else ""
        assert f"<details><summary>{7 - len(changes)} {others}settings are fine" in page
        assert "&lt;" not in page


def test_the_legend_of_a_slice_map_names_only_what_it_contains(tmp_path):
    text = {"a.txt": "One sentence here. And another one there.\n\n\n" * 40}
    report = prepare_rows(tmp_path, family("ChatML"), text, chunking="dementor").report
    maps = [sliced for source in report.sources for _, sliced in source.maps]
    seen = "how often the model sees each part (stronger color: more often)"
    assert [label for _, label in plan_svg.legend_entries(maps)] == ["blocks", seen, "hard cuts"]
    without_bars = [replace(sliced, bars=(), hard_cuts=()) for sliced in maps]
    assert [label for _, label in plan_svg.legend_entries(without_bars)] == [seen]


def test_a_note_that_holds_for_several_files_is_shown_once(tmp_path):
    talk = {f"{name}.txt": "Anna: hello there\nBob: who is it\n" * 10 for name in "ab"}
    report = prepare_rows(tmp_path, family("ChatML"), talk).report
    assert sum("a script or a chat log" in note for source in report.sources for note in source.notes) == 2
    assert report_view.html(report).count("a script or a chat log") == 1


def test_the_histogram_of_lengths_fills_its_width():
    html = report_view.html(DatasetReport(3, 9, 9, 24, 1, 1, lengths=LengthHistogram(8, (1, 0, 2), 24, 20)))
    bars = [(float(x), float(w)) for x, w in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', html)]
    assert len(bars) == 3 and 290 < sum(bars[-1]) < 320


def test_a_report_without_data():
    page = report_view.html(DatasetReport.of_problems(["a < b"]))
    assert "Check: not ready" in page
    assert "a &lt; b" in page


def test_a_suggestion_that_is_a_text_is_drawn(tmp_path):
    html = report_view.html(prepare_rows(tmp_path, family("ChatML"), {"pride.txt": CHAPTERS}, cutoff=64).report)
    assert r">Use \nChapter</button>" in html
    assert r"{&#34;hard_cut&#34;: &#34;\\nChapter&#34;}" in html
