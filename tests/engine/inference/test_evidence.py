"""Evidence for a LoRA: what it forgot of general texts, its habits in chat, what it copies, what it answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_pro.core.engine import EvidenceRequest
from training_pro.core.jobs import (
    Advice,
    Copying,
    Count,
    EvidenceMeasured,
    Habits,
    Job,
    RecallFigures,
    RecallMeasured,
    Request,
    Stage,
    TextLoss,
    evidence_table,
    evidence_verdict,
)
from training_pro.data import general
from training_pro.data.examples import copied_shares, count_runs
from training_pro.engine.inference import evidence, general_loss
from training_pro.engine.inference.evidence_replies import pick_questions
from training_pro.engine.inference.habits import INSTRUCTIONS, MESSAGES, NAME_QUESTION, Reply, score_replies
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.hosts.standalone import StandaloneHost
from training_pro.records.folder import EVIDENCE, REPORT, read_evidence, read_log
from training_pro.tests.tiny import watched_job

PROSE_CHARS = 1500
STEADY = {"schedule": "constant", "warmup_steps": 0}
QUESTIONS = [("Who rang the bell?", "Maren"), ("What color was the coat?", "blue"), ("How many geese?", "seven")]


@pytest.fixture
def short_texts(tmp_path, monkeypatch):
    """A few sentences in place of the shipped texts, which take longer."""
    prose, chats = tmp_path / "prose.txt", tmp_path / "chats.jsonl"
    prose.write_text(general.PROSE.read_text("utf-8")[:PROSE_CHARS], "utf-8")
    chats.write_text("".join(general.CHATS.read_text("utf-8").splitlines(keepends=True)[:4]), "utf-8")
    monkeypatch.setattr(general_loss, "PROSE", prose)
    monkeypatch.setattr(general_loss, "CHATS", chats)


def measure(place, name, job=None, host=None):
    job = job or Job("evidence", "a test")
    end = PeftEngine().evidence(EvidenceRequest(name), host or place.host(), job)
    events = [event for event in job.log.since(0) if isinstance(event, EvidenceMeasured)]
    return end, events[0] if events else None


def rows(place):
    text = "".join(json.dumps({"instruction": q, "output": a}) + "\n" for q, a in QUESTIONS)
    place.write("questions.jsonl", text)


def test_the_shipped_texts_have_twenty_thousand_words_in_all_and_are_whole_chats():
    prose = general.PROSE.read_text("utf-8")
    chats = [json.loads(line)["messages"] for line in general.CHATS.read_text("utf-8").splitlines()]
    words = sum(len(message["content"].split()) for chat in chats for message in chat)
    assert len(prose.split()) > 15_000 and words > 15_000
    for chat in chats:
        assert [message["role"] for message in chat] == ["user", "assistant"] * (len(chat) // 2)
    assert len({chat[0]["content"] for chat in chats}) == len(chats)


def test_a_lora_that_was_not_trained_forgets_exactly_nothing(place, short_texts):
    place.train(name="a", max_steps=1)
    file = place.lora("a") / "adapter_model.safetensors"
    save_file({key: torch.zeros_like(value) for key, value in load_file(file).items()}, file)
    _, event = measure(place, "a")
    assert [text.text for text in event.general] == ["prose", "chats"]
    assert all(text.rise == 0.0 for text in event.general)
    assert event.copying is None or event.copying.base == event.copying.lora


@pytest.mark.long
def test_ten_times_the_rate_forgets_more(place, short_texts):
    """The tiny model knows nothing, so it learns the general prose first."""
    place.write("prose.txt", general.PROSE.read_text("utf-8")[:PROSE_CHARS])
    place.train(name="base", data=["prose.txt"], method="full", epochs=60, **STEADY, learning_rate=3e-3)
    host = StandaloneHost(place.folders, model=str(place.folders.models / "base"))
    rises = []
    for name, rate in (("slow", 1e-3), ("fast", 1e-2)):
        place.train(host, name=name, epochs=8, **STEADY, learning_rate=rate)
        _, event = measure(place, name, host=host)
        rises.append(next(text.rise for text in event.general if text.text == "prose"))
    assert 0 < rises[0] < rises[1]


def test_asked_twice_it_says_the_same_and_leaves_the_model_and_the_lora_as_they_were(with_lora, short_texts):
    weights = with_lora.weights("a")
    first, second = measure(with_lora, "a")[1], measure(with_lora, "a")[1]
    same = {key: value for key, value in first.as_log().items() if key not in ("at", "seconds")}
    assert same == {key: value for key, value in second.as_log().items() if key not in ("at", "seconds")}
    assert with_lora.weights("a") == weights
    written = json.loads((with_lora.lora("a") / EVIDENCE).read_text("utf-8"))
    assert written[0]["general"] == [json.loads(json.dumps(text)) for text in second.as_log()["general"]]


def test_short_answers_of_the_data_are_asked_for_without_a_context(place, short_texts):
    rows(place)
    options = {"epochs": 40, "learning_rate": 1e-2, "rank": 64, "train_head": True, "batch_size": 1, **STEADY}
    place.train(name="q", data=["questions.jsonl"], **options)
    end, event = measure(place, "q")
    assert event.answers.of == len(QUESTIONS)
    assert event.answers.lora == len(QUESTIONS) > event.answers.base
    assert f"correctly answers {len(QUESTIONS)} of {len(QUESTIONS)} questions about the data" in end.text


def test_a_stop_ends_it_and_writes_nothing(with_lora, short_texts):
    def stop(job, event):
        if isinstance(event, Stage) and event.text.startswith("Testing without"):
            job.control.ask(Request.STOP)

    with pytest.raises(Exception, match="Nothing was saved"):
        measure(with_lora, "a", watched_job(stop))
    assert not (with_lora.lora("a") / EVIDENCE).exists()


REPLIES = {
    "Is ice cold? Answer with one word: yes or no.": ("Yes.", "Yes, ice is cold."),
    "Is fire cold? Answer with one word: yes or no.": ("no", "It is not."),
    "What is 2 + 2? Answer with a number only.": ("4", "2 + 2 is 4"),
    "Count from 1 to 5. Put commas between the numbers.": ("1, 2, 3, 4, 5", "1 2 3 4 5"),
    "Reply with only the word OK.": ("OK", "OK, I will."),
    "Name three fruits, one per line, and write nothing else.": ("Apple\nPear\nPlum", "Apple, pear, plum"),
    "Repeat this sentence: The door is open.": ("The door is open.", "It is open."),
    "Write one sentence about the sea.": ("The sea is deep.", "The sea is deep. It is wide."),
    "Write the word blue in capital letters.": ("BLUE", "blue"),
    "What is the capital of France?": ("It is Paris.", "It is Rome."),
}


@pytest.mark.parametrize("message", INSTRUCTIONS)
def test_each_instruction_has_a_reply_that_follows_it_and_one_that_does_not(message):
    right, wrong = REPLIES[message]
    assert INSTRUCTIONS[message](right) and not INSTRUCTIONS[message](wrong)
    assert not INSTRUCTIONS[message]("")


def test_replies_are_counted():
    replies = {message: Reply(REPLIES.get(message, ("I am Sam.\n",))[0], True) for message in MESSAGES}
    scores = score_replies(replies)
    assert (scores.follows, scores.stops, scores.name) == (len(INSTRUCTIONS), len(MESSAGES), "I am Sam.")
    replies[NAME_QUESTION] = Reply("x" * 500 + "\x00", False)
    assert score_replies(replies).name == "x" * 100 + "\u2026"
    assert score_replies(replies).stops == len(MESSAGES) - 1


def test_copied_runs_are_those_of_eight_words_without_case_and_punctuation():
    training = ["One two three, four five six SEVEN eight nine ten.", "other words"]
    copied = "he said: one two three four five six seven eight"
    assert copied_shares([copied, "a b c d e f g h", "too short"], training) == [
        pytest.approx(1 / 3),
        0.0,
        None,
    ]
    assert count_runs(copied) == 3


def test_rows_with_long_or_several_replies_are_no_questions(place):
    assert pick_questions([], lambda ids: "") == []


def test_the_words():
    event = EvidenceMeasured(
        general=(TextLoss("prose", 20_000, 3.0, 3.25), TextLoss("chats", 19_000, 2.0, 2.0)),
        habits=Habits(Count(11, 9, 11), Count(8, 3, 10), "I am Sam.", "I am Maren."),
        copying=Copying(0.0, 0.125, 400),
        answers=Count(0, 7, 8),
    )
    rows = evidence_table(event)
    assert rows[1] == ("Loss on general prose (20,000 tokens)", "3.0000", "3.2500")
    assert ("Short instructions followed", "8 of 10", "3 of 10") in rows
    assert ("Reply to 'What is your name?'", "I am Sam.", "I am Maren.") in rows
    assert ("8-word sequences copied from the training data", "0.0%", "12.5%") in rows
    assert rows[-1] == ("Questions about the training data answered correctly", "0 of 8", "7 of 8")
    figures = RecallFigures(passages=16, recall=0.83, verbatim=9, longest=32, loss=0.4)
    recall = RecallMeasured(step=9, epoch=1.0, why="asked", learned=figures, control=replace(figures, recall=0.03))
    assert evidence_verdict(event, recall) == (
        "With the LoRA, the model recalls 83% of the training data word for word (3% of unseen text), correctly "
        "answers 7 of 8 questions about the data, has forgotten a lot (loss on general text changed by +0.25), "
        "copies 12% of its text from the training data and ends 9 of 11 replies by itself (11 without the LoRA)."
    )
    kept = EvidenceMeasured(general=(TextLoss("prose", 1, 3.0, 3.01),))
    sentence = "With the LoRA, the model has forgotten almost nothing (loss on general text changed by +0.01)."
    assert evidence_verdict(kept, None) == sentence


def test_the_records_are_read_back(with_lora, short_texts):
    _, event = measure(with_lora, "a")
    assert replace(read_evidence(with_lora.lora("a")), at=event.at, seconds=event.seconds) == event
    (with_lora.lora("a") / EVIDENCE).write_text('[{"general": 5}]', "utf-8")
    damage = []
    assert read_evidence(with_lora.lora("a"), damage) is None and damage


def test_a_run_can_test_its_lora_at_the_end_and_saves_the_same_weights(place, short_texts):
    place.train(name="plain", max_steps=3)
    job = Job("training", "a test")
    place.train(name="tested", max_steps=3, test_at_end=True, job=job)
    assert place.weights("tested") == place.weights("plain")
    assert isinstance(read_evidence(place.lora("tested")), EvidenceMeasured)
    report = (place.lora("tested") / REPORT).read_text("utf-8")
    assert "Loss on general prose" in report
    assert "Loss on general prose" not in (place.lora("plain") / REPORT).read_text("utf-8")


def test_a_test_that_fails_is_told_and_the_run_stays_finished(place, monkeypatch):
    def fail(*_):
        raise RuntimeError("no test today")

    monkeypatch.setattr(evidence, "prepare_of_run", fail)
    job = Job("training", "a test")
    place.train(name="a", max_steps=2, test_at_end=True, job=job)
    told = [event.text for event in job.log.since(0) if isinstance(event, Advice)]
    assert "The LoRA could not be tested: no test today" in told
    assert read_log(place.lora("a"))["ended"] == "finished"


def test_general_passages_are_the_same_every_time_and_spread_over_the_prose(place):
    tokenizer = make_working_tokenizer(place.host().card().tokenizer)
    first, second = (general_loss.pick_general_passages(tokenizer, None) for _ in range(2))
    assert [p.example.ids.tolist() for p in first] == [p.example.ids.tolist() for p in second]
    assert len({tuple(p.example.ids.tolist()) for p in first}) == general_loss.PASSAGES
