"""Evidence for a LoRA: what it forgot of general texts, its habits in chat, what it copies, what it answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_pro.core.jobs import Advice, EvidenceMeasured, Job
from training_pro.data import general
from training_pro.data.split import copied_shares, count_runs
from training_pro.engine.inference import evidence
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import REPORT, read_log, run_files
from training_pro.tests.engine.inference.references import raise_during
from training_pro.tests.tiny import watched_job

QUESTIONS = [("Who rang the bell?", "Maren"), ("What color was the coat?", "blue"), ("How many geese?", "seven")]


@pytest.fixture
def short_texts(tmp_path, monkeypatch):
    """A few sentences in place of the shipped texts, which take longer."""
    prose, chats = tmp_path / "prose.txt", tmp_path / "chats.jsonl"
    prose.write_text(general.PROSE.read_text("utf-8")[:1500], "utf-8")
    chats.write_text("".join(general.CHATS.read_text("utf-8").splitlines(keepends=True)[:4]), "utf-8")
    monkeypatch.setattr(general, "PROSE", prose)
    monkeypatch.setattr(general, "CHATS", chats)


def measure(place):
    job = Job("evidence", "a test")
    end = PeftEngine().evidence("a", place.host(), job)
    return end, next(event for event in job.log.since(0) if isinstance(event, EvidenceMeasured))


@pytest.mark.long
def test_a_lora_of_zeros_forgets_exactly_nothing(with_lora, short_texts):
    file = with_lora.lora() / "adapter_model.safetensors"
    save_file({key: torch.zeros_like(value) for key, value in load_file(file).items()}, file)
    _, event = measure(with_lora)
    assert [(text.text, text.lora - text.base) for text in event.general] == [("prose", 0.0), ("chats", 0.0)]
    assert event.copying is None or event.copying.base == event.copying.lora


@pytest.mark.long
def test_asked_twice_it_says_the_same_leaves_the_lora_as_it_was_and_is_recorded(with_lora, short_texts):
    weights, folder = with_lora.weights(), with_lora.lora()
    first, second = measure(with_lora)[1], measure(with_lora)[1]
    recorded = run_files.read_evidence(folder)
    assert first == replace(second, at=first.at, seconds=first.seconds)
    assert first == replace(recorded, at=first.at, seconds=first.seconds)
    assert with_lora.weights() == weights
    (folder / run_files.EVIDENCE).write_text('[{"general": 5}]', "utf-8")
    damage = []
    assert run_files.read_evidence(folder, damage) is None and damage


@pytest.mark.long
def test_short_answers_of_the_data_are_asked_for_without_a_context(place, short_texts):
    place.write("q.jsonl", "".join(json.dumps({"instruction": q, "output": a}) + "\n" for q, a in QUESTIONS))
    options = {"epochs": 40, "rank": 64, "train_head": True, "batch_size": 1}
    place.train(data=["q.jsonl"], **options, schedule="constant", warmup_steps=0)
    end, event = measure(place)
    assert event.answers.of == event.answers.lora == len(QUESTIONS) > event.answers.base
    assert "correctly answers 3 of 3 questions about the data" in end.text


@pytest.mark.long
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_can_test_its_lora_at_the_end_and_is_finished_also_if_that_fails(place, short_texts, fails):
    host = place.host()
    watch = raise_during(host, "Testing" if fails else "-", RuntimeError("no test today"))
    job = watched_job(watch)
    place.train(name="plain", max_steps=2)
    place.train(host, name="tested", max_steps=2, test_at_end=True, job=job)
    assert place.weights("tested") == place.weights("plain")
    assert read_log(place.lora("tested"))["ended"] == "finished"
    assert isinstance(run_files.read_evidence(place.lora("tested")), EvidenceMeasured) is not fails
    told = [event.text for event in job.log.since(0) if isinstance(event, Advice)]
    assert ("The LoRA could not be tested: no test today" in told) is fails
    reports = [(place.lora(name) / REPORT).read_text("utf-8") for name in ("plain", "tested")]
    assert ["Loss on general prose" in report for report in reports] == [False, not fails]


RIGHT_AND_WRONG = [
    ("Is ice cold? Answer with one word: yes or no.", "Yes.", "Yes, ice is cold."),
    ("Count from 1 to 5. Put commas between the numbers.", "1, 2, 3, 4, 5", "1 2 3 4 5"),
    ("Name three fruits, one per line, and write nothing else.", "Apple\nPear\nPlum", "Apple, pear, plum"),
    ("Write one sentence about the sea.", "The sea is deep.", "The sea is deep. It is wide."),
    ("Write the word blue in capital letters.", "BLUE", "blue"),
]


def test_replies_that_follow_their_instruction_and_end_are_counted():
    for message, right, wrong in RIGHT_AND_WRONG:
        assert [evidence.INSTRUCTIONS[message](reply) for reply in (right, wrong, "")] == [True, False, False]
    replies = {message: evidence.Reply("", True) for message in evidence.MESSAGES}
    replies |= {message: evidence.Reply(right, True) for message, right, _ in RIGHT_AND_WRONG}
    replies[evidence.NAME_QUESTION] = evidence.Reply("x" * 500 + "\x00", False)
    scores = evidence.score_replies(replies)
    assert (scores.follows, scores.stops) == (len(RIGHT_AND_WRONG), len(evidence.MESSAGES) - 1)
    assert scores.name == "x" * 100 + "\u2026"


def test_copied_runs_are_those_of_eight_words_without_case_and_punctuation():
    training = ["One two three, four five six SEVEN eight nine ten.", "other words"]
    copied = "he said: one two three four five six seven eight"
    shares = copied_shares([copied, "a b c d e f g h", "too short"], training)
    assert shares == [pytest.approx(1 / 3), 0.0, None]
    assert count_runs(copied) == 3
