"""Perplexity: every token counts once, results equal a reference, and bad input gives an error sentence."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from training_pro.chunking import EncodedText
from training_pro.commands.main import main
from training_pro.core.engine import PerplexityRequest
from training_pro.core.jobs import Advice, Job, PerplexityMeasured, Request
from training_pro.engine.inference.eval_loop import GroupSums
from training_pro.engine.inference.perplexity_input import Segments, _sliding_windows
from training_pro.engine.lora import load_lora
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.settings.parsing import row_settings
from training_pro.tests.tiny import read_tree, watched_job


def measure(place, data="story.txt", job=None, host=None, read=None, **more):
    """Measure a dataset; `read` holds the settings for rows."""
    job = job or Job("perplexity", "a test")
    end = PeftEngine().perplexity(
        PerplexityRequest(data, **more), row_settings(read or {}), host or place.host(), job
    )
    return end, [e for e in job.log.since(0) if isinstance(e, PerplexityMeasured)]


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize(("length", "stride"), [(8, 4), (8, 1), (8, 7), (5, 3), (100, 50), (2, 1)])
def test_every_token_counts_once_after_as_much_context_as_fits(bos, length, stride):
    ids = np.arange(100, 141).astype(np.int32)
    windows = list(_sliding_windows(ids, bos, length, stride))
    counted = [label for window in windows for label in window.labels.tolist() if label != -100]
    assert counted == list(range(101 if bos is None else 100, 141))
    assert max(len(window.ids) for window in windows) <= length
    for window in windows[1:]:
        read = window.ids[window.labels == -100]
        assert len(read) >= 1 + (bos is not None and stride < length - 1)
    if bos is not None:
        assert {int(window.ids[0]) for window in windows} == {bos}


def test_too_short_a_text_has_no_windows():
    assert list(_sliding_windows(np.array([5], np.int32), None, 8, 4)) == []
    assert len(list(_sliding_windows(np.array([5], np.int32), 1, 8, 4))) == 1


def reference_losses(place, model, length, stride):
    """Reference: the loss of each token in its window, one window at a time."""
    tokenizer = make_working_tokenizer(place.host().card().tokenizer)
    ids = tokenizer.encode([TRAINING_TEXT])[0].ids.tolist()
    start_ids = [] if tokenizer.bos is None else [tokenizer.bos]
    room, losses, counted_end = length - len(start_ids), [], 0
    for start in range(0, len(ids), stride):
        window = start_ids + ids[start : start + room]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([window])).logits[0]
        for position in range(1, len(window)):
            if start + position - len(start_ids) >= counted_end:
                losses.append(-float(logits[position - 1].log_softmax(-1)[window[position]]))
        counted_end = start + len(window) - len(start_ids)
        if counted_end >= len(ids):
            return losses
    raise AssertionError


def test_without_and_with_a_lora_and_a_checkpoint_of_it(with_lora):
    place = with_lora
    before = read_tree(place.lora())
    loras = ("a", "a/checkpoint-4-epoch-1", place.lora())
    host = place.host()
    end, results = measure(place, host=host, loras=loras, max_length=32, stride=8)
    assert [result.lora for result in results] == ["-", *map(str, loras)]
    model = host.loaded_model().model
    base_losses = reference_losses(place, model.eval(), 32, 8)
    with_lora_losses = reference_losses(place, load_lora(model, place.lora(), "a").eval(), 32, 8)
    for result, losses in ((results[0], base_losses), (results[1], with_lora_losses)):
        assert result.tokens == len(losses)
        assert result.loss == pytest.approx(sum(losses) / len(losses), abs=2e-5)
        assert result.perplexity == pytest.approx(math.exp(result.loss))
        _assert_same_segments(result, losses)
    assert results[1].perplexity == results[2].perplexity == results[3].perplexity < results[0].perplexity
    assert end.text.splitlines()[0] == f"story.txt without a LoRA: perplexity {results[0].perplexity:.4f}"
    assert read_tree(place.lora()) == before


def _assert_same_segments(result, losses):
    """Compare each segment's loss, and check that its words are in the text in this order."""
    ends = np.cumsum([stretch.tokens for stretch in result.stretches])
    for stretch, part in zip(result.stretches, np.split(np.array(losses), ends[:-1]), strict=True):
        assert stretch.loss == pytest.approx(part.mean(), abs=2e-5)
    assert sum(s.right * s.tokens for s in result.stretches) == pytest.approx(result.right * result.tokens)
    text = " ".join(TRAINING_TEXT.split())
    positions = [text.index(stretch.begins) for stretch in result.stretches]
    assert len(positions) > 20
    assert positions == sorted(positions)


def test_segments_are_equal_and_span_texts():
    texts = ["abcdefghij" * 6, "", "0123456789" * 2]
    positions = [np.arange(len(text), dtype=np.int32) for text in texts]
    segments = Segments(texts, [EncodedText(position, position, position + 1) for position in positions])
    assert segments.count == 5
    assert [numbers.tolist() for numbers in segments.segment_of_tokens] == [
        [n // 16 for n in range(60)],
        [],
        [3] * 4 + [4] * 16,
    ]
    scores = segments.score(
        GroupSums(np.array([0.0, 8, 0, 4, 0]), np.array([0.0, 2, 0, 1, 0]), np.array([7.0, 8, 0, 8, 8]))
    )
    assert [(score.begins[:3], score.tokens, score.loss, score.right) for score in scores] == [
        ("abc", 7, 0.0, 0.0),
        ("ghi", 8, 1.0, 0.25),
        ("ija", 8, 0.5, 0.125),
        ("456", 8, 0.0, 0.0),
    ]


def test_the_defaults_are_what_the_model_takes(place):
    context = place.host().card().context
    _, (result,) = measure(place)
    assert (result.max_length, result.stride) == (min(context, 2048), min(context, 2048) // 2)


@pytest.mark.parametrize(
    ("data", "more", "sentence"),
    [
        ("nothing.txt", {}, "There is no dataset 'nothing.txt' in"),
        ("rows.jsonl", {}, "rows.jsonl: no row has any columns."),
        ("both/", {}, "both/ contains both text and rows, which are measured differently. Choose one of"),
        ("empty.txt", {}, "empty.txt"),
        ("story.txt", {"loras": ("b",)}, "There is no LoRA 'b' in"),
        ("story.txt", {"max_length": 10**9}, "Window length: 1000000000 is more than tiny supports"),
        (
            "story.txt",
            {"max_length": 16, "stride": 16},
            "would skip tokens or count some twice. Use a value from 1 to 15.",
        ),
        ("story.txt", {"max_length": 1}, "Window length: 1 is too short."),
    ],
)
def test_bad_input_is_refused_before_the_model_is_loaded(place, monkeypatch, data, more, sentence):
    place.write("rows.jsonl", "{}")
    place.write("empty.txt", "")
    place.write("both/a.txt", TRAINING_TEXT)
    place.write("both/b.jsonl", '{"text": "One row."}')
    host = place.host()
    monkeypatch.setattr(host, "loaded_model", lambda: pytest.fail("it was loaded"))
    with pytest.raises(Exception) as error:
        measure(place, data, host=host, **more)
    assert sentence in str(error.value)


def test_a_stop_ends_it_between_two_windows(place):
    def stop(job, event):
        if isinstance(event, PerplexityMeasured):
            job.control.ask(Request.STOP)

    place.train()
    end, results = measure(place, job=watched_job(stop), loras=("a",))
    assert (end.outcome, [result.lora for result in results]) == ("stopped", ["-"])


def test_a_table_that_cannot_be_written_loses_no_result(place):
    place.folders.logs.mkdir(parents=True, exist_ok=True)
    (place.folders.logs / "evaluations.csv").write_text("a\n1,2\n", encoding="utf-8")
    job = Job("perplexity", "a test")
    assert len(measure(place, job=job)[1]) == 1
    assert any(
        "The result could not be saved in the evaluations table" in e.text
        for e in job.log.since(0)
        if isinstance(e, Advice)
    )


def test_the_command_prints_it_and_adds_to_the_table(with_lora, tmp_path, capsys):
    text = tmp_path / "elsewhere.txt"
    text.write_text(TRAINING_TEXT, encoding="utf-8")
    place = with_lora
    where = ["--user-data", str(place.folders.user_data), "--model", str(place.tiny)]
    more = ["--lora", "a", "--max-length", "32", "--stride", "16", "--comment", "first", "--json"]
    assert main(["perplexity", *where, "--data", str(text), *more]) == 0
    stdout, stderr = capsys.readouterr()
    base, lora_result = (json.loads(line) for line in stdout.splitlines())
    assert (base["lora"], lora_result["lora"], lora_result["dataset"]) == ("-", "a", "elsewhere.txt")
    assert "perplexity" in stderr
    table = (place.folders.logs / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert table[0] == "Model,LoRAs,Dataset,Perplexity,stride,max_length,Date,Comment"
    assert table[2].startswith(f"tiny,a,elsewhere.txt,{lora_result['perplexity']},16,32,")
    assert table[2].endswith(",first")
    assert main(["perplexity", *where, "--data", "missing.txt"]) == 1
    assert "There is no dataset 'missing.txt' in" in capsys.readouterr().err
