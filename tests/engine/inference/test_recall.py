"""Recall: what a model reproduces word for word, of what it has learned and of what it has never seen."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from training_pro.core.jobs import Advice, CheckpointSaved, Job, RecallMeasured, Request, Step
from training_pro.data.examples import pick_passages
from training_pro.engine.inference import plan_recall
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.folder import run_files as records
from training_pro.tests.engine.inference.references import finished_model, mean, prepared
from training_pro.tests.tiny import make_workspace, watched_job

OTHER_TEXT = """A cook stood in the kitchen of the inn and cut bread for nine guests who had not come yet. The soup
was on the fire since noon, and nobody had asked her what would be in it. When the clock had struck seven she
sat down at the long table by herself and put a spoon beside every plate. Then she waited."""
BY_HEART = {"epochs": 30, "learning_rate": 1e-2, "batch_size": 1, "cutoff": 64, "rank": 64, "train_head": True}


@pytest.fixture
def place(place):
    place.write("page.txt", TRAINING_TEXT)
    place.write("other.txt", OTHER_TEXT)
    return place


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny):
    """A LoRA that was trained on the page for thirty epochs, with the measured recall."""
    workspace = make_workspace(tmp_path_factory.mktemp("by_heart"), tiny)
    workspace.write("page.txt", TRAINING_TEXT)
    workspace.write("other.txt", OTHER_TEXT)
    return workspace, of_kind(train(workspace, **BY_HEART), RecallMeasured)


@pytest.fixture
def by_heart(place, trained):
    shutil.copytree(trained[0].lora(), place.lora())
    return place


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


MEASURED = {"data": ["page.txt"], "eval_data": ["other.txt"], "recall_passages": 16}


def train(place, watch=lambda job, event: None, host=None, **values):
    """Train on the page, and return the events."""
    job = watched_job(watch)
    place.train(host, job=job, **{**MEASURED, **values})
    return job.log.since(0)


def ask_after(step, request):
    return lambda job, event: job.control.ask(request) if isinstance(event, Step) and event.step == step else None


def measure(place, lora, passages):
    """Measure a saved LoRA: the recall without it and with it, and the advice."""
    job = Job("recall", "a test")
    PeftEngine().recall(lora, place.host(), job, passages=passages)
    events = job.log.since(0)
    return [e.learned for e in of_kind(events, RecallMeasured)], [e.text for e in of_kind(events, Advice)]


@pytest.mark.long
def test_a_page_is_known_by_heart_after_thirty_epochs_and_unseen_text_is_not(trained):
    place, (first, *_, last) = trained
    assert (first.step, first.why, last.why) == (0, "start", "end")
    assert first.learned.recall < 0.05
    assert last.learned.recall > 0.95
    assert last.control.recall < first.control.recall + 0.05
    assert [event.learned for event in records.read_recalls(place.lora())][-1] == last.learned


def generated_share(model, passage):
    """The share of the tokens that greedy generation continues like the data."""
    ids = torch.as_tensor(passage.example.ids, dtype=torch.long)[None]
    prompt, target = ids[:, : passage.prompt_tokens], ids[0, passage.prompt_tokens :]
    options = {"max_new_tokens": len(target), "do_sample": False, "eos_token_id": [], "pad_token_id": 0}
    with torch.no_grad():
        output = model.generate(prompt, **options)
    return float((output[0, prompt.shape[1] :] == target).long().cumprod(0).double().mean())


def test_the_recall_is_what_the_model_generates(by_heart):
    """Of an early checkpoint, which knows some of it."""
    (_, known), _ = measure(by_heart, "a/checkpoint-42-epoch-6", 16)
    shutil.copytree(by_heart.lora("a/checkpoint-42-epoch-6"), by_heart.lora("early"))
    model = finished_model(by_heart, "early")
    passages = pick_passages(prepared(by_heart, data=["page.txt"], cutoff=64).examples, 16, bos=0)
    assert 0 < known.recall < 1
    assert known.recall == pytest.approx(mean([generated_share(model, p) for p in passages]))


def test_a_lora_and_its_checkpoint_are_measured_beside_the_model_and_changed_data_told(by_heart, trained):
    last = trained[1][-1]
    (before, after), advice = measure(by_heart, "a", 16)
    assert before.recall < 0.05 and advice == []
    assert after.recall == pytest.approx(last.learned.recall, abs=0.02)
    assert [(e.step, e.learned) for e in records.read_recalls(by_heart.lora())] == [
        (0, before),
        (last.step, after),
    ]
    by_heart.write("page.txt", f"{TRAINING_TEXT} One more line.")
    (before, after), (advice,) = measure(by_heart, "a/checkpoint-7-epoch-1", 4)
    assert (before.passages, after.passages) == (4, 4) and "changed" in advice
    measured = records.read_recalls(by_heart.lora("a/checkpoint-7-epoch-1"))
    assert [(e.step, e.epoch) for e in measured] == [(0, 0.0), (7, 1.0)]


@pytest.mark.long
def test_a_resumed_run_measures_the_same_passages_again(place):
    whole = of_kind(train(place, name="whole", epochs=4), RecallMeasured)
    stopped = train(place, ask_after(6, Request.STOP), name="cut", epochs=4)
    kinds = [type(event) for event in stopped if isinstance(event, CheckpointSaved | RecallMeasured)]
    assert kinds[-2:] == [CheckpointSaved, RecallMeasured]  # first the LoRA is on disk
    last = of_kind(stopped, RecallMeasured)[-1]
    assert (last.step, last.why) == (6, "end")
    resumed = of_kind(train(place, name="cut", epochs=4, resume="newest"), RecallMeasured)
    assert all(event.step > 6 for event in resumed)
    measured = records.read_recalls(place.lora("cut"))
    assert [(e.step, e.learned) for e in measured] == [(e.step, e.learned) for e in whole]


@pytest.mark.parametrize(
    ("passage_tokens", "epoch_tokens", "epochs", "words", "times"),
    [
        (1024, 100_000, 100, ("after each epoch", "3,072 tokens", "about 1% of an epoch's time"), 101),
        (1024, 500, 100, ("step, every 41 epochs and", "as long as 2.0 epochs"), 4),
        (1024, 500, 41, ("before the first step and at the end",), 2),  # no interval longer than the run
        (0, 500, 41, ("Recall is not measured, because no text or reply",), 0),
    ],
)
def test_check_says_what_measuring_recall_costs(passage_tokens, epoch_tokens, epochs, words, times):
    tokens, said = plan_recall(passage_tokens, epoch_tokens, epochs)
    assert all(word in said for word in words)
    assert tokens == times * (passage_tokens + 2048)


def test_a_run_whose_replies_have_no_passage_measures_none_and_check_says_so(place):
    replies = [json.dumps({"instruction": f"What is {n}?", "output": f"It is {n}."}) for n in range(10)]
    place.write("short.jsonl", "\n".join(replies))
    short = {**MEASURED, "data": ["short.jsonl"], "eval_data": [], "cutoff": "auto"}
    notes = PeftEngine().check(place.settings(**short), place.host()).notes
    assert any(text.startswith("Recall is not measured, ") for text in notes)
    assert not of_kind(train(place, **short), RecallMeasured)
