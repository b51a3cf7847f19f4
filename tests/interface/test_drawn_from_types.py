"""Property tests of all output of page, console, and report: nothing raises, and everything is escaped."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_pro.core.jobs.console import Narrator
from training_pro.core.jobs.events import (
    Ended,
    Evaluated,
    Event,
    Fetched,
    Planned,
    Probed,
    Progress,
    Sampled,
    Stage,
)
from training_pro.core.jobs.job import Job
from training_pro.data.report.preview import Shown
from training_pro.data.report.report import DatasetReport, SourceReport
from training_pro.data.report.suggestions import Suggestion
from training_pro.interface.base import markup
from training_pro.interface.page.download_panel import GetView
from training_pro.interface.page.quick_demo import Look, LookView
from training_pro.interface.run import report_view
from training_pro.interface.run.run_view import RunView
from training_pro.interface.tabs import perplexity_tab, runs_tab, try_tab
from training_pro.interface.train import probe_panel
from training_pro.records.folder.inventory import Kept
from training_pro.records.report.graph_file import entry
from training_pro.records.report.report import Story, page
from training_pro.tests.declared_values import PLAIN, STEP_ENTRIES, assert_escaped, declared, kinds_of_events

FEW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
EVENTS = sorted(set(kinds_of_events()), key=lambda kind: kind.__name__)


def run(kind: type[Event]) -> st.SearchStrategy[list[Event]]:
    """Events of a run with this kind in the middle: with or without steps, ended or still running."""
    steps, middle = st.lists(declared(Progress), max_size=2), st.lists(declared(kind), max_size=3)
    parts = st.tuples(declared(Planned), steps, middle, st.lists(declared(Ended), max_size=1))
    return parts.map(lambda groups: [groups[0], *groups[1], *groups[2], *groups[3]])


def job_of(events: list[Event], kind: str = "training") -> Job:
    job = Job(kind, "Training 'a'")
    for event in events:
        job.log.append(event)
        if isinstance(event, Ended):
            job.log.close()
            break
    return job


def test_every_kind_of_event_is_covered():
    assert {Stage, Fetched, Ended, Progress, Probed, Sampled} <= set(EVENTS)
    assert len(EVENTS) >= 19


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_every_event_is_drawn(kind, data):
    events = data.draw(run(kind))
    job = job_of(events)
    for view in (RunView(job), LookView(Look("a", job, job_of(events, "answer")))):
        view.catch_up()
        assert_escaped(view.html())
    run_view = RunView(job)
    run_view.catch_up()
    assert_escaped(run_view.html(following="<script>"))
    assert_escaped(run_view.more_curves() + run_view.samples())
    assert isinstance(run_view.in_short(), str)
    assert_escaped(perplexity_tab.shown(events))
    try_tab.take_in(events, {"with": "", "without": ""})
    narrator = Narrator()
    assert all(isinstance(narrator.line(event), str) for event in events)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_every_event_is_drawn_in_the_report_of_a_run(kind, data):
    events = [event for event in data.draw(run(kind)) if not isinstance(event, Ended)]
    kept = data.draw(st.none() | declared(Kept))
    graph = data.draw(
        st.lists(STEP_ENTRIES | declared(Evaluated).map(lambda event: entry(event, "a")), max_size=3)
    )
    log = data.draw(st.dictionaries(st.sampled_from(["data", "versions", "schedule", "verdict"]), PLAIN))
    samples = [event for event in events if isinstance(event, Sampled)]
    assert_escaped(page(Story(events, data.draw(declared(Ended)), graph, samples, log, kept)))


@FEW
@given(event=st.one_of(declared(Stage), declared(Ended)))
def test_the_status_of_a_job_is_drawn(event):
    assert_escaped(markup.told(event))


@FEW
@given(
    events=st.lists(st.one_of(declared(Fetched), declared(Stage), declared(Ended)), max_size=3), seen=st.booleans()
)
def test_a_download_is_drawn(events, seen):
    view = GetView(job_of(events, "download"), seen=seen)
    view.catch_up()
    assert_escaped(view.html())
    assert isinstance(view.title, str)


@FEW
@given(probed=declared(Probed), fitted=st.booleans())
def test_a_probe_is_drawn(probed, fitted):
    assert_escaped(probe_panel.told(probed, {}, fitted=fitted))


@FEW
@given(report=declared(DatasetReport))
def test_a_report_of_data_is_drawn(report):
    assert_escaped(report_view.html(report, free=10**9))
    assert report.text()
    json.dumps(report.as_json())


@pytest.mark.parametrize("kind", [SourceReport, Shown, Suggestion], ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_each_part_of_a_report_is_drawn(kind, data):
    field = {SourceReport: "sources", Shown: "shown", Suggestion: "suggestions"}[kind]
    parts = tuple(data.draw(st.lists(declared(kind), min_size=1, max_size=3)))
    report = DatasetReport(3, 9, 9, 24, 64, 1, 1, **{field: parts})
    assert_escaped(report_view.html(report))
    assert report.text()
    if kind is Suggestion:
        assert [len(line.splitlines()) for line in (suggestion.words for suggestion in parts)] == [1] * len(parts)


@FEW
@given(shown=declared(Shown))
def test_an_example_is_drawn(shown):
    assert_escaped(report_view.example(shown, 3))


@FEW
@given(kept=st.lists(declared(Kept), max_size=3))
def test_the_runs_are_listed(kept):
    assert_escaped(runs_tab.table(kept))
