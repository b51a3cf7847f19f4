"""Memory limits: words to bytes by device, refusals, and models that are placed within them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from accelerate import infer_auto_device_map
from accelerate.utils import compute_module_sizes
from training_pro.commands import options
from training_pro.commands.train import _parse_args
from training_pro.core.errors import ModelError
from training_pro.core.host import ModelCard
from training_pro.hosts import max_memory
from training_pro.hosts.max_memory import EVERY_GPU, device_limits, parse_limits
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.train.cli_command import cli_command_html
from training_pro.tests.fakes import FakeHost
from transformers import AutoModelForCausalLM

GB = 10**9
TWO_GPUS = {0: 24 * GB, 1: 24 * GB, "cpu": 64 * GB}
NO_GPU = {"cpu": 64 * GB}


@pytest.fixture
def devices(monkeypatch):
    """Set the memory of the machine's devices."""
    return lambda memory: monkeypatch.setattr(max_memory, "_device_memory", lambda: memory)


def refusal(function, *arguments):
    with pytest.raises(ModelError) as refused:
        function(*arguments)
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (["48000MB"], {EVERY_GPU: 48 * GB}),
        (["20gb", "1=10GB", "CPU=30GB"], {EVERY_GPU: 20 * GB, 1: 10 * GB, "cpu": 30 * GB}),
        (["0=1.5GiB"], {0: 3 * 2**29}),
        ([], {}),
    ],
)
def test_limits_are_read_in_gb_or_mb(words, limits):
    assert parse_limits(words) == limits


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["20"], "--max-memory: '20' is not a valid memory limit. Write 20GB or"),
        (["-5GB"], "--max-memory: '-5GB' is not a valid memory limit."),
        (["gpu=5GB"], "--max-memory: 'gpu=5GB' is not a valid memory limit."),
        (["0GB"], "--max-memory 0GB: a limit must be above 0."),
        (["0=5GB", "0=6GB"], "--max-memory 0=6GB: there are two limits for GPU 0. Remove one of them."),
        (["cpu=5GB", "cpu=6GB"], "--max-memory cpu=6GB: there are two limits for the CPU. Remove one of them."),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(words, reason):
    assert refusal(parse_limits, words).startswith(reason)


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (["20GB"], {0: 20 * GB, 1: 20 * GB}),
        (["20GB", "1=10GB"], {0: 20 * GB, 1: 10 * GB}),
        (["1=10GB"], {1: 10 * GB}),
        (["20GB", "cpu=30GB"], {0: 20 * GB, 1: 20 * GB, "cpu": 30 * GB}),
    ],
)
def test_only_devices_that_are_named_are_used(devices, words, limits):
    devices(TWO_GPUS)
    assert device_limits(parse_limits(words)) == limits


@pytest.mark.parametrize(
    ("memory", "words", "reason"),
    [
        (
            NO_GPU,
            ["20GB"],
            "--max-memory sets a limit for every GPU, but this machine has no GPU. "
            "Limit the CPU memory instead, for example cpu=30GB.",
        ),
        (NO_GPU, ["0=20GB"], "--max-memory: there is no GPU 0. This machine has 0 GPUs."),
        (TWO_GPUS, ["2=20GB"], "--max-memory: there is no GPU 2. This machine has 2 GPUs, numbered from 0."),
        (
            TWO_GPUS,
            ["48GB"],
            "--max-memory: GPU 0 has 24 GB, so a limit of 48 GB has no effect. Use a lower limit, or omit it.",
        ),
        (
            NO_GPU,
            ["cpu=65GB"],
            "--max-memory: the CPU has 64 GB, so a limit of 65 GB has no effect. Use a lower limit, or omit it.",
        ),
    ],
)
def test_a_limit_that_this_machine_cannot_have_is_refused(devices, memory, words, reason):
    devices(memory)
    assert refusal(device_limits, parse_limits(words)) == reason


def test_processes_that_train_together_have_a_gpu_each(devices, monkeypatch):
    devices(TWO_GPUS)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refusal(device_limits, parse_limits(["20GB"])).endswith("Omit --max-memory, or start only one process.")


def test_accelerate_places_the_layers_within_the_limits(devices, tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    sizes = compute_module_sizes(model)
    devices(TWO_GPUS)
    limit = sizes[""] * 0.95 / 10**6  # accelerate leaves room for the largest layer, too
    placement = infer_auto_device_map(
        model, device_limits(parse_limits([f"{limit:.6f}MB"])), no_split_module_classes=model._no_split_modules
    )
    assert set(placement.values()) == {0, 1}
    for gpu in (0, 1):
        assert sum(sizes[name] for name, device in placement.items() if device == gpu) <= limit * 10**6


def test_transformers_gets_the_limits(place, monkeypatch):
    given, load = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *a, **k: given.append(k) or load(*a, **k))
    place.host().loaded_model()
    limited_host(place, "cpu=1GB").loaded_model()
    plain, limited = given
    assert "max_memory" not in plain and plain["device_map"] == {"": "cpu"}
    assert (limited["device_map"], limited["max_memory"]) == ("auto", {"cpu": GB})


def limited_host(place, *limits):
    return StandaloneHost(place.folders, model=str(place.tiny), max_memory=limits)


def test_a_run_within_the_limits_gives_the_same_lora_and_its_log_names_them(place):
    for name, host in (("plain", place.host()), ("limited", limited_host(place, "cpu=900MB"))):
        place.train(host, name=name)
    logs = [json.loads((place.lora(name) / "training_log.json").read_text()) for name in ("plain", "limited")]
    assert place.weights("plain") == place.weights("limited")
    assert [log.get("max_memory") for log in logs] == [None, "cpu=900MB"]
    assert "max_memory" not in logs[0]


def test_a_model_that_does_not_fit_is_refused_with_the_way_out(place):
    said = refusal(limited_host(place, "cpu=0.1MB").loaded_model)
    assert said.startswith("tiny needs more memory than --max-memory allows: ")
    assert " not fit. Raise a limit, " in said
    assert said.endswith("add a limit for another device, load the model in 4-bit, or choose a smaller model.")


def test_a_library_that_finds_no_room_is_explained(place, tmp_path):
    model = shutil.copytree(place.tiny, tmp_path / "quantized")
    host = StandaloneHost(place.folders, model=str(model), loading="4bit", max_memory=["cpu=0.1MB"])
    assert "--max-memory" in refusal(host.loaded_model)


def test_the_command_line_has_it_and_the_page_shows_it_in_its_command(place):
    limits = ["20GB", "cpu=30GB"]
    parsed = _parse_args(["--model", "m", "--max-memory", *limits, "--name", "a"])
    assert parsed.max_memory == limits
    parsed.user_data, parsed.model = place.folders.user_data, str(place.tiny)
    host = options.make_host(parsed)
    assert host.card().max_memory == "20GB cpu=30GB"
    command = re.sub("<[^>]*>", "", cli_command_html({"name": "a", "data": ["story.txt"]}, host))
    assert "--max-memory 20GB cpu=30GB --name" in command


def test_in_the_webui_it_does_not_appear(place):
    """The webui loads the model, so its card has no limits and the command has none."""
    host = FakeHost(folders=place.folders)
    assert host.card() == ModelCard("toy", {}, None, "auto") and host.card().max_memory == ""
    assert "--max-memory" not in cli_command_html({"name": "a", "data": ["story.txt"]}, host)
