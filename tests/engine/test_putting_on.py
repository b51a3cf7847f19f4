"""LoRAs on the host's model: put on, taken off, scaled, refused if they do not fit; and answers."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs import Answer, Job, Stage
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.tests.engine.watching import first_inputs, read, texts

IDS = torch.arange(4, 24)[None]
CHAT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def logits(host):
    with torch.no_grad():
        return host.loaded_model().model(IDS).logits


def answers_of(events):
    """The text of each side."""
    sides = {event.side: "" for event in events if isinstance(event, Answer)}
    for event in events:
        if isinstance(event, Answer):
            sides[event.side] += event.piece
    return sides


def test_putting_on_changes_the_logits_and_taking_off_restores_them(with_lora):
    host, job = with_lora.host(), Job("model", "a test")
    base_logits = logits(host)
    assert with_lora.attach_lora(host, "a").text == "a is attached to the model at 100% strength."
    assert host.loaded_model().loras == ("a",)
    alone = logits(host)
    assert (alone - base_logits).abs().max() > 0.01
    for name in ("old-1.5", "half", "keys"):  # the last two are also methods of torch's ModuleDict
        shutil.copytree(with_lora.lora("a"), with_lora.lora(name))
        with_lora.attach_lora(host, name)
        assert host.loaded_model().loras == (name,) and torch.equal(logits(host), alone)
    with_lora.attach_lora(host, "a")
    assert host.loaded_model().loras == ("a",)
    assert torch.equal(logits(host), alone)
    assert with_lora.detach_lora(host).text == "a is detached."
    assert torch.equal(logits(host), base_logits)
    assert PeftEngine().detach_lora(host, job).text == "No LoRA was attached."
    assert "The model's own weights are unchanged." in texts(job)


def test_strength_scales_what_a_lora_adds_as_alpha_does(with_lora):
    host = with_lora.host()
    base_logits = logits(host)
    with_lora.attach_lora(host, "a", 0.0)
    assert torch.equal(logits(host), base_logits)
    with_lora.attach_lora(host, "a", 1.5)
    scaled = logits(host)
    change_config(with_lora.lora(), lora_alpha=12)
    with_lora.attach_lora(host, "a")
    assert torch.allclose(scaled, logits(host), atol=1e-6)


def test_a_lora_that_is_trained_while_it_is_attached_is_then_attached_anew_at_its_strength(with_lora):
    host, job = with_lora.host(), Job("training", "a test")
    with_lora.attach_lora(host, "a", 0.5)
    with_lora.train(host, job=job, if_exists="replace", rank=8, max_steps=1)
    assert "a is attached with its new weights." in texts(job)
    trained = logits(host)
    with_lora.attach_lora(host, "a", 0.5)
    assert torch.equal(trained, logits(host))


def change_config(folder, **values):
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(read(config) | values), encoding="utf-8")


def widen(folder):
    file = folder / "adapter_model.safetensors"
    save_file({name: weight.repeat(1, 2) for name, weight in load_file(file).items()}, file)


FAULTS = {
    "other shape": (
        widen,
        "its weights have other shapes than the layers of this model.",
    ),
    "other layers": (lambda f: change_config(f, target_modules=["c_attn"]), "1 of its 1 target modules is not in"),
    "damaged": (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 40), "is damaged or incomplete"),
    "no config": (lambda f: (f / "adapter_config.json").write_bytes(b"no"), "The LoRA 'bad' can't be used"),
    "not there": (shutil.rmtree, r"There is no LoRA 'bad' in .* Available: a"),
}


@pytest.mark.parametrize(("spoil", "message"), FAULTS.values(), ids=FAULTS)
def test_a_lora_that_does_not_fit_is_refused_and_what_was_on_stays(with_lora, spoil, message):
    spoil(shutil.copytree(with_lora.lora("a"), with_lora.lora("bad")))
    host = with_lora.host()
    base, base_logits = host.loaded_model().model, logits(host)
    types = [type(module) for module in base.modules()]
    with pytest.raises(SavingError, match=message):
        with_lora.attach_lora(host, "bad")
    assert ([type(module) for module in base.modules()], host.loaded_model().loras) == (types, ())
    assert not hasattr(base, "peft_config") and torch.equal(logits(host), base_logits)
    with_lora.attach_lora(host, "a", 0.5)
    peft_model, before = host.loaded_model().model, logits(host)
    modules = list(peft_model.modules())
    base.peft_config = peft_model.peft_config  # as when the webui has put it on
    with pytest.raises(SavingError) as refusal:
        with_lora.attach_lora(host, "bad")
    assert str(refusal.value).endswith(" a stays attached.") == (spoil is not shutil.rmtree)
    assert (host.loaded_model().model, host.loaded_model().loras) == (peft_model, ("a",))
    assert list(peft_model.modules()) == modules and base.peft_config is peft_model.peft_config
    assert torch.equal(logits(host), before)
    with_lora.detach_lora(host)
    assert torch.equal(logits(host), base_logits)


def test_a_checkpoint_is_tried_and_put_on_like_a_lora_also_a_slim_one(with_lora):
    (early,) = (f"a/{path.name}" for path in with_lora.lora().glob("checkpoint-*"))
    host = with_lora.host()
    base_logits = logits(host)
    with_lora.attach_lora(host, early)
    full = logits(host)
    assert host.loaded_model().loras == (early,) and not torch.equal(full, base_logits)
    loras.slim_checkpoint(with_lora.folders.loras / early)
    with_lora.attach_lora(host, early)
    assert torch.equal(logits(host), full)
    assert answers_of(with_lora.answer(host, lora=early))["with"]


def test_an_answer_is_that_of_the_model_with_and_without_the_lora(with_lora):
    """Whatever is on; it comes in pieces."""
    host, asked = with_lora.host(), {"lora": "a", "strength": 8.0, "max_tokens": 12}
    events = with_lora.answer(host, **asked)
    answers = answers_of(events)
    assert answers["with"] != answers["without"]
    assert len([event for event in events if isinstance(event, Answer)]) > 2
    stages = [event.text for event in events if isinstance(event, Stage)]
    assert stages == ["Generating without a LoRA", "Generating with a"]
    with_lora.attach_lora(host, "a", 8.0)
    prompt = host.card().tokenizer("The keeper of the", return_tensors="pt")
    ids = host.loaded_model().model.generate(**prompt, max_new_tokens=12, do_sample=False)
    text = host.card().tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == answers["with"]
    assert answers_of(with_lora.answer(host, max_tokens=12)) == {"without": answers["without"]}
    assert host.loaded_model().loras == ("a",)


def prompts_of(place, host, **question):
    """The texts from which the model generates, with all special tokens."""
    with first_inputs(host.loaded_model().model) as inputs:
        place.answer(host, max_tokens=1, **question)
    return [host.card().tokenizer.decode(ids) for ids in inputs]


HOSTS = "{% for m in messages %}Q: {{ m['content'] }}\nA:{% endfor %}"


@pytest.mark.parametrize(("hosts", "text"), [("", f"<|begin|>{CHAT}"), (HOSTS, "<|begin|>Q: Hello\nA:")])
def test_a_chat_message_goes_through_the_template_of_the_model_or_else_of_training(with_lora, hosts, text):
    """Without a LoRA, and with one trained on plain text, for both answers; a text is continued after one BOS."""
    host = with_lora.host()
    tokenizer, host.chat_template = host.card().tokenizer, lambda: hosts
    assert prompts_of(with_lora, host, prompt="Hello", as_chat=True, lora="a") == [CHAT, CHAT]
    tokenizer.chat_template = None
    assert prompts_of(with_lora, host, prompt="Hello", as_chat=True) == [text]
    assert prompts_of(with_lora, host, prompt="Hello", as_chat=True, lora="a") == [text, text]
    assert tokenizer.chat_template is None
    for prompt in ("a wick", "<|begin|>a wick", ""):
        assert prompts_of(with_lora, host, prompt=prompt) == [f"<|begin|>{prompt.removeprefix('<|begin|>')}"]
    tokenizer.chat_template = "{{ raise_exception('tools only') }}"
    with pytest.raises(ModelError, match=r"Messages can't be formatted with the model's own chat template\."):
        with_lora.answer(host, prompt="Hello", as_chat=True)


def test_a_lora_that_would_change_the_models_own_weights_is_refused(with_lora):
    config = with_lora.lora() / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "init_lora_weights": "pissa_niter_16"}))
    with pytest.raises(SavingError, match="was made with pissa_niter_16, which changes the model's own weights"):
        with_lora.answer(with_lora.host(), prompt="Hello", lora="a")
    with pytest.raises(SavingError, match="was made with pissa_niter_16"):
        with_lora.train(if_exists="continue")


def test_a_lora_whose_layers_have_other_names_is_refused(with_lora):
    """Such as that of a language model alone on one with images: PEFT would load none of it."""
    file = with_lora.lora() / "adapter_model.safetensors"
    weights = {key.replace("model.layers", "model.language_model.layers"): v for key, v in load_file(file).items()}
    save_file(weights, file)
    with pytest.raises(SavingError, match=r"of its weights have no place in it .*made for another model"):
        with_lora.answer(with_lora.host(), prompt="Hello", lora="a")


def test_a_message_is_formatted_as_in_the_training_of_the_lora(with_lora):
    host, prompt = with_lora.host(), with_lora.lora() / "training_prompt.json"
    written = {"kind": "format", "before": "Ask: ", "after": "\nSay:", "starts_with_bos": True}
    question = {"as_chat": True, "prompt": "Hello"}
    (checkpoint,) = (f"a/{path.name}" for path in with_lora.lora().glob("checkpoint-*"))
    prompt.write_text(json.dumps(written))
    for lora in ("a", checkpoint):
        assert prompts_of(with_lora, host, lora=lora, **question) == ["<|begin|>Ask: Hello\nSay:"] * 2
    for content in (json.dumps({**written, "kind": "text"}), "[broken"):
        prompt.write_text(content)
        assert prompts_of(with_lora, host, lora="a", **question)[0].endswith(CHAT)
