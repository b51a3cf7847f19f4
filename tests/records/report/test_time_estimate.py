"""The estimate of the duration of a run, from earlier runs."""

import pytest
from training_pro.core.host import ModelCard
from training_pro.records.report import Workload, estimate_time, graph_file
from training_pro.tests.records.on_disk import LOG, write_files

WARM_UP = graph_file.WARMUP_STEPS
STEPS = [
    {"current_steps": n, "loss": 1.0, "tokens": 100, "seconds": 2 if n > WARM_UP else 50}
    for n in range(1, WARM_UP + graph_file.MIN_STEPS + 1)
]
SIMILAR = {"loaded_as": "auto", "method": "lora", "device": "CPU"}
EARLIER = {"ended_at": "2026-11-20T06:40:00+00:00"}


def write_run(tmp_path, name, *, graph=STEPS, **log):
    write_files(tmp_path, name, {"training_log.json": {**LOG, **SIMILAR, **log}, "training_graph.json": graph})


def estimate(tmp_path, read=0, samples=0):
    return estimate_time(Workload(6000, read, samples), ModelCard("toy", {}, None, "auto"), "lora", tmp_path)


def test_the_newest_similar_run_that_is_long_enough_counts_without_its_warm_up(tmp_path):
    assert estimate(tmp_path / "none") == graph_file.UNKNOWN and "'Test one step'" in graph_file.UNKNOWN
    write_run(tmp_path, "older", graph=[{**step, "tokens": 1} for step in STEPS], **EARLIER)
    write_run(tmp_path, "mine")
    write_run(tmp_path, "short", graph=STEPS[:3], ended_at="2026-11-22T06:40:00+00:00")
    assert "about 2 min 00 s (training 2 min 00 s), if this run is as fast as mine was" in estimate(tmp_path)


@pytest.mark.parametrize("other", [{"base_model_name": "other"}, {"loaded_as": "4bit"}, {"graph": STEPS[:-1]}])
def test_a_run_that_is_different_or_too_short_is_no_estimate(tmp_path, other):
    write_run(tmp_path, "mine", **other)
    assert estimate(tmp_path) == graph_file.UNKNOWN


def test_samples_recall_and_evaluations_count_as_long_as_they_took_there(tmp_path):
    """Check counted the tokens of the steps alone: it said 5 s, and samples and recall took minutes."""
    write_run(tmp_path, "mine", speeds={"tokens_read_per_second": 100.0, "seconds_per_sample": 20.0})
    told = "about 4 min 30 s (training 2 min 00 s, evaluations and recall 30 s, samples 2 min 00 s)"
    assert told in estimate(tmp_path, read=3000, samples=6)
