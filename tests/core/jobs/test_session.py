"""The session: one job at a time, under the host's exclusive use, and every end is told."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from training_pro.core.errors import BusyError, ModelError
from training_pro.core.jobs import SESSION, JobEnded, Note, Session
from training_pro.tests.fakes import FakeHost

DONE = JobEnded(at=0.0, outcome="finished", text="done")


def ended(job):
    """How a job ended, waited for."""
    list(job.log.follow())
    assert job.end is not None
    return job.end


def started(session, work=lambda job: DONE, host=None, title="Training 'a'"):
    return session.start("training", title, host or FakeHost(), work)


def raising(error):
    def work(job):
        raise error

    return work


def test_the_work_is_done_under_exclusive_use_on_a_thread_of_its_own_and_told():
    session, host, seen, shown = Session(), FakeHost(), [], []
    session.set_observer(shown.append)

    def work(job):
        seen.append((host.in_use, threading.current_thread() is threading.main_thread()))
        job.log.append(Note(at=0.0, text="at it"))
        return DONE

    with host.exclusive_use():  # it waits for whoever has the model now
        job = started(session, work, host)
        assert job.running
    assert list(job.log.follow()) == [Note(at=0.0, text="at it"), DONE]
    assert (ended(job), job.running, session.current, host.in_use) == (DONE, False, None, False)
    assert (seen, shown) == ([(True, False)], [job])
    second = started(session, host=host)
    assert ended(second) is DONE and session.latest("training") is second and session.latest("answer") is None


def test_of_many_that_start_at_once_one_is_not_refused_and_named_to_the_others():
    session, go_on, together = Session(), threading.Event(), threading.Barrier(8)

    def attempt(_):
        together.wait()
        try:
            return started(session, lambda job: (go_on.wait(30), DONE)[1])
        except BusyError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(attempt, range(8)))
    assert sum("The model is busy: Training 'a'." in str(outcome) for outcome in outcomes) == 7
    assert session.current in outcomes
    go_on.set()
    assert ended(session.latest("training")) is DONE


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModelError("No model is loaded. Press Load."), "No model is loaded. Press Load."),
        (ZeroDivisionError("by nothing\n- `min_p`: wrong"), "Training 'a' ended with ZeroDivisionError: by"),
        (KeyboardInterrupt(), "Training 'a' ended with KeyboardInterrupt"),
    ],
)
def test_an_error_ends_the_job_only_and_one_that_is_not_ours_has_a_traceback(error, text):
    session, host = Session(), FakeHost()
    end = ended(started(session, raising(error), host))
    assert end.outcome == "failed" and end.text.startswith(text) and "`min_p`" not in end.text
    assert end.details.startswith("" if isinstance(error, ModelError) else "Traceback")
    assert not host.in_use
    assert ended(started(session, host=host)) is DONE


def test_what_needs_no_model_goes_on_beside_what_has_it_one_of_a_kind():
    session, go_on, host = Session(), threading.Event(), FakeHost()
    training = started(session, lambda job: (go_on.wait(30), DONE)[1], host)
    first = session.start_without_model("download", "Downloading a/b", lambda job: (go_on.wait(30), DONE)[1])
    assert (session.current, session.latest("download"), first.running) == (training, first, True)
    with pytest.raises(BusyError, match=r"^Downloading a/b is running"):
        session.start_without_model("download", "Downloading c/d", lambda job: DONE)
    go_on.set()
    assert (ended(training), ended(first), host.uses) == (DONE, DONE, 1)
    second = session.start_without_model("download", "Downloading c/d", lambda job: DONE)
    assert ended(second) is DONE and session.latest("download") is second


def test_a_host_that_does_not_lend_does_not_block_the_session():
    class Locked(FakeHost):
        def exclusive_use(self):
            raise ModelError("This does not look like a webui.")

    session = Session()
    assert ended(started(session, host=Locked())).text == "This does not look like a webui."
    assert ended(started(session)) is DONE and SESSION.current is None
