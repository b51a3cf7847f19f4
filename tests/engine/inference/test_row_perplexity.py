"""Perplexity of rows: only learned tokens count, batching changes nothing, and rows are ranked."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from training_pro.commands.main import main
from training_pro.core.errors import DataError, SettingsError
from training_pro.core.jobs import EvaluationDone, Job, Note, PerplexityMeasured, Request
from training_pro.data.prepare import prepare
from training_pro.engine.compute import probe_model
from training_pro.engine.inference import perplexity, row_perplexity
from training_pro.engine.inference.eval_loop import BatchLimit, GroupSums
from training_pro.engine.lora import load_lora
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests.engine.inference.test_evaluator import hits_of, losses_of
from training_pro.tests.engine.inference.test_perplexity import measure
from training_pro.tests.rowing import as_json, chat
from training_pro.tests.tiny import watched_job

TALKS = [
    chat("What is the light for?", "So that people far away know where they are."),
    chat("Who reads the book?", "Nobody.", "Why not?", "Because nobody has asked for it.", system="Be brief."),
    chat("What did they carry?", "He carried the oil and she carried the bread, up all of the 212 steps."),
    chat("Where did the boat come from?", "The boat came from the north, with flour and letters. " * 4),
]
PAIRS = [{"instruction": f"How many steps are {n} and {n}?", "output": f"{2 * n} steps."} for n in range(1, 30)]
TABLE = "question;answer\nWho wrote?;The keeper wrote one line.\nWhen?;Every night."


@pytest.fixture
def place(place):
    place.write("talks.jsonl", as_json("talks.jsonl", TALKS))
    place.write("pairs.json", as_json("pairs.json", PAIRS))
    place.write("table.csv", TABLE)
    return place


def examples_of(place, data, **values):
    """Examples as in a run."""
    card, settings = place.host().card(), place.settings(data=[data], cutoff="auto", **values)
    return prepare(settings, place.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None).examples


def notes_of(job):
    return [event.text for event in job.log.since(0) if isinstance(event, Note)]


@pytest.mark.parametrize(
    ("data", "read"),
    [
        ("talks.jsonl", {}),
        ("talks.jsonl", {"train_on": "everything"}),
        ("talks.jsonl", {"train_on": "last_reply", "system": "You keep the light."}),
        ("talks.jsonl", {"train_only_after": "the"}),
        ("pairs.json", {"format": "alpaca-format"}),
        ("pairs.json", {"format": "alpaca-format", "add_bos": False, "add_eos": "never"}),
        ("table.csv", {"columns": "instruction=question output=answer"}),
    ],
)
def test_each_row_scores_as_alone_and_as_in_training(place, data, read):
    host = place.host()
    _, (result,) = measure(place, data, host=host, read=read)
    examples = list(examples_of(place, data, **read))
    model = host.loaded_model().model.eval()
    rows = {row.place: row for row in result.rows}
    assert len(rows) == len(examples) > 0
    counted = [[label for label in example.labels.tolist() if label != -100] for example in examples]
    for example, labels in zip(examples, counted, strict=True):
        row, losses = rows[example.place], counted_values(losses_of(model, example), example)
        assert row.tokens == len(losses) == len(labels)
        assert row.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)
        assert row.right == pytest.approx(np.mean(counted_values(hits_of(model, example), example)))
    assert result.tokens == sum(map(len, counted))
    assert result.loss == pytest.approx(sum(r.loss * r.tokens for r in result.rows) / result.tokens)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    assert (result.stride, result.max_length) == (0, 2048)


def counted_values(of_tokens, example):
    """Select the values of the tokens that count."""
    return [value for value, label in zip(of_tokens, example.labels[1:].tolist(), strict=True) if label != -100]


@pytest.mark.parametrize("packed", [True, False])
def test_batching_does_not_change_results(place, monkeypatch, packed):
    def probe(model, settings):
        capabilities = probe_model(model, settings)
        assert capabilities.packed
        return replace(capabilities, packed=packed)

    def rows(tokens):
        monkeypatch.setattr(perplexity, "BATCH_LIMIT", BatchLimit(tokens=tokens))
        return measure(place, "pairs.json")[1][0].rows

    alone = rows(1)
    monkeypatch.setattr(perplexity, "probe_model", probe)
    together = rows(100_000)
    assert {row.place for row in alone} == {row.place for row in together}
    losses = {row.place: row.loss for row in alone}
    assert [row.loss for row in together] == pytest.approx([losses[row.place] for row in together], abs=1e-5)


def test_an_evaluation_in_a_run_gives_the_same(place):
    job = Job("training", "a test")
    place.train(job=job, data=["pairs.json"], eval_data=["talks.jsonl"], cutoff=256, too_long="cut_end")
    last = [event for event in job.log.since(0) if isinstance(event, EvaluationDone)][-1]
    _, (result,) = measure(place, "talks.jsonl", loras=("a",), include_base=False, max_length=256)
    assert result.loss == pytest.approx(last.loss, abs=1e-5)
    assert (result.tokens, result.right) == (last.tokens, pytest.approx(last.accuracy))


def test_a_lora_knows_best_what_it_has_learned(place):
    place.train(data=["pairs.json"], cutoff=64, max_steps=30, epochs=1)
    _, (base, with_lora) = measure(place, "pairs.json", loras=("a",))
    assert with_lora.perplexity < base.perplexity / 2
    host = place.host()
    model = load_lora(host.loaded_model().model, place.lora(), "a").eval()
    first = examples_of(place, "pairs.json")[0]
    losses = counted_values(losses_of(model, first), first)
    (row,) = [row for row in with_lora.rows if row.place == first.place]
    assert row.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_a_row_is_shown_with_place_question_and_reply(place):
    _, (result,) = measure(place, "talks.jsonl")
    rows = {row.place: (row.read, row.begins) for row in result.rows}
    assert rows["line 1"] == ("What is the light for?", "So that people far away know where they are.")
    assert rows["line 2"] == ("Who reads the book?", "Nobody.")
    assert [segment.begins for segment in result.stretches][:2] == [
        "line 1: What is the light for?",
        "line 2: Who reads the book?",
    ]
    place.write("texts.jsonl", as_json("texts.jsonl", [{"text": f"The {n} steps were high."} for n in range(3)]))
    _, (whole,) = measure(place, "texts.jsonl")
    assert {(row.place, row.read, row.begins) for row in whole.rows} == {
        (f"line {n + 1}", "", f"The {n} steps were high.") for n in range(3)
    }


def test_rows_of_several_files_are_shown_with_file_names(place):
    place.write("folder/a.jsonl", as_json("a.jsonl", TALKS[:1]))
    place.write("folder/b.jsonl", as_json("b.jsonl", TALKS[1:]))
    _, (result,) = measure(place, "folder/")
    assert sorted(row.place for row in result.rows) == [
        "folder/a.jsonl, line 1",
        *(f"folder/b.jsonl, line {n}" for n in (1, 2, 3)),
    ]
    assert result.dataset == "folder"


def test_a_long_row_is_cut_and_that_is_noted(place):
    job = Job("perplexity", "a test")
    _, (result,) = measure(place, "talks.jsonl", job=job, max_length=48)
    lengths = {e.place: len(e.ids) for e in examples_of(place, "talks.jsonl")}
    long_rows = sum(length > 48 for length in lengths.values())
    assert long_rows > 1
    notes = notes_of(job)
    assert f"{long_rows} rows are longer than 48 tokens, so they are truncated at the end." in notes
    assert any(note.startswith("talks.jsonl: 4 rows, read as chats") for note in notes)
    assert all(row.tokens < 48 for row in result.rows)


def test_rows_with_nothing_left_are_counted(place):
    job = Job("perplexity", "a test")
    place.write("late.jsonl", as_json("late.jsonl", [chat("Why? " * 30, "So."), TALKS[0]]))
    _, (result,) = measure(place, "late.jsonl", job=job, max_length=60)
    assert [row.place for row in result.rows] == ["line 2"]
    assert (result.least_known, result.best_known) == ((), ())
    notes = notes_of(job)
    assert "1 row is longer than 60 tokens, so it is truncated at the end." in notes
    assert "1 row has no tokens to measure and was dropped." in notes


@pytest.mark.parametrize(
    ("read", "more", "error", "sentence"),
    [
        ({}, {"stride": 8}, SettingsError, "Stride: talks.jsonl has rows, and each row is measured as a whole."),
        ({"train_only_after": "###"}, {}, DataError, "No row contains '###' followed by text. Change 'Train"),
        ({}, {"max_length": 2}, DataError, "Change 'Train on', or use a longer window."),
        ({"format": "nowhere"}, {}, DataError, "nowhere"),
    ],
)
def test_impossible_input_is_refused_before_the_model_is_loaded(place, monkeypatch, read, more, error, sentence):
    host = place.host()
    monkeypatch.setattr(host, "loaded_model", lambda: pytest.fail("it was loaded"))
    with pytest.raises(error, match=re.escape(sentence)):
        measure(place, "talks.jsonl", host=host, read=read, **more)


def test_unreadable_rows_are_an_error_or_skipped(place):
    lines = [json.dumps(row) for row in PAIRS]
    place.write("broken.jsonl", "\n".join([*lines, "{"]))
    with pytest.raises(DataError, match=r"broken\.jsonl, line 30: "):
        measure(place, "broken.jsonl")
    job = Job("perplexity", "a test")
    _, (result,) = measure(place, "broken.jsonl", job=job, read={"bad_rows": "skip"})
    assert len(result.rows) == len(PAIRS)
    assert "1 row can't be read and was skipped." in notes_of(job)


def ranking(losses, tokens):
    """Indices of rows with these mean losses, the least known first."""
    sums = GroupSums(np.array(losses) * tokens, np.zeros(len(losses)), np.array(tokens, float))
    return [row.place for row in row_perplexity._score_rows(sums, IndexTexts())]


class IndexTexts:
    def place(self, index):
        return index

    read = begins = place


def test_rows_with_few_tokens_rank_at_an_end_only_if_far_off():
    assert ranking([1.0, 3.0, 2.0], [50, 50, 50]) == [1, 2, 0]
    assert ranking([1.5, 3.0, 2.5, 1.5], [50, 2, 50, 50])[0] == 2  # two tokens prove little
    assert ranking([1.5, 30.0, 2.5, 1.5], [50, 2, 50, 50])[0] == 1  # unless they are far off
    assert ranking([0.0, 1.0, 2.0], [1, 60, 60]) == [2, 0, 1]


def test_of_very_many_rows_both_ends_are_kept(monkeypatch):
    monkeypatch.setattr(row_perplexity, "MAX_ROWS", 4)
    assert ranking([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9] * 6) == [5, 4, 1, 0]


def test_a_stop_leaves_no_result(place):
    def stop(job, event):
        if getattr(event, "text", "").startswith("Perplexity of pairs.json"):
            job.control.ask(Request.STOP)

    end, results = measure(place, "pairs.json", job=watched_job(stop))
    assert (end.outcome, results) == ("stopped", [])


def test_model_weights_and_attention_are_restored(place):
    host = place.host()
    model = host.loaded_model().model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    attention = model.config._attn_implementation
    measure(place, "talks.jsonl", host=host)
    assert model.config._attn_implementation == attention
    assert all(bool((weight == before[name]).all()) for name, weight in model.state_dict().items())


def run(place, *more):
    where = ["--user-data", str(place.folders.user_data), "--model", str(place.tiny)]
    return main(["perplexity", *where, *more])


def test_the_command_prints_a_few_rows_and_all_with_json(place, capsys):
    assert run(place, "--data", "pairs.json", "--train-on", "everything", "--format", "text", "alpaca-format") == 1
    assert "Data format" in capsys.readouterr().err
    assert run(place, "--data", "pairs.json", "--format", "alpaca-format") == 0
    stdout, stderr = capsys.readouterr()
    head, *lines = stdout.splitlines()
    assert head.endswith("\ttiny\t-\tpairs.json")
    assert [line.split("  ")[1] for line in lines] == ["highest perplexity"] * 5 + ["lowest perplexity"] * 5
    assert all("How many steps are" in line and " -> " in line for line in lines)
    assert "pairs.json: 29 rows" in stderr
    assert run(place, "--data", "pairs.json", "--json") == 0
    (result,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(result["rows"]) == len(PAIRS)
    assert set(result["rows"][0]) == {"place", "read", "begins", "tokens", "loss", "right"}
    assert set(result["stretches"][0]) == {"begins", "tokens", "loss", "right"}
    assert run(place, "--data", "pairs.json", "--stride", "8") == 1
    assert "Stride: pairs.json has rows" in capsys.readouterr().err


def test_the_row_in_the_table_has_no_stride(place):
    host = place.host()
    _, (result,) = measure(place, "talks.jsonl", host=host, comment="rows")
    assert isinstance(result, PerplexityMeasured)
    table = (place.folders.logs / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert table[1].startswith(f"tiny,-,talks.jsonl,{result.perplexity},0,2048,")
    assert table[1].endswith(",rows")
