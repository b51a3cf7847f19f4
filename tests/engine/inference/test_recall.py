"""Recall: what a model reproduces word for word, of what it has learned and of what it has never seen."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from training_pro.core.engine import RecallRequest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import Advice, CheckpointSaved, Job, RecallMeasured, Request, Stage, Step
from training_pro.data.examples import pick_passages
from training_pro.data.prepare import prepare
from training_pro.engine.inference import recall
from training_pro.engine.inference.recall_of_lora import DATA_CHANGED
from training_pro.engine.inference.recall_scheduler import MAX_SHARE, MEASURING, epochs_between, plan_recall
from training_pro.engine.lora import load_lora
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.folder import read_recalls
from training_pro.tests.tiny import Workspace, watched_job

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
def by_heart(tmp_path_factory, tiny):
    """A LoRA that was trained on the page for thirty epochs, with the measured recall."""
    workspace = Workspace(standalone_folders(tmp_path_factory.mktemp("by_heart") / "user_data"), tiny)
    workspace.write("page.txt", TRAINING_TEXT)
    workspace.write("other.txt", OTHER_TEXT)
    return workspace, train(workspace, **BY_HEART)


def train(place, job=None, **values):
    """Train on the page, and return the measured recall."""
    job = job or Job("training", "a test")
    place.train(job=job, **{"data": ["page.txt"], "eval_data": ["other.txt"], **values})
    return [event for event in job.log.since(0) if isinstance(event, RecallMeasured)]


def test_a_page_is_known_by_heart_after_thirty_epochs_and_unseen_text_is_not(by_heart):
    place, (first, *_, last) = by_heart
    assert (first.step, first.why, last.why) == (0, "start", "end")
    assert first.learned.recall < 0.05
    assert last.learned.recall > 0.95
    assert last.control.recall < first.control.recall + 0.05
    assert [event.learned for event in read_recalls(place.lora())][-1] == last.learned


def test_the_recall_is_what_the_model_generates(place):
    last = train(place, **{**BY_HEART, "epochs": 6})[-1]
    host = place.host()
    model = load_lora(host.loaded_model().model, place.lora(), "a").eval()
    data = prepared_data(place, data=["page.txt"], cutoff=64)
    matched = [generated_tokens(model, p) / p.target_tokens for p in pick_passages(data.examples, 16, bos=0)]
    assert 0 < last.learned.recall < 1
    assert list(last.strip) == pytest.approx(matched)


def prepared_data(place, **values):
    card, settings = place.host().card(), place.settings(**values)
    return prepare(settings, place.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None)


def generated_tokens(model, passage):
    """Count the tokens that greedy generation continues like the data."""
    ids = torch.as_tensor(passage.example.ids, dtype=torch.long)[None]
    prompt, target = ids[:, : passage.prompt_tokens], ids[0, passage.prompt_tokens :]
    with torch.no_grad():
        output = model.generate(
            prompt, max_new_tokens=len(target), do_sample=False, eos_token_id=[], pad_token_id=0
        )
    right = (output[0, prompt.shape[1] :] == target).long()
    return int(right.cumprod(0).sum())


def test_training_is_the_same_to_the_bit_without_it(place):
    train(place, name="with", epochs=2, dropout=0.1)
    assert train(place, name="without", epochs=2, dropout=0.1, recall_passages=0) == []
    assert place.weights("with") == place.weights("without")


def test_a_resumed_run_measures_the_same_passages_again(place):
    whole = train(place, name="whole", epochs=4)

    def stop(job, event):
        if isinstance(event, Step) and event.step == 6:
            job.control.ask(Request.STOP)

    stopped = train(place, watched_job(stop), name="cut", epochs=4)
    assert (stopped[-1].step, stopped[-1].why) == (6, "end")
    resumed = train(place, name="cut", epochs=4, resume="newest")
    assert all(event.step > 6 for event in resumed)
    measured = read_recalls(place.lora("cut"))
    assert [(r.step, r.learned) for r in measured] == [(r.step, r.learned) for r in whole]


def test_the_last_checkpoint_is_on_disk_before_recall_is_measured(place):
    def stop(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.ask(Request.STOP)

    job = watched_job(stop)
    train(place, job)
    kinds = [type(event) for event in job.log.since(0) if isinstance(event, CheckpointSaved | RecallMeasured)]
    assert kinds == [RecallMeasured, CheckpointSaved, RecallMeasured]


def test_stop_ends_a_measurement_before_the_first_step(place):
    def stop(job, event):
        if isinstance(event, Stage) and event.text == MEASURING:
            job.control.ask(Request.STOP)

    job = watched_job(stop)
    assert train(place, job) == []
    assert [event.step for event in job.log.since(0) if isinstance(event, Step)] == [1]


@pytest.mark.parametrize("rule", [{"stop_at_loss": 9.0}, {"stop_at_epoch": 1.5}, {"stop_at_epoch": 2}])
def test_a_run_that_a_rule_ends_is_measured_once_at_its_end(place, rule):
    job = Job("training", "a test")
    events = train(place, job, epochs=4, **rule)
    last = max(event.step for event in job.log.since(0) if isinstance(event, Step))
    assert [event.step for event in events].count(last) == 1 and events[-1].step == last


def test_evaluate_measures_recall_now_also_without_a_validation_split(place):
    def ask(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.ask(Request.EVALUATE)

    job = watched_job(ask)
    asked = [event for event in train(place, job, epochs=3, eval_data=[]) if event.why == "asked"]
    assert [(event.step, event.control) for event in asked] == [(2, None)]
    assert not any(isinstance(event, Advice) and "validation" in event.text for event in job.log.since(0))


def test_a_failing_measurement_does_not_end_the_run(place, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(recall.RecallMeter, "measure", fail)
    job = Job("training", "a test")
    assert train(place, job) == []
    assert any("recall after step 0 failed: out of order. The run continues." in e.text for e in advice(job))


def advice(job):
    return [event for event in job.log.since(0) if isinstance(event, Advice)]


@pytest.mark.parametrize(("measured", "epoch"), [(1024, 100), (1024, 4096), (1024, 100_000), (0, 0)])
def test_measuring_takes_at_most_its_share_of_the_epochs_between(measured, epoch):
    epochs = epochs_between(measured, epoch)
    assert measured / 3 <= MAX_SHARE * epochs * max(epoch, 1)
    assert epochs == 1 or measured / 3 > MAX_SHARE * (epochs - 1) * epoch


def measure(place, lora, passages):
    """Measure a saved LoRA: the recall without it and with it, and the job."""
    job = Job("recall", "a test")
    PeftEngine().recall(RecallRequest(lora, passages), place.host(), job)
    return [event.learned for event in job.log.since(0) if isinstance(event, RecallMeasured)], job


def test_a_saved_lora_is_measured_beside_the_model_without_it(by_heart, place):
    workspace, events = by_heart
    shutil.copytree(workspace.lora(), place.lora())
    (before, after), _ = measure(place, "a", 16)
    assert before.recall < 0.05
    assert after.recall == pytest.approx(events[-1].learned.recall, abs=0.02)
    assert [(event.step, event.learned) for event in read_recalls(place.lora())] == [
        (0, before),
        (events[-1].step, after),
    ]
    assert measure(place, "a", 16)[0] == [before, after]


def test_a_checkpoint_is_measured_and_changed_data_are_told(by_heart, place):
    shutil.copytree(by_heart[0].lora(), place.lora())
    place.write("page.txt", f"{TRAINING_TEXT} One more line.")
    (before, after), job = measure(place, "a/checkpoint-7-epoch-1", 4)
    assert before.passages == after.passages == 4
    assert [event.text for event in advice(job)] == [DATA_CHANGED]
    assert [(e.step, e.epoch) for e in read_recalls(place.lora("a/checkpoint-7-epoch-1"))] == [(0, 0.0), (7, 1.0)]


def test_a_lora_of_the_best_step_is_measured_as_of_that_step(by_heart, place):
    shutil.copytree(by_heart[0].lora(), place.lora())
    path = place.lora() / "training_log.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "kept_step": 14}))
    measure(place, "a", 4)
    assert [(event.step, event.epoch) for event in read_recalls(place.lora())] == [(0, 0.0), (14, 2.0)]


def test_a_lora_of_another_program_has_no_known_data(place, lora):
    shutil.copytree(lora, place.lora("foreign"))
    (place.lora("foreign") / "training_parameters.json").unlink()
    with pytest.raises(SavingError, match=r"foreign has no training_parameters.json, so its"):
        PeftEngine().recall(RecallRequest("foreign"), place.host(), Job("recall", "a test"))


@pytest.mark.parametrize(
    ("epoch_tokens", "passage_tokens", "words"),
    [
        (100_000, 1024, ("after each epoch", "3,072 tokens", "about 1% of an epoch's time")),
        (10_000_000, 1024, ("after each epoch", "less than 1% of an epoch's time")),
        (4_000, 2048, ("step, every 7 epochs and", "4,096 tokens", "about 34% of an epoch's time")),
        (500, 1024, ("step, every 41 epochs and", "3,072 tokens", "as long as 2.0 epochs")),
    ],
)
def test_check_says_what_measuring_recall_costs(epoch_tokens, passage_tokens, words):
    told = plan_recall(passage_tokens, epoch_tokens, 100).words
    assert all(word in told for word in words)


def test_check_says_no_interval_that_is_longer_than_the_run():
    assert "before the first step and at the end" in plan_recall(1024, 500, 41).words
    assert [plan_recall(1024, 500, epochs).tokens for epochs in (41, 42, 83)] == [2 * 3072, 3 * 3072, 4 * 3072]


def test_check_promises_no_recall_that_will_not_be_measured(place):
    """the replies of ten short chats have no passage."""
    replies = "\n".join(json.dumps({"instruction": f"What is {n}?", "output": f"It is {n}."}) for n in range(10))
    place.write("short.jsonl", replies)
    settings = {"data": ["short.jsonl"], "eval_data": [], "eval_share": 0, "cutoff": "auto"}
    report = PeftEngine().check(place.settings(**settings), place.host())
    (told,) = [text for text in report.notes if text.startswith("Recall")]
    assert told.startswith("Recall is not measured, because no text or reply of the training data has a passage")
    job = Job("training", "a test")
    place.train(job=job, **settings)
    assert not [event for event in job.log.since(0) if isinstance(event, RecallMeasured)]


def test_check_says_it_of_these_data_and_not_without_passages(place):
    told = [
        any(finding.text.startswith("Recall (how much of the text") for finding in report.findings)
        for report in (
            PeftEngine().check(place.settings(data=["page.txt"], recall_passages=count), place.host())
            for count in (16, 0)
        )
    ]
    assert told == [True, False]
