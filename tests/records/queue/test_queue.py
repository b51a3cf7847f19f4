"""The queue as a list and as a file: its order, its ended runs, and broken files."""

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import Session
from training_pro.records import queue
from training_pro.records.queue import DAMAGED_COPY, Queue, QueueRunner
from training_pro.tests.fakes import FakeHost, make_folders


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


def test_a_damaged_run_is_told_and_the_others_stay_and_a_broken_file_is_left_alone(tmp_path):
    host, damage = FakeHost(make_folders(tmp_path)), []
    path = host.folders.queue
    queue.save(path, queue_of("a"))
    text = path.read_text().replace('"waiting": [', '"waiting": [3,')
    path.write_text(text)
    assert names(queue.load(path, damage)) == "a"
    _, told = QueueRunner(host, None, Session()).read_with_damage()
    assert damage[0].startswith("queue: waiting, entry 1") and damage[0] in told and DAMAGED_COPY in told
    queue.save(path, queue.load(path), damage)
    assert path.with_name(DAMAGED_COPY).read_text() == text
    path.write_text("{")
    with pytest.raises(SavingError, match=r"queue\.json can't be read"):
        queue.load(path)
    assert path.read_text() == "{"
