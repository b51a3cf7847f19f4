"""The novice's training guide on fine-tuning, LoRA and QLoRA: what is trained, what it takes, and what is left."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from training_pro.commands import options, push
from training_pro.core.errors import SavingError
from training_pro.core.host import DeviceMemory, ModelCard, get_model_card
from training_pro.core.jobs import CheckpointSaved, EvaluationDone, Job, Step
from training_pro.data.report import MemoryModel
from training_pro.engine.checks import optimizer_problems
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training.setup import prepare_data
from training_pro.hosts import max_memory
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.tests.tiny import watched_job
from transformers import AutoModelForCausalLM, LlamaForCausalLM

LLAMA_65B = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 22016,
    "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 32000, "tie_word_embeddings": False,
    "dtype": "bfloat16",
}  # fmt: skip


def run_events(place, host=None, **more):
    job = Job("training", "a test")
    place.train(host, job=job, **more)
    return job.log.since(0)


def checked(place, host=None, **more):
    return PeftEngine().check(place.settings(**more), host or place.host())


def base_model(place):
    return AutoModelForCausalLM.from_pretrained(place.tiny, dtype=torch.float32)


def next_word_loss(model, examples):
    """The cross entropy of each next token given the tokens before it, by hand."""
    losses = []
    for example in examples:
        ids = torch.tensor(np.asarray(example.ids)[None].astype(np.int64))
        with torch.no_grad():
            scores = model(ids).logits[0, :-1].log_softmax(-1)
        losses += [-float(scores[place, token]) for place, token in enumerate(ids[0, 1:])]
    return sum(losses) / len(losses)


def rows(place, name, *records):
    place.write(name, "\n".join(map(json.dumps, records)))
    return {"data": [name], "cutoff": "auto"}


def test_causal_language_modeling_predicts_the_next_word_given_the_preceding_context(place):
    settings = {"batch_size": 16, "max_steps": 1, "optimizer": "sgd", "add_bos": False}
    host = place.host()
    data = prepare_data(place.settings(**settings), host, get_model_card(host), Job("training", "a test"))
    (step,) = [event for event in run_events(place, **settings) if isinstance(event, Step)]
    assert step.loss == pytest.approx(next_word_loss(base_model(place), data.examples), rel=1e-3)


def test_lora_maintains_the_frozen_state_of_the_pretrained_weights(place):
    host = place.host()
    before = {key: weight.clone() for key, weight in host.loaded_model().model.state_dict().items()}
    place.train(host)
    after = host.loaded_model().model.state_dict()
    assert before.keys() == after.keys()
    assert all(weight.equal(after[key]) for key, weight in before.items())


def test_a_lora_has_a_fraction_of_the_trainable_parameters_and_needs_less_memory(place):
    lora = checked(place, rank=1, targets="q-v")
    full = checked(place, method="full", learning_rate=1e-3)
    assert 20 * lora.disk.made < full.disk.made
    assert lora.memory.total < full.memory.total / 2


def test_the_trained_weights_are_easily_transferred_and_used_in_other_contexts(with_lora):
    """PEFT alone, without this program, loads the LoRA, and the model then knows the data better."""
    host, job = with_lora.host(), Job("training", "a test")
    examples = prepare_data(with_lora.settings(), host, get_model_card(host), job).examples
    base = next_word_loss(base_model(with_lora), examples)
    assert (
        next_word_loss(PeftModel.from_pretrained(base_model(with_lora), with_lora.lora()), examples) < base - 0.1
    )


def test_the_adaptation_scale_controls_the_extent_to_which_the_model_is_adapted(with_lora):
    """At strength 0 the model keeps its knowledge, and each higher one adapts it more."""
    host = with_lora.host()
    model = host.loaded_model().model
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        base, distances = model(ids).logits, []
        for strength in (0.0, 0.5, 1.0):
            with_lora.attach_lora(host, "a", strength)
            distances.append(float((host.loaded_model().model(ids).logits - base).norm()))
            with_lora.detach_lora(host)
    assert distances[0] == 0 and 0 < distances[1] < distances[2]


def test_dropout_weight_decay_scheduling_and_early_stopping_prevent_overfitting(place):
    events = run_events(
        place, dropout=0.1, weight_decay=0.01, schedule="cosine", early_stopping=2, eval_every=1, eval_share=0.2,
        learning_rate=1e-9, epochs=20,
    )  # fmt: skip
    assert max(event.step for event in events if isinstance(event, Step)) < 10
    assert json.loads((place.lora() / "adapter_config.json").read_text())["lora_dropout"] == 0.1


def test_the_names_of_the_modules_are_listed_where_one_is_wrong(place):
    (problem,) = checked(place, targets=["no_such_proj"]).problems
    assert "no_such_proj" in problem
    assert all(name in problem for name in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"))


def test_norms_and_the_output_layer_are_not_targeted_unless_you_name_them(place):
    place.train(max_steps=1)
    names = load_file(place.lora() / "adapter_model.safetensors")
    assert names and not any(part in name for name in names for part in ("norm", "lm_head", "embed_tokens"))


@pytest.mark.parametrize(("loading", "share"), [("8bit", 0.6), ("4bit", 0.5)])
def test_a_quantized_model_takes_less_memory_and_its_lora_is_trained(place, loading, share):
    """The tiny model's embeddings, which are never quantized, are a large part of it."""
    full, quantized = checked(place, place.host("float32")), checked(place, place.host(loading))
    assert quantized.memory.weights < share * full.memory.weights
    place.train(place.host(loading), max_steps=2)
    weights = load_file(place.lora() / "adapter_model.safetensors")
    assert all(float(weight.norm()) > 0 for name, weight in weights.items() if "lora_B" in name)


def test_qlora_fits_a_65b_model_on_a_single_48_gb_gpu_and_16_bits_do_not():
    machine = DeviceMemory("NVIDIA Some Card", 0, 48 * 2**30)
    values = {"name": "a", "data": ["a.txt"], "rank": 64, "batch_size": 1, "optimizer": "paged_adamw_32bit"}
    asked = training_settings(values)
    fits = {}
    for loading in ("4bit", "bfloat16"):
        examples = SimpleNamespace(lengths=lambda: [512], learned=lambda: [511])
        model = MemoryModel.of(ModelCard("m", LLAMA_65B, None, loading), examples, machine)
        fits[loading] = model.fits(model.memory(asked))
    assert fits == {"4bit": True, "bfloat16": False}


def test_4_bit_is_normal_float_with_double_quantization(place):
    config = place.host("4bit").loaded_model().model.config.quantization_config
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == ("nf4", True)


def test_max_memory_is_the_maximum_amount_of_memory_per_gpu(monkeypatch):
    monkeypatch.setattr(max_memory, "_device_memory", lambda: {0: 80 * 10**9, 1: 80 * 10**9, "cpu": 10**12})
    parser = options.make_parser("train", "")
    options.add_model(parser)
    words = parser.parse_args(["--model", "m", "--max-memory", "48000MB"]).max_memory
    assert max_memory.device_limits(max_memory.parse_limits(words)) == {0: 48 * 10**9, 1: 48 * 10**9}


def test_by_default_the_input_field_is_not_trained_on(place):
    data = rows(place, "rows.jsonl", *[{"input": f"one two three {n}", "output": f"four {n}"} for n in range(8)])
    (by_default, replies, everything) = (
        checked(place, **data, **more).trained_tokens
        for more in ({}, {"train_on": "replies"}, {"train_on": "everything"})
    )
    assert by_default == replies < everything


@pytest.mark.parametrize("names", [("prompt", "generation"), ("prompt", "completion"), ("input", "output")])
def test_the_keys_of_prompt_and_reply_are_found(place, names):
    records = [dict(zip(names, (f"What is {n}?", f"It is {n}."), strict=True)) for n in range(8)]
    report = checked(place, **rows(place, "rows.jsonl", *records))
    assert report.problems == () and report.examples == 8
    assert report.trained_tokens < report.tokens, "the reply is learned, the prompt only read"


def test_the_keys_can_have_arbitrary_names(place):
    records = [{"Frage": f"What is {n}?", "Die Antwort": f"It is {n}."} for n in range(8)]
    data = rows(place, "rows.jsonl", *records)
    report = checked(place, columns='instruction=Frage output="Die Antwort"', **data)
    assert report.problems == () and report.examples == 8


def test_the_cutoff_depends_on_the_base_model(place):
    longest = json.loads((place.tiny / "config.json").read_text())["max_position_embeddings"]
    findings = [*checked(place, cutoff=2 * longest).problems, *checked(place, cutoff=2 * longest).advice]
    assert any(str(longest) in text.replace(",", "") for text in findings)


def test_the_validation_set_is_randomly_selected_and_never_trained_on(place):
    data = rows(place, "rows.jsonl", *[{"text": f"This is the text number {n}."} for n in range(40)])

    def split(seed):
        host = place.host()
        settings = place.settings(eval_share=0.25, data_seed=seed, **data)
        made = prepare_data(settings, host, get_model_card(host), Job("training", "a test"))
        return [{tuple(e.ids.tolist()) for e in part} for part in (made.examples, made.validation)]

    train, validation = split(1)
    assert (len(train), len(validation)) == (30, 10) and not train & validation
    assert split(1)[1] == validation != split(2)[1]


def test_the_processing_step_is_not_run_every_time_you_restart_a_run(place):
    said, data = [], rows(place, "rows.jsonl", *[{"text": f"This is the text number {n}."} for n in range(8)])
    for _ in range(2):
        job = Job("training", "a test")
        place.train(job=job, if_exists="replace", max_steps=1, **data)
        said.append(str(job.log.since(0)))
    assert ["Using the cached version" in words for words in said] == [False, True]
    assert list(place.folders.prepared_data.glob("*.arrow"))


def test_eval_steps_and_save_steps_and_the_limit_of_checkpoints(place):
    events = run_events(
        place, epochs=3, batch_size=4, eval_every=2, save_every=2, keep_checkpoints=2, eval_share=0.2,
        save_each_epoch=False,
    )  # fmt: skip
    last = max(event.step for event in events if isinstance(event, Step))
    measured = {event.step for event in events if isinstance(event, EvaluationDone)}
    saved = [int(event.folder.name.split("-")[1]) for event in events if isinstance(event, CheckpointSaved)]
    assert measured >= set(range(2, last + 1, 2))
    assert saved == list(range(2, last + 1, 2))
    full = {int(path.parent.name.split("-")[1]) for path in place.lora().glob("checkpoint-*/optimizer*")}
    assert full == set(saved[-2:])


def test_an_interrupted_run_is_resumed_from_a_saved_checkpoint(place):
    asked = {"save_every": 2, "save_each_epoch": False, "epochs": 2}
    place.train(name="whole", **asked)

    def stop_at_3(job, event):
        if isinstance(event, Step) and event.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.train(job=watched_job(stop_at_3), **asked)
    assert place.train(resume="newest", **asked).outcome == "finished"
    assert place.weights("a") == place.weights("whole")


def test_two_epochs_go_through_the_entire_dataset_twice(place):
    one, two = (checked(place, epochs=epochs) for epochs in (1, 2))
    assert two.steps == 2 * one.steps


def test_flash_attention_can_be_chosen(place):
    assert "flash_attention_2" in SETTINGS["attention"].choices
    findings = checked(place, attention="flash_attention_2")
    assert any("flash" in text.lower() for text in (*findings.problems, *findings.advice))


def test_a_full_fine_tune_holds_weights_gradients_and_two_values_of_adam_for_each_weight(place):
    memory = checked(place, method="full", learning_rate=1e-5).memory
    assert (memory.gradients, memory.optimizer) == (memory.weights, 2 * memory.weights)
    numbers = sum(weight.numel() for weight in load_file(place.tiny / "model.safetensors").values())
    assert memory.weights == 4 * numbers
    assert "16 bytes per weight in float32" in read_page("160 to 192 GB for a full fine-tune of a 7B model")


def test_no_amount_of_data_is_required_for_a_full_fine_tune(place):
    """The guide's rule of thumb is 100 MiB; here a validation split shows whether the model memorizes."""
    report = checked(place, method="full", learning_rate=1e-5)
    assert (report.problems, report.advice) == ((), ())
    assert "Check names no minimum" in read_page("100 MiB of data for a full fine-tune")


def test_a_fully_fine_tuned_model_is_uploaded_with_the_command_that_push_shows(place):
    place.train(method="full", learning_rate=1e-3, max_steps=1)
    with pytest.raises(SavingError) as refused:
        push.run(["a", "--to", "me/story", "--user-data", str(place.folders.user_data)])
    assert f'hf upload me/story "{place.folders.models / "a"}" . --private' in str(refused.value)
    assert "it shows the hf upload command" in read_page("upload of a fully fine-tuned model")


def test_tpus_are_not_supported():
    (problem,) = optimizer_problems("adamw_torch_xla", "cpu")
    assert "it is for TPUs" in problem.text
    assert read_page("TPUs") == "Training PRO trains on CPUs and GPUs."


def test_no_tokens_are_masked_as_in_masked_language_modeling(place, monkeypatch):
    """The model reads the examples as they are, and each token is learned from the ones before it alone."""
    read = []
    forward = LlamaForCausalLM.forward

    def record(self, input_ids=None, **more):
        read.append(input_ids.clone())
        return forward(self, input_ids=input_ids, **more)

    monkeypatch.setattr(LlamaForCausalLM, "forward", record)
    host = place.host()
    data = prepare_data(place.settings(), host, get_model_card(host), Job("training", "a test"))
    run_events(place, host, max_steps=1, batch_size=1, packing="off", recall_passages=0)
    assert tuple(read[-1][0].tolist()) in {tuple(example.ids.tolist()) for example in data.examples}
    assert "predict the next token" in read_page("masked language modeling")
