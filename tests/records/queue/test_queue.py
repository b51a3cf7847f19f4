"""The queue as a list and as a file: order, what is done, what a kill or another hand leaves behind."""

from __future__ import annotations

import json
import ntpath
import posixpath
from pathlib import Path

import pytest
from training_pro.core.errors import SavingError
from training_pro.records.queue import queue
from training_pro.records.queue.queue import Queue


def of(*names):
    made = Queue()
    for name in names:
        made = made.with_one_more(name, "tiny", {"name": name, "data": ["story.txt"]}, 4)
    return made


def names(known):
    return [run.name for run in known.waiting]


@pytest.mark.parametrize(
    ("number", "places", "order"),
    [(1, 1, "bac"), (1, 5, "bca"), (3, -1, "acb"), (3, -5, "cab"), (1, -1, "abc"), (9, 1, "abc")],
)
def test_they_change_places(number, places, order):
    assert "".join(names(of("a", "b", "c").moved(number, places))) == order


def test_each_keeps_its_number_and_none_is_given_twice():
    known = of("a", "b").without(1).with_one_more("c", "tiny", {}, 0)
    assert [(run.number, run.name) for run in known.waiting] == [(2, "b"), (3, "c")]
    begun = known.beginning(known.waiting[1])
    assert [run.number for run in begun.with_one_more("d", "tiny", {}, 0).waiting] == [2, 4]
    assert [run.number for run in of("a", "b").without(2).with_one_more("c", "tiny", {}, 0).waiting] == [1, 3]


def test_one_begins_ends_and_is_remembered_until_a_list_begins_anew():
    known = of("a", "b").after_skipping({1: "made for another model"})
    known = known.beginning(known.waiting[0])
    assert ([(run.name, run.skipped) for run in known.begun], names(known)) == ([("a", "")], ["b"])
    known = known.ended(1, "failed", "Out of memory.")
    assert [(run.name, run.outcome, run.text) for run in known.done] == [("a", "failed", "Out of memory.")]
    assert known.done[0].values["data"] == ["story.txt"]
    assert known.with_one_more("c", "tiny", {}, 0).done == known.done
    assert known.without(2).with_one_more("c", "tiny", {}, 0).done == ()
    assert known.ended(1, "finished", "") == known


def test_what_was_put_back_is_the_first_again():
    known = of("a", "b")
    assert names(known.beginning(known.waiting[1]).put_back(2)) == ["b", "a"]


def test_of_several_that_have_begun_each_ends_by_itself():
    known = of("a", "b", "c")
    for run in known.waiting[:2]:
        known = known.beginning(run)
    ended = known.ended(1, "finished", "well")
    assert ([run.name for run in ended.begun], names(ended)) == (["b"], ["c"])
    assert [run.name for run in ended.done] == ["a"]
    assert names(known.put_back(2)) == ["b", "c"]
    assert known.put_back(9) == known.ended(9, "finished", "") == known


def test_as_a_file_it_is_the_same(tmp_path):
    path = tmp_path / "training" / "queue.json"
    assert queue.load(path) == Queue()
    known = of("a", "b", "c")
    known = known.beginning(known.waiting[0]).ended(1, "finished", "well")
    known = known.beginning(known.waiting[0])
    queue.save(path, known)
    assert queue.load(path) == known
    assert [p.name for p in path.parent.iterdir()] == ["queue.json"]


def test_a_file_is_waited_for_that_another_program_reads_just_now(tmp_path, monkeypatch):
    """As Windows has it."""
    tried, does = [], {"replace": Path.replace, "read_text": Path.read_text}

    def busy(name):
        def act(path, *args, **more):
            tried.append(name)
            if tried.count(name) < 3:
                raise PermissionError(13, "Access is denied", str(path))
            return does[name](path, *args, **more)

        return act

    known = of("a")
    for name in does:
        monkeypatch.setattr(Path, name, busy(name))
    queue.save(tmp_path / "queue.json", known)
    assert queue.load(tmp_path / "queue.json") == known
    assert tried == ["replace"] * 3 + ["read_text"] * 3


@pytest.mark.parametrize("text", ["", "[]", "{", '{"waiting": [{"name": "a"}]}', '{"waiting": [3]}'])
def test_a_broken_file_is_named_and_left_alone(tmp_path, text):
    path = tmp_path / "queue.json"
    path.write_text(text)
    with pytest.raises(SavingError, match=r"queue\.json cannot be read"):
        queue.load(path)
    assert path.read_text() == text


def test_a_name_is_taken_unless_it_was_said_what_to_do_then():
    assert queue.name_problem("a", "ask", ["b"]) == ""
    assert queue.name_problem("a", "replace", ["a"]) == ""
    assert "'a' is the name of a run before it" in queue.name_problem("a", "ask", ["a"])
    assert json.dumps(of("a").waiting[0].values)


@pytest.mark.parametrize(("normal", "taken"), [(ntpath.normcase, True), (posixpath.normcase, False)])
def test_on_windows_a_name_is_taken_however_it_is_written(monkeypatch, normal, taken):
    monkeypatch.setattr(queue, "normcase", normal)
    assert bool(queue.name_problem("Story", "ask", ["story"])) == taken
