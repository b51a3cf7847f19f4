"""The simulated time of a step against published rates, and the figures of docs/scale.md against the script."""

import subprocess
import sys
from dataclasses import replace
from math import sqrt

import pytest
from training_pro.bench import simulation, step_time

FULL_FSDP = simulation.Setup("llama-3.1-8b", simulation.GPUS["h100"], 8, "fsdp", recomputed=1)


def test_published_rates_are_met_within_fifteen_percent_unless_called_a_miss():
    assert simulation.TOLERANCE == 0.15
    assert [
        point for point in simulation.POINTS if (abs(point.error) > simulation.TOLERANCE) != bool(point.miss)
    ] == []
    assert [point for point in simulation.POINTS if point.setup.problem()] == []
    alone = [point for point in simulation.POINTS if point.memory and point.setup.gpus == 1]
    assert [
        point for point in alone if abs(simulation.simulate(point.setup).memory.total / point.memory - 1) > 0.08
    ] == []


def test_each_kind_of_gpu_is_fitted_on_one_point_and_most_points_are_tests():
    fitted = [point for point in simulation.POINTS if point.fitted]
    assert sorted(point.setup.gpu.name for point in fitted) == sorted(gpu.name for gpu in simulation.GPUS.values())
    for point in fitted:
        assert point.setup.gpu.share == round(simulation.published_rates.fit_share(point), 2)
    assert len({point.source for point in simulation.POINTS if not point.fitted and not point.miss}) >= 4
    (lora,) = (point for point in simulation.POINTS if point.rate == 12472.87)
    assert not lora.fitted and simulation.simulate(lora.setup).mfu == pytest.approx(0.41, rel=0.15)


def test_the_page_has_the_figures_of_the_script_and_every_source():
    page = step_time.PAGE.read_text(encoding="utf-8")
    assert page == step_time.with_tables(page), "run: python3 bench/step_time.py tables"
    assert {point.source for point in simulation.POINTS} == simulation.SOURCES.keys()
    assert [address for address in simulation.SOURCES.values() if address not in page] == []
    with pytest.raises(SystemExit, match="summary"):
        step_time.with_tables("no table here")


def rate(source, **named):
    """The published rate of the one point with these values in its setup."""
    points = [point for point in simulation.POINTS if point.source == source]
    (found,) = (p.rate for p in points if all(getattr(p.setup, key) == value for key, value in named.items()))
    return found


def test_figures_in_the_text_of_the_page_follow_from_their_terms():
    page = " ".join(step_time.PAGE.read_text(encoding="utf-8").split())
    hours = 54 * 24 * 16_384 / 419
    titan, nemo = "torchtitan, H100", "NeMo AutoModel"
    many = [1 - rate(titan, gpus=128, compiled=way) / rate(titan, gpus=8, compiled=way) for way in (True, False)]
    models = ("llama-3.1-70b", "qwen2.5-32b")
    two = [1 - rate(nemo, gpus=16, model=model) / rate(nemo, gpus=8, model=model) for model in models]
    tensor = 1 - rate("KempnerForge", tensor=2, gpus=2) / rate("KempnerForge", gpus=1)
    (unknown,) = (point for point in simulation.POINTS if point.miss == simulation.published_rates.NETWORK)
    needed = simulation.traffic(unknown.setup).total / (
        unknown.setup.step_tokens / unknown.setup.gpus / unknown.rate
    )
    for figure in (
        f"524,288 = {250e9 / 524_288:,.0f} steps",
        f"10,000 × 19.85 s = {10_000 * 19.85 / 86_400:.1f} days",
        f"{10_000 * 19.85 / 8 / 3600:.1f} hours if 16 cores",
        f"/ 419 = {hours:,.0f} GPU hours",
        f"one interruption in {hours / 64:.0f} hours ({hours / 64 / 24:.0f} days)",
        f"√(2 × 30 s × 792 h) = {sqrt(2 * 30 * 792 * 3600) / 3600:.1f} hours",
        f"128 GPUs are {min(many):.0%} to {max(many):.0%} slower",
        f"two machines are {min(two):.0%} to {max(two):.0%} slower",
        f"two GPUs in one machine are {tensor:.0%} slower",
        f"needs {needed / 1e9:.0f} GB/s per machine, {needed / 50e9:.0%}",
    ):
        assert figure in page


def test_weights_and_operations_are_those_of_the_models():
    """NeMo counts two thirds of full fine-tuning for a LoRA; torchtitan counts attention without a mask."""
    assert (replace(simulation.LORA, rank=0).trained, simulation.LORA.trained) == (8_030_261_248, 41_943_040)
    assert replace(simulation.LORA, targets=("q", "v")).trained == 32 * 16 * (4096 + 4096 + 4096 + 1024)
    assert replace(simulation.LORA, model="llama-3.1-405b").weights == pytest.approx(405.85e9, rel=1e-3)
    model_flops = simulation.model_flops
    assert model_flops(replace(simulation.LORA, rank=0)) * 2 / 3 == pytest.approx(402e12 / 12472.87, rel=0.01)
    llama = simulation.published_rates.TITAN_A100
    flops = model_flops(llama) + 3 * simulation.simulator.attention_flops(llama)
    assert flops == pytest.approx(0.611 * 312e12 / 2162, rel=0.02)


def test_bytes_sent_follow_the_formulas_of_the_page():
    assert simulation.traffic(simulation.LORA).total == 0
    ddp = replace(simulation.LORA, gpus=4, method="ddp", accumulation=5)
    assert simulation.traffic(ddp).total == simulation.traffic(replace(ddp, accumulation=1)).total
    assert simulation.traffic(ddp).total == pytest.approx(2 * 3 / 4 * 4 * 41_943_040)
    assert simulation.traffic(replace(FULL_FSDP, accumulation=3)).total == pytest.approx(
        3 * 7 / 8 * 8 * 8_030_261_248
    )
    for recomputed, times in ((0, 8), (1, 12)):
        tensor = replace(FULL_FSDP, gpus=4, tensor=4, method="one", recomputed=recomputed)
        assert simulation.traffic(tensor).tensor == pytest.approx(times * 32 * 3 / 4 * 2 * 8192 * 4096)


def test_what_each_method_costs_and_saves():
    alone = simulation.simulate(simulation.LORA)
    ddp, fsdp = (
        simulation.simulate(replace(simulation.LORA, gpus=8, method=method)).memory for method in ("ddp", "fsdp")
    )
    assert (ddp.weights, ddp.trained) == (alone.memory.weights, alone.memory.trained)
    assert fsdp.trained == pytest.approx(alone.memory.trained / 8)
    assert fsdp.weights < alone.memory.weights / 4
    recomputed = simulation.simulate(replace(simulation.LORA, recomputed=1))
    assert 1.2 < recomputed.seconds / alone.seconds < 1.5
    assert recomputed.memory.activations < alone.memory.activations / 10
    slow, fast = (simulation.simulate(replace(FULL_FSDP, gpus=16, network=network)) for network in (1e7, 50e9))
    assert slow.network > 50 * slow.products and fast.network < 0.05 * fast.products


CONFIG = """{"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152, "intermediate_size": 1536,
"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": true}"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "8"], "Choose ddp or fsdp"),
        (["--gpus", "16", "--tensor", "16"], "8 key heads"),
        (["--rank", "16", "--targets", "q,x"], "no layers x"),
        (["--batch", "0"], "--batch must be more than 0, but it is 0"),
        (["--model", "nothing"], "no model 'nothing'"),
        (["--model", "broken"], "There is no model"),
        (["--model", "experts"], "experts, which are not simulated"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, config in (("broken", "{"), ("experts", CONFIG.replace("{", '{"num_local_experts": 8, '))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    with pytest.raises(SystemExit, match=said):
        step_time.main(arguments)


def test_it_runs_as_a_program_and_takes_a_folder_with_a_config_as_a_model(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    command = [sys.executable, step_time.__file__, "--model", str(tmp_path), "--rank", "16", "--checkpointing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "LoRA r16, gradient checkpointing" in done.stdout and "tokens/s" in done.stdout
