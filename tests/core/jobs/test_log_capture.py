"""What libraries say during a job goes into its log, and nothing of that is left afterwards."""

import logging
import warnings

import pytest
from training_pro.core.jobs import JobEnded, LibraryMessage, Session
from training_pro.tests.fakes import FakeHost

LIBRARIES = ("transformers", "peft", "accelerate", "bitsandbytes", "torch", "huggingface_hub", "py.warnings")


class Ear(logging.Handler):
    """Remembers what reached it, as a handler of the host's would."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())


@pytest.fixture
def ear():
    ear, root = Ear(), logging.getLogger()
    root.addHandler(ear)
    yield ear
    root.removeHandler(ear)


def said_during(act):
    """Return what the log of a job has of libraries that speak while it runs."""

    def work(job):
        act()
        return JobEnded(outcome="finished", text="")

    job = Session().start("training", "t", FakeHost(), work)
    *told, end = job.log.follow()
    assert end.outcome == "finished", end.details
    return [(event.source, event.text) for event in told if isinstance(event, LibraryMessage)]


def state():
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    return [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers], warnings.showwarning


@pytest.mark.parametrize("captured_before", [False, True])
def test_libraries_speak_into_the_log_and_nowhere_else_and_all_is_as_it_was_afterwards(ear, captured_before):
    late = Ear()

    def speak():
        for name in LIBRARIES:
            logging.getLogger(f"{name}.some.part").warning("mind %s", "this")
        logging.getLogger("the.hosts.own").warning("hello")
        logging.getLogger("peft").addHandler(late)  # waits for the end
        logging.getLogger("peft").warning("during")
        warnings.warn("this will go away", FutureWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(captured_before)
        try:
            before = state()
            *told, peft, (source, text) = said_during(speak)
            logging.getLogger("peft").removeHandler(late)
            assert state() == before
        finally:
            logging.captureWarnings(False)
    assert told == [(f"{name}.some.part", "mind this") for name in LIBRARIES]
    assert peft == ("peft", "during") and late.heard == []
    assert source == "py.warnings" and "FutureWarning: this will go away" in text
    assert ear.heard == ["hello"]
