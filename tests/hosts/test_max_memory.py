"""Memory limits: words to bytes by device, refusals, and models that are placed within them."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import ModelError
from training_pro.hosts import memory as max_memory
from training_pro.hosts.standalone import StandaloneHost

GB = 10**9
EVERY = max_memory.EVERY_GPU
TWO_GPUS = {0: 24 * GB, 1: 24 * GB, "cpu": 64 * GB}
NO_GPU = {"cpu": 64 * GB}


def refusal(function, *arguments):
    with pytest.raises(ModelError) as refused:
        function(*arguments)
    return str(refused.value)


@pytest.fixture
def limits_on(monkeypatch):
    """The limits of these words on a machine with this memory."""

    def limits(memory, *words):
        monkeypatch.setattr(max_memory, "_device_memory", lambda: memory)
        return max_memory.device_limits(max_memory.parse_limits(words))

    return limits


def test_limits_are_read_in_gb_or_mb():
    read = max_memory.parse_limits
    assert read(["20gb", "1=10GB", "CPU=30GB"]) == {EVERY: 20 * GB, 1: 10 * GB, "cpu": 30 * GB}
    assert (read(["48000MB"]), read(["0=1.5GiB"]), read([])) == ({EVERY: 48 * GB}, {0: 3 * 2**29}, {})
    for words, reason in {
        ("20",): "'20' is not a valid memory limit. Write 20GB or",
        ("-5GB",): "'-5GB' is not a valid memory limit.",
        ("0GB",): "a limit must be above 0.",
    }.items():
        assert reason in refusal(read, words)


def test_only_devices_that_are_named_are_used(limits_on):
    assert limits_on(TWO_GPUS, "20GB", "1=10GB") == {0: 20 * GB, 1: 10 * GB}
    assert limits_on(TWO_GPUS, "1=10GB") == {1: 10 * GB}
    assert limits_on(TWO_GPUS, "20GB", "cpu=30GB") == {0: 20 * GB, 1: 20 * GB, "cpu": 30 * GB}


@pytest.mark.parametrize(
    ("memory", "words", "reason"),
    [
        (NO_GPU, "20GB", "this machine has no GPU. Limit the CPU memory instead"),
        (NO_GPU, "0=20GB", "there is no GPU 0. This machine has 0 GPUs."),
        (TWO_GPUS, "2=20GB", "there is no GPU 2. This machine has 2 GPUs, numbered from 0."),
        (TWO_GPUS, "48GB", "GPU 0 has 24 GB, so a limit of 48 GB has no effect."),
        (NO_GPU, "cpu=65GB", "the CPU has 64 GB, so a limit of 65 GB has no effect."),
    ],
)
def test_a_limit_that_this_machine_cannot_have_is_refused(limits_on, memory, words, reason):
    assert reason in refusal(limits_on, memory, words)


def limited_host(place, *limits, loading="auto"):
    return StandaloneHost(place.folders, model=str(place.tiny), loading=loading, max_memory=limits)


def test_a_run_within_the_limits_gives_the_same_lora_and_its_log_names_them(place):
    for name, host in (("plain", place.host()), ("limited", limited_host(place, "cpu=900MB"))):
        place.train(host, name=name, max_steps=1)
    logs = [json.loads((place.lora(name) / "training_log.json").read_text()) for name in ("plain", "limited")]
    assert place.weights("plain") == place.weights("limited")
    assert "max_memory" not in logs[0] and logs[1]["max_memory"] == "cpu=900MB"


def test_a_model_that_does_not_fit_is_refused_with_the_way_out(place):
    said = refusal(limited_host(place, "cpu=0.1MB").loaded_model)
    assert said.startswith("tiny needs more memory than --max-memory allows: ")
    assert said.endswith("add a limit for another device, load the model in 4-bit, or choose a smaller model.")
    assert "--max-memory" in refusal(limited_host(place, "cpu=0.1MB", loading="4bit").loaded_model)
