"""Studying with the tiny model: batches, budgets, a stop, and resuming; its replies are written by a script."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest
import torch
from training_pro.core.engine import AnswerRequest, StudyRequest
from training_pro.core.errors import DataError
from training_pro.core.jobs import ExamAsked, Job, NotesTaken, Request, SectionScore
from training_pro.engine.inference import generation
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer

KEEPERS = ("Ada Lind", "Hugo Brandt", "Emeric Stoat", "Theda Morrow")
TEXT = "\n\n\n".join(
    f"The harbor house number {n} is kept by {keeper}. "
    + "There the boats of the town are painted again and again. " * 3
    for n, keeper in enumerate(KEEPERS * 10, start=2)
)


@pytest.fixture
def studied(place):
    """Study the text with a model that answers about the keeper of its passage, and invents the first one."""
    place.write("book.txt", TEXT)
    host = place.host()
    host.load(str(place.tiny), "auto")
    model, tokenizer = host.loaded_model().model, host.card().tokenizer
    asked = []

    def generate(input_ids, attention_mask, max_new_tokens, **_):
        texts = [tokenizer.decode(row[mask.bool()]) for row, mask in zip(input_ids, attention_mask, strict=True)]
        asked.extend(texts)
        found = [re.search(r"house number (\d+) is kept by (\w+ \w+)", text).groups() for text in texts]
        replies = [
            f" Who keeps the harbor house number {number}?\nA: {keeper.replace('Ada Lind', 'Nobody')}"
            for number, keeper in found
        ]
        ids = [
            [*tokenizer(reply, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for reply in replies
        ]
        longest = max(map(len, ids))
        padded = [[*row, *[tokenizer.pad_token_id] * (longest - len(row))] for row in ids]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    def study(job=None, **more):
        job = job or Job("study", "a test")
        model.generate = generate
        out = more.pop("out", place.folders.datasets / "notes.jsonl")
        request = {"data": str(place.folders.datasets / "book.txt"), "out": out, "kinds": ("questions",)}
        ended = PeftEngine().study(StudyRequest(**{**request, "rounds": 1, **more}), host, job)
        (taken,) = [event for event in job.log.since(0) if isinstance(event, NotesTaken)]
        rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return ended, taken, rows, asked

    return study


def test_notes_hold_against_their_passage_and_are_resumed_where_they_stopped(studied, place):
    ended, taken, rows, asked = studied(tokens=1)  # one batch of 16
    assert "To go on at note 16 of 40" in ended.text and len(asked) == 16 and len(rows) == 12
    first = (place.folders.datasets / "notes.jsonl").read_bytes()
    ended, taken, rows, asked = studied()
    assert ended.outcome == "finished" and len(rows) == 30 and len(asked) == 40, "what was done is not asked again"
    assert (place.folders.datasets / "notes.jsonl").read_bytes().startswith(first)
    assert {row["output"] for row in rows} == {"Hugo Brandt", "Emeric Stoat", "Theda Morrow"}
    assert taken.kept == 18 and taken.dropped == {"an answer that is not in the passage": 6}
    text = (place.folders.datasets / "book.txt").read_text()
    assert all(row["output"] in text[row["origin"]["start"] : row["origin"]["end"]] for row in rows)
    report = PeftEngine().check(place.settings(data=["notes.jsonl"], cutoff="auto"), place.host())
    assert report.problems == () and report.examples == len(rows), "a run trains on them as they are"


def test_no_note_is_a_question_of_the_exam_and_only_what_failed_is_studied_again(studied, place, tmp_path):
    exam = place.folders.datasets / "exam.jsonl"
    ended, _, rows, asked = studied(out=exam, per_section=1)
    assert len(rows) == 30 and "The exam has 30 of 40 questions" in ended.text, "the model invents ten"
    _, taken, notes, _ = studied(exams=(exam,))
    assert notes == [] and taken.dropped["a question of the exam"] == 30
    _, _, before, _ = studied()
    scores = [SectionScore(row["origin"]["section"][: 40 + 30 * n], int(n > 1), 1) for n, row in enumerate(rows)]
    result = ExamAsked(step=1, sections=tuple(scores))
    (tmp_path / "exam.json").write_text(json.dumps([asdict(result)]))
    asked.clear()
    _, taken, after, _ = studied(failed=tmp_path)
    assert len(asked) == 2 and all(rows[n]["output"] in asked[n] for n in range(2))
    assert after == before and taken.dropped == {"the same as an earlier one": 2}
    (tmp_path / "exam.json").write_text(json.dumps([asdict(replace(result, sections=tuple(scores[2:])))]))
    with pytest.raises(DataError, match="nothing to study again"):
        studied(failed=tmp_path)


def test_a_stop_keeps_what_is_written_and_leaves_the_model_as_it_was(studied):
    job = Job("study", "a test")
    job.control.ask(Request.STOP)
    ended, taken, rows, _ = studied(job)
    assert (ended.outcome, taken.rows, rows) == ("stopped", 0, [])


def test_prompts_of_different_lengths_are_continued_as_each_alone(place):
    host = place.host()
    host.load(str(place.tiny), "auto")
    model, tokenizer = host.loaded_model().model, make_working_tokenizer(host.card().tokenizer)
    prompts = [
        tokenizer.encode([text])[0].ids.tolist() for text in ("The keeper of the", "A", "The lamp was lit at")
    ]
    request = AnswerRequest("", max_tokens=8, temperature=0.0)
    job = Job("answer", "a test")
    together = generation.generate_ids(model, prompts, request, tokenizer.tokenizer, job)
    alone = [generation.generate_ids(model, [ids], request, tokenizer.tokenizer, job)[0] for ids in prompts]
    assert [row[: len(one)] for row, one in zip(together, alone, strict=True)] == alone
