"""Perplexity of texts and rows: results equal a reference, rows are shown, and bad input gives a sentence."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from training_pro.commands.main import main
from training_pro.core.engine import PerplexityRequest
from training_pro.core.jobs import Advice, EvaluationDone, Job, PerplexityMeasured, Request
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.settings.parsing import row_settings
from training_pro.tests.engine.inference.references import finished_model, losses_and_hits, mean, prepared
from training_pro.tests.rowing import as_json, chat
from training_pro.tests.tiny import read_tree, watched_job

TALKS = [
    chat("What is the light for?", "So that people far away know where they are."),
    chat("Who reads the book?", "Nobody.", "Why not?", "Because nobody has asked for it.", system="Be brief."),
    chat("Where did the boat come from?", "The boat came from the north, with flour and letters. " * 4),
]
PAIRS = [{"instruction": f"How many steps are {n} and {n}?", "output": f"{2 * n} steps."} for n in range(1, 30)]
FILES = {
    "talks.jsonl": as_json("talks.jsonl", TALKS),
    "pairs.json": as_json("pairs.json", PAIRS),
    "table.csv": "question;answer\nWho wrote?;The keeper wrote one line.\nWhen?;Every night.",
    "broken.jsonl": "\n".join([*map(json.dumps, PAIRS), "{"]),
    "both/a.txt": TRAINING_TEXT,
    "both/b.jsonl": '{"text": "One row."}',
    "empty.txt": "",
}


@pytest.fixture
def place(place):
    for name, content in FILES.items():
        place.write(name, content)
    return place


def measure(place, data="story.txt", job=None, host=None, read=None, **more):
    """Measure a dataset; `read` holds the settings for rows."""
    job, request = job or Job("perplexity", "a test"), PerplexityRequest(data, **more)
    end = PeftEngine().perplexity(request, row_settings(read or {}), host or place.host(), job)
    return end, [event for event in job.log.since(0) if isinstance(event, PerplexityMeasured)]


def assert_sliding(place, result, model):
    """The result and its segments have the losses of the tokens in their windows, one window at a time."""
    tokenizer = make_working_tokenizer(place.host().card().tokenizer)
    ids, losses, counted_end = tokenizer.encode([TRAINING_TEXT])[0].ids.tolist(), [], 0
    start_ids = [] if tokenizer.bos is None else [tokenizer.bos]
    for start in range(0, len(ids), result.stride):
        window = start_ids + ids[start : start + result.max_length - len(start_ids)]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([window])).logits[0]
        for position in range(1, len(window)):
            if start + position - len(start_ids) >= counted_end:
                losses.append(-float(logits[position - 1].log_softmax(-1)[window[position]]))
        counted_end = start + len(window) - len(start_ids)
        if counted_end >= len(ids):
            break
    assert (result.tokens, result.perplexity) == (len(losses), pytest.approx(math.exp(result.loss)))
    assert result.loss == pytest.approx(mean(losses), abs=2e-5)
    ends = np.cumsum([segment.tokens for segment in result.stretches])
    for segment, part in zip(result.stretches, np.split(np.array(losses), ends[:-1]), strict=True):
        assert segment.loss == pytest.approx(part.mean(), abs=2e-5)
    positions = [" ".join(TRAINING_TEXT.split()).index(segment.begins) for segment in result.stretches]
    assert positions == sorted(positions) and len(positions) > 20


def test_a_text_without_and_with_a_lora_and_a_checkpoint_of_it(with_lora):
    place, before = with_lora, read_tree(with_lora.lora())
    loras = ("a", "a/checkpoint-4-epoch-1", place.lora())
    end, results = measure(place, loras=loras, max_length=32, stride=8)
    assert [result.lora for result in results] == ["-", *map(str, loras)]
    assert_sliding(place, results[0], place.host().loaded_model().model.eval())
    assert_sliding(place, results[1], finished_model(place))
    assert results[1].perplexity == results[2].perplexity == results[3].perplexity < results[0].perplexity
    assert end.text.splitlines()[0] == f"story.txt without a LoRA: perplexity {results[0].perplexity:.4f}"
    assert read_tree(place.lora()) == before


@pytest.mark.parametrize(("length", "stride"), [(8, 7), (1000, 50), (0, 0)])
def test_every_token_counts_once_after_as_much_context_as_fits(place, length, stride):
    _, (result,) = measure(place, max_length=length, stride=stride)
    assert result.max_length == length or (result.max_length, result.stride) == (2048, 1024)
    assert_sliding(place, result, place.host().loaded_model().model.eval())


@pytest.mark.parametrize(
    ("data", "read", "more", "sentence"),
    [
        ("nothing.txt", {}, {}, "There is no dataset 'nothing.txt' in"),
        ("both/", {}, {}, "both/ contains both text and rows, which are measured differently. Choose one of"),
        ("empty.txt", {}, {}, "empty.txt"),
        ("story.txt", {}, {"loras": ("b",)}, "There is no LoRA 'b' in"),
        ("story.txt", {}, {"max_length": 16, "stride": 16}, "Use a value from 1 to 15."),
        ("talks.jsonl", {}, {"stride": 8}, "Stride: talks.jsonl has rows, and each row is measured as a whole."),
        ("talks.jsonl", {"train_only_after": "###"}, {}, "No row contains '###' followed by text."),
        ("broken.jsonl", {}, {}, "broken.jsonl, line 30: "),
    ],
)
def test_bad_input_is_refused_before_the_model_is_loaded(place, data, read, more, sentence):
    host = place.host()
    host.loaded_model = lambda: pytest.fail("it was loaded")
    with pytest.raises(Exception, match=re.escape(sentence)):
        measure(place, data, host=host, read=read, **more)


@pytest.mark.parametrize(
    ("data", "read"),
    [
        ("talks.jsonl", {"train_on": "last_reply", "system": "You keep the light."}),
        ("talks.jsonl", {"train_only_after": "the"}),
        ("pairs.json", {"format": "alpaca-format", "add_bos": False, "add_eos": "never"}),
        ("table.csv", {"columns": "instruction=question output=answer"}),
    ],
)
def test_each_row_scores_as_alone_and_as_in_training(place, data, read):
    _, (result,) = measure(place, data, read=read)
    examples, rows = prepared(place, data=[data], cutoff="auto", **read).examples, result.rows
    model, by_place = place.host().loaded_model().model.eval(), {row.place: row for row in rows}
    assert len(rows) == len(by_place) == len(examples) > 0
    for example in examples:
        losses, hits = losses_and_hits(model, [example])
        row = by_place[example.place]
        assert (row.tokens, row.loss) == (len(losses), pytest.approx(mean(losses), abs=1e-5))
        assert row.right == pytest.approx(mean(hits))
    assert result.loss == pytest.approx(sum(row.loss * row.tokens for row in rows) / result.tokens)
    assert (result.stride, result.max_length) == (0, 2048)


def test_an_evaluation_in_a_run_gives_the_same_and_a_lora_knows_best_what_it_learned(place):
    job, more = Job("training", "a test"), {"cutoff": 256, "too_long": "cut_end", "max_steps": 30}
    place.train(job=job, data=["pairs.json"], eval_data=["talks.jsonl"], epochs=9, recall_passages=0, **more)
    last = [event for event in job.log.since(0) if isinstance(event, EvaluationDone)][-1]
    _, (result,) = measure(place, "talks.jsonl", loras=("a",), include_base=False, max_length=256)
    assert result.loss == pytest.approx(last.loss, abs=1e-5)
    assert (result.tokens, result.right) == (last.tokens, pytest.approx(last.accuracy))
    _, (base, with_lora) = measure(place, "pairs.json", loras=("a",))
    assert with_lora.perplexity < base.perplexity / 2
    row = next(row for row in result.rows if row.place == "line 2")
    assert (row.read, row.begins) == ("Who reads the book?", "Nobody.")


def test_a_stop_leaves_no_result_and_a_table_that_cannot_be_written_loses_none(place):
    def stop(job, event):
        if getattr(event, "text", "").startswith("Perplexity of pairs.json"):
            job.control.ask(Request.STOP)

    end, results = measure(place, "pairs.json", watched_job(stop))
    assert (end.outcome, results) == ("stopped", [])
    place.folders.logs.mkdir(parents=True, exist_ok=True)
    (place.folders.logs / "evaluations.csv").write_text("a\n1,2\n", encoding="utf-8")
    job = Job("perplexity", "a test")
    assert len(measure(place, job=job)[1]) == 1
    told = [event.text for event in job.log.since(0) if isinstance(event, Advice)]
    assert any("The result could not be saved in the evaluations table" in text for text in told)


def test_the_command_prints_it_and_adds_to_the_table(with_lora, place, capsys):
    def run(*more):
        where = ["--user-data", str(place.folders.user_data), "--model", str(place.tiny)]
        return main(["perplexity", *where, *more]), *capsys.readouterr()

    text = ["--data", str(place.folders.datasets / "story.txt"), "--max-length", "32", "--stride", "16"]
    base, lora = map(json.loads, run(*text, "--lora", "a", "--comment", "first", "--json")[1].splitlines())
    assert (base["lora"], lora["lora"], lora["dataset"]) == ("-", "a", "story.txt")
    pairs = ["--data", "pairs.json", "--format", "alpaca-format"]
    _, stdout, stderr = run(*pairs)
    head, *lines = stdout.splitlines()
    assert head.endswith("\ttiny\t-\tpairs.json") and "pairs.json: 29 rows" in stderr
    assert [line.split("  ")[1] for line in lines] == ["highest perplexity"] * 5 + ["lowest perplexity"] * 5
    assert all("How many steps are" in line and " -> " in line for line in lines)
    rows = json.loads(run(*pairs, "--json")[1])["rows"]
    assert (len(rows), set(rows[0])) == (29, {"place", "read", "begins", "tokens", "loss", "right"})
    table = (place.folders.logs / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert table[0] == "Model,LoRAs,Dataset,Perplexity,stride,max_length,Date,Comment"
    assert table[2].startswith(f"tiny,a,story.txt,{lora['perplexity']},16,32,") and table[2].endswith(",first")
    code, _, stderr = run("--data", "missing.txt")
    assert code == 1 and "There is no dataset 'missing.txt' in" in stderr
