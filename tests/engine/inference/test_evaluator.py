"""Evaluation of the validation split during a run: when, which figures, and that training is unaffected."""

from __future__ import annotations

import math

import pytest
import torch
from training_pro.core.jobs import Advice, CheckpointSaved, EvaluationDone, Note, Request, Step
from training_pro.engine.inference import continuation_pairs
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.report import best_evaluation, read_evaluations
from training_pro.tests import rowing
from training_pro.tests.engine.architectures import read_graph, read_log
from training_pro.tests.engine.inference.references import (
    finished_model,
    losses_and_hits,
    mean,
    prepared,
    raise_during,
)
from training_pro.tests.rowing import chat, family
from training_pro.tests.tiny import make_workspace, watched_job

OTHER_TEXT = "A cook stood in the kitchen and cut the bread. The soup was hot. Nobody came to eat.\n\n\n" * 6
WITH_SPLIT = {"eval_data": ["other.txt"], "epochs": 2, "dropout": 0.1}


@pytest.fixture
def place(place):
    place.write("other.txt", OTHER_TEXT)
    return place


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny):
    """A workspace with a finished run, and its events."""
    place = make_workspace(tmp_path_factory.mktemp("evaluated"), tiny)
    place.write("other.txt", OTHER_TEXT)
    return place, run_events(place, label_smoothing=0.1)


def run_events(place, watch=lambda job, event: None, host=None, **more):
    job = watched_job(watch)
    end = place.train(host, job=job, **{**WITH_SPLIT, **more})
    return [*job.log.since(0), end]


def ask(request, step):
    """Make this request after this step."""
    return lambda job, event: job.control.ask(request) if isinstance(event, Step) and event.step == step else None


def evaluations(events):
    return [event for event in events if isinstance(event, EvaluationDone)]


def test_before_the_first_step_at_each_epoch_and_at_the_end(finished):
    place, events = finished
    results = evaluations(events)
    assert [(e.step, e.why) for e in results] == [(0, "start"), (4, "planned"), (8, "end")]
    kinds = [type(e) for e in events if isinstance(e, (Step, EvaluationDone, CheckpointSaved))]
    assert kinds[:7] == [EvaluationDone, *[Step] * 4, EvaluationDone, CheckpointSaved]
    assert [(e.step, e.loss) for e in read_evaluations(read_graph(place))] == [(e.step, e.loss) for e in results]
    assert not any("loss_by_source" in entry for entry in read_graph(place))  # of a single dataset


def test_the_figures_are_those_of_the_model_itself_without_label_smoothing(finished):
    place, events = finished
    result = evaluations(events)[-1]
    losses, hits = losses_and_hits(finished_model(place), prepared(place, **WITH_SPLIT).validation)
    assert (result.tokens, result.by_source) == (len(losses), {})
    assert result.loss == pytest.approx(mean(losses), abs=2e-5)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    assert result.accuracy == pytest.approx(mean(hits))
    model, split = place.host().loaded_model().model.eval(), prepared(place, **WITH_SPLIT).validation
    pairs = continuation_pairs(split, make_working_tokenizer(place.host().card().tokenizer).bos, 0, rows_too=False)
    alone, with_context = (mean(losses_and_hits(model, side)[0]) for side in zip(*pairs, strict=True))
    gain = evaluations(events)[0].context_gain
    assert gain == pytest.approx(alone - with_context, abs=1e-5) and abs(gain) > 1e-4


def test_the_records_name_the_data_the_results_and_the_verdict(finished):
    place, events = finished
    log, results = read_log(place), evaluations(events)
    assert log["kept_aside_fingerprint"] == prepared(place, **WITH_SPLIT).validation.digest()
    assert log["kept_aside_fingerprint"] != log["data_fingerprint"]
    assert log["context_gain"] == {"before": results[0].context_gain, "after": results[-1].context_gain}
    verdict = log["verdict"]
    assert f"{results[0].loss:.4f} (step 0), then {results[-1].loss:.4f} (step 8)" in verdict["text"]
    assert verdict["text"] == events[-1].text.splitlines()[-1]
    assert events[-1].verdict == verdict["kind"] != "training loss only"


@pytest.mark.parametrize(("asked", "largest"), [("auto", 4), (3, 3)])
def test_padded_in_a_batch_size_of_its_own_the_results_are_the_same(place, finished, asked, largest):
    host, sizes, evaluating = place.host(), [], []

    def look(module, args, kwargs):
        if evaluating and not torch.is_grad_enabled():
            sizes.append(len(kwargs["input_ids"]))

    host.loaded_model().model.register_forward_pre_hook(look, with_kwargs=True)
    watch = lambda job, event: evaluating.append(1) if isinstance(event, EvaluationDone) else None  # noqa: E731
    more = {"packing": "off", "eval_batch_size": asked, "recall_passages": 0, "max_steps": 1}
    first = evaluations(run_events(place, watch, host, **more))[0]
    packed = evaluations(finished[1])[0]
    assert max(sizes) == largest
    assert first.loss == pytest.approx(packed.loss, abs=1e-5)
    assert (first.accuracy, first.tokens) == (packed.accuracy, packed.tokens)


NOISE, FULL = {"packing": "off", "neftune_noise": 5, "train_head": True}, {"method": "full", "learning_rate": 1e-3}


@pytest.mark.parametrize("more", [NOISE, *(pytest.param(more, marks=pytest.mark.long) for more in ({}, FULL))])
def test_the_weights_are_byte_identical_to_a_run_without_evaluations_and_recall(place, more):
    file, saved = "model.safetensors" if "method" in more else "adapter_model.safetensors", []
    for data, passages in ((["other.txt"], 16), ([], 0)):
        asked = {**WITH_SPLIT, **more, "eval_data": data, "recall_passages": passages}
        saved.append((place.train(**asked, name=f"with-{passages}", eval_every=1).folder / file).read_bytes())
    assert saved[0] == saved[1]


def test_every_n_steps_and_on_request(place):
    results = evaluations(run_events(place, ask(Request.EVALUATE, 4), eval_every=0.375))
    expected = [(0, "start"), (3, "planned"), (4, "asked"), (6, "planned"), (8, "end")]
    assert [(e.step, e.why) for e in results] == expected
    worse = {"early_stopping": 2, "learning_rate": 0.5}  # what the user asked for does not count
    results = evaluations(run_events(place, ask(Request.EVALUATE, 4), name="b", eval_every=0.375, **worse))
    assert [e.step for e in results] == [0, 3, 4, 6]


def test_with_several_datasets_each_has_a_loss_in_steps_and_evaluations(place):
    """The only step learns every example once, so its loss is that of the untrained model for all of them."""
    place.write("book/1.txt", TRAINING_TEXT)
    place.write("book/2.txt", OTHER_TEXT)
    more = {"data": ["story.txt", "book"], "eval_data": [], "eval_share": 0.2, "dropout": 0}
    more |= {"epochs": 1, "accumulation": 99, "packing": "off"}
    events = run_events(place, **more)
    (step,) = (event for event in events if isinstance(event, Step))
    examples, model = list(prepared(place, **more).examples), place.host().loaded_model().model.eval()
    losses = {
        name: losses_and_hits(model, [e for e in examples if e.source.name.startswith(name)])[0]
        for name in ("story.txt", "book/")
    }
    assert step.examples == len(examples)
    assert step.by_source == {name: pytest.approx(mean(of), abs=1e-5) for name, of in losses.items()}
    assert step.loss == pytest.approx(mean([loss for of in losses.values() for loss in of]), abs=1e-4)
    assert [e["loss_by_source"] for e in read_graph(place) if "loss" in e] == [step.by_source]
    first = evaluations(events)[0]
    assert set(first.by_source) == set(losses)
    assert min(first.by_source.values()) < first.loss < max(first.by_source.values())


@pytest.mark.long
def test_early_stopping_stops_and_logs_why_and_more_epochs_reset_the_patience(place):
    more = {"early_stopping": 2, "eval_every": 1, "learning_rate": 0.5}
    events = run_events(place, **more, epochs=9)
    results = evaluations(events)
    best, last = best_evaluation(results), results[-1]
    assert last.step == best.step + 2
    reason = f"the validation loss did not improve on {best.loss:.4f} in 2 evaluations"
    assert f"Stopping after step {last.step}: {reason}." in [e.text for e in events if isinstance(e, Note)]
    assert events[-1].outcome == "finished" and reason in events[-1].text
    going_on = evaluations(run_events(place, **more, epochs=12, resume="newest"))
    assert [e.step for e in going_on][:2] == [last.step + 1, last.step + 2]


@pytest.mark.long
def test_an_evaluation_skipped_by_a_stop_is_done_on_resume_and_may_be_the_best(place):
    more = {"eval_every": 1, "keep_best": "loss", "learning_rate": 0.05}
    whole = evaluations(run_events(place, name="whole", **more))
    best = best_evaluation([e for e in whole if e.step]).step
    assert 1 < best < 8  # 8 is the last step
    assert (place.lora("whole") / f"checkpoint-{best}-best").is_dir()
    stopped = run_events(place, ask(Request.STOP, best), name="cut", **more)
    assert [e.step for e in evaluations(stopped)] == list(range(best))
    run_events(place, name="cut", **more, if_exists="continue")
    made_up = read_evaluations(read_graph(place, "cut"))
    assert [(e.step, e.loss, e.context_gain) for e in made_up] == [(e.step, e.loss, e.context_gain) for e in whole]
    assert place.weights("cut") == place.weights("whole")


def test_a_failing_evaluation_is_logged_and_the_run_continues(place):
    host = place.host()
    watch = raise_during(host, "Evaluating", RuntimeError("out of everything\nmore of it"))
    events = run_events(place, watch, host, max_steps=1)
    advice = [e.text for e in events if isinstance(e, Advice)]
    assert "The evaluation after step 0 failed: out of everything. The run continues." in advice
    assert (events[-1].outcome, evaluations(events)) == ("finished", [])


BOOK = "A b c d e f. G h i j k l. M n o p q r. S t u v w x.\n\n\nNew one here at last. And one more of it now."


def validation_split(root, files, **values):
    """Datasets that are the validation split as a whole."""
    settings = {"data": ["t.txt"], "eval_data": list(files), **values}
    return rowing.prepare_rows(root, family("ChatML"), {**files, "t.txt": "One."}, **settings).validation


def learned_text(example):
    return family("ChatML").decode([label for label in example.labels.tolist() if label != -100])


def test_later_turns_of_a_conversation(tmp_path):
    conversation = chat("Hello there.", "Good day.", "And now?", "Now we wait.", "How long?", "An hour.")
    rows = validation_split(tmp_path, {"chat.jsonl": [conversation, chat("One?", "Only one.")]})
    pairs = continuation_pairs(rows, None, 0, rows_too=False)
    assert len(continuation_pairs(rows, None, 0, rows_too=True)) == 3  # with the second row after the first
    replies = ["Now we wait.<|im_end|>", "An hour.<|im_end|>"]
    assert [learned_text(pair.alone) for pair in pairs] == replies
    assert [learned_text(pair.with_context) for pair in pairs] == replies
    alone, with_context = (family("ChatML").decode(example.ids.tolist()) for example in pairs[0])
    assert alone == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\nNow we wait.<|im_end|>"
    assert with_context.endswith("Good day.<|im_end|>" + alone)
    assert len(continuation_pairs(rows, None, len(pairs[0].with_context.ids), rows_too=False)) == 1  # that fit


@pytest.mark.parametrize(
    ("book", "more"),
    [
        (BOOK, {"cutoff": 16, "overlap": True}),
        (BOOK, {"cutoff": 16, "overlap": False}),
        (" ".join(f"Word {n} stands here and there." for n in range(12)), {"cutoff": 32, "chunking": "dementor"}),
    ],
)
def test_blocks_and_windows_after_the_one_that_ends_where_they_begin(tmp_path, book, more):
    text = validation_split(tmp_path, {"book.txt": book}, **{"overlap": False, **more})
    spans = [e.source.sliced[e.number] for e in text]
    expected = [
        [*a.ids, *b.ids]
        for a, first in zip(text, spans, strict=True)
        for b, second in zip(text, spans, strict=True)
        if first.end == second.start and first.section == second.section
    ]
    pairs = continuation_pairs(text, None, 0, rows_too=False)
    assert [pair.with_context.ids.tolist() for pair in pairs] == expected != []
    assert all(learned_text(pair.alone) == learned_text(pair.with_context) for pair in pairs)
