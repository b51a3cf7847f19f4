"""What the guides say of LoRAs, quantized models and full fine-tuning: what is trained, and its cost."""

from __future__ import annotations

import json
import shutil

import pytest
from training_pro.commands.main import main
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import (
    checked,
    lora_weights,
    memory_model,
    model_host,
    model_weights,
    settings,
)
from transformers import AutoModelForCausalLM

MODULES = "up_proj,down_proj,q_proj,v_proj,k_proj,o_proj,embed_tokens,lm_head"
FULL = {"method": "full", "learning_rate": 1e-5}


def test_the_parameters_of_lora_config_and_the_target_modules_as_the_guide_lists_them(place):
    place.train(model_host(place, "llama"), max_steps=1, rank=3, alpha=16, dropout=0.1, targets=MODULES)
    config, weights = json.loads((place.lora() / "adapter_config.json").read_text()), lora_weights(place)
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 16, 0.1)
    inner = {weight.shape[0] for name, weight in weights.items() if "q_proj.lora_A" in name}
    assert inner == {3} and settings(rank=128, alpha=256).lora.strength == 2
    assert all(any(f".{name}.lora_" in key for key in weights) for name in MODULES.split(","))
    assert not any("gate_proj" in key for key in weights)


def test_a_rank_below_8_is_allowed_without_advice(place):
    for rank in (1, 7):
        report = checked(place, rank=rank, alpha=rank, learning_rate=1e-4)
        assert (report.problems, report.advice) == ((), ())
    assert "Lower ranks are allowed" in read_page("rank of at least 8")


def test_bias_is_not_applicable_to_llama_models(place):
    assert any("this model has no biases" in text for text in checked(place, bias="all").advice)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("GPTJConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4}),
        ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "expansion_ratio": 2}),
    ],
)
def test_older_models_that_the_guide_recommends_are_trained(place, kind, config):
    import transformers

    folder = shutil.copytree(place.tiny, place.folders.models / kind)
    model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(vocab_size=512, **config))
    model.save_pretrained(folder)
    place.train(StandaloneHost(place.folders, model=str(folder)), max_steps=1, layers_to_transform="0")
    assert all(".0." in key and ".1." not in key for key in lora_weights(place))


@pytest.mark.long
@pytest.mark.parametrize("loading", ["float32", "float16", "8bit", "4bit"])
def test_a_lora_is_trained_and_resumed_in_each_compute_type(place, loading):
    asked = {"save_every": 1, "save_each_epoch": False}
    place.train(place.host(loading), max_steps=1, **asked)
    assert place.train(place.host(loading), resume="newest", max_steps=2, **asked).outcome == "finished"
    weights = lora_weights(place)
    assert all(float(weight.norm()) > 0 for name, weight in weights.items() if "lora_B" in name)
    assert "resume a LoRA there" in read_page("Checkpoint loading is disabled in 8 and 4 bits.")


def test_qlora_fits_a_65b_model_on_a_single_48_gb_gpu_and_16_bits_do_not():
    asked = settings(rank=64, batch_size=1, optimizer="paged_adamw_32bit")
    for loading, fits in {"4bit": True, "float16": False}.items():
        model = memory_model(80, 8192, 22016, loading, 48, 512)
        assert model.fits(model.memory(asked)) == fits


def test_the_memory_follows_from_the_model_the_batch_the_length_and_checkpointing(place):
    plain, long, large, small, on = (
        checked(place, **more).memory.total
        for more in (
            {}, {"cutoff": 64}, {"batch_size": 8}, {"batch_size": 2, "accumulation": 4},
            {"gradient_checkpointing": "on"},
        )
    )  # fmt: skip
    assert on < plain < long and small == checked(place, batch_size=2).memory.total < plain < large
    assert plain == checked(place, gradient_checkpointing="off").memory.total
    assert SETTINGS["gradient_checkpointing"].default == "auto"
    assert read_page("Gradient checkpointing is off by default.").startswith("The default is auto")
    weights = checked(place).memory.weights
    assert weights == pytest.approx((place.tiny / "model.safetensors").stat().st_size, rel=0.05)
    assert plain > 1.2 * weights, "training takes more than inference"
    evaluated = (checked(place, eval_share=0.2, eval_batch_size=size).memory.total for size in (1, 1024))
    assert len(set(evaluated)) == 1
    assert "split in halves" in read_page("evaluation batch in the memory estimate")


def test_a_full_fine_tune_holds_gradients_and_two_values_of_adam_and_a_lora_a_fraction(place):
    """No amount of data is required: the guide's rule of thumb is 100 MiB; a validation split shows memorizing."""
    full, lora = checked(place, **FULL), checked(place, rank=1, targets="q-v")
    memory = full.memory
    assert (memory.gradients, memory.optimizer) == (memory.weights, 2 * memory.weights)
    assert memory.weights == 4 * sum(weight.numel() for weight in model_weights(place).values())
    assert 20 * lora.disk.made < full.disk.made and lora.memory.total < memory.total / 2
    assert (full.problems, full.advice) == ((), ())
    assert "16 bytes per weight in float32" in read_page("160 to 192 GB for a full fine-tune of a 7B model")
    assert "Check names no minimum" in read_page("100 MiB of data for a full fine-tune")


def test_a_whole_model_is_uploaded_by_the_command_that_push_shows(place, capsys):
    shutil.copytree(place.tiny, place.folders.models / "new")
    assert main(["push", "new", "--to", "me/story", "--user-data", str(place.folders.user_data)]) == 1
    assert f'hf upload me/story "{place.folders.models / "new"}" . --private' in capsys.readouterr().err
    assert "it shows the hf upload command" in read_page("upload of a fully fine-tuned model")
