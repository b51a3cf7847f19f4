"""Runs on a real GPU: every kind of weights, optimizer and acceleration. Skipped where there is none."""

from __future__ import annotations

import gc
import importlib.util
import math

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.jobs import Job, MachineUse, Step
from training_pro.hosts.standalone import StandaloneHost
from training_pro.hosts.tiny import TRAINING_TEXT, make_tiny
from training_pro.tests.engine.watching import events_of, stopping_at
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
TEN_STEPS = {"cutoff": 128, "batch_size": 4, "max_steps": 10, "rank": 8, "learning_rate": 3e-3}
TEN_STEPS |= {"save_each_epoch": False, "recall_passages": 0}
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
SIZES |= {"num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A Llama of 26 million random weights, with the tiny model's tokenizer."""
    folder = tmp_path_factory.mktemp("small") / "small"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(make_tiny(folder.with_name("tiny"))).save_pretrained(folder)
    return folder


@pytest.fixture
def host(place, small):
    story = "\n\n".join(f"Day {day}. {part}" for day in range(60) for part in TRAINING_TEXT.split("\n\n"))
    place.write("story.txt", story)
    return lambda loading="auto": StandaloneHost(place.folders, model=str(small), loading=loading)


def allocated_bytes():
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # a matrix product keeps one for the next
    return torch.cuda.memory_allocated()


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


OPTIMIZERS = ("adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd")
CASES = [
    *(("auto", {"optimizer": name, "learning_rate": 0.9 if name == "sgd" else 3e-3}) for name in OPTIMIZERS),
    *((loading, {}) for loading in ("auto", "float16", "float32", "8bit", "4bit")),
    *(("4bit", more) for more in ({"gradient_checkpointing": "on"}, {"dora": True})),
    *(("auto", more) for more in ({"liger": True}, {"compile": True, "packing": "off"}, {"train_head": True})),
    ("float32", {"tf32": True, "packing": "off"}),
    ("auto", {"dora": True, "dropout": 0.05, "neftune_noise": 5, "gradient_checkpointing": "on"}),
    ("auto", {"accumulation": 2, "cutoff": 64, "eval_share": 0.2, "eval_every": 5}),
]


def package_of(loading, changes):
    return "liger_kernel" if "liger" in changes else "bitsandbytes" if "bit" in f"{loading} {changes}" else "torch"


@pytest.mark.parametrize(("loading", "changes"), [pytest.param(*c, marks=needs(package_of(*c))) for c in CASES])
def test_a_run_learns_and_leaves_the_model_and_the_memory_as_they_were(host, place, caplog, loading, changes):
    lender, job = host(loading), Job("training", "a test")
    base = lender.loaded_model().model
    assert next(base.parameters()).is_cuda
    before, allocated = {n: value.clone() for n, value in base.state_dict().items()}, allocated_bytes()
    place.train(lender, job=job, **{**TEN_STEPS, **changes})
    losses = [step.loss for step in events_of(job, Step)]
    assert all(map(math.isfinite, losses)) and len(losses) == 10 and losses[-1] < losses[0] - 0.3
    use = events_of(job, MachineUse)[-1]
    assert use.cards == 1 and use.peak > allocated and use.total > use.peak
    saved = load_file(place.lora() / "adapter_model.safetensors")
    assert all(torch.isfinite(value).all() for value in saved.values())
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    caplog.clear()  # a record of Liger's import errors holds their frames, and with them the run's optimizer
    assert allocated_bytes() < allocated + 2 * 2**20


@pytest.mark.parametrize("loading", ["float32", "auto", pytest.param("4bit", marks=needs("bitsandbytes"))])
def test_the_same_run_gives_the_same_weights_also_when_it_is_resumed(host, place, loading):
    values = {**TEN_STEPS, "dropout": 0.1}
    for name in ("one", "two"):
        place.train(host(loading), name=name, **values)
    place.train(host(loading), name="three", job=stopping_at(5), **values)
    place.train(host(loading), name="three", resume="newest", **values)
    assert place.weights("one") == place.weights("two") == place.weights("three")
