"""The queue as a list and as a file: its order, its ended runs, and broken files."""

from __future__ import annotations

import json
import ntpath
import posixpath
from pathlib import Path

import pytest
from training_pro.core.errors import SavingError
from training_pro.records.queue import Queue, queue


def queue_of(*names):
    current = Queue()
    for name in names:
        current = current.with_run(name, "tiny", {"name": name, "data": ["story.txt"]}, 4)
    return current


def names(current):
    return [run.name for run in current.waiting]


@pytest.mark.parametrize(
    ("number", "places", "order"),
    [(1, 1, "bac"), (1, 5, "bca"), (3, -1, "acb"), (3, -5, "cab"), (1, -1, "abc"), (9, 1, "abc")],
)
def test_runs_can_be_moved(number, places, order):
    assert "".join(names(queue_of("a", "b", "c").with_moved(number, places))) == order


def test_each_run_keeps_its_number_and_no_number_is_reused():
    current = queue_of("a", "b").without_run(1).with_run("c", "tiny", {}, 0)
    assert [(run.number, run.name) for run in current.waiting] == [(2, "b"), (3, "c")]
    begun = current.with_started(current.waiting[1])
    assert [run.number for run in begun.with_run("d", "tiny", {}, 0).waiting] == [2, 4]
    assert [run.number for run in queue_of("a", "b").without_run(2).with_run("c", "tiny", {}, 0).waiting] == [
        1,
        3,
    ]


def test_a_run_starts_ends_and_is_remembered_until_the_queue_is_empty():
    current = queue_of("a", "b").with_skip_reasons({1: "made for another model"})
    current = current.with_started(current.waiting[0])
    assert ([(run.name, run.skipped) for run in current.begun], names(current)) == ([("a", "")], ["b"])
    current = current.with_ended(1, "failed", "Out of memory.")
    assert [(run.name, run.outcome, run.text) for run in current.done] == [("a", "failed", "Out of memory.")]
    assert current.done[0].values["data"] == ["story.txt"]
    assert current.with_run("c", "tiny", {}, 0).done == current.done
    assert current.without_run(2).with_run("c", "tiny", {}, 0).done == ()
    assert current.with_ended(1, "finished", "") == current


def test_a_run_that_was_put_back_is_the_first_again():
    current = queue_of("a", "b")
    assert names(current.with_started(current.waiting[1]).with_returned(2)) == ["b", "a"]


def test_of_several_runs_in_progress_each_ends_by_itself():
    current = queue_of("a", "b", "c")
    for run in current.waiting[:2]:
        current = current.with_started(run)
    ended = current.with_ended(1, "finished", "well")
    assert ([run.name for run in ended.begun], names(ended)) == (["b"], ["c"])
    assert [run.name for run in ended.done] == ["a"]
    assert names(current.with_returned(2)) == ["b", "c"]
    assert current.with_returned(9) == current.with_ended(9, "finished", "") == current


def test_saved_and_loaded_it_is_the_same(tmp_path):
    path = tmp_path / "training" / "queue.json"
    assert queue.load(path) == Queue()
    current = queue_of("a", "b", "c")
    current = current.with_started(current.waiting[0]).with_ended(1, "finished", "well")
    current = current.with_started(current.waiting[0])
    queue.save(path, current)
    assert queue.load(path) == current
    assert [p.name for p in path.parent.iterdir()] == ["queue.json"]


def test_the_file_remembers_the_last_ended_runs(tmp_path):
    current = queue_of(*map(str, range(25)))
    for run in current.waiting:
        current = current.with_started(run).with_ended(run.number, "finished", "well\nand more")
    assert len(current.done) == 25
    queue.save(tmp_path / "queue.json", current)
    ended = queue.load(tmp_path / "queue.json").done
    assert [(run.name, run.text) for run in ended] == [(str(number), "well") for number in range(5, 25)]


def test_a_file_that_another_program_has_open_is_waited_for(tmp_path, monkeypatch):
    """As on Windows."""
    calls, originals = [], {"replace": Path.replace, "read_text": Path.read_text}

    def fail_twice(name):
        def call(path, *args, **more):
            calls.append(name)
            if calls.count(name) < 3:
                raise PermissionError(13, "Access is denied", str(path))
            return originals[name](path, *args, **more)

        return call

    current = queue_of("a")
    for name in originals:
        monkeypatch.setattr(Path, name, fail_twice(name))
    queue.save(tmp_path / "queue.json", current)
    assert queue.load(tmp_path / "queue.json") == current
    assert calls == ["replace"] * 3 + ["read_text"] * 3


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_broken_file_is_named_and_left_alone(tmp_path, text):
    path = tmp_path / "queue.json"
    path.write_text(text)
    with pytest.raises(SavingError, match=r"queue\.json can't be read"):
        queue.load(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "damaged", ['{"name": "a"}', "3", '{"number": "x", "name": "a", "model": "m", "values": {}}']
)
def test_a_damaged_run_is_told_and_the_others_stay(tmp_path, damaged):
    path, damage = tmp_path / "queue.json", []
    queue.save(path, queue_of("a"))
    text = path.read_text().replace('"waiting": [', f'"waiting": [{damaged},')
    path.write_text(text)
    assert [run.name for run in queue.load(path, damage).waiting] == ["a"]
    assert "queue: waiting, entry 1" in queue.describe_damage(path, damage)
    queue.keep_damaged(path, damage)
    assert (tmp_path / queue.DAMAGED_COPY).read_text() == text


def test_a_name_conflicts_unless_the_user_chose_what_to_do():
    assert queue.name_conflict("a", "ask", ["b"]) == ""
    assert queue.name_conflict("a", "replace", ["a"]) == ""
    assert "an earlier run is also called 'a'" in queue.name_conflict("a", "ask", ["a"])
    assert json.dumps(queue_of("a").waiting[0].values)


@pytest.mark.parametrize(("normcase", "conflicts"), [(ntpath.normcase, True), (posixpath.normcase, False)])
def test_on_windows_names_that_differ_in_case_conflict(monkeypatch, normcase, conflicts):
    monkeypatch.setattr(queue, "normcase", normcase)
    assert bool(queue.name_conflict("Story", "ask", ["story"])) == conflicts
