"""Evaluation of the validation split during a run: when, which figures, and that training is unaffected."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Advice, CheckpointSaved, EvaluationDone, Job, Note, Request, Stage, Step
from training_pro.data.prepare import prepare
from training_pro.engine.compute import collate
from training_pro.engine.inference import eval_loop, evaluator
from training_pro.engine.lora import load_lora
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.engine.training import trainer
from training_pro.engine.training.callback import NOTHING_TO_MEASURE
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.report import best_evaluation, curve_png, read_evaluations, read_steps
from training_pro.tests.engine.architectures import read_graph, read_log, record_batches, simulate_kill
from training_pro.tests.tiny import watched_job

OTHER_TEXT = (
    "A cook stood in the kitchen and cut the bread. The soup was on the fire. Nobody came to eat.\n\n\n" * 6
)
WITH_SPLIT = {"eval_data": ["other.txt"], "epochs": 2, "dropout": 0.1}


@pytest.fixture
def place(place):
    place.write("other.txt", OTHER_TEXT)
    return place


def run_events(place, **more):
    job = Job("training", "a test")
    end = place.train(job=job, **{**WITH_SPLIT, **more})
    return [*job.log.since(0), end]


def evaluations(events):
    return [e for e in events if isinstance(e, EvaluationDone)]


def test_before_the_first_step_at_each_epoch_and_at_the_end(place):
    events = run_events(place)
    results = evaluations(events)
    assert [(e.step, e.why) for e in results] == [(0, "start"), (4, "planned"), (8, "end")]
    steps = [type(e) for e in events if isinstance(e, (Step, EvaluationDone, CheckpointSaved))]
    assert steps[:7] == [EvaluationDone, *[Step] * 4, EvaluationDone, CheckpointSaved]
    for result in results:
        assert result.perplexity == pytest.approx(math.exp(result.loss))
        assert 0 <= result.accuracy < 1
        assert result.by_source == {}
    assert results[-1].loss != results[0].loss
    assert json.loads((place.lora() / "training_graph.json").read_text()) == read_graph(place)
    assert read_evaluations(read_graph(place))[1].loss == results[1].loss
    assert [s.step for s in read_steps(read_graph(place))] == list(range(1, 9))


@pytest.mark.parametrize(("asked", "largest"), [("auto", 4), (1, 1), (3, 3)])
def test_the_evaluation_batch_size_is_that_of_the_run_or_its_own(place, monkeypatch, asked, largest):
    default = evaluations(run_events(place, name="default", epochs=1))
    sizes = []

    def record(examples, **more):
        sizes.append(len(examples))
        return collate(examples, **more)

    monkeypatch.setattr(eval_loop, "collate", record)
    results = evaluations(run_events(place, epochs=1, eval_batch_size=asked))
    assert max(sizes) == largest
    assert [e.loss for e in results] == pytest.approx([e.loss for e in default], rel=1e-5)
    assert place.weights() == place.weights("default")


def test_a_long_evaluation_logs_its_progress(place, monkeypatch):
    monkeypatch.setattr(eval_loop, "PROGRESS_SECONDS", -1.0)
    shares = [
        event.share
        for event in run_events(place, epochs=1)
        if isinstance(event, Stage) and event.text == evaluator.EVALUATING
    ]
    (unique_shares,) = {tuple(part) for part in (shares[: len(shares) // 2], shares[len(shares) // 2 :])}
    assert unique_shares[0] is None
    assert unique_shares[1:] == tuple(n / (len(unique_shares) - 1) for n in range(1, len(unique_shares)))
    assert len(unique_shares) > 2


def test_the_figures_are_those_of_the_model_itself(place):
    """Compare loss and accuracy of the finished LoRA with a reference, example by example."""
    result = evaluations(run_events(place, label_smoothing=0.1))[-1]
    host = place.host()
    model = load_lora(host.loaded_model().model, place.lora(), "a").eval()
    split = prepare_data(place, **WITH_SPLIT).validation
    losses = [loss for example in split for loss in losses_of(model, example)]
    hits = [hit for example in split for hit in hits_of(model, example)]
    assert result.tokens == len(losses)
    assert result.loss == pytest.approx(sum(losses) / len(losses), abs=2e-5)
    assert result.accuracy == pytest.approx(sum(hits) / len(hits))


def prepare_data(place, **more):
    card, settings = place.host().card(), place.settings(**more)
    return prepare(settings, place.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None)


def logits_of(model, example):
    ids = torch.as_tensor(example.ids, dtype=torch.long)
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0, :-1].float(), ids[1:]


def losses_of(model, example):
    logits, targets = logits_of(model, example)
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none").tolist()


def hits_of(model, example):
    logits, targets = logits_of(model, example)
    return (logits.argmax(-1) == targets).tolist()


@pytest.mark.parametrize("more", [{}, {"packing": "off"}, {"neftune_noise": 5, "train_head": True}])
def test_the_lora_is_byte_identical_to_a_run_without(place, more):
    place.train(name="with", **WITH_SPLIT, **more, eval_every=1)
    place.train(name="without", **{**WITH_SPLIT, "eval_data": []}, **more)
    assert place.weights("with") == place.weights("without")
    assert [s.loss for s in read_steps(read_graph(place, "with"))] == [
        e["loss"] for e in read_graph(place, "without")
    ]


def test_full_finetuning_with_evaluations_is_byte_identical(place):
    more = {"method": "full", "learning_rate": 1e-3, "save_every": 2, "keep_checkpoints": 9}
    end = run_events(place, name="with", eval_every=2, **more)[-1]
    without = place.train(name="without", **{**WITH_SPLIT, "eval_data": []}, **more)
    with_bytes, without_bytes = ((ended.folder / "model.safetensors").read_bytes() for ended in (end, without))
    assert with_bytes == without_bytes
    training_log = json.loads((end.folder / "training_log.json").read_text())
    assert training_log["verdict"]["kind"] in ("could learn more", "about right", "began to memorize")


def test_packed_and_padded_results_are_equal(place):
    one, other = (
        evaluations(run_events(place, name=way, packing=way, max_steps=1, dropout=0))[-1] for way in ("on", "off")
    )
    assert one.loss == pytest.approx(other.loss, abs=1e-5)
    assert (one.accuracy, one.tokens) == (other.accuracy, other.tokens)


def test_every_n_steps_and_on_request(place):
    def wish(job, event):
        if isinstance(event, Step) and event.step == 4:
            job.control.ask(Request.EVALUATE)

    job = watched_job(wish)
    place.train(job=job, **WITH_SPLIT, eval_every=3)
    results = evaluations(job.log.since(0))
    assert [(e.step, e.why) for e in results] == [
        (0, "start"),
        (3, "planned"),
        (4, "asked"),
        (6, "planned"),
        (8, "end"),
    ]
    assert not job.control.asked(Request.EVALUATE)


def test_a_request_without_a_split_is_answered(place):
    def wish(job, event):
        if isinstance(event, Step) and event.step == 1:
            job.control.ask(Request.EVALUATE)

    job = watched_job(wish)
    place.train(job=job, recall_passages=0)
    advice = [e.text for e in job.log.since(0) if isinstance(e, Advice)]
    assert NOTHING_TO_MEASURE in advice
    assert not job.control.asked(Request.EVALUATE)


def test_a_split_of_several_datasets_has_a_loss_for_each(place):
    place.write("book/1.txt", TRAINING_TEXT)
    place.write("book/2.txt", OTHER_TEXT)
    results = evaluations(run_events(place, data=["story.txt", "book"], eval_data=[], eval_share=0.2, max_steps=1))
    assert set(results[0].by_source) == {"story.txt", "book/"}
    first = results[0]
    assert min(first.by_source.values()) < first.loss < max(first.by_source.values())
    assert read_graph(place)[0]["eval_by_source"] == first.by_source


def test_early_stopping_stops_and_logs_why(place):
    events = run_events(place, early_stopping=2, eval_every=1, learning_rate=0.5, epochs=9)
    results = evaluations(events)
    best = best_evaluation(results)
    last = results[-1]
    assert last.step == best.step + 2
    reason = f"the validation loss did not improve on {best.loss:.4f} in 2 evaluations"
    assert f"Stopping after step {last.step}: {reason}." in [e.text for e in events if isinstance(e, Note)]
    assert events[-1].outcome == "finished"
    assert reason in events[-1].text


def test_more_epochs_after_early_stopping_reset_the_patience(place):
    more = {"early_stopping": 2, "eval_every": 1, "learning_rate": 0.5}
    ended = evaluations(run_events(place, epochs=9, **more))[-1].step
    going_on = evaluations(run_events(place, epochs=12, **more, resume="newest"))
    assert [e.step for e in going_on][:2] == [ended + 1, ended + 2]


def test_requested_evaluations_do_not_use_up_patience(place):
    def wish(job, event):
        if isinstance(event, Step):
            job.control.ask(Request.EVALUATE)

    job = watched_job(wish)
    place.train(job=job, **{**WITH_SPLIT, "early_stopping": 1, "eval_every": 99, "learning_rate": 0.5})
    results = evaluations(job.log.since(0))
    assert [e.step for e in results] == list(range(9))
    assert any(later.loss > earlier.loss for earlier, later in pairwise(results[:-1]))


def test_a_resumed_run_stops_at_the_same_step(place):
    more = {"early_stopping": 3, "eval_every": 1, "learning_rate": 0.3, "epochs": 9, "save_every": 1}
    more |= {"keep_checkpoints": 99}
    whole = evaluations(run_events(place, name="whole", **more))
    run_events(place, name="cut", **more)
    middle = whole[-1].step - 2
    simulate_kill(place, "cut", middle)
    going_on = evaluations(run_events(place, name="cut", **more, if_exists="continue"))
    assert [(e.step, e.loss) for e in going_on] == [(e.step, e.loss) for e in whole if e.step > middle]
    assert place.weights("cut") == place.weights("whole")
    assert [e.loss for e in read_evaluations(read_graph(place, "cut"))] == [e.loss for e in whole]


def test_an_evaluation_skipped_by_a_stop_is_done_on_resume(place):
    def stop(job, event):
        if isinstance(event, Step) and event.step == 3:
            job.control.ask(Request.STOP)

    more = {"eval_every": 1, "keep_best": "loss", "learning_rate": 0.5, "keep_checkpoints": 99}
    whole = evaluations(run_events(place, name="whole", **more))
    place.train(name="cut", job=watched_job(stop), **{**WITH_SPLIT, **more})
    assert [e.step for e in read_evaluations(read_graph(place, "cut"))] == [0, 1, 2]
    run_events(place, name="cut", **more, if_exists="continue")
    made_up = read_evaluations(read_graph(place, "cut"))
    assert [(e.step, e.loss, e.context_gain) for e in made_up] == [(e.step, e.loss, e.context_gain) for e in whole]
    assert place.weights("cut") == place.weights("whole")


def test_the_best_step_may_be_the_one_evaluated_on_resume(place):
    more = {"eval_every": 1, "keep_best": "loss", "learning_rate": 0.05}
    best = best_evaluation([e for e in evaluations(run_events(place, name="whole", **more)) if e.step]).step
    assert best < 8  # 8 is the last step

    def stop(job, event):
        if isinstance(event, Step) and event.step == best:
            job.control.ask(Request.STOP)

    place.train(name="cut", job=watched_job(stop), **{**WITH_SPLIT, **more})
    run_events(place, name="cut", **more, if_exists="continue")
    assert place.weights("cut") == place.weights("whole")


def test_a_rule_that_ends_the_run_is_followed_by_a_last_evaluation(place):
    results = evaluations(run_events(place, stop_at_loss=50))
    assert [(e.step, e.why) for e in results] == [(0, "start"), (1, "end")]


def test_the_best_checkpoint_is_chosen_by_the_split(place):
    results = evaluations(run_events(place, keep_best="loss", eval_every=1, learning_rate=0.5))
    best = best_evaluation([e for e in results if e.step])
    assert (place.lora() / f"checkpoint-{best.step}-best").is_dir()


def test_another_split_starts_its_own_history(place):
    run_events(place, name="cut", save_every=1, max_steps=4)
    simulate_kill(place, "cut", 2)
    place.write("third.txt", OTHER_TEXT.replace("cook", "smith"))
    results = evaluations(
        run_events(place, name="cut", max_steps=4, eval_data=["third.txt"], if_exists="continue")
    )
    assert [(e.step, e.why) for e in results] == [(2, "start"), (4, "end")]


def test_results_of_another_split_neither_stop_a_run_nor_are_best(place):
    more = {"eval_every": 1, "save_every": 1, "keep_best": "loss", "early_stopping": 2, "max_steps": 6}
    run_events(place, name="cut", **more, keep_checkpoints=99)
    simulate_kill(place, "cut", 3)
    place.write("third.txt", " ".join(f"qz xv {n} jj" for n in range(120)))  # far harder to predict
    results = evaluations(run_events(place, name="cut", **more, eval_data=["third.txt"], if_exists="continue"))
    before = read_evaluations(read_graph(place, "cut"))[: -len(results)]
    assert min(e.loss for e in results) > max(e.loss for e in before)
    best = best_evaluation(results)
    assert results[-1].step == min(best.step + 2, 6)
    assert (place.lora("cut") / f"checkpoint-{best.step}-best").is_dir() or best.step == 3


def test_a_failing_evaluation_is_logged_and_the_run_continues(place, monkeypatch):
    def fail(self, report):
        raise RuntimeError("out of everything\nmore of it")

    monkeypatch.setattr(evaluator.Evaluator, "evaluate", fail)
    events = run_events(place, max_steps=2)
    advice = [e.text for e in events if isinstance(e, Advice)]
    assert "The evaluation after step 0 failed: out of everything. The run continues." in advice
    assert events[-1].outcome == "finished"
    assert evaluations(events) == []


def test_a_batch_that_does_not_fit_is_measured_in_halves(place, monkeypatch):
    whole = evaluations(run_events(place, max_steps=1))
    add_part = eval_loop.EvalLoop._add_part

    def too_much(self, sums, part):
        if len(part) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        add_part(self, sums, part)

    monkeypatch.setattr(eval_loop.EvalLoop, "_add_part", too_much)
    halves = evaluations(run_events(place, name="b", max_steps=1))
    assert [e.tokens for e in halves] == [e.tokens for e in whole]
    assert [e.loss for e in halves] == pytest.approx([e.loss for e in whole], abs=1e-5)


def test_a_stop_does_not_wait_for_an_evaluation(place):
    def stop(job, event):
        if isinstance(event, Step) and event.step == 4:
            job.control.ask(Request.STOP)

    job = watched_job(stop)
    assert place.train(job=job, **WITH_SPLIT).outcome == "stopped"
    assert [e.step for e in evaluations(job.log.since(0))] == [0]


@pytest.mark.parametrize("asked", [{"early_stopping": 3}, {"keep_best": "accuracy"}])
def test_rules_need_a_split(place, asked):
    with pytest.raises(SettingsError, match=r"no validation split.*Use a validation split \(eval_share 0\.05\)"):
        place.settings(**asked)


def test_training_data_cannot_be_test_data(place):
    with pytest.raises(
        SettingsError,
        match=(
            r"Evaluation dataset: story\.txt is also in the training data\. "
            r"Remove it from either the training"
        ),
    ):
        place.settings(eval_data=["story.txt"], data=["story.txt:50"])


def test_the_verdict_is_in_the_text_the_log_and_the_event(place):
    end = run_events(place, learning_rate=0.3, epochs=4, save_every=4)[-1]
    verdict = read_log(place)["verdict"]
    first, *_, last = read_evaluations(read_graph(place))
    assert f"{first.loss:.4f} (step 0), then {last.loss:.4f} (step {last.step})" in verdict["text"]
    assert verdict["text"] == end.text.splitlines()[-1]
    assert end.verdict == verdict["kind"] not in ("too early to tell", "training loss only")
    place.train(name="b", max_steps=1)
    assert read_log(place, "b")["verdict"]["kind"] == "too early to tell"


@pytest.mark.parametrize("packing", ["on", "off"])
def test_each_step_has_the_loss_of_each_dataset(place, monkeypatch, packing):
    """At the first step it is the loss of the untrained model, example by example."""
    steps = record_batches(monkeypatch, trainer)
    more = {"data": ["story.txt", "other.txt"], "accumulation": 2, "max_steps": 2, "packing": packing}
    job = Job("training", "a test")
    place.train(job=job, **more)
    first, second = (e for e in job.log.since(0) if isinstance(e, Step))
    examples = prepare_data(place, **more).examples
    model = place.host().loaded_model().model
    losses = {"story.txt": [], "other.txt": []}
    for number in (n for step in steps[:2] for n in step):
        losses[examples[number].source.name] += losses_of(model, examples[number])
    assert all(losses.values())
    assert first.by_source == {
        name: pytest.approx(sum(dataset_losses) / len(dataset_losses), abs=1e-5)
        for name, dataset_losses in losses.items()
    }
    all_losses = [loss for dataset_losses in losses.values() for loss in dataset_losses]
    assert first.loss == pytest.approx(sum(all_losses) / len(all_losses), abs=1e-4)
    assert [e["loss_by_source"] for e in read_graph(place)] == [first.by_source, second.by_source]
    assert second.by_source != first.by_source


def test_one_dataset_has_no_separate_loss(place):
    place.train(max_steps=1)
    assert "loss_by_source" not in read_graph(place)[0]


def test_the_records_name_the_data_and_the_results(place, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        curve_png, "draw_graph", lambda graph, title, path, marks, **_: drawn.append((title, marks))
    )
    more = {"batching": "length_then_order", "batch_size": 2, "rslora": True, "alpha": 4, "save_every": 5}
    results = evaluations(run_events(place, **more))
    training_log = read_log(place)
    assert training_log["seed"] == 42
    assert training_log["versions"].keys() == {
        "torch",
        "transformers",
        "peft",
        "accelerate",
        "python",
        "training_pro",
    }
    assert training_log["kept_aside_fingerprint"] == prepare_data(place, **WITH_SPLIT).validation.digest()
    assert training_log["kept_aside_fingerprint"] != training_log["data_fingerprint"]
    assert training_log["context_gain"] == {"before": results[0].context_gain, "after": results[-1].context_gain}
    assert results[0].context_gain != results[-1].context_gain
    ((title, marks),) = drawn
    assert title == "a on tiny - rank 4, alpha 4, scaling 2, learning rate 0.01 FP_low_epoch_annealing, cutoff 32"
    assert [(mark.step, mark.text) for mark in marks][:2] == [(5, "checkpoint-5"), (8, "checkpoint-8-epoch-1")]
    place.train(name="b", max_steps=1)
    assert "context_gain" not in read_log(place, "b")
