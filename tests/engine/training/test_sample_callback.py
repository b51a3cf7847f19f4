"""Samples during a run: the model answers, and training is bit for bit the same as without."""

from __future__ import annotations

import json
import threading

import pytest
from training_pro.core.jobs import Advice, CheckpointSaved, Request, SampleGenerated, Stage, Step
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.folder import read_samples
from training_pro.tests.tiny import Workspace, read_tree, watched_job

PROMPTS = ["The keeper of the", "Once\nupon"]
CHAT = [
    {"messages": [{"role": "user", "content": f"Q {n}?"}, {"role": "assistant", "content": f"A {n}."}]}
    for n in range(12)
]
HARD = {"dropout": 0.1, "gradient_checkpointing": "on", "neftune_noise": 5, "accumulation": 2}


def run(place: Workspace, **more):
    """Train; return the end and all events."""
    events = []
    job = watched_job(lambda job, event: events.append(event))
    ended = place.train(job=job, **more)
    return ended, events


def events_of(kind, events):
    return [event for event in events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def brief():
    """Make answers short."""
    with pytest.MonkeyPatch.context() as patch:
        settings = Workspace.settings
        patch.setattr(Workspace, "settings", lambda self, **more: settings(self, **{"sample_length": 8, **more}))
        yield


pytestmark = pytest.mark.usefixtures("brief")


def test_the_run_is_the_same_to_the_bit(place):
    place.train(name="alone", save_each_epoch=True, epochs=2, **HARD)
    _, events = run(place, name="asked", sample_every=1, sample_prompts=PROMPTS, epochs=2, **HARD)
    assert place.weights("asked") == place.weights("alone")
    for checkpoint in place.lora("alone").glob("checkpoint-*"):
        left = {k: v for k, v in read_tree(checkpoint).items() if k.endswith((".pt", ".pth", ".safetensors"))}
        right = read_tree(place.lora("asked") / checkpoint.name)
        assert left == {k: right[k] for k in left}

    samples = events_of(SampleGenerated, events)
    steps = events_of(Step, events)[-1].steps
    assert [(s.step, s.prompt) for s in samples] == [(step, text) for step in range(steps + 1) for text in PROMPTS]
    assert events.index(samples[0]) < events.index(events_of(Step, events)[0])
    assert [s.text for s in samples[:2]] == [s.without for s in samples[:2]]
    assert {s.prompt: s.without for s in samples} == {s.prompt: s.without for s in samples[:2]}
    assert samples[-1].text != samples[-1].without
    assert read_samples(place.lora("asked")) == samples
    assert not (place.lora("alone") / "samples.jsonl").exists()


KINDS = {
    "bfloat16": ("bfloat16", {"gradient_checkpointing": "on"}),
    "4bit": ("4bit", {"dropout": 0.1, "gradient_checkpointing": "on"}),
    "8bit": ("8bit", {}),
    "dora": ("auto", {"dora": True, "dropout": 0.1}),
    "train head": ("auto", {"train_head": True, "optimizer": "adafactor"}),
    "by length": ("auto", {"batching": "by_length", "packing": "off", "overlap": True}),
    "in order": (
        "auto",
        {"batching": "length_then_order", "switch_after": "steps", "switch_at": 2, "packing": "on"},
    ),
    "eval": ("auto", {"eval_share": 0.2, "eval_every": 1, "accumulation": 3, "schedule": "cosine"}),
}


@pytest.mark.long
@pytest.mark.parametrize(("loading", "more"), KINDS.values(), ids=KINDS)
def test_the_run_is_the_same_to_the_bit_whatever_is_trained(place, loading, more):
    place.train(place.host(loading), name="alone", epochs=2, **more)
    options = {"sample_every": 1, "sample_prompts": PROMPTS}
    place.train(place.host(loading), name="asked", epochs=2, **options, **more)
    assert place.weights("asked") == place.weights("alone")
    assert len({sample.step for sample in read_samples(place.lora("asked"))}) > 4


def test_the_stage_counts_the_samples(place):
    _, events = run(place, sample_every="epoch", sample_prompts=PROMPTS[:2], max_steps=1)
    stages = [stage.text for stage in events_of(Stage, events) if stage.text.startswith("Generating")]
    before = [f"Generating a sample for prompt {number} of 2 before the first step" for number in (1, 2)]
    assert stages[:2] == before


def test_without_is_the_answer_of_the_model_itself(place):
    host = place.host()
    _, events = run(place, host=host, sample_every="epoch", sample_prompts=PROMPTS[:1])
    samples = events_of(SampleGenerated, events)
    answers = place.answer(host, prompt=PROMPTS[0], lora="a", max_tokens=8, temperature=0.7, seed=42)
    pieces = {
        side: "".join(a.piece for a in answers if getattr(a, "side", "") == side) for side in ("with", "without")
    }
    assert [s.step for s in samples] == [0, 4]
    assert (samples[-1].text, samples[-1].without) == (pieces["with"], pieces["without"])


def test_length_and_temperature_of_samples(place):
    host = place.host()
    options = {"sample_length": 5, "sample_temperature": 0.0}
    _, events = run(place, host=host, sample_every="epoch", sample_prompts=PROMPTS[:1], **options)
    answers = place.answer(host, prompt=PROMPTS[0], lora="a", max_tokens=5, temperature=0.0)
    greedy = "".join(a.piece for a in answers if getattr(a, "side", "") == "with")
    assert events_of(SampleGenerated, events)[-1].text == greedy
    assert 0 < len(host.card().tokenizer(greedy, add_special_tokens=False)["input_ids"]) <= 5


def test_prompts_from_the_inside_of_a_text(place):
    _, events = run(place, sample_every=100)
    samples = events_of(SampleGenerated, events)
    assert [s.step for s in samples] == [0, 0, 0, 4, 4, 4]
    assert [s.prompt.split()[:3] for s in samples[:3]] == [
        ["a", "clear", "sky"],
        ['"And', "how", "do"],
        ["as", "it", "had"],
    ]
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert (prompt["kind"], prompt["template"], prompt["starts_with_bos"]) == ("text", "%message%", True)
    assert prompt["example"] in TRAINING_TEXT and not TRAINING_TEXT.startswith(prompt["example"])


def test_prompts_end_with_whole_characters(place):
    place.write("ferry.txt", "\u6e21\u8239\u9760\u5cb8\u3002" * 60)
    _, events = run(place, data=["ferry.txt"], sample_every=100, max_steps=1)
    assert {s.prompt.count("\ufffd") for s in events_of(SampleGenerated, events)} == {0}


def test_chat_prompts_use_the_chat_template(place):
    place.write("chat.jsonl", "".join(json.dumps(row) + "\n" for row in CHAT))
    _, events = run(place, data=["chat.jsonl"], sample_every="epoch", system="Be brief.", cutoff="auto")
    assert [s.prompt for s in events_of(SampleGenerated, events)] == ["Q 2?", "Q 6?", "Q 10?"] * 2
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert prompt["kind"] == "chat"
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n%message%<|im_end|>\n"
    assert prompt["template"] == f"{turns}<|im_start|>assistant\n"
    assert (prompt["system"], prompt["format"]) == ("Be brief.", "the model's own chat template")


ROWS = [{"instruction": f"Ask {n}", "output": f"Say {n}"} for n in range(12)]


def test_a_common_system_message_is_part_of_the_prompt_info(place):
    own = {"role": "system", "content": "You are Maren."}
    rows = [{"messages": [own, *row["messages"]]} for row in CHAT]
    place.write("chat.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, *CHAT[:3]]))
    _, events = run(
        place, data=["chat.jsonl"], max_steps=1, sample_every=1, cutoff="auto", sample_prompts=["Q 1?"]
    )
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert prompt["system"] == "You are Maren."
    assert prompt["before"] == "<|im_start|>system\nYou are Maren.<|im_end|>\n<|im_start|>user\n"
    assert prompt["example"].startswith(prompt["before"])
    assert {s.prompt for s in events_of(SampleGenerated, events)} == {"Q 1?"}


def test_rows_in_a_prompt_format_are_prompted_in_it(place):
    place.write("rows.json", json.dumps(ROWS))
    more = {"format": "alpaca-format", "sample_every": "epoch", "cutoff": "auto"}
    _, events = run(place, data=["rows.json"], **more)
    assert [s.prompt for s in events_of(SampleGenerated, events)] == ["Ask 2", "Ask 6", "Ask 10"] * 2
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert (prompt["kind"], prompt["format"]) == ("format", "alpaca-format")
    assert prompt["template"].endswith("### Instruction:\n%message%\n\n### Response:\n")
    assert prompt["template"].startswith("Below is an instruction")


def test_own_prompts_are_encoded_like_the_data(place, monkeypatch):
    """The ids are those of the same words in training."""
    from training_pro.engine.inference import sample_generation

    place.write("chat.jsonl", "".join(json.dumps(row) + "\n" for row in CHAT))
    prompt_ids, generate = [], sample_generation.generate_ids

    def spy(model, ids, *more):
        prompt_ids.append(ids[0].tolist())
        return generate(model, ids, *more)

    def first(data, prompts):
        prompt_ids.clear()
        name = f"{data[:4]}-{len(prompts)}"
        run(place, name=name, data=[data], sample_prompts=prompts, sample_every=100, max_steps=1)
        return prompt_ids[0]

    monkeypatch.setattr(sample_generation, "generate_ids", spy)
    assert first("chat.jsonl", ["Q 2?"]) == first("chat.jsonl", "auto")
    place.write("line.txt", "The keeper of the lighthouse wrote one line into her book every night.")
    text = first("line.txt", ["The keeper of the"])
    assert text == first("line.txt", "auto")[: len(text)]
    assert text[0] == place.host().card().tokenizer.bos_token_id


def test_a_sample_on_request(place):
    def wish(job, event):
        if isinstance(event, Step) and event.step in (2, 4):
            job.control.ask(Request.SAMPLE)
            job.control.ask(Request.SAMPLE)

    job = watched_job(wish)
    place.train(job=job, sample_every="never", sample_prompts=PROMPTS[:1])
    assert [s.step for s in events_of(SampleGenerated, job.log.since(0))] == [
        2,
        4,
    ]  # the last one after the LoRA was saved
    assert not job.control.asked(Request.SAMPLE)


def test_samples_follow_the_checkpoint_of_their_step(place):
    _, events = run(place, sample_every="epoch", sample_prompts=PROMPTS[:1], epochs=2)
    saved = events_of(CheckpointSaved, events)[0]
    (answer,) = [s for s in events_of(SampleGenerated, events) if s.step == saved.step]
    assert events.index(saved) < events.index(answer)


def test_a_resumed_run_samples_only_what_is_missing(place):
    options = {"sample_every": 2, "sample_prompts": PROMPTS[:1], "dropout": 0.1}
    place.train(name="whole", **options)

    def stop(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.ask(Request.STOP)

    job = watched_job(stop)
    place.train(job=job, **options)
    assert [s.step for s in events_of(SampleGenerated, job.log.since(0))] == [
        0
    ]  # a stop does not wait for answers
    _, events = run(place, resume="newest", **options)
    assert [s.step for s in events_of(SampleGenerated, events)] == [2, 4]
    assert place.weights() == place.weights("whole")
    saved = read_samples(place.lora())
    assert [(s.step, s.text, s.without) for s in saved] == [
        (s.step, s.text, s.without) for s in read_samples(place.lora("whole"))
    ]


def test_no_step_is_sampled_twice_across_segments(place):
    """More epochs, or a pause that frees the GPU, start a new segment."""

    def wish(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.extend(1)
        elif isinstance(event, Step) and event.step == 6:
            job.control.ask(Request.FREE_MEMORY)
        elif isinstance(event, Stage) and "is unloaded" in event.text:
            job.control.resume()

    job = watched_job(wish)
    place.train(job=job, sample_every="epoch", sample_prompts=PROMPTS[:1])
    samples = events_of(SampleGenerated, job.log.since(0))
    assert [s.step for s in samples] == [0, 4, 8]
    assert len({s.without for s in samples}) == 1
    assert read_samples(place.lora()) == samples


def test_discarding_a_run_keeps_the_earlier_samples(place):
    options = {"sample_every": 1, "sample_prompts": PROMPTS[:1]}
    place.train(max_steps=2, save_every=2, **options)
    before = read_tree(place.lora())

    def throw(job, event):
        if isinstance(event, Step) and event.step == 3:
            job.control.ask(Request.DISCARD)

    place.train(job=watched_job(throw), resume="newest", max_steps=5, **options)
    assert read_tree(place.lora()) == before


def test_a_failing_prompt_does_not_end_the_run(place, monkeypatch):
    from training_pro.engine.inference import sample_generation

    place.train(name="alone")
    generate = sample_generation.generate_ids

    def failing(model, ids, question, *more):
        if question.prompt == "bad":
            raise RuntimeError("CUDA out of memory\nmuch more")
        return generate(model, ids, question, *more)

    monkeypatch.setattr(sample_generation, "generate_ids", failing)
    ended, events = run(place, sample_every="epoch", sample_prompts=["bad", PROMPTS[0]])
    assert ended.outcome == "finished"
    assert [s.prompt for s in events_of(SampleGenerated, events)] == PROMPTS[:1] * 2
    assert [a.text for a in events_of(Advice, events) if "bad" in a.text] == [
        f"The sample for 'bad' failed {when}: CUDA out of memory. The run continues."
        for when in ("before the first step", "after step 4")
    ]
    assert place.weights() == place.weights("alone")


def test_samples_that_fail_or_cannot_be_saved_do_not_end_the_run(place, monkeypatch):
    def broken(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("training_pro.engine.training.sample_callback.record.write_samples", broken)
    monkeypatch.setattr("training_pro.engine.inference.sample_generation.detect_prompt_style", broken)
    ended, events = run(place, sample_every="epoch")
    assert ended.outcome == "finished"
    assert any("No space left on device. The run continues." in a.text for a in events_of(Advice, events))


def test_samples_do_not_count_as_step_time(place, monkeypatch):
    from training_pro.engine.inference import sample_generation

    generate = sample_generation.generate_ids

    def slow(*args):
        threading.Event().wait(0.4)
        return generate(*args)

    monkeypatch.setattr(sample_generation, "generate_ids", slow)
    _, events = run(place, sample_every=1, sample_prompts=PROMPTS[:1])
    assert max(p.seconds for p in events_of(Step, events)[1:]) < 0.4


def test_ten_runs_leave_no_threads(place):
    host = place.host()
    for number in range(10):
        place.train(host, name=f"n{number}", max_steps=1, sample_every=1, sample_prompts=PROMPTS[:1])
        if number == 1:
            before = threading.active_count()
    assert threading.active_count() == before
