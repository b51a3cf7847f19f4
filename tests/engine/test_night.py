"""What a run does for the night: the machine is kept awake for as long as it lasts."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from training_pro.core.events import Note, Progress
from training_pro.tests.tiny import watched


@pytest.mark.parametrize("wanted", [True, False])
def test_kept_awake_for_as_long_as_the_run_lasts(place, monkeypatch, wanted):
    told = []

    @contextmanager
    def awake(say):
        say("not possible here")
        told.append("awake")
        try:
            yield
        finally:
            told.append("let go")

    def watch(job, event):
        if isinstance(event, Progress):
            told.append(event.step)
            raise ZeroDivisionError

    monkeypatch.setattr("training_pro.engine.run.awake", awake)
    job = watched(watch)
    with pytest.raises(ZeroDivisionError):
        place.train(job=job, keep_awake=wanted)
    assert told == (["awake", 1, "let go"] if wanted else [1])
    assert ("not possible here" in [e.text for e in job.log.since(0) if isinstance(e, Note)]) is wanted
