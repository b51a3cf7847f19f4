"""The queue as a list and as a file: its order, its ended runs, and broken files."""

import os

import pytest
from training_pro.core.errors import SavingError
from training_pro.records.queue import Queue, queue


def queue_of(*names):
    current = Queue()
    for name in names:
        current = current.with_run(name, "tiny", {"name": name, "data": ["story.txt"]}, 4)
    return current


def names(current):
    return "".join(run.name for run in current.waiting)


def test_runs_can_be_moved():
    moves = {(1, 1): "bac", (1, 5): "bca", (3, -5): "cab", (1, -1): "abc", (9, 1): "abc"}
    for (number, places), order in moves.items():
        assert names(queue_of("a", "b", "c").with_moved(number, places)) == order


def test_each_run_keeps_its_number_and_no_number_is_reused():
    current = queue_of("a", "b").without_run(1).with_run("c", "tiny", {}, 0)
    assert [(run.number, run.name) for run in current.waiting] == [(2, "b"), (3, "c")]
    begun = current.with_started(current.waiting[1]).with_run("d", "tiny", {}, 0)
    assert [run.number for run in begun.waiting] == [2, 4]
    last_removed = queue_of("a", "b").without_run(2).with_run("c", "tiny", {}, 0)
    assert [run.number for run in last_removed.waiting] == [1, 3]


def test_a_run_starts_ends_and_is_remembered_until_the_queue_is_empty():
    current = queue_of("a", "b").with_skip_reasons({1: "made for another model"})
    current = current.with_started(current.waiting[0])
    assert ([(run.name, run.skipped) for run in current.begun], names(current)) == ([("a", "")], "b")
    current = current.with_ended(1, "failed", "Out of memory.")
    assert [(run.name, run.outcome, run.text) for run in current.done] == [("a", "failed", "Out of memory.")]
    assert current.done[0].values["data"] == ["story.txt"]
    assert current.with_run("c", "tiny", {}, 0).done == current.done
    assert current.without_run(2).with_run("c", "tiny", {}, 0).done == ()
    assert current.with_ended(1, "finished", "") == current


def test_of_several_runs_in_progress_each_ends_by_itself_or_is_put_back_to_the_front():
    current = queue_of("a", "b", "c")
    for run in current.waiting[:2]:
        current = current.with_started(run)
    ended = current.with_ended(1, "finished", "well")
    assert ([run.name for run in ended.begun], names(ended), ended.done[0].name) == (["b"], "c", "a")
    assert names(current.with_returned(2)) == "bc"
    assert current.with_returned(9) == current.with_ended(9, "finished", "") == current


def test_saved_and_loaded_it_is_the_same_with_the_last_ended_runs(tmp_path):
    path = tmp_path / "training" / "queue.json"
    assert queue.load(path) == Queue()
    current = queue_of(*map(str, range(26)))
    for run in current.waiting[:25]:
        current = current.with_started(run).with_ended(run.number, "finished", "well\nand more")
    current = current.with_started(current.waiting[0])
    queue.save(path, current)
    loaded = queue.load(path)
    assert (loaded.waiting, loaded.begun, len(current.done)) == (current.waiting, current.begun, 25)
    assert [(run.name, run.text) for run in loaded.done] == [(str(number), "well") for number in range(5, 25)]
    assert [file.name for file in path.parent.iterdir()] == ["queue.json"]


def test_a_broken_file_is_named_and_left_alone(tmp_path):
    path = tmp_path / "queue.json"
    for text in ("", "[]", "{"):
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
    assert names(queue.load(path, damage)) == "a"
    assert "queue: waiting, entry 1" in queue.describe_damage(path, damage)
    queue.keep_damaged(path, damage)
    assert (tmp_path / queue.DAMAGED_COPY).read_text() == text


def test_a_name_conflicts_unless_the_user_chose_what_to_do():
    assert queue.name_conflict("a", "ask", ["b"]) == queue.name_conflict("a", "replace", ["a"]) == ""
    assert "an earlier run is also called 'a'" in queue.name_conflict("a", "ask", ["a"])
    assert bool(queue.name_conflict("Story", "ask", ["story"])) == (os.name == "nt")
