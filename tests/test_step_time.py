"""The simulated time of a step against published rates, and the figures of docs/scale.md against the script."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import sqrt

import pytest
from training_pro.bench import step_time
from training_pro.bench.simulation import (
    GPUS,
    LORA,
    POINTS,
    SOURCES,
    TOLERANCE,
    Point,
    Setup,
    published_rates,
    simulate,
    simulator,
    traffic,
)

FULL_FSDP = Setup("llama-3.1-8b", GPUS["h100"], 8, "fsdp", recomputed=1)


def name(point: Point) -> str:
    return f"{point.source}: {point.setup.model}, {point.setup.gpus} x {point.setup.gpu.name}"


@pytest.mark.parametrize("point", [point for point in POINTS if not point.miss], ids=name)
def test_a_published_rate_is_met_within_fifteen_percent(point):
    assert abs(point.error) <= TOLERANCE == 0.15


@pytest.mark.parametrize("point", [point for point in POINTS if point.miss], ids=name)
def test_a_point_that_is_called_a_miss_is_one(point):
    assert abs(point.error) > TOLERANCE


def test_each_kind_of_gpu_is_fitted_on_one_point_and_most_points_are_tests():
    fitted = [point for point in POINTS if point.fitted]
    assert sorted(point.setup.gpu.name for point in fitted) == sorted(gpu.name for gpu in GPUS.values())
    for point in fitted:
        assert point.setup.gpu.share == round(published_rates.fit_share(point), 2)
    tests = [point for point in POINTS if not point.fitted and not point.miss]
    assert len(tests) >= 4
    assert len({point.source for point in tests}) >= 4


def test_the_published_lora_on_one_h100_is_a_test_and_not_fitted():
    (point,) = (point for point in POINTS if point.rate == 12472.87)
    assert (point.setup.model, point.setup.gpus, point.setup.rank, point.fitted) == ("llama-3.1-8b", 1, 16, False)
    assert simulate(point.setup).mfu == pytest.approx(0.41, rel=TOLERANCE)


def test_the_page_has_the_figures_of_the_script():
    page = step_time.PAGE.read_text(encoding="utf-8")
    assert page == step_time.with_tables(page), "run: python3 bench/step_time.py tables"


def test_the_page_names_the_address_of_every_point():
    page = step_time.PAGE.read_text(encoding="utf-8")
    assert {point.source for point in POINTS} == SOURCES.keys()
    assert [address for address in SOURCES.values() if address not in page] == []


def rate(source: str, **named: object) -> float:
    """The published rate of the one point with these values in its setup."""
    points = [point for point in POINTS if point.source == source]
    (found,) = (p.rate for p in points if all(getattr(p.setup, key) == value for key, value in named.items()))
    return found


def test_figures_in_the_text_of_the_page_follow_from_their_terms():
    page = " ".join(step_time.PAGE.read_text(encoding="utf-8").split())
    hours = 54 * 24 * 16_384 / 419
    for figure in (
        f"524,288 = {250e9 / 524_288:,.0f} steps",
        f"10,000 × 19.85 s = {10_000 * 19.85 / 86_400:.1f} days",
        f"{10_000 * 19.85 / 8 / 3600:.1f} hours if 16 cores",
        f"/ 419 = {hours:,.0f} GPU hours",
        f"one interruption in {hours / 64:.0f} hours ({hours / 64 / 24:.0f} days)",
        f"√(2 × 30 s × 792 h) = {sqrt(2 * 30 * 792 * 3600) / 3600:.1f} hours",
    ):
        assert figure in page
    many = [
        1 - rate("torchtitan, H100", gpus=128, compiled=way) / rate("torchtitan, H100", gpus=8, compiled=way)
        for way in (True, False)
    ]
    assert f"128 GPUs are {min(many):.0%} to {max(many):.0%} slower" in page
    two = [
        1 - rate("NeMo AutoModel", gpus=16, model=model) / rate("NeMo AutoModel", gpus=8, model=model)
        for model in ("llama-3.1-70b", "qwen2.5-32b")
    ]
    assert f"two machines are {min(two):.0%} to {max(two):.0%} slower" in page
    tensor = 1 - rate("KempnerForge", tensor=2, gpus=2) / rate("KempnerForge", gpus=1)
    assert f"two GPUs in one machine are {tensor:.0%} slower" in page
    (unknown,) = (point for point in POINTS if point.miss == published_rates.NETWORK)
    needed = traffic(unknown.setup).total / (unknown.setup.step_tokens / unknown.setup.gpus / unknown.rate)
    assert f"needs {needed / 1e9:.0f} GB/s per machine, {needed / 50e9:.0%}" in page


def test_every_point_is_a_setup_that_can_be():
    assert [point for point in POINTS if point.setup.problem()] == []


def test_a_page_without_markers_is_refused():
    with pytest.raises(SystemExit, match="summary"):
        step_time.with_tables("no table here")


def test_weights_are_those_of_the_models():
    assert replace(LORA, rank=0).trained == 8_030_261_248
    assert LORA.trained == 41_943_040
    assert replace(LORA, targets=("q", "v")).trained == 32 * 16 * (4096 + 4096 + 4096 + 1024)
    assert replace(LORA, model="llama-3.1-405b").weights == pytest.approx(405.85e9, rel=1e-3)


def test_operations_agree_with_those_behind_published_utilization():
    """NeMo counts two thirds of full fine-tuning for a LoRA; torchtitan counts attention without a mask."""
    assert simulator.model_flops(replace(LORA, rank=0)) * 2 / 3 == pytest.approx(402e12 / 12472.87, rel=0.01)
    llama = published_rates.TITAN_A100
    halved = 3 * simulator.attention_flops(llama)
    assert simulator.model_flops(llama) + halved == pytest.approx(0.611 * 312e12 / 2162, rel=0.02)


def test_selective_checkpointing_repeats_the_products_of_every_second_layer():
    for model in ("llama-3.1-8b", "llama-2-13b", "llama-2-70b"):
        layers = simulator.find_shape(model).linears
        sizes = {layer: wide * narrow for layer, (wide, narrow) in layers.items()}
        repeated = (sizes["k"] + sizes["o"] + sizes["up"]) / sum(sizes.values())
        assert repeated == pytest.approx(published_rates.HALF_OF_PRODUCTS, abs=0.03)


def test_bytes_sent_follow_the_formulas_of_the_page():
    assert traffic(LORA).total == 0
    ddp = replace(LORA, gpus=4, method="ddp", accumulation=5)
    assert traffic(ddp).total == pytest.approx(2 * 3 / 4 * 4 * 41_943_040)
    fsdp = replace(FULL_FSDP, accumulation=3)
    assert traffic(fsdp).total == pytest.approx(3 * 7 / 8 * (2 * 2 + 4) * 8_030_261_248)
    for recomputed, times in ((0, 8), (1, 12)):
        tensor = replace(FULL_FSDP, gpus=4, tensor=4, method="one", recomputed=recomputed)
        assert traffic(tensor).tensor == pytest.approx(times * 32 * 3 / 4 * 2 * 8192 * 4096)


def test_accumulation_saves_traffic_for_data_parallel_only():
    for method, times in (("ddp", 1), ("fsdp", 8)):
        setup = replace(LORA, gpus=8, method=method)
        assert traffic(replace(setup, accumulation=8)).total == pytest.approx(times * traffic(setup).total)


def test_fsdp_divides_the_memory_and_data_parallel_does_not():
    ddp, fsdp = (simulate(replace(LORA, gpus=8, method=method)).memory for method in ("ddp", "fsdp"))
    alone = simulate(LORA).memory
    assert (ddp.weights, ddp.trained) == (alone.weights, alone.trained)
    assert fsdp.trained == pytest.approx(alone.trained / 8)
    assert fsdp.weights < alone.weights / 4


def test_memory_of_a_gpu_alone_is_met():
    alone = [point for point in POINTS if point.memory and point.setup.gpus == 1]
    assert [each for each in alone if abs(simulate(each.setup).memory.total / each.memory - 1) > 0.08] == []


def test_a_slow_network_is_waited_for_and_a_fast_one_is_hidden():
    slow, fast = (simulate(replace(FULL_FSDP, gpus=16, network=network)) for network in (1e7, 50e9))
    assert slow.network > 50 * slow.products
    assert fast.network < 0.05 * fast.products


def test_gradient_checkpointing_costs_time_and_saves_memory():
    off, on = simulate(LORA), simulate(replace(LORA, recomputed=1))
    assert 1.2 < on.seconds / off.seconds < 1.5
    assert on.memory.activations < off.memory.activations / 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "8"], "Choose ddp or fsdp"),
        (["--gpus", "8", "--tensor", "3"], "groups of 3"),
        (["--gpus", "16", "--tensor", "16"], "8 key heads"),
        (["--rank", "16", "--targets", "q,x"], "no layers x"),
        (["--batch", "0"], "--batch must be more than 0, but it is 0"),
        (["--rank", "-1"], "--rank must be 0 or more, but it is -1"),
        (["--gpu-share", "0"], "--gpu-share must be more than 0"),
        (["--model", "nothing"], "no model 'nothing'"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(arguments, said):
    with pytest.raises(SystemExit, match=said):
        step_time.main(arguments)


def test_a_folder_with_a_config_is_a_model(tmp_path, capsys):
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152, "intermediate_size": 1536,'
        '"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": true}'
    )
    step_time.main(["--model", str(tmp_path)])
    assert "tokens/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "There is no model"),
        ("{}", "There is no model"),
        (
            '{"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "num_local_experts": 8}',
            "experts, which are not simulated",
        ),
    ],
    ids=["broken", "empty", "experts"],
)
def test_a_config_that_cannot_be_simulated_is_refused(tmp_path, config, said):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(SystemExit, match=said):
        step_time.main(["--model", str(tmp_path)])


def test_it_runs_as_a_program():
    command = [sys.executable, str(step_time.__file__), "--rank", "16", "--checkpointing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "LoRA r16, gradient checkpointing" in done.stdout
