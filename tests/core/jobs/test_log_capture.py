"""What libraries say during a job goes into its log, and nothing of that is left afterwards."""

from __future__ import annotations

import logging
import threading
import time
import warnings

import pytest
from training_pro.core.jobs import EventLog, JobEnded, LibraryMessage, Session, log_capture
from training_pro.core.jobs.log_capture import capture_library_logs
from training_pro.tests.fakes import FakeHost

LIBRARIES = ("transformers", "peft", "accelerate", "bitsandbytes", "torch", "huggingface_hub", "py.warnings")
PATIENCE_SECONDS = 10


class Ear(logging.Handler):
    """Remembers what reached it."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())


@pytest.fixture(scope="module", autouse=True)
def earlier_jobs_have_ended():
    """A job of an earlier test would put its loggers back in the middle of a test here."""
    logger, deadline = logging.getLogger(LIBRARIES[0]), time.monotonic() + PATIENCE_SECONDS
    while isinstance(logger.handlers, log_capture._CapturedHandlers) and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def nothing_captured():
    """A job that began in a fixture and ended in its test has left Python's warnings captured."""
    logging.captureWarnings(False)


@pytest.fixture
def ear():
    """A handler of the host's, at the root of all loggers."""
    ear, root = Ear(), logging.getLogger()
    root.addHandler(ear)
    yield ear
    root.removeHandler(ear)


def said(log):
    return [(event.source, event.text) for event in log.since(0) if isinstance(event, LibraryMessage)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_librarys_words_go_into_the_log_and_nowhere_else(name, ear):
    log = EventLog()
    with capture_library_logs(log):
        logging.getLogger(f"{name}.some.part").warning("mind %s", "this")
    assert said(log) == [(f"{name}.some.part", "mind this")]
    assert ear.heard == []


def test_warnings_go_into_the_log():
    log = EventLog()
    with warnings.catch_warnings(), capture_library_logs(log):
        warnings.simplefilter("always")
        warnings.warn("this will go away", FutureWarning, stacklevel=1)
    ((source, text),) = said(log)
    assert source == "py.warnings"
    assert "FutureWarning: this will go away" in text


def test_others_loggers_are_left_alone(ear):
    log = EventLog()
    with capture_library_logs(log):
        logging.getLogger("the.hosts.own").warning("hello")
    assert (said(log), ear.heard) == ([], ["hello"])


@pytest.mark.parametrize("error", [None, ValueError])
def test_everything_is_as_it_was_afterwards(error):
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(logger.handlers, list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    show = warnings.showwarning
    try:
        with capture_library_logs(EventLog()):
            if error is not None:
                raise error
    except ValueError:
        pass
    after = [(logger.handlers, list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    assert [row[1:] for row in after] == [row[1:] for row in before]
    assert warnings.showwarning is show


def test_a_host_that_captures_warnings_itself_still_does_so_afterwards():
    with warnings.catch_warnings():
        logging.captureWarnings(True)
        try:
            capturing = warnings.showwarning
            with capture_library_logs(EventLog()):
                pass
            assert warnings.showwarning is capturing
            assert capturing.__module__ == "logging"
        finally:
            logging.captureWarnings(False)


def test_a_handler_added_during_the_job_waits_for_its_end():
    log, late = EventLog(), Ear()
    logger = logging.getLogger("transformers")
    with capture_library_logs(log):
        logger.addHandler(late)
        logger.warning("during")
    try:
        logger.warning("afterwards")
    finally:
        logger.removeHandler(late)
    assert said(log) == [("transformers", "during")]
    assert late.heard == ["afterwards"]


def test_a_console_that_never_returns_does_not_hold_a_talking_library_up():
    class Stuck(logging.Handler):
        def emit(self, record):
            threading.Event().wait(60)

    stuck, logger = Stuck(), logging.getLogger("accelerate")
    logger.addHandler(stuck)

    def work(job):
        logger.warning("talk talk")
        return JobEnded(outcome="finished", text="")

    begun = time.monotonic()
    try:
        job = Session().start("training", "t", FakeHost(), work)
        events = list(job.log.follow())
    finally:
        logger.removeHandler(stuck)
    assert time.monotonic() - begun < 30
    assert [type(event) for event in events] == [LibraryMessage, JobEnded]
