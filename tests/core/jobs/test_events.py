"""The event log: one writes, any number follow, each sees everything from the first, and nobody waits for them."""

from __future__ import annotations

import threading

from training_pro.core.jobs import EventLog, Note


def notes(count: int) -> list[Note]:
    return [Note(at=0.0, text=str(number)) for number in range(count)]


def followed_by(log: EventLog, into: list) -> threading.Thread:
    thread = threading.Thread(target=lambda: into.extend(log.follow()), daemon=True)
    thread.start()
    return thread


def test_whoever_comes_late_sees_everything_from_the_first():
    log = EventLog()
    for note in notes(5):
        log.append(note)
    log.close()
    assert list(log.follow()) == notes(5)
    assert list(log.follow()) == notes(5)


def test_many_follow_while_it_is_written():
    log, seen = EventLog(), [[] for _ in range(8)]
    threads = [followed_by(log, into) for into in seen]
    for note in notes(500):
        log.append(note)
    log.close()
    for thread in threads:
        thread.join(timeout=10)
    assert seen == [notes(500)] * 8


def test_a_follower_that_stopped_reading_holds_nobody_up():
    log = EventLog()
    log.append(Note(text="first"))
    stuck = log.follow()
    next(stuck)
    for note in notes(1000):
        log.append(note)
    log.close()
    assert len(list(log.follow())) == 1001


def test_a_follower_waits_for_what_comes_and_ends_when_the_log_is_closed():
    log, seen = EventLog(), []
    thread = followed_by(log, seen)
    thread.join(timeout=0.1)
    assert thread.is_alive()
    log.append(Note(at=0.0, text="0"))
    log.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert seen == notes(1)


def test_since_a_position():
    log = EventLog()
    for note in notes(4):
        log.append(note)
    assert (log.since(0), log.since(3), log.since(4)) == (notes(4), notes(4)[3:], [])
    assert len(log) == 4


def test_what_since_gave_does_not_grow_afterwards():
    log = EventLog()
    log.append(notes(1)[0])
    seen = log.since(0)
    log.append(Note(text="later"))
    assert seen == notes(1)


def test_it_is_open_until_it_is_closed():
    log = EventLog()
    assert not log.closed
    log.close()
    assert log.closed


class AsWindowsHasIt(threading.Condition):
    """There a thread that waits without an end hears no Ctrl+C."""

    def wait(self, timeout=None):
        assert timeout is not None, "nothing would wake it"
        return super().wait(timeout)


def test_whoever_waits_for_the_end_can_be_interrupted_on_windows():
    log = EventLog()
    log._changed = AsWindowsHasIt()
    threading.Timer(0.05, log.close).start()
    log.wait_closed()
    assert log.closed and list(log.follow()) == []
