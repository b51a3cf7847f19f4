"""The list of runs: sorted, filtered, bounded, and safe with any name."""

from __future__ import annotations

import re
from pathlib import Path

from training_pro.core.jobs import Job
from training_pro.interface.tabs.run_list import COLUMNS, MAX_ROWS, ListedRun, list_html, list_runs
from training_pro.records.folder import LoraEntry
from training_pro.records.remote import read_progress
from training_pro.tests.fakes import a_step, make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files
from training_pro.tests.records.remote.test_remote_control import in_progress, wait_for


def run(name, *, loss=None, when=0.0, validation=None, **more):
    values = {"status": "finished", "model": "toy", "step": 8, "steps": 8, "size": 10, "note": "", **more}
    return ListedRun(LoraEntry(name=name, folder=Path(name), loss=loss, when=when, parts=(), **values), validation)


RUNS = [
    run("story-10", loss=2.0, when=3.0, validation=1.5, size=30, step=4),
    run("story-9", loss=1.0, when=1.0, size=20, note="the good one"),
    run("night", when=2.0, validation=1.0, step=2, model="other-7B", status="cut off"),
]


def names(html):
    return re.findall(r"<td><b>(.*?)</b>", html)


def test_it_is_sorted_by_any_column_and_missing_values_are_last():
    for sort, expected in (
        ("name", ["night", "story-9", "story-10"]),
        ("steps", ["night", "story-10", "story-9"]),
        ("loss", ["story-9", "story-10", "night"]),
        ("-loss", ["story-10", "story-9", "night"]),
        ("validation", ["night", "story-10", "story-9"]),
        ("--date; drop", ["story-10", "night", "story-9"]),
    ):
        assert names(list_html(RUNS, sort=sort)) == expected


def test_a_second_click_turns_the_order_around_and_columns_without_values_are_left_out():
    assert "Recall" not in list_html(RUNS) and COLUMNS["forgot"].text(RUNS[0]) == ""
    for key in COLUMNS:
        for sort, order, following in ((key, "ascending", f"-{key}"), (f"-{key}", "descending", key)):
            html = list_html(RUNS, sort=sort)
            assert html.count(f'aria-sort="{order}"') == 1
            assert f'data-tp-box="tp-runs-sort" data-tp-text="{following}"' in html


def test_the_filter_keeps_rows_with_all_words():
    for words, expected in (
        ("STORY", ["story-10", "story-9"]),
        ("good toy", ["story-9"]),
        ("cut", ["night"]),
        ("story 7B", []),
    ):
        html = list_html(RUNS, words)
        assert names(html) == expected and ("No run matches the filter." in html) == (not expected)


def test_at_most_so_many_rows_are_drawn():
    html = list_html([run(f"run-{number}") for number in range(MAX_ROWS + 5)])
    assert len(names(html)) == MAX_ROWS and f"{MAX_ROWS} of {MAX_ROWS + 5} runs" in html
    assert "To find the others, filter or sort the list." in html


def test_rows_are_reachable_by_keyboard_escaped_and_the_chosen_one_is_marked():
    html = list_html([*RUNS, run('a"<b>', note="<script>")], chosen="night/checkpoint-4")
    rows = re.findall(r"<tr (aria-selected[^>]*)>", html)
    assert len(rows) == 4 and all('tabindex="0"' in row for row in rows)
    (chosen,) = [row for row in rows if 'aria-selected="true"' in row]
    assert 'data-tp-text="night"' in chosen
    assert "<script>" not in html and 'a"<b>' not in html and "a&#34;&lt;b&gt;" in html


def test_the_validation_loss_is_read_again_when_the_graph_has_changed(tmp_path):
    folders, graph, losses = make_folders(tmp_path), [], []
    write_files(folders.loras, "story", FINISHED)
    for loss in (2.5, 2.75, 1.25):
        graph.append({"current_steps": 4, "eval_loss": loss})
        write_files(folders.loras, "story", {"training_graph.json": graph})
        losses += [listed.validation_loss for listed in list_runs(folders)]
    assert losses == [2.5, 2.75, 1.25]


def test_a_run_in_progress_shows_its_own_figures_and_not_those_of_its_last_checkpoint(tmp_path):
    folders, job = make_folders(tmp_path), Job("training", "a test")
    write_files(folders.loras, "night", CUT_OFF)
    with in_progress("night", job, folders):
        job.log.append(a_step(7))
        wait_for(lambda: read_progress("night", folders).step == 7)
        (listed,) = list_runs(folders)
    assert (listed.entry.step, listed.entry.steps, listed.entry.loss) == (7, 8, a_step(7).smoothed)
