"""LoRAs on the host's model: put on, taken off, scaled, refused if they do not fit; and answers."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs import Answer, Job, Note, Request, Stage
from training_pro.engine.inference import generation
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.tests.tiny import watched_job

IDS = torch.arange(4, 24)[None]


def logits(host):
    with torch.no_grad():
        return host.loaded_model().model(IDS).logits


def answers_by_side(events):
    texts = {"with": "", "without": ""}
    for event in events:
        if isinstance(event, Answer):
            texts[event.side] += event.piece
    return texts


def test_putting_on_changes_the_logits_and_taking_off_restores_them(with_lora):
    host = with_lora.host()
    base_logits = logits(host)
    assert with_lora.attach_lora(host, "a").text == "a is attached to the model at 100% strength."
    assert host.loaded_model().loras == ("a",)
    assert (logits(host) - base_logits).abs().max() > 0.01
    assert with_lora.detach_lora(host).text == "a is detached."
    assert torch.equal(logits(host), base_logits)
    assert with_lora.detach_lora(host).text == "No LoRA was attached."


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("text", "To use it, open the webui's Notebook tab and enter the beginning of a passage."),
        ("chat", "To use it, open the webui's Chat tab."),
        ("", "To use it, open the webui's Chat tab, or its Notebook tab if the LoRA was trained on raw text."),
    ],
    ids=["text", "chat", "made elsewhere"],
)
def test_the_tab_of_the_webui_that_fits_the_lora_is_named(with_lora, kind, where):
    prompt = with_lora.lora() / "training_prompt.json"
    assert json.loads(prompt.read_text())["kind"] == "text"
    prompt.write_text(json.dumps({"kind": kind})) if kind else prompt.unlink()
    host = with_lora.host()
    host.owns_process = False
    text = with_lora.attach_lora(host, "a").text
    assert text == f"a is attached to the model at 100% strength. {where}"


def test_another_lora_replaces_it(with_lora):
    with_lora.train(name="b", seed=7)
    host = with_lora.host()
    with_lora.attach_lora(host, "b")
    alone = logits(host)
    with_lora.attach_lora(host, "a")
    with_lora.attach_lora(host, "b")
    assert host.loaded_model().loras == ("b",)
    assert torch.equal(logits(host), alone)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.5])
def test_strength_scales_what_a_lora_adds(with_lora, strength):
    """Scaling alpha in PEFT's config has the same effect."""
    host = with_lora.host()
    base_logits = logits(host)
    with_lora.attach_lora(host, "a", strength)
    scaled = logits(host)
    config = with_lora.lora() / "adapter_config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**values, "lora_alpha": values["lora_alpha"] * strength}), encoding="utf-8")
    with_lora.attach_lora(host, "a")
    assert torch.equal(scaled, base_logits) == (strength == 0.0)
    assert torch.allclose(scaled, logits(host), atol=1e-6)


def test_a_lora_of_another_shape_is_refused_and_the_base_stays_unchanged(with_lora):
    file = with_lora.lora() / "adapter_model.safetensors"
    state = load_file(file)
    save_file({name: weight.repeat(1, 2) for name, weight in state.items()}, file)
    host = with_lora.host()
    base_logits, types = (
        logits(host),
        {name: type(module) for name, module in host.loaded_model().model.named_modules()},
    )
    message = (
        "The LoRA 'a' can't be used with this model: its weights for model.layers.0.self_attn.q_proj are "
        "4 x 128, but this model needs 4 x 64, and 13 more layers differ. The LoRA was probably made "
        "for another model."
    )
    with pytest.raises(SavingError, match=f"^{message}$"):
        with_lora.attach_lora(host, "a")
    assert host.loaded_model().loras == ()
    assert {name: type(module) for name, module in host.loaded_model().model.named_modules()} == types
    assert torch.equal(logits(host), base_logits)
    assert not hasattr(host.loaded_model().model, "peft_config")


def test_a_lora_for_other_layers_is_refused_and_the_base_stays_unchanged(with_lora):
    config = with_lora.lora() / "adapter_config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**values, "target_modules": ["attn.c_attn"]}), encoding="utf-8")
    host = with_lora.host()
    message = r"model: 1 of its 1 target modules is not in this model \(attn.c_attn\). The LoRA was probably"
    with pytest.raises(SavingError, match=message):
        with_lora.attach_lora(host, "a")
    assert not hasattr(host.loaded_model().model, "peft_config")


def test_a_missing_lora_is_named(place):
    with pytest.raises(SavingError, match="There is no LoRA 'nothing' in "):
        place.attach_lora(place.host(), "nothing")


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_broken_file_gives_a_sentence(with_lora, file):
    (with_lora.lora() / file).write_bytes(b"no weights")
    host = with_lora.host()
    with pytest.raises(SavingError, match="The LoRA 'a' can't be used with this model: "):
        with_lora.attach_lora(host, "a")
    assert not hasattr(host.loaded_model().model, "peft_config")


@pytest.mark.parametrize("fault", ["broken", "of another shape", "not there"])
def test_where_another_cannot_be_put_on_the_current_one_stays_on(with_lora, fault):
    bad = with_lora.lora("bad") / "adapter_model.safetensors"
    if fault != "not there":
        shutil.copytree(with_lora.lora("a"), bad.parent)
        wide = {name: weight.repeat(1, 2) for name, weight in load_file(bad).items()}
        bad.write_bytes(b"no weights") if fault == "broken" else save_file(wide, bad)
    host = with_lora.host()
    base_logits = logits(host)
    with_lora.attach_lora(host, "a", 0.5)
    before, peft_model, modules = (
        logits(host),
        host.loaded_model().model,
        list(host.loaded_model().model.modules()),
    )
    peft_model.get_base_model().peft_config = peft_model.peft_config  # as when the webui has put it on
    with pytest.raises(SavingError) as refusal:
        with_lora.attach_lora(host, "bad")
    assert str(refusal.value).endswith(" a stays attached.") == (fault != "not there")
    assert (host.loaded_model().model, host.loaded_model().loras) == (peft_model, ("a",))
    assert list(peft_model.modules()) == modules
    assert peft_model.get_base_model().peft_config is peft_model.peft_config
    assert torch.equal(logits(host), before)
    with_lora.detach_lora(host)
    assert torch.equal(logits(host), base_logits)


def test_unreadable_weights_are_reported(with_lora):
    (with_lora.lora() / "adapter_model.safetensors").write_bytes(b"x" * 40)
    message = r"'a' can't be used with this model: adapter_model.safetensors is damaged or "
    with pytest.raises(SavingError, match=message + r"incomplete \(.*\)\. Copy or download it again\."):
        with_lora.attach_lora(with_lora.host(), "a")


def test_an_answer_comes_in_pieces_with_and_without(with_lora):
    with_lora.train(name="b", epochs=8)
    host = with_lora.host()
    events = with_lora.answer(host, lora="b", max_tokens=12)
    stages = [event.text for event in events if isinstance(event, Stage)]
    assert stages == ["Generating without a LoRA", "Generating with b"]
    answers = answers_by_side(events)
    assert answers["with"] != answers["without"]
    assert len([event for event in events if isinstance(event, Answer)]) > 2
    assert answers_by_side(with_lora.answer(host, lora="b", max_tokens=12)) == answers


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(with_lora):
    host = with_lora.host()
    options = {"temperature": 1.5, "max_tokens": 20}
    first = answers_by_side(with_lora.answer(host, **options))["without"]
    assert answers_by_side(with_lora.answer(host, **options))["without"] == first
    assert answers_by_side(with_lora.answer(host, seed=43, **options))["without"] != first


def test_an_answer_with_the_lora_is_that_of_the_model_with_it_on(with_lora):
    with_lora.train(name="b", epochs=8)
    host = with_lora.host()
    answer = answers_by_side(with_lora.answer(host, lora="b", strength=1.0))["with"]
    with_lora.attach_lora(host, "b")
    prompt = host.card().tokenizer("The keeper of the", return_tensors="pt")
    ids = host.loaded_model().model.generate(**prompt, max_new_tokens=6, do_sample=False)
    text = host.card().tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == text


def test_the_answer_without_a_lora_ignores_the_one_that_is_on(with_lora):
    host = with_lora.host()
    answer = answers_by_side(with_lora.answer(host))["without"]
    with_lora.attach_lora(host, "a")
    assert answers_by_side(with_lora.answer(host))["without"] == answer
    assert host.loaded_model().loras == ("a",)


def test_only_one_answer_where_both_are_not_wanted(with_lora):
    events = with_lora.answer(with_lora.host(), lora="a", include_base=False)
    assert {event.side for event in events if isinstance(event, Answer)} <= {"with"}
    assert [event.text for event in events if isinstance(event, Stage)] == ["Generating with a"]


def test_a_stop_ends_the_answer(place):
    def watch(job, event):
        if isinstance(event, Answer):
            job.control.ask(Request.STOP)

    job = watched_job(watch)
    place.answer(place.host(), job, max_tokens=400)
    assert sum(len(event.piece) for event in job.log.since(0) if isinstance(event, Answer)) < 100


def test_chat_goes_through_the_template(place, monkeypatch):
    host = place.host()
    inputs = []
    model = host.loaded_model().model
    monkeypatch.setattr(model, "generate", lambda **options: inputs.append(options["input_ids"]))
    place.answer(host, prompt="Hello", as_chat=True)
    text = host.card().tokenizer.decode(inputs[0][0])
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", "<|begin|><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"),
        ("{% for m in messages %}Q: {{ m['content'] }}\nA:{% endfor %}", "<|begin|>Q: Hello\nA:"),
    ],
    ids=["none at all", "the host's"],
)
def test_without_a_chat_template_chats_use_the_one_of_training(with_lora, monkeypatch, template, text):
    """Without a LoRA, and with one trained on plain text, for both answers."""
    prompts = []
    host = with_lora.host()
    tokenizer = host.card().tokenizer
    tokenizer.chat_template = None
    monkeypatch.setattr(type(host), "chat_template", lambda self: template)
    monkeypatch.setattr(generation, "_write", lambda model, ids, *more: prompts.append(tokenizer.decode(ids[0])))
    with_lora.answer(host, prompt="Hello", as_chat=True)
    with_lora.answer(host, prompt="Hello", as_chat=True, lora="a")
    assert prompts == 3 * [text]
    assert tokenizer.chat_template is None


def test_a_template_that_takes_no_message_is_reported(place):
    host = place.host()
    host.card().tokenizer.chat_template = "{{ raise_exception('tools only') }}"
    with pytest.raises(
        ModelError, match=r"Messages can't be formatted with the model's own chat template\. Turn off"
    ):
        place.answer(host, prompt="Hello", as_chat=True)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [("a wick", "<|begin|>a wick"), ("<|begin|>a wick", "<|begin|>a wick"), ("", "<|begin|>")],
)
def test_a_text_is_continued_after_one_bos(place, monkeypatch, prompt, ids):
    inputs = []
    host = place.host()
    monkeypatch.setattr(generation, "_write", lambda model, ids, *more: inputs.append(ids[0].tolist()))
    place.answer(host, prompt=prompt)
    assert inputs == [host.card().tokenizer(ids, add_special_tokens=False)["input_ids"]]


def test_taking_off_logs_a_note(with_lora):
    job = Job("model", "t")
    PeftEngine().detach_lora(with_lora.host(), job)
    notes = [event.text for event in job.log.since(0) if isinstance(event, Note)]
    assert notes == ["The model's own weights are unchanged."]


def checkpoint_name(place, name="a"):
    return f"{name}/{next(place.lora(name).glob('checkpoint-*')).name}"


def test_a_checkpoint_is_tried_and_put_on_like_a_lora(with_lora):
    with_lora.train(name="b", max_steps=4, save_every=2, epochs=2)
    early = "b/checkpoint-2"
    host = with_lora.host()
    base_logits = logits(host)
    with_lora.attach_lora(host, early, 0.5)
    assert host.loaded_model().loras == (early,)
    at_half = logits(host)
    with_lora.attach_lora(host, early)
    at_full = logits(host)
    with_lora.attach_lora(host, "b")
    assert not torch.equal(logits(host), at_full)
    assert 0 < (at_half - base_logits).abs().max() < (at_full - base_logits).abs().max()
    with_lora.detach_lora(host)
    assert torch.equal(logits(host), base_logits)
    options = {"temperature": 0.0, "max_tokens": 12, "lora": early}
    assert answers_by_side(with_lora.answer(host, **options))["with"]
    loras.slim_checkpoint(with_lora.lora("b") / "checkpoint-2")
    with_lora.attach_lora(host, early)
    assert torch.equal(logits(host), at_full)


def test_what_cannot_be_put_on_is_reported_with_what_exists(with_lora):
    host = with_lora.host()
    with pytest.raises(SavingError, match=r"There is no LoRA .a/checkpoint-99. .* Available: a"):
        with_lora.attach_lora(host, "a/checkpoint-99")
    with pytest.raises(SavingError, match="There is no LoRA 'b'"):
        with_lora.answer(host, lora="b")


def test_a_name_with_a_dot(with_lora):
    with_lora.lora("a").rename(with_lora.lora("old-1.5"))
    host = with_lora.host()
    base_logits = logits(host)
    with_lora.attach_lora(host, "old-1.5")
    assert not torch.equal(logits(host), base_logits)
    assert host.loaded_model().loras == ("old-1.5",)


@pytest.mark.parametrize("name", ["half", "train", "keys"])
def test_a_name_that_is_an_attribute_of_module_dict(with_lora, name):
    (with_lora.folders.loras / "a").rename(with_lora.folders.loras / name)
    host = with_lora.host()
    base_logits = logits(host)
    assert with_lora.attach_lora(host, name).text == f"{name} is attached to the model at 100% strength."
    assert host.loaded_model().loras == (name,)
    assert (logits(host) - base_logits).abs().max() > 0.01
    with_lora.detach_lora(host)
    assert torch.equal(logits(host), base_logits)


def test_a_message_is_formatted_as_in_training(with_lora, monkeypatch):
    """Also with a checkpoint's name; a LoRA trained on plain text uses the model's own template."""
    inputs = []
    monkeypatch.setattr(generation, "_write", lambda model, ids, *more: inputs.append(ids[0].tolist()))
    host = with_lora.host()
    tokenizer = host.card().tokenizer
    prompt = {"kind": "format", "before": "Ask: ", "after": "\nSay:", "starts_with_bos": True}
    text_prompt = json.dumps({**prompt, "kind": "text"})
    question = {"lora": "a", "as_chat": True, "prompt": "why?", "include_base": False}
    (with_lora.lora() / "training_prompt.json").write_text(json.dumps(prompt))
    with_lora.answer(host, **question)
    with_lora.answer(host, **{**question, "lora": checkpoint_name(with_lora)})
    assert inputs == 2 * [tokenizer("Ask: why?\nSay:")["input_ids"]]
    for content in (text_prompt, "[broken"):
        (with_lora.lora() / "training_prompt.json").write_text(content)
        with_lora.answer(host, **question)
        assert tokenizer.decode(inputs[-1]).endswith("why?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("name", ["../loras/a", "a/../a", "/a", "a/.part/lora", "trash-np/a"])
def test_a_path_is_no_name_of_a_lora(with_lora, name):
    host = with_lora.host()
    with pytest.raises(SavingError):
        with_lora.attach_lora(host, str(with_lora.lora("a")))
    with pytest.raises(SavingError):
        with_lora.attach_lora(host, name)
    assert host.model_status().loras == ()
