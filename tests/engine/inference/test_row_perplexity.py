"""Rows: only what would be learned counts, batches change nothing, and those told are worth a look."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from training_pro.commands.main import main
from training_pro.core.errors import DataError, SettingsError
from training_pro.core.jobs.events import Evaluated, Note, PerplexityFound
from training_pro.core.jobs.job import Job
from training_pro.data.prepare import prepare
from training_pro.engine.compute.capabilities import tried
from training_pro.engine.inference import perplexity, row_perplexity
from training_pro.engine.inference.eval_loop import AtOnce, Sums
from training_pro.engine.lora.adapter import loaded_onto
from training_pro.engine.tokenizer.tokenizer import working_tokenizer
from training_pro.tests.engine.inference.test_evaluator import hits_of, losses_of
from training_pro.tests.engine.inference.test_perplexity import worked_out
from training_pro.tests.rowing import as_json, chat
from training_pro.tests.tiny import watched

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
    """The rows as a run would learn from them."""
    card, settings = place.host().card(), place.settings(data=[data], cutoff="auto", **values)
    return prepare(settings, place.folders, card, working_tokenizer(card.tokenizer), lambda *_: None).examples


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
def test_each_row_is_known_as_it_is_alone_and_as_training_reads_it(place, data, read):
    host = place.host()
    _, (found,) = worked_out(place, data, host=host, read=read)
    examples = list(examples_of(place, data, **read))
    model = host.loaded().model.eval()
    told = {row.place: row for row in found.rows}
    assert len(told) == len(examples) > 0
    counted = [[label for label in example.labels.tolist() if label != -100] for example in examples]
    for example, labels in zip(examples, counted, strict=True):
        row, losses = told[example.place], learned(losses_of(model, example), example)
        assert row.tokens == len(losses) == len(labels)
        assert row.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)
        assert row.right == pytest.approx(np.mean(learned(hits_of(model, example), example)))
    assert found.tokens == sum(map(len, counted))
    assert found.loss == pytest.approx(sum(r.loss * r.tokens for r in found.rows) / found.tokens)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert (found.stride, found.max_length) == (0, 2048)


def learned(of_tokens, example):
    """Of all that is predicted what counts."""
    return [value for value, label in zip(of_tokens, example.labels[1:].tolist(), strict=True) if label != -100]


@pytest.mark.parametrize("packed", [True, False])
def test_nothing_depends_on_what_goes_through_together(place, monkeypatch, packed):
    def ways(model, settings):
        found = tried(model, settings)
        assert found.packed
        return replace(found, packed=packed)

    def rows(tokens):
        monkeypatch.setattr(perplexity, "AT_ONCE", AtOnce(tokens=tokens))
        return worked_out(place, "pairs.json")[1][0].rows

    alone = rows(1)
    monkeypatch.setattr(perplexity, "tried", ways)
    together = rows(100_000)
    assert {row.place for row in alone} == {row.place for row in together}
    losses = {row.place: row.loss for row in alone}
    assert [row.loss for row in together] == pytest.approx([losses[row.place] for row in together], abs=1e-5)


def test_an_evaluation_in_a_run_says_the_same(place):
    job = Job("training", "a test")
    place.train(job=job, data=["pairs.json"], eval_data=["talks.jsonl"], cutoff=256, too_long="cut_end")
    last = [event for event in job.log.since(0) if isinstance(event, Evaluated)][-1]
    _, (found,) = worked_out(place, "talks.jsonl", loras=("a",), without=False, max_length=256)
    assert found.loss == pytest.approx(last.loss, abs=1e-5)
    assert (found.tokens, found.right) == (last.tokens, pytest.approx(last.accuracy))


def test_a_lora_knows_best_what_it_has_learned(place):
    place.train(data=["pairs.json"], cutoff=64, max_steps=30, epochs=1)
    _, (bare, worn) = worked_out(place, "pairs.json", loras=("a",))
    assert worn.perplexity < bare.perplexity / 2
    host = place.host()
    model = loaded_onto(host.loaded().model, place.lora(), "a").eval()
    first = examples_of(place, "pairs.json")[0]
    losses = learned(losses_of(model, first), first)
    (row,) = [row for row in worn.rows if row.place == first.place]
    assert row.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_a_row_is_told_by_its_place_the_question_and_the_reply(place):
    _, (found,) = worked_out(place, "talks.jsonl")
    told = {row.place: (row.read, row.begins) for row in found.rows}
    assert told["line 1"] == ("What is the light for?", "So that people far away know where they are.")
    assert told["line 2"] == ("Who reads the book?", "Nobody.")
    assert [stretch.begins for stretch in found.stretches][:2] == [
        "line 1: What is the light for?",
        "line 2: Who reads the book?",
    ]
    place.write("texts.jsonl", as_json("texts.jsonl", [{"text": f"The {n} steps were high."} for n in range(3)]))
    _, (whole,) = worked_out(place, "texts.jsonl")
    assert {(row.place, row.read, row.begins) for row in whole.rows} == {
        (f"line {n + 1}", "", f"The {n} steps were high.") for n in range(3)
    }


def test_rows_of_several_files_are_told_with_their_names(place):
    place.write("folder/a.jsonl", as_json("a.jsonl", TALKS[:1]))
    place.write("folder/b.jsonl", as_json("b.jsonl", TALKS[1:]))
    _, (found,) = worked_out(place, "folder/")
    assert sorted(row.place for row in found.rows) == [
        "folder/a.jsonl, line 1",
        *(f"folder/b.jsonl, line {n}" for n in (1, 2, 3)),
    ]
    assert found.dataset == "folder"


def test_a_long_row_loses_its_end_and_that_is_said(place):
    job = Job("perplexity", "a test")
    _, (found,) = worked_out(place, "talks.jsonl", job=job, max_length=48)
    lengths = {e.place: len(e.ids) for e in examples_of(place, "talks.jsonl")}
    long = sum(length > 48 for length in lengths.values())
    assert long > 1
    said = notes_of(job)
    assert f"{long} rows are longer than 48 tokens: their ends are cut." in said
    assert any(note.startswith("talks.jsonl: 4 rows, read as chats") for note in said)
    assert all(row.tokens < 48 for row in found.rows)


def test_rows_of_which_nothing_is_left_are_counted(place):
    job = Job("perplexity", "a test")
    place.write("late.jsonl", as_json("late.jsonl", [chat("Why? " * 30, "So."), TALKS[0]]))
    _, (found,) = worked_out(place, "late.jsonl", job=job, max_length=60)
    assert [row.place for row in found.rows] == ["line 2"]
    assert (found.least_known, found.best_known) == ((), ())
    said = notes_of(job)
    assert "1 row is longer than 60 tokens: its end is cut." in said
    assert "1 row has nothing that counts: left out." in said


@pytest.mark.parametrize(
    ("read", "more", "error", "sentence"),
    [
        ({}, {"stride": 8}, SettingsError, "Stride: talks.jsonl has rows, each of which is measured whole."),
        ({"train_only_after": "###"}, {}, DataError, "No row holds '###' with something behind it"),
        ({}, {"max_length": 2}, DataError, "Choose another part of them ('Learn from'), or a longer window."),
        ({"format": "nowhere"}, {}, DataError, "nowhere"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(place, monkeypatch, read, more, error, sentence):
    host = place.host()
    monkeypatch.setattr(host, "loaded", lambda: pytest.fail("it was loaded"))
    with pytest.raises(error, match=re.escape(sentence)):
        worked_out(place, "talks.jsonl", host=host, read=read, **more)


def test_rows_that_cannot_be_read_stop_it_or_are_skipped(place):
    lines = [json.dumps(row) for row in PAIRS]
    place.write("broken.jsonl", "\n".join([*lines, "{"]))
    with pytest.raises(DataError, match=r"broken\.jsonl, line 30: "):
        worked_out(place, "broken.jsonl")
    job = Job("perplexity", "a test")
    _, (found,) = worked_out(place, "broken.jsonl", job=job, read={"bad_rows": "skip"})
    assert len(found.rows) == len(PAIRS)
    assert "1 row cannot be read: skipped." in notes_of(job)


def ranked(losses, tokens):
    """The numbers of rows with these mean losses, the least known first."""
    sums = Sums(np.array(losses) * tokens, np.zeros(len(losses)), np.array(tokens, float))
    return [row.place for row in row_perplexity._rows(sums, Numbered())]


class Numbered:
    def place(self, number):
        return number

    read = begins = place


def test_few_tokens_stand_at_an_end_only_where_they_are_far_from_the_rest():
    assert ranked([1.0, 3.0, 2.0], [50, 50, 50]) == [1, 2, 0]
    assert ranked([1.5, 3.0, 2.5, 1.5], [50, 2, 50, 50])[0] == 2  # two tokens prove little
    assert ranked([1.5, 30.0, 2.5, 1.5], [50, 2, 50, 50])[0] == 1  # unless they are far off
    assert ranked([0.0, 1.0, 2.0], [1, 60, 60]) == [2, 0, 1]


def test_of_very_many_rows_both_ends_are_told(monkeypatch):
    monkeypatch.setattr(row_perplexity, "MOST_TOLD", 4)
    assert ranked([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9] * 6) == [5, 4, 1, 0]


def test_a_stop_ends_it_and_tells_nothing_of_that_model(place):
    def stop(job, event):
        if getattr(event, "text", "").startswith("Perplexity of pairs.json"):
            job.control.stop()

    end, found = worked_out(place, "pairs.json", job=watched(stop))
    assert (end.outcome, found) == ("stopped", [])


def test_the_model_and_the_data_are_as_before(place):
    host = place.host()
    model = host.loaded().model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    attention = model.config._attn_implementation
    worked_out(place, "talks.jsonl", host=host)
    assert model.config._attn_implementation == attention
    assert all(bool((weight == before[name]).all()) for name, weight in model.state_dict().items())


def run(place, *more):
    where = ["--user-data", str(place.folders.user_data), "--model", str(place.tiny)]
    return main(["perplexity", *where, *more])


def test_the_command_tells_a_few_rows_and_with_json_all(place, capsys):
    assert run(place, "--data", "pairs.json", "--train-on", "everything", "--format", "text", "alpaca-format") == 1
    assert "Prompt format" in capsys.readouterr().err
    assert run(place, "--data", "pairs.json", "--format", "alpaca-format") == 0
    out, err = capsys.readouterr()
    head, *lines = out.splitlines()
    assert head.endswith("\ttiny\t-\tpairs.json")
    assert [line.split("  ")[1] for line in lines] == ["least known"] * 5 + ["best known"] * 5
    assert all("How many steps are" in line and " -> " in line for line in lines)
    assert "pairs.json: 29 rows" in err
    assert run(place, "--data", "pairs.json", "--json") == 0
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(found["rows"]) == len(PAIRS)
    assert set(found["rows"][0]) == {"place", "read", "begins", "tokens", "loss", "right"}
    assert set(found["stretches"][0]) == {"begins", "tokens", "loss", "right"}
    assert run(place, "--data", "pairs.json", "--stride", "8") == 1
    assert "Stride: pairs.json has rows" in capsys.readouterr().err


def test_the_row_in_the_table_has_no_stride(place):
    host = place.host()
    _, (found,) = worked_out(place, "talks.jsonl", host=host, comment="rows")
    assert isinstance(found, PerplexityFound)
    table = (place.folders.logs / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert table[1].startswith(f"tiny,-,talks.jsonl,{found.perplexity},0,2048,")
    assert table[1].endswith(",rows")
