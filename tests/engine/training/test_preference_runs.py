"""Runs that learn from preferences: each objective, resumed, in smaller batches, and what is said of them."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import EvaluationDone, Job, Step, event_text
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.plan import StepLog
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.interface.run import RunView
from training_pro.tests.engine.watching import events_of, read, stopping_at, texts
from training_pro.tests.tiny import make_workspace

PAIRS = [
    {"prompt": f"Lamp {n} said: ", "chosen": f"good day {n}", "rejected": f"go away {n}, it is a bad day"}
    for n in range(16)
]
RUN = {"data": ["pairs.jsonl"], "cutoff": "auto", "epochs": 2, "learning_rate": 1e-3, "save_each_epoch": False}


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny):
    """One workspace and one model for all runs."""
    place = make_workspace(tmp_path_factory.mktemp("pairs"), tiny)
    place.write("pairs.jsonl", "\n".join(map(json.dumps, PAIRS)))
    host = place.host()
    place.run = lambda name, job=None, host=host, **more: place.train(host, job=job, name=name, **{**RUN, **more})
    return place


def graph_of(place, name):
    return [
        {key: value for key, value in entry.items() if "seconds" not in key}
        for entry in read(place.lora(name) / "training_graph.json")
    ]


@pytest.mark.parametrize("objective", ["dpo", "ipo", "kto", "orpo", "simpo"])
def test_a_run_learns_what_is_preferred(shared, objective, empty_pictures):
    job = Job("training", "a test")
    ended = shared.run(objective, job, objective=objective, eval_share=0.25, seed=7, recall_passages=8)
    steps, evaluations = events_of(job, Step), events_of(job, EvaluationDone)
    figures = [step.preferences for step in steps]
    names = {"margin", "preferred", "chosen", "rejected"} | ({"distance"} if objective in "dpo ipo kto" else set())
    assert set().union(*figures) == names and figures[-1]["preferred"] >= 0.75
    assert evaluations[-1].loss < evaluations[0].loss and evaluations[-1].accuracy >= 0.75
    pairs = 8 if objective == "kto" else 4
    assert (evaluations[0].pairs, evaluations[0].tokens) == (pairs, 0)
    before = evaluations[0].accuracy
    if objective in "dpo ipo kto":  # a LoRA that is 0 changes nothing
        assert before == 0.5 and figures[0]["margin"] == figures[0]["distance"] == 0
    share = f"{evaluations[-1].accuracy:.0%} of the {pairs} preferences ({before:.0%} before)"
    assert f"In the validation split, the model follows {share}." in ended.text
    assert f"{before:.1%} of {pairs} preferences followed" in event_text(evaluations[0])
    entries = graph_of(shared, objective)
    assert [e["preferences"] for e in entries if "loss" in e] == figures
    assert [e["eval_pairs"] for e in entries if "eval_loss" in e] == [pairs] * len(evaluations)
    log = read(shared.lora(objective) / "training_log.json")
    assert log["objective"] == objective and all(recall["general_loss"] > 0 for recall in log["recall"])
    assert "The loss on general text, which has nothing to do with your data, went from" in ended.text
    assert read(shared.lora(objective) / "pairs.json") == {"decisions": {}}
    report = (shared.lora(objective) / "report.html").read_text(encoding="utf-8")
    assert "preferences followed" in report and "Loss on general text" in report and "nan" not in report
    view = RunView(job)
    view.catch_up()
    charts = view.extra_charts()
    assert "Preferences followed (%)" in charts and "Margin of the preferred reply" in charts
    assert "Validation perplexity" not in charts and "Recall" not in charts


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_a_resumed_run_ends_as_if_it_had_never_stopped(shared, objective, empty_pictures):
    settings = {"objective": objective, "dropout": 0.1, "eval_share": 0.25}
    shared.run(f"{objective}-whole", **settings)
    shared.run(f"{objective}-parts", stopping_at(2), **settings)
    shared.run(f"{objective}-parts", resume="newest", **settings)
    assert shared.weights(f"{objective}-parts") == shared.weights(f"{objective}-whole")
    assert graph_of(shared, f"{objective}-parts") == graph_of(shared, f"{objective}-whole")


@pytest.mark.parametrize(
    ("name", "changes"),
    [("accumulated", {"batch_size": 1, "accumulation": 4}), ("padded", {"packing": "off"}), ("split", {})],
)
def test_smaller_batches_train_the_same_lora(shared, name, changes, empty_pictures):
    """The loss of a step is the mean over its pairs, however they are distributed over batches."""
    settings = {"objective": "dpo", "chosen_weight": 0.1, "max_steps": 3}
    shared.run("four", **settings, if_exists="replace")
    job, host = Job("training", "a test"), shared.host()
    if name == "split":
        model = host.loaded_model().model.model
        model.register_forward_pre_hook(partial(fail_with_more_than, 4), with_kwargs=True)
    shared.run(name, job, host, **settings, **changes)
    split = [text for text in texts(job) if "does not fit in memory" in text]
    assert len(split) == (name == "split")
    a, b = (load_file(shared.lora(each) / "adapter_model.safetensors") for each in (name, "four"))
    assert max(float((a[key] - b[key]).abs().max()) for key in a) < 1e-5
    keys = ("loss", "preferences")
    left, right = ([{k: entry[k] for k in keys} for entry in graph_of(shared, each)] for each in (name, "four"))
    for mine, theirs in zip(left, right, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert mine["preferences"] == pytest.approx(theirs["preferences"], abs=1e-4)


def fail_with_more_than(texts_at_once, module, args, options):
    positions = options.get("position_ids")
    if torch.is_grad_enabled() and positions is not None and int((positions == 0).sum()) > texts_at_once:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_the_author_of_a_text_is_preferred_to_what_the_model_writes(shared):
    table = shared.folders.datasets / "story.pairs.jsonl"

    def write(tokens):
        job = Job("pairs", "a test")
        ended = PeftEngine().write_pairs("story.txt", "story", tokens, shared.host(), job)
        rows = list(map(json.loads, table.read_text(encoding="utf-8").splitlines()))
        assert ended.outcome == "finished" and f"story.pairs.jsonl has {len(rows)} pair" in ended.text
        return rows

    first, more = write(1), write(10_000)
    assert len(first) == 1 and more[0] == first[0] and len(more) > 1 and write(10_000) == more
    for row in more:
        assert row["prompt"] + row["chosen"] in TRAINING_TEXT and row["chosen"] != row["rejected"]
    settings = shared.settings(**{**RUN, "data": [table.name], "objective": "dpo"})
    check = PeftEngine().check_start(settings, shared.host())
    assert check.problems == () and check.examples == len(more)


def test_full_fine_tuning_has_no_reference_and_orpo_needs_none(shared, empty_pictures):
    with pytest.raises(SettingsError, match="Objective DPO: it compares the model with itself without the LoRA"):
        shared.run("full-dpo", objective="dpo", method="full")
    ended = shared.run("full-orpo", host=shared.host(), objective="orpo", method="full", learning_rate=1e-4)
    assert ended.outcome == "finished"


def test_check_says_what_an_objective_needs(shared):
    values = {**RUN, "objective": "dpo", "train_on": "everything", "neftune_noise": 5, "label_smoothing": 0.1}
    hybrid = {"batching": "length_then_order", "switch_pairs": True, "too_long": "split"}
    with pytest.raises(SettingsError, match=r"a row can't be split.*\n.*an example is already a pair of replies"):
        shared.settings(**values, **hybrid)
    report = PeftEngine().check_start(shared.settings(**values), shared.host())
    assert report.problems == ()
    assert any("Learning Rate 0.001 is high for DPO" in text and "2e-05" in text for text in report.advice)
    unused = " ".join(note for note in report.notes if "no effect" in note)
    labels = ("Train on", "NEFTune noise", "Label smoothing")
    assert all(label in unused for label in labels) and "Recall" not in " ".join(report.notes)
    plain = PeftEngine().check_start(shared.settings(**RUN), shared.host())
    assert report.memory.activations > 1.9 * plain.memory.activations
    assert report.tokens > 1.9 * plain.tokens


def test_a_fall_of_the_chosen_replies_is_said_once_also_after_a_resume():
    falling = [{"chosen": -1 - 0.03 * n} for n in range(60)]
    log = StepLog((), None)
    said = [n for n, figures in enumerate(falling) if log.warn_of_fall(figures)]
    resumed = StepLog([{"loss": 1.0, "preferences": figures} for figures in falling[:20]], 1.0)
    assert said == [20 + n for n, figures in enumerate(falling[20:]) if resumed.warn_of_fall(figures)]
    assert len(said) == 1 and not log.warn_of_fall({})
    assert not any(StepLog((), None).warn_of_fall({"chosen": -1.0}) for _ in range(30))
