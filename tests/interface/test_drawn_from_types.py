"""Property tests of all output of page, console, and report: nothing raises, and everything is escaped."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_pro.core.findings import Suggestion
from training_pro.core.jobs import (
    DownloadProgress,
    EvaluationDone,
    Event,
    Job,
    JobEnded,
    ProbeDone,
    RunPlanned,
    SampleGenerated,
    Stage,
    Step,
)
from training_pro.core.jobs.console import EventFormatter
from training_pro.data.report import DatasetReport, ExamplePreview, SourceReport
from training_pro.interface.base import markup
from training_pro.interface.page.download_panel import DownloadView
from training_pro.interface.page.quick_demo import Demo, DemoView
from training_pro.interface.run import RunView, report_view
from training_pro.interface.tabs import perplexity_tab, run_list, try_tab
from training_pro.interface.train import probe_panel
from training_pro.records.folder import LoraEntry
from training_pro.records.report import ReportData, graph_entry, render_report
from training_pro.tests.declared_values import PLAIN, STEP_ENTRIES, assert_escaped, event_types, instances_of

FEW = settings(
    max_examples=60 if os.environ.get("CI") else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
EVENTS = sorted(set(event_types()), key=lambda kind: kind.__name__)


def run(kind: type[Event]) -> st.SearchStrategy[list[Event]]:
    """Events of a run with this kind in the middle: with or without steps, ended or still running."""
    steps, middle = st.lists(instances_of(Step), max_size=2), st.lists(instances_of(kind), max_size=3)
    parts = st.tuples(instances_of(RunPlanned), steps, middle, st.lists(instances_of(JobEnded), max_size=1))
    return parts.map(lambda groups: [groups[0], *groups[1], *groups[2], *groups[3]])


def job_of(events: list[Event], kind: str = "training") -> Job:
    job = Job(kind, "Training 'a'")
    for event in events:
        job.log.append(event)
        if isinstance(event, JobEnded):
            job.log.close()
            break
    return job


def test_every_kind_of_event_is_covered():
    assert {Stage, DownloadProgress, JobEnded, Step, ProbeDone, SampleGenerated} <= set(EVENTS)
    assert len(EVENTS) >= 19


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_every_event_is_drawn(kind, data):
    events = data.draw(run(kind))
    job = job_of(events)
    for view in (RunView(job), DemoView(Demo("a", job, job_of(events, "answer")))):
        view.catch_up()
        assert_escaped(view.html())
    run_view = RunView(job)
    run_view.catch_up()
    assert_escaped(run_view.html(following="<script>"))
    assert_escaped(run_view.extra_charts() + run_view.samples())
    assert isinstance(run_view.short_status(), str)
    assert_escaped(perplexity_tab.results_html(events))
    try_tab.append_answers(events, {"with": "", "without": ""})
    narrator = EventFormatter()
    assert all(isinstance(narrator.line(event), str) for event in events)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_every_event_is_drawn_in_the_report_of_a_run(kind, data):
    events = [event for event in data.draw(run(kind)) if not isinstance(event, JobEnded)]
    kept = data.draw(st.none() | instances_of(LoraEntry))
    graph = data.draw(st.lists(STEP_ENTRIES | instances_of(EvaluationDone).map(graph_entry), max_size=3))
    log = data.draw(st.dictionaries(st.sampled_from(["data", "versions", "schedule", "verdict"]), PLAIN))
    samples = [event for event in events if isinstance(event, SampleGenerated)]
    assert_escaped(render_report(ReportData(events, data.draw(instances_of(JobEnded)), graph, samples, log, kept)))


@FEW
@given(event=st.one_of(instances_of(Stage), instances_of(JobEnded)))
def test_the_status_of_a_job_is_drawn(event):
    assert_escaped(markup.job_status(event))


@FEW
@given(
    events=st.lists(
        st.one_of(instances_of(DownloadProgress), instances_of(Stage), instances_of(JobEnded)), max_size=3
    ),
    seen=st.booleans(),
)
def test_a_download_is_drawn(events, seen):
    view = DownloadView(job_of(events, "download"), seen=seen)
    view.catch_up()
    assert_escaped(view.html())
    assert isinstance(view.title, str)


@FEW
@given(probed=instances_of(ProbeDone), fitted=st.booleans())
def test_a_probe_is_drawn(probed, fitted):
    assert_escaped(probe_panel.probe_card(probed, {}, fitted=fitted))


@FEW
@given(report=instances_of(DatasetReport))
def test_a_report_of_data_is_drawn(report):
    assert_escaped(report_view.html(report, free=10**9))
    assert report.text()
    json.dumps(report.as_json())


@pytest.mark.parametrize("kind", [SourceReport, ExamplePreview, Suggestion], ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_each_part_of_a_report_is_drawn(kind, data):
    field = {SourceReport: "sources", ExamplePreview: "shown", Suggestion: "suggestions"}[kind]
    parts = tuple(data.draw(st.lists(instances_of(kind), min_size=1, max_size=3)))
    report = DatasetReport(3, 9, 9, 24, 1, 1, **{field: parts})
    assert_escaped(report_view.html(report))
    assert report.text()
    if kind is Suggestion:
        assert [len(line.splitlines()) for line in (suggestion.words for suggestion in parts)] == [1] * len(parts)


@FEW
@given(shown=instances_of(ExamplePreview))
def test_an_example_is_drawn(shown):
    assert_escaped(report_view.example_card(shown, 3))


@FEW
@given(kept=st.lists(instances_of(LoraEntry), max_size=3))
def test_the_runs_are_listed(kept):
    assert_escaped(run_list.list_html([run_list.ListedRun(entry) for entry in kept], run_list.ListView()))
