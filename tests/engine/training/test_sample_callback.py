"""Samples during a run: the model answers, and training is bit for bit the same as without."""

from __future__ import annotations

import json

import pytest
from training_pro.core.jobs import Answer, CheckpointSaved, Job, Request, SampleGenerated, Stage, Step
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.folder import read_samples
from training_pro.tests.engine.watching import asking, at, events_of, read, stopping_at, texts
from training_pro.tests.tiny import read_tree

PROMPTS = ["The keeper of the", "Once\nupon"]
SHORT = {"sample_length": 8}
ONE = {**SHORT, "sample_prompts": PROMPTS[:1]}
CHAT = [
    {"messages": [{"role": "user", "content": f"Q {n}?"}, {"role": "assistant", "content": f"A {n}."}]}
    for n in range(12)
]


def samples_of(job):
    return events_of(job, SampleGenerated)


def run(place, host=None, **more):
    job = Job("training", "a test")
    place.train(host, job=job, **{**SHORT, **more})
    return job


@pytest.mark.long
def test_the_run_is_the_same_to_the_bit(place):
    hard = {"dropout": 0.1, "gradient_checkpointing": "on", "neftune_noise": 5, "accumulation": 2, "epochs": 2}
    place.train(name="alone", **hard)
    job = run(place, name="asked", sample_every=1, sample_prompts=PROMPTS, **hard)
    assert place.weights("asked") == place.weights("alone")
    for checkpoint in place.lora("alone").glob("checkpoint-*"):
        left = {k: v for k, v in read_tree(checkpoint).items() if k.endswith((".pt", ".pth", ".safetensors"))}
        right = read_tree(place.lora("asked") / checkpoint.name)
        assert left == {k: right[k] for k in left}
    samples, events = samples_of(job), job.log.since(0)
    steps = events_of(job, Step)
    planned = [(step, text) for step in range(steps[-1].steps + 1) for text in PROMPTS]
    assert [(s.step, s.prompt) for s in samples] == planned
    assert events.index(samples[0]) < events.index(steps[0])
    saved = events_of(job, CheckpointSaved)[0]
    assert events.index(saved) < events.index(next(s for s in samples if s.step == saved.step))
    assert [s.text for s in samples[:2]] == [s.without for s in samples[:2]]
    assert {s.prompt: s.without for s in samples} == {s.prompt: s.without for s in samples[:2]}
    assert samples[-1].text != samples[-1].without
    assert read_samples(place.lora("asked")) == samples and read_samples(place.lora("alone")) == []
    first = [f"Generating a sample for prompt {number} of 2 before the first step" for number in (1, 2)]
    assert [text for text in texts(job, Stage) if text.startswith("Generating")][:2] == first


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_a_sample_is_the_answer_of_the_model_with_and_without_the_lora(place, temperature):
    host = place.host()
    job = run(place, host, sample_every="epoch", sample_temperature=temperature, **{**ONE, "sample_length": 5})
    samples, sides = samples_of(job), {"with": "", "without": ""}
    for event in place.answer(host, prompt=PROMPTS[0], lora="a", max_tokens=5, temperature=temperature):
        if isinstance(event, Answer):
            sides[event.side] += event.piece
    assert [s.step for s in samples] == [0, 4]
    assert (samples[-1].text, samples[-1].without) == (sides["with"], sides["without"])


def write_rows(place, name, rows):
    place.write(name, "".join(json.dumps(row) + "\n" for row in rows))


def prompt_of(place):
    return read(place.lora() / "training_prompt.json")


def test_prompts_from_the_inside_of_a_text_end_with_whole_characters(place):
    samples = samples_of(run(place, sample_every=100, max_steps=1))
    starts = [["a", "clear", "sky"], ['"And', "how", "do"], ["as", "it", "had"]]
    assert [(s.step, s.prompt.split()[:3]) for s in samples] == [(n, start) for n in (0, 1) for start in starts]
    prompt = prompt_of(place)
    assert (prompt["kind"], prompt["template"], prompt["starts_with_bos"]) == ("text", "%message%", True)
    assert prompt["example"] in TRAINING_TEXT and not TRAINING_TEXT.startswith(prompt["example"])
    place.write("ferry.txt", "\u6e21\u8239\u9760\u5cb8\u3002" * 60)
    samples = samples_of(run(place, name="b", data=["ferry.txt"], sample_every=100, max_steps=1))
    assert {s.prompt.count("\ufffd") for s in samples} == {0}


def test_chat_prompts_use_the_chat_template(place):
    write_rows(place, "chat.jsonl", CHAT)
    chat = {"data": ["chat.jsonl"], "cutoff": "auto", "max_steps": 1, "sample_every": "epoch"}
    samples = samples_of(run(place, system="Be brief.", **chat))
    assert [s.prompt for s in samples] == ["Q 2?", "Q 6?", "Q 10?"] * 2
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n%message%<|im_end|>\n"
    prompt = prompt_of(place)
    assert (prompt["kind"], prompt["template"]) == ("chat", f"{turns}<|im_start|>assistant\n")
    assert (prompt["system"], prompt["format"]) == ("Be brief.", "the model's own chat template")


@pytest.mark.long
def test_a_resumed_run_samples_only_what_is_missing_and_a_discarded_one_keeps_the_earlier(place):
    options = {"sample_every": 2, "dropout": 0.1, **ONE}
    whole = samples_of(run(place, name="whole", **options))
    job = stopping_at(2)
    place.train(job=job, **options)
    assert [s.step for s in samples_of(job)] == [0]  # a stop does not wait for answers
    before = read_tree(place.lora())
    place.train(job=at({4: asking(Request.DISCARD)}), resume="newest", **options)
    assert read_tree(place.lora()) == before
    assert [s.step for s in samples_of(run(place, resume="newest", **options))] == [2, 4]
    assert place.weights() == place.weights("whole")
    saved = [(s.step, s.text, s.without) for s in read_samples(place.lora())]
    assert saved == [(s.step, s.text, s.without) for s in whole]
