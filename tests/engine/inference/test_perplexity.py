"""Perplexity: every token once, the figures of the model itself, and bad input told in a sentence."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from training_pro.chunking import Encoded
from training_pro.commands.main import main
from training_pro.core.engine import PerplexityOf
from training_pro.core.jobs.events import Advice, PerplexityFound
from training_pro.core.jobs.job import Job
from training_pro.engine.inference.eval_loop import Sums
from training_pro.engine.inference.segment_scores import Stretches
from training_pro.engine.inference.sliding_windows import _over
from training_pro.engine.lora.adapter import loaded_onto
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer.tokenizer import working_tokenizer
from training_pro.hosts.tiny import SAMPLE
from training_pro.settings.parsing import row_settings
from training_pro.tests.tiny import tree, watched


def worked_out(place, data="story.txt", job=None, host=None, read=None, **more):
    """`read` is how rows are read."""
    job = job or Job("perplexity", "a test")
    end = PeftEngine().perplexity(PerplexityOf(data, **more), row_settings(read or {}), host or place.host(), job)
    return end, [e for e in job.log.since(0) if isinstance(e, PerplexityFound)]


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize(("length", "stride"), [(8, 4), (8, 1), (8, 7), (5, 3), (100, 50), (2, 1)])
def test_every_token_counts_once_behind_as_much_as_fits(bos, length, stride):
    ids = np.arange(100, 141).astype(np.int32)
    windows = list(_over(ids, bos, length, stride))
    counted = [label for window in windows for label in window.labels.tolist() if label != -100]
    assert counted == list(range(101 if bos is None else 100, 141))
    assert max(len(window.ids) for window in windows) <= length
    for window in windows[1:]:
        read = window.ids[window.labels == -100]
        assert len(read) >= 1 + (bos is not None and stride < length - 1)
    if bos is not None:
        assert {int(window.ids[0]) for window in windows} == {bos}


def test_too_short_a_text_has_no_windows():
    assert list(_over(np.array([5], np.int32), None, 8, 4)) == []
    assert len(list(_over(np.array([5], np.int32), 1, 8, 4))) == 1


def by_hand(place, model, length, stride):
    """Each token's loss behind what its window holds of the text, one window at a time."""
    tokenizer = working_tokenizer(place.host().card().tokenizer)
    ids = tokenizer.encode([SAMPLE])[0].ids.tolist()
    head = [] if tokenizer.bos is None else [tokenizer.bos]
    room, losses, counted = length - len(head), [], 0
    for start in range(0, len(ids), stride):
        window = head + ids[start : start + room]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([window])).logits[0]
        for place_ in range(1, len(window)):
            if start + place_ - len(head) >= counted:
                losses.append(-float(logits[place_ - 1].log_softmax(-1)[window[place_]]))
        counted = start + len(window) - len(head)
        if counted >= len(ids):
            return losses
    raise AssertionError


def test_without_and_with_a_lora_and_a_checkpoint_of_it(with_lora):
    place = with_lora
    before = tree(place.lora())
    loras = ("a", "a/checkpoint-4-epoch-1", place.lora())
    host = place.host()
    end, found = worked_out(place, host=host, loras=loras, max_length=32, stride=8)
    assert [one.lora for one in found] == ["-", *map(str, loras)]
    model = host.loaded().model
    bare = by_hand(place, model.eval(), 32, 8)
    worn = by_hand(place, loaded_onto(model, place.lora(), "a").eval(), 32, 8)
    for one, losses in ((found[0], bare), (found[1], worn)):
        assert one.tokens == len(losses)
        assert one.loss == pytest.approx(sum(losses) / len(losses), abs=2e-5)
        assert one.perplexity == pytest.approx(math.exp(one.loss))
        _same_along_the_text(one, losses)
    assert found[1].perplexity == found[2].perplexity == found[3].perplexity < found[0].perplexity
    assert end.text.splitlines()[0] == f"story.txt without a LoRA: perplexity {found[0].perplexity:.4f}"
    assert tree(place.lora()) == before


def _same_along_the_text(found, losses):
    """Stretch by stretch the same losses, told by words that stand there in this order."""
    ends = np.cumsum([stretch.tokens for stretch in found.stretches])
    for stretch, part in zip(found.stretches, np.split(np.array(losses), ends[:-1]), strict=True):
        assert stretch.loss == pytest.approx(part.mean(), abs=2e-5)
    assert sum(s.right * s.tokens for s in found.stretches) == pytest.approx(found.right * found.tokens)
    flat = " ".join(SAMPLE.split())
    places = [flat.index(stretch.begins) for stretch in found.stretches]
    assert len(places) > 20
    assert places == sorted(places)


def test_stretches_are_equal_and_cross_from_one_text_to_the_next():
    texts = ["abcdefghij" * 6, "", "0123456789" * 2]
    places = [np.arange(len(text), dtype=np.int32) for text in texts]
    cut = Stretches(texts, [Encoded(place, place, place + 1) for place in places])
    assert cut.count == 5
    assert [numbers.tolist() for numbers in cut.of_tokens] == [
        [n // 16 for n in range(60)],
        [],
        [3] * 4 + [4] * 16,
    ]
    told = cut.told(Sums(np.array([0.0, 8, 0, 4, 0]), np.array([0.0, 2, 0, 1, 0]), np.array([7.0, 8, 0, 8, 8])))
    assert [(one.begins[:3], one.tokens, one.loss, one.right) for one in told] == [
        ("abc", 7, 0.0, 0.0),
        ("ghi", 8, 1.0, 0.25),
        ("ija", 8, 0.5, 0.125),
        ("456", 8, 0.0, 0.0),
    ]


def test_the_defaults_are_what_the_model_takes(place):
    context = place.host().card().context
    _, (found,) = worked_out(place)
    assert (found.max_length, found.stride) == (min(context, 2048), min(context, 2048) // 2)


@pytest.mark.parametrize(
    ("data", "more", "sentence"),
    [
        ("nothing.txt", {}, "There is no 'nothing.txt': neither among the data sets, in"),
        ("rows.jsonl", {}, "rows.jsonl: no row has any columns."),
        ("both/", {}, "both/ holds texts and rows, which are not measured alike. Name one of its files."),
        ("empty.txt", {}, "empty.txt"),
        ("story.txt", {"loras": ("b",)}, "There is no LoRA 'b' in"),
        ("story.txt", {"max_length": 10**9}, "Longest window: 1000000000 is more than tiny takes"),
        (
            "story.txt",
            {"max_length": 16, "stride": 16},
            "would leave tokens out, or count some twice. Use 1 to 15.",
        ),
        ("story.txt", {"max_length": 1}, "Longest window: 1 is too short."),
    ],
)
def test_bad_input_is_told_before_anything_is_loaded(place, monkeypatch, data, more, sentence):
    place.write("rows.jsonl", "{}")
    place.write("empty.txt", "")
    place.write("both/a.txt", SAMPLE)
    place.write("both/b.jsonl", '{"text": "One row."}')
    host = place.host()
    monkeypatch.setattr(host, "loaded", lambda: pytest.fail("it was loaded"))
    with pytest.raises(Exception) as error:
        worked_out(place, data, host=host, **more)
    assert sentence in str(error.value)


def test_a_stop_ends_it_between_two_windows(place):
    def stop(job, event):
        if isinstance(event, PerplexityFound):
            job.control.stop()

    place.train()
    end, found = worked_out(place, job=watched(stop), loras=("a",))
    assert (end.outcome, [one.lora for one in found]) == ("stopped", ["-"])


def test_a_table_that_cannot_be_written_takes_nothing_away(place):
    place.folders.logs.mkdir(parents=True, exist_ok=True)
    (place.folders.logs / "evaluations.csv").write_text("a\n1,2\n", encoding="utf-8")
    job = Job("perplexity", "a test")
    assert len(worked_out(place, job=job)[1]) == 1
    assert any("Not in the table of evaluations" in e.text for e in job.log.since(0) if isinstance(e, Advice))


def test_the_command_prints_it_and_adds_to_the_table(with_lora, tmp_path, capsys):
    text = tmp_path / "elsewhere.txt"
    text.write_text(SAMPLE, encoding="utf-8")
    place = with_lora
    where = ["--user-data", str(place.folders.user_data), "--model", str(place.tiny)]
    more = ["--lora", "a", "--max-length", "32", "--stride", "16", "--comment", "first", "--json"]
    assert main(["perplexity", *where, "--data", str(text), *more]) == 0
    out, err = capsys.readouterr()
    bare, worn = (json.loads(line) for line in out.splitlines())
    assert (bare["lora"], worn["lora"], worn["dataset"]) == ("-", "a", "elsewhere.txt")
    assert "perplexity" in err
    table = (place.folders.logs / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert table[0] == "Model,LoRAs,Dataset,Perplexity,stride,max_length,Date,Comment"
    assert table[2].startswith(f"tiny,a,elsewhere.txt,{worn['perplexity']},16,32,")
    assert table[2].endswith(",first")
    assert main(["perplexity", *where, "--data", "missing.txt"]) == 1
    assert "There is no 'missing.txt': neither among the data sets" in capsys.readouterr().err
