"""Laws of all output of page, console, and report: nothing raises, and everything is escaped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_pro.core import jobs
from training_pro.core.findings import Suggestion
from training_pro.data.report import DatasetReport, ExamplePreview, SourceReport
from training_pro.interface.base import markup
from training_pro.interface.page import page
from training_pro.interface.run import RunView, report_view
from training_pro.interface.tabs import perplexity_tab, run_list
from training_pro.interface.train import probe_card
from training_pro.records.folder import LoraEntry
from training_pro.records.report import graph_entry
from training_pro.records.report.report import ReportData, render_report
from training_pro.tests.declared_values import PLAIN, STEP_ENTRIES, assert_escaped, event_types, instances_of

SLOW = settings(
    max_examples=min(100, settings().max_examples),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
EVENTS = sorted(set(event_types()), key=lambda kind: kind.__name__)


def job_of(events, kind="training"):
    job = jobs.Job(kind, "Training 'a'")
    for event in events:
        job.log.append(event)
        if isinstance(event, jobs.JobEnded):
            job.log.close()
            break
    return job


def test_every_kind_of_event_is_covered():
    assert {jobs.DownloadProgress, jobs.JobEnded, jobs.Step, jobs.ProbeDone} <= set(EVENTS) and len(EVENTS) >= 19


@pytest.mark.long
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@SLOW
@given(data=st.data())
def test_every_event_is_drawn(kind, data):
    """In a run with or without steps, ended or still running; and in its report."""
    steps, end = (data.draw(st.lists(instances_of(each), max_size=2)) for each in (jobs.Step, jobs.JobEnded))
    middle = data.draw(st.lists(instances_of(kind), max_size=3))
    events = [data.draw(instances_of(jobs.RunPlanned)), *steps, *middle, *end]
    job = job_of(events)
    view = RunView(job)
    view.catch_up()
    assert_escaped(view.html() + view.extra_charts() + view.samples())
    assert_escaped(view.html(following="<script>") + perplexity_tab.results_html(events))
    assert isinstance(view.short_status(), str)
    formatter = jobs.console.EventPrinter(print)
    assert all(isinstance(formatter.line(event), str) for event in events)
    of_report = [event for event in events if not isinstance(event, jobs.JobEnded)]
    graph = data.draw(st.lists(STEP_ENTRIES | instances_of(jobs.EvaluationDone).map(graph_entry), max_size=3))
    log = data.draw(st.dictionaries(st.sampled_from(["data", "versions", "schedule", "verdict"]), PLAIN))
    samples = [event for event in events if isinstance(event, jobs.SampleGenerated)]
    ended, kept = data.draw(instances_of(jobs.JobEnded)), data.draw(instances_of(LoraEntry))
    assert_escaped(render_report(ReportData(of_report, ended, graph, samples, log, kept)))


@SLOW
@given(data=st.data())
def test_all_other_parts_of_the_page_are_drawn(data):
    assert_escaped(markup.job_status(data.draw(instances_of(jobs.Stage) | instances_of(jobs.JobEnded))))
    fetched = st.lists(instances_of(jobs.DownloadProgress) | instances_of(jobs.JobEnded), max_size=3)
    assert_escaped(page.download_state(job_of(data.draw(fetched), "download"))[1])
    told, fitted = (
        [event.text for event in data.draw(st.lists(instances_of(jobs.Advice)))],
        data.draw(st.booleans()),
    )
    assert_escaped(probe_card(data.draw(instances_of(jobs.ProbeDone)), {}, told, fitted=fitted))
    assert_escaped(report_view.example_card(data.draw(instances_of(ExamplePreview)), 3))
    runs = [run_list.ListedRun(entry) for entry in data.draw(st.lists(instances_of(LoraEntry), max_size=3))]
    assert_escaped(run_list.list_html(runs))


@SLOW
@given(data=st.data())
def test_a_report_of_data_is_drawn(data):
    fields = {"sources": SourceReport, "shown": ExamplePreview, "suggestions": Suggestion}
    parts = {name: tuple(data.draw(st.lists(instances_of(kind), max_size=2))) for name, kind in fields.items()}
    parts["sources"] = tuple(
        replace(s, text=replace(s.text, maps=((s.name, s.text),))) if s.text else s for s in parts["sources"]
    )
    for report in (data.draw(instances_of(DatasetReport)), DatasetReport(3, 9, 9, 24, 1, 1, **parts)):
        assert_escaped(report_view.html(replace(report, free_memory=10**9)))
        assert report.text() and json.dumps(report.as_json())
    assert all(len(suggestion.words.splitlines()) == 1 for suggestion in parts["suggestions"])
