"""What libraries say during a job goes into its log, and nothing of that is left afterwards."""

import logging
import warnings

import pytest
from training_pro.core.jobs import JobEnded, LibraryMessage, Session
from training_pro.tests.fakes import FakeHost

LIBRARIES = ("transformers", "peft", "accelerate", "bitsandbytes", "torch", "huggingface_hub", "py.warnings")


@pytest.fixture
def heard():
    heard, root = [], logging.getLogger()
    ear = logging.Handler()
    ear.emit = lambda record: heard.append(record.getMessage())
    root.addHandler(ear)
    yield heard
    root.removeHandler(ear)


def state():
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    return [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers], warnings.showwarning


def test_libraries_speak_into_the_log_and_nowhere_else_and_all_is_as_it_was_afterwards(heard):
    def speak(job):
        for name in LIBRARIES:
            logging.getLogger(f"{name}.some.part").warning("mind %s", "this")
        logging.getLogger("the.hosts.own").warning("hello")
        warnings.warn("this will go away", FutureWarning, stacklevel=1)
        return JobEnded(outcome="finished", text="")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = state()
        *events, end = Session().start("training", "t", FakeHost(), speak).log.follow()
        assert end.outcome == "finished" and state() == before
    *told, (source, text) = [(said.source, said.text) for said in events if isinstance(said, LibraryMessage)]
    assert told == [(f"{name}.some.part", "mind this") for name in LIBRARIES]
    assert source == "py.warnings" and "FutureWarning: this will go away" in text
    assert heard == ["hello"]
