"""Asked in the middle of a run, the model answers, and the run is the same as if nobody had asked."""

from __future__ import annotations

import json
import threading

import pytest
from training_pro.core.jobs.events import Advice, CheckpointSaved, Note, Progress, Sampled
from training_pro.records.folder.samples import read_samples
from training_pro.tests.tiny import Place, tree, watched

ASKED = ["The keeper of the", "Once\nupon"]
CHAT = [
    {"messages": [{"role": "user", "content": f"Q {n}?"}, {"role": "assistant", "content": f"A {n}."}]}
    for n in range(12)
]
HARD = {"dropout": 0.1, "gradient_checkpointing": "on", "neftune_noise": 5, "accumulation": 2}


def run(place: Place, **more):
    """A run with what it told."""
    events = []
    job = watched(lambda job, event: events.append(event))
    ended = place.train(job=job, **more)
    return ended, events


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def brief():
    """Short answers."""
    with pytest.MonkeyPatch.context() as patched:
        own = Place.settings
        patched.setattr(Place, "settings", lambda self, **more: own(self, **{"sample_length": 8, **more}))
        yield


pytestmark = pytest.mark.usefixtures("brief")


def test_the_run_is_the_same_to_the_bit(place):
    place.train(name="alone", save_each_epoch=True, epochs=2, **HARD)
    _, events = run(place, name="asked", sample_every=1, sample_prompts=ASKED, epochs=2, **HARD)
    assert place.weights("asked") == place.weights("alone")
    for checkpoint in place.lora("alone").glob("checkpoint-*"):
        left = {k: v for k, v in tree(checkpoint).items() if k.endswith((".pt", ".pth", ".safetensors"))}
        right = tree(place.lora("asked") / checkpoint.name)
        assert left == {k: right[k] for k in left}

    said = of(Sampled, events)
    steps = of(Progress, events)[-1].steps
    assert [(s.step, s.prompt) for s in said] == [(step, text) for step in range(steps + 1) for text in ASKED]
    assert events.index(said[0]) < events.index(of(Progress, events)[0])
    assert [s.text for s in said[:2]] == [s.without for s in said[:2]]
    assert {s.prompt: s.without for s in said} == {s.prompt: s.without for s in said[:2]}
    assert said[-1].text != said[-1].without
    assert read_samples(place.lora("asked")) == said
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
    asked = {"sample_every": 1, "sample_prompts": ASKED}
    place.train(place.host(loading), name="asked", epochs=2, **asked, **more)
    assert place.weights("asked") == place.weights("alone")
    assert len({one.step for one in read_samples(place.lora("asked"))}) > 4


def test_without_is_what_the_model_itself_says(place):
    host = place.host()
    _, events = run(place, host=host, sample_every="epoch", sample_prompts=ASKED[:1])
    said = of(Sampled, events)
    answers = place.answer(host, prompt=ASKED[0], lora="a", max_tokens=8, temperature=0.7, seed=42)
    pieces = {
        side: "".join(a.piece for a in answers if getattr(a, "side", "") == side) for side in ("with", "without")
    }
    assert [s.step for s in said] == [0, 4]
    assert (said[-1].text, said[-1].without) == (pieces["with"], pieces["without"])


def test_as_long_and_as_freely_as_wished(place):
    host = place.host()
    wished = {"sample_length": 5, "sample_temperature": 0.0}
    _, events = run(place, host=host, sample_every="epoch", sample_prompts=ASKED[:1], **wished)
    answers = place.answer(host, prompt=ASKED[0], lora="a", max_tokens=5, temperature=0.0)
    likeliest = "".join(a.piece for a in answers if getattr(a, "side", "") == "with")
    assert of(Sampled, events)[-1].text == likeliest
    assert 0 < len(host.card().tokenizer(likeliest, add_special_tokens=False)["input_ids"]) <= 5


def test_beginnings_out_of_a_text(place):
    _, events = run(place, sample_every=100)
    said = of(Sampled, events)
    assert [s.step for s in said] == [0, 0, 0, 4, 4, 4]
    assert said[0].prompt.startswith("The keeper of the lighthouse")
    assert len({s.prompt for s in said}) == 3
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert (prompt["kind"], prompt["template"], prompt["starts_with_bos"]) == ("text", "%message%", True)
    assert "The keeper of the lighthouse" in prompt["example"]


def test_chats_are_asked_as_chats(place):
    place.write("chat.jsonl", "".join(json.dumps(row) + "\n" for row in CHAT))
    _, events = run(place, data=["chat.jsonl"], sample_every="epoch", system="Be brief.", cutoff="auto")
    assert [s.prompt for s in of(Sampled, events)] == ["Q 0?", "Q 4?", "Q 8?"] * 2
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert prompt["kind"] == "chat"
    assert prompt["template"] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n%message%<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (prompt["system"], prompt["format"]) == ("Be brief.", "the model's own chat template")


ROWS = [{"instruction": f"Ask {n}", "output": f"Say {n}"} for n in range(12)]


def test_a_system_message_that_all_chats_have_belongs_to_how_it_is_talked_to(place):
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
    assert {s.prompt for s in of(Sampled, events)} == {"Q 1?"}


def test_rows_in_a_prompt_format_are_asked_in_it(place):
    place.write("rows.json", json.dumps(ROWS))
    more = {"format": "alpaca-format", "sample_every": "epoch", "cutoff": "auto"}
    _, events = run(place, data=["rows.json"], **more)
    assert [s.prompt for s in of(Sampled, events)] == ["Ask 0", "Ask 4", "Ask 8"] * 2
    prompt = json.loads((place.lora() / "training_prompt.json").read_text())
    assert (prompt["kind"], prompt["format"]) == ("format", "alpaca-format")
    assert prompt["template"].endswith("### Instruction:\n%message%\n\n### Response:\n")
    assert prompt["template"].startswith("Below is an instruction")


def test_a_prompt_of_ones_own_is_asked_as_the_data_are(place, monkeypatch):
    """The ids are those that the same words have in training."""
    from training_pro.engine.inference import sample_generation

    place.write("chat.jsonl", "".join(json.dumps(row) + "\n" for row in CHAT))
    seen, real = [], sample_generation.generated

    def seeing(model, ids, *more):
        seen.append(ids[0].tolist())
        return real(model, ids, *more)

    def first(data, prompts):
        seen.clear()
        name = f"{data[:4]}-{len(prompts)}"
        run(place, name=name, data=[data], sample_prompts=prompts, sample_every=100, max_steps=1)
        return seen[0]

    monkeypatch.setattr(sample_generation, "generated", seeing)
    assert first("chat.jsonl", ["Q 0?"]) == first("chat.jsonl", "auto")
    text = first("story.txt", ["The keeper of the lighthouse wrote"])
    assert text == first("story.txt", "auto")[: len(text)]
    assert text[0] == place.host().card().tokenizer.bos_token_id


def test_wished_for_once(place):
    def wish(job, event):
        if isinstance(event, Progress) and event.step in (2, 4):
            job.control.sample()
            job.control.sample()

    job = watched(wish)
    place.train(job=job, sample_every="never", sample_prompts=ASKED[:1])
    assert [s.step for s in of(Sampled, job.log.since(0))] == [2, 4]  # the last one with the LoRA on disk
    assert not job.control.sampling


def test_after_the_checkpoint_of_its_step(place):
    _, events = run(place, sample_every="epoch", sample_prompts=ASKED[:1], epochs=2)
    saved = of(CheckpointSaved, events)[0]
    (answer,) = [s for s in of(Sampled, events) if s.step == saved.step]
    assert events.index(saved) < events.index(answer)


def test_a_run_that_goes_on_asks_what_it_has_not_asked(place):
    asked = {"sample_every": 2, "sample_prompts": ASKED[:1], "dropout": 0.1}
    place.train(name="whole", **asked)

    def stop(job, event):
        if isinstance(event, Progress) and event.step == 2:
            job.control.stop()

    job = watched(stop)
    place.train(job=job, **asked)
    assert [s.step for s in of(Sampled, job.log.since(0))] == [0]  # stopping waits for no answer
    _, events = run(place, resume="newest", **asked)
    assert [s.step for s in of(Sampled, events)] == [2, 4]
    assert place.weights() == place.weights("whole")
    kept = read_samples(place.lora())
    assert [(s.step, s.text, s.without) for s in kept] == [
        (s.step, s.text, s.without) for s in read_samples(place.lora("whole"))
    ]


def test_through_the_parts_of_a_run_nothing_is_asked_twice(place):
    """More epochs, and a card freed and taken again, are a new loop of HF's."""

    def wish(job, event):
        if isinstance(event, Progress) and event.step == 2:
            job.control.extend(1)
        elif isinstance(event, Progress) and event.step == 6:
            job.control.pause_and_free()
        elif isinstance(event, Note) and "out of memory" in event.text:
            job.control.go_on()

    job = watched(wish)
    place.train(job=job, sample_every="epoch", sample_prompts=ASKED[:1])
    said = of(Sampled, job.log.since(0))
    assert [s.step for s in said] == [0, 4, 8]
    assert len({s.without for s in said}) == 1
    assert read_samples(place.lora()) == said


def test_thrown_away_leaves_the_earlier_answers(place):
    asked = {"sample_every": 1, "sample_prompts": ASKED[:1]}
    place.train(max_steps=2, save_every=2, **asked)
    before = tree(place.lora())

    def throw(job, event):
        if isinstance(event, Progress) and event.step == 3:
            job.control.throw_away()

    place.train(job=watched(throw), resume="newest", max_steps=5, **asked)
    assert tree(place.lora()) == before


def test_a_prompt_that_fails_ends_nothing(place, monkeypatch):
    from training_pro.engine.inference import sample_generation

    place.train(name="alone")
    real = sample_generation.generated

    def failing(model, ids, question, *more):
        if question.prompt == "bad":
            raise RuntimeError("CUDA out of memory\nmuch more")
        return real(model, ids, question, *more)

    monkeypatch.setattr(sample_generation, "generated", failing)
    ended, events = run(place, sample_every="epoch", sample_prompts=["bad", ASKED[0]])
    assert ended.outcome == "finished"
    assert [s.prompt for s in of(Sampled, events)] == ASKED[:1] * 2
    assert [a.text for a in of(Advice, events) if "bad" in a.text] == [
        f"The prompt 'bad' could not be answered after step {step}: CUDA out of memory. The run goes on."
        for step in (0, 4)
    ]
    assert place.weights() == place.weights("alone")


def test_samples_that_cannot_be_made_or_kept_end_nothing(place, monkeypatch):
    def broken(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("training_pro.engine.training.sample_callback.record.keep", broken)
    monkeypatch.setattr("training_pro.engine.inference.sample_generation.speaking", broken)
    ended, events = run(place, sample_every="epoch")
    assert ended.outcome == "finished"
    assert any("No space left on device. The run goes on." in a.text for a in of(Advice, events))


def test_what_was_asked_takes_no_time_of_a_step(place, monkeypatch):
    from training_pro.engine.inference import sample_generation

    real = sample_generation.generated

    def slow(*given):
        threading.Event().wait(0.4)
        return real(*given)

    monkeypatch.setattr(sample_generation, "generated", slow)
    _, events = run(place, sample_every=1, sample_prompts=ASKED[:1])
    assert max(p.seconds for p in of(Progress, events)[1:]) < 0.4


def test_ten_runs_leave_no_threads(place):
    host = place.host()
    for number in range(10):
        place.train(host, name=f"n{number}", max_steps=1, sample_every=1, sample_prompts=ASKED[:1])
        if number == 1:
            before = threading.active_count()
    assert threading.active_count() == before
