"""Runs on a real GPU: every kind of weights, optimizer and acceleration. Skipped where there is none."""

from __future__ import annotations

import gc
import importlib.util
import math
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.jobs import Job, MachineUse, Note, ProbeDone, Request, Step
from training_pro.engine.compute.fused_ops import half_rms_norm
from training_pro.engine.compute.layer_patches import rounds_before_weight
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.hosts.tiny import TRAINING_TEXT, make_tiny
from training_pro.tests.tiny import watched_job
from transformers.models.llama.modeling_llama import LlamaRMSNorm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
LONG_TEXT = "\n\n".join(f"Day {day}. {part}" for day in range(60) for part in TRAINING_TEXT.split("\n\n"))
TEN_STEPS = {
    "cutoff": 128,
    "batch_size": 4,
    "max_steps": 10,
    "rank": 8,
    "learning_rate": 3e-3,
    "save_each_epoch": False,
    "recall_passages": 0,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A Llama of 26 million random weights, with the tiny model's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("small") / "small"
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=512,
        max_position_embeddings=4096,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(make_tiny(folder.with_name("tiny"))).save_pretrained(folder)
    return folder


@pytest.fixture
def host(place, small):
    place.write("story.txt", LONG_TEXT)

    def make(loading="auto"):
        return StandaloneHost(place.folders, model=str(small), loading=loading)

    return make


def of_kind(job, kind):
    return [event for event in job.log.since(0) if isinstance(event, kind)]


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def allocated_bytes():
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # a matrix product keeps one for the next
    return torch.cuda.memory_allocated()


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


CASES = [
    pytest.param("auto", {}, id="bfloat16"),
    pytest.param("float16", {}, id="float16"),
    pytest.param("float32", {}, id="float32"),
    pytest.param("float32", {"tf32": True}, id="TF32"),
    pytest.param("8bit", {}, id="8-bit", marks=needs("bitsandbytes")),
    pytest.param("4bit", {}, id="4-bit", marks=needs("bitsandbytes")),
    pytest.param("4bit", {"gradient_checkpointing": "on"}, id="4-bit-checkpointing", marks=needs("bitsandbytes")),
    pytest.param("4bit", {"dora": True}, id="4-bit-DoRA", marks=needs("bitsandbytes")),
    *(
        pytest.param(
            "auto", {"optimizer": name, **more}, id=name, marks=[needs("bitsandbytes")] if "8bit" in name else []
        )
        for name, more in (
            ("adamw_torch_fused", {}),
            ("adamw_8bit", {}),
            ("paged_adamw_8bit", {}),
            ("adafactor", {}),
            ("lion_8bit", {"learning_rate": 3e-4}),
            ("sgd", {"learning_rate": 0.9}),
        )
    ),
    pytest.param("auto", {"liger": True}, id="Liger", marks=needs("liger_kernel")),
    pytest.param("auto", {"compile": True, "packing": "off"}, id="compile"),
    pytest.param("auto", {"gradient_checkpointing": "on"}, id="checkpointing"),
    pytest.param("auto", {"packing": "off"}, id="padded"),
    pytest.param("auto", {"train_head": True}, id="head"),
    pytest.param("auto", {"dora": True, "dropout": 0.05, "neftune_noise": 5}, id="DoRA-dropout-NEFTune"),
    pytest.param("auto", {"accumulation": 2, "cutoff": 64, "eval_share": 0.2, "eval_every": 5}, id="evaluation"),
]


@pytest.mark.parametrize(("loading", "changes"), CASES)
def test_a_run_learns_and_leaves_the_model_and_the_memory_as_they_were(host, place, caplog, loading, changes):
    lender, job = host(loading), Job("training", "a test")
    base = lender.loaded_model().model
    assert next(base.parameters()).is_cuda
    before, allocated = weights_of(base), allocated_bytes()
    place.train(lender, job=job, **{**TEN_STEPS, **changes})
    losses = [step.loss for step in of_kind(job, Step)]
    assert all(map(math.isfinite, losses)) and len(losses) == 10
    assert losses[-1] < losses[0] - 0.3
    use = of_kind(job, MachineUse)[-1]
    assert use.cards == 1 and use.peak > allocated and use.total > use.peak
    saved = load_file(place.lora() / "adapter_model.safetensors")
    assert all(torch.isfinite(value).all() for value in saved.values())
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    caplog.clear()  # a record of Liger's import errors holds their frames, and with them the run's optimizer
    assert allocated_bytes() < allocated + 2 * 2**20


def test_the_losses_are_those_of_the_cpu(host, place, small):
    """Only what rounds differently differs: float32 without TF32."""

    def losses(lender, name):
        job = Job("training", "a test")
        place.train(lender, job=job, name=name, **TEN_STEPS)
        return [step.loss for step in of_kind(job, Step)]

    on_gpu = host("float32")
    with on_the_cpu():
        on_cpu = host("float32")
        assert not next(on_cpu.loaded_model().model.parameters()).is_cuda
        expected = losses(on_cpu, "here")
    assert losses(on_gpu, "there") == pytest.approx(expected, rel=1e-3)


@contextmanager
def on_the_cpu():
    available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = available


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_fused_norm_is_that_of_the_model(dtype):
    """Also for gradients whose rows don't follow each other, as behind the transpose of an attention layer."""
    norm = LlamaRMSNorm(64).to("cuda", dtype).requires_grad_(False)
    norm.weight.data.uniform_(0.5, 1.5)
    rows = torch.randn(2, 10, 4, 64, device="cuda", dtype=dtype)
    upstream = torch.randn(2, 4, 10, 64, device="cuda", dtype=dtype)
    assert rounds_before_weight(norm)

    def output_and_gradient(forward):
        inputs = rows.clone().requires_grad_()
        with torch.autocast("cuda", dtype=dtype):
            output = forward(inputs)
        output.transpose(1, 2).backward(upstream)
        assert output.dtype == dtype
        return output.float(), inputs.grad.float()

    expected = output_and_gradient(norm)
    actual = output_and_gradient(lambda x: half_rms_norm(x, norm.weight, norm.variance_epsilon))
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() < 5e-3 * other.norm()


@pytest.mark.parametrize("loading", ["float32", "auto", pytest.param("4bit", marks=needs("bitsandbytes"))])
def test_the_same_run_gives_the_same_weights_also_when_it_is_resumed(host, place, loading):
    values = {**TEN_STEPS, "dropout": 0.1}
    for name in ("one", "two"):
        place.train(host(loading), name=name, **values)
    job = watched_job(stop_at_step(5))
    place.train(host(loading), name="three", job=job, **values)
    place.train(host(loading), name="three", resume="newest", **values)
    assert place.weights("two") == place.weights("one")
    assert place.weights("three") == place.weights("one")


def stop_at_step(number):
    def watch(job, event):
        if isinstance(event, Step) and event.step == number:
            job.control.ask(Request.STOP)

    return watch


@pytest.fixture
def limited_memory():
    """A GPU with 1 GB more than is in use now; torch refuses more with its usual error."""

    def limit():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1e9) / total)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_batch_that_does_not_fit_is_repeated_in_parts(host, place, limited_memory):
    lender, job = host(), Job("training", "a test")
    lender.loaded_model()
    limited_memory()
    place.train(lender, job=job, **{**TEN_STEPS, "cutoff": 512, "batch_size": 32, "max_steps": 2})
    assert len(of_kind(job, Step)) == 2
    assert [event.text for event in job.log.since(0) if "memory" in getattr(event, "text", "")]


def test_a_probe_measures_the_memory_of_a_step_and_finds_the_largest_batch(host, place):
    lender, job = host(), Job("probe", "a test")
    settings = place.settings(**{**TEN_STEPS, "cutoff": 512})
    PeftEngine().probe(settings, lender, job)
    (done,) = of_kind(job, ProbeDone)
    assert torch.cuda.get_device_name() in done.device
    assert done.peak > 50e6 and done.largest_batch > 4 and done.fits


def test_answers_and_samples_come_from_the_gpu(host, place):
    lender, job = host(), Job("training", "a test")
    place.train(
        lender, job=job, **{**TEN_STEPS, "sample_every": 5, "sample_prompts": "The keeper", "sample_length": 8}
    )
    assert not [note for note in of_kind(job, Note) if "failed" in note.text]
    place.attach_lora(lender, "a")
    assert place.answer(lender)
