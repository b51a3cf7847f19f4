"""What the tests of the promises do with a workspace: train in it, check it, and read what is left."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.core.jobs import Job
from training_pro.data.report import MemoryModel
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training import trainer
from training_pro.hosts.standalone import StandaloneHost
from training_pro.schedulers import ScheduleSteps, get_schedule, lr_multipliers
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import record_batches, save_model


@pytest.fixture
def batches(monkeypatch):
    """The examples of each batch that is trained on from now on, by their numbers."""
    return record_batches(monkeypatch, trainer)


def settings(**values):
    return training_settings({"name": "a", "data": ["story.txt"], **values})


def refusal(**values):
    with pytest.raises(SettingsError) as refused:
        settings(**values)
    return str(refused.value)


def run_events(place, host=None, *, kind=None, **more):
    """Train, and return the events, or those of one kind."""
    job = Job("training", "a test")
    place.train(host, job=job, **more)
    return [event for event in job.log.since(0) if kind is None or isinstance(event, kind)]


def checked(place, **more):
    return PeftEngine().check(place.settings(**more), place.host())


def model_host(place, architecture):
    """A host with a tiny model of another architecture."""
    return StandaloneHost(place.folders, model=str(save_model(place, architecture, tied=False)))


def lora_weights(place):
    return load_file(place.lora() / "adapter_model.safetensors")


def model_weights(place, name="", **more):
    """The weights of the base model, or those of a model after one run of full fine-tuning."""
    if not name:
        return load_file(place.tiny / "model.safetensors")
    place.train(name=name, **{"method": "full", "learning_rate": 1e-3, "max_steps": 1, **more})
    return load_file(place.folders.models / name / "model.safetensors")


def write_rows(place, *rows, name="rows.jsonl"):
    """Write a dataset of rows, and return the settings for it."""
    place.write(name, "\n".join(map(json.dumps, rows)))
    return {"data": [name], "cutoff": "auto"}


def rates(schedule, warmup=0, steps=100, per_epoch=10):
    """The multipliers of the learning rate in a run of ten epochs."""
    return lr_multipliers(get_schedule(schedule).phases(ScheduleSteps(steps, per_epoch, warmup)), steps)


def memory_model(layers, width, inner, loading, gigabytes, cutoff, **more):
    """The memory of a LLaMA, loaded like this, on a GPU of this size."""
    config = {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner,
        "num_attention_heads": width // 128, "num_key_value_heads": width // 128, "vocab_size": 32000,
        "tie_word_embeddings": False, "dtype": "float16",
    }  # fmt: skip
    examples = SimpleNamespace(
        lengths=lambda: [cutoff] * 64, learned=lambda: [cutoff - 1] * 64, are_compared=False
    )
    card = ModelCard("llama", config, None, loading)
    return MemoryModel.of(card, examples, DeviceMemory("A GPU", 0, gigabytes * 2**30))
