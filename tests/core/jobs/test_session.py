"""The session: one job at a time, under the host's exclusive use, and every end is told."""

from __future__ import annotations

import sys
import threading

import pytest
from training_pro.core.errors import BusyError, ModelError
from training_pro.core.jobs import SESSION, Job, JobEnded, Note, Session
from training_pro.tests.fakes import FakeHost

DONE = JobEnded(at=0.0, outcome="finished", text="done")


def ended(job: Job) -> JobEnded:
    """How a job ended, waited for."""
    list(job.log.follow())
    assert job.end is not None
    return job.end


def started(session: Session, work=lambda job: DONE, host=None, title="Training 'a'") -> Job:
    return session.start("training", title, host or FakeHost(), work)


def test_a_job_ends_with_what_its_work_gave():
    session = Session()
    job = started(session, lambda job: (job.log.append(Note(at=0.0, text="at it")), DONE)[1])
    assert list(job.log.follow()) == [Note(at=0.0, text="at it"), DONE]
    assert (ended(job), job.running, session.current) == (DONE, False, None)


def test_an_error_after_an_update_of_the_sources_says_what_to_do(monkeypatch):
    from training_pro.core import version

    def breaking(job):
        raise TypeError("disk_plan() takes 4 positional arguments but 5 were given")

    assert "update" not in ended(started(Session(), breaking)).text
    monkeypatch.setattr(version, "LOADED_MTIME", version.LOADED_MTIME - 1)
    assert ended(started(Session(), breaking)).text.endswith(
        "but 5 were given. Training PRO was updated while it was running. Restart the webui or the "
        "page, then try again"
    )


def test_a_second_start_is_refused_by_naming_what_runs():
    session, go_on = Session(), threading.Event()
    job = started(session, lambda job: (go_on.wait(10), DONE)[1], title="Training 'first'")
    assert session.current is job
    assert job.end is None
    with pytest.raises(BusyError) as refusal:
        started(session, title="Training 'second'")
    go_on.set()
    assert str(refusal.value) == "The model is busy: Training 'first'. Wait until it is done, or stop it first."
    assert ended(job) is DONE


def test_of_two_that_start_at_once_one_is_refused():
    session, go_on, together = Session(), threading.Event(), threading.Barrier(8)
    outcomes = []

    def attempt():
        together.wait()
        try:
            outcomes.append(started(session, lambda job: (go_on.wait(10), DONE)[1]))
        except BusyError:
            outcomes.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    go_on.set()
    (job,) = [outcome for outcome in outcomes if outcome is not None]
    assert ended(job) is DONE
    assert len(outcomes) == 8


def test_after_one_has_ended_the_next_may_start():
    session, host = Session(), FakeHost()
    first = started(session, host=host)
    ended(first)
    second = started(session, host=host)
    ended(second)
    assert host.uses == 2
    assert session.latest("training") is second
    assert session.latest("answer") is None


def test_the_work_is_done_under_exclusive_use_on_a_thread_of_its_own():
    session, host, seen = Session(), FakeHost(), []

    def work(job):
        seen.append((host.in_use, threading.current_thread() is threading.main_thread()))
        return DONE

    ended(started(session, work, host))
    assert seen == [(True, False)]
    assert not host.in_use


def test_it_waits_for_whoever_has_the_model_now():
    session, host = Session(), FakeHost()
    with host.exclusive_use():
        job = started(session, host=host)
        assert job.running
    assert ended(job) is DONE


def test_an_error_fit_to_be_shown_is_shown_as_it_is():
    session, host = Session(), FakeHost()

    def work(job):
        raise ModelError("No model is loaded. Press Load.")

    end = ended(started(session, work, host))
    assert (end.outcome, end.text, end.details) == ("failed", "No model is loaded. Press Load.", "")
    assert not host.in_use


def test_an_unexpected_error_of_several_lines_is_one_problem_with_its_kind_and_its_traceback():
    session, host = Session(), FakeHost()

    def work(job):
        raise ZeroDivisionError("by nothing\n- `min_p`: wrong\n\nFix these issues.")

    end = ended(started(session, work, host))
    assert end.outcome == "failed"
    assert end.text == "Training 'a' ended with ZeroDivisionError: by nothing"
    assert end.details.startswith("Traceback") and "Fix these issues." in end.details
    assert not host.in_use
    assert ended(started(session, host=host)) is DONE


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
def test_a_library_that_wants_to_leave_ends_the_job_only(leaving):
    session = Session()

    def work(job):
        raise leaving

    assert ended(started(session, work)).outcome == "failed"
    assert ended(started(session)) is DONE


def test_a_host_that_does_not_lend_is_an_end_too():
    class Locked(FakeHost):
        def exclusive_use(self):
            raise ModelError("This does not look like a webui.")

    assert ended(started(Session(), host=Locked())).text == "This does not look like a webui."


def test_what_needs_no_model_goes_on_beside_what_has_it_one_of_a_kind():
    session, go_on, host = Session(), threading.Event(), FakeHost()
    training = started(session, lambda job: (go_on.wait(10), DONE)[1], host)
    first = session.start_without_model("download", "Downloading a/b", lambda job: (go_on.wait(10), DONE)[1])
    assert (session.current, session.latest("download"), first.running) == (training, first, True)
    with pytest.raises(BusyError) as refusal:
        session.start_without_model("download", "Downloading c/d", lambda job: DONE)
    assert str(refusal.value) == "Downloading a/b is running. Wait until it is done, or stop it first."
    go_on.set()
    assert (ended(training), ended(first), host.uses) == (DONE, DONE, 1)
    second = session.start_without_model("download", "Downloading c/d", lambda job: DONE)
    assert ended(second) is DONE and session.latest("download") is second


def test_every_job_is_told_by_the_teller_that_came_last():
    session, shown, silent = Session(), [], []
    session.set_observer(silent.append)
    session.set_observer(shown.append)
    job = started(session)
    ended(job)
    assert (shown, silent) == ([job], [])


def test_a_teller_that_fails_does_not_block_the_session():
    session = Session()

    def teller(job):
        raise OSError("no console")

    session.set_observer(teller)
    with pytest.raises(OSError, match="no console"):
        started(session)
    assert session.latest("training") is not None
    assert ended(session.latest("training")) is DONE


def test_there_is_one_session():
    assert sys.modules["training_pro.core.jobs.session"].SESSION is SESSION
    assert SESSION.current is None
