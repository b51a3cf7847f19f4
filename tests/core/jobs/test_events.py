"""The event log: one writes, any number follow, each sees everything from the first, and nobody waits for them."""

import threading
from pathlib import Path

from training_pro.core.jobs import EventLog, Note, event_file
from training_pro.tests.fakes import a_step


def notes(count):
    return [Note(at=0.0, text=str(number)) for number in range(count)]


def log_of(events):
    log = EventLog()
    for event in events:
        log.append(event)
    return log


def test_whoever_comes_late_sees_everything_and_since_gives_a_part():
    log = log_of(notes(4))
    seen = log.since(0)
    assert (seen, log.since(3), log.since(4), log.closed) == (notes(4), notes(4)[3:], [], False)
    log.append(Note(text="later"))
    log.close()
    assert seen == notes(4) and log.closed
    assert list(log.follow())[:4] == list(log.follow())[:4] == notes(4)


def test_many_follow_while_it_is_written_and_one_that_stopped_reading_holds_nobody_up():
    log, seen = log_of([Note(at=0.0, text="first")]), [[] for _ in range(8)]
    stuck = log.follow()
    next(stuck)
    threads = [threading.Thread(target=lambda into=into: into.extend(log.follow()), daemon=True) for into in seen]
    for thread in threads:
        thread.start()
    threads[0].join(timeout=0.05)
    assert threads[0].is_alive()
    for note in notes(500):
        log.append(note)
    log.close()
    for thread in threads:
        thread.join(timeout=30)
    assert seen == [[Note(at=0.0, text="first"), *notes(500)]] * 8


def test_the_file_of_a_run_goes_on_behind_a_line_that_a_full_disk_has_cut(tmp_path, monkeypatch):
    """It is longer than what was written whole, which does not mean that the run was discarded."""
    remove, refusals = Path.unlink, [PermissionError()]  # as on Windows, while a page reads the file

    def held_once(path):
        if refusals:
            raise refusals.pop()
        remove(path)

    monkeypatch.setattr(Path, "unlink", held_once)
    running, folder = tmp_path / "running", tmp_path / "loras" / "a"
    folder.mkdir(parents=True)
    file = event_file.EventFile(running, folder, continues=False, is_followed=False)
    for number in (1, 2, 3):
        file.append(a_step(number))
        if number == 1:
            with (folder / event_file.EVENTS).open("a") as stream:
                stream.write('{"event": "st\n')
    assert [event.step for event in event_file.EventReader(running, folder).read()] == [1, 2, 3]
