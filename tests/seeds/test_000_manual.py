"""Promises of the manual of the original Training PRO."""

from __future__ import annotations

import pytest
from training_pro.data.report import largest_batch
from training_pro.settings.presets import goals
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import checked, memory_model, settings
from training_pro.tests.tiny import make_workspace

STEPS_PER_EPOCH = 4


@pytest.mark.long
def test_a_png_at_the_end_shows_the_learning_rate_and_the_loss_with_the_epochs(tmp_path, tiny, monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    figures, save = [], figure_module.Figure.savefig
    monkeypatch.setattr(
        figure_module.Figure, "savefig", lambda figure, *a, **k: figures.append(figure) or save(figure, *a, **k)
    )
    place = make_workspace(tmp_path, tiny)
    place.train(epochs=2)
    assert (place.lora() / "training_graph.png").read_bytes().startswith(b"\x89PNG")
    (axes, learning_rates) = figures[0].axes
    assert {"loss", "smoothed loss"} <= {line.get_label() for line in axes.lines}
    assert [line.get_label() for line in learning_rates.lines] == ["learning rate"]
    (epochs,) = axes.child_axes
    ticks = zip(epochs.get_xticks(), [label.get_text() for label in epochs.get_xticklabels()], strict=True)
    assert (epochs.get_xlabel(), dict(ticks)) == ("epoch", {STEPS_PER_EPOCH: "1", 2 * STEPS_PER_EPOCH: "2"})
    assert "`training_graph.png`" in read_page("A PNG of the graph is saved at the end.")


def test_dementor_comes_as_presets_of_one_constant_epoch_and_of_two_with_annealing():
    presets = [preset.values for preset in goals() if preset.values.get("chunking") == "dementor"]
    plans = [(values["epochs"], values["schedule"]) for values in presets]
    assert plans == [(1, "constant"), (2, "FP_low_epoch_annealing")]
    statement = "Use DEMENTOR with 1 epoch at a constant rate, or with 2 epochs and FP_low_epoch_annealing."
    assert read_page(statement) == "Choose one of the two DEMENTOR presets."


def test_about_10_blocks_of_a_13b_model_in_4_bits_fit_into_24_gb():
    asked = settings(targets="q-v", cutoff=256, gradient_checkpointing="off")
    assert 7 <= largest_batch(memory_model(40, 5120, 13824, "4bit", 24, 256), asked) <= 13


def test_check_suggests_a_warmup_and_how_often_to_save(place):
    too_much = {"warmup_steps": 100, "save_each_epoch": False, "backup_minutes": 0, "epochs": 5}
    suggested = {suggestion.key: suggestion for suggestion in checked(place, **too_much).suggestions}
    warmup, save = suggested["warmup_steps"], suggested["save_every"]
    assert not warmup.keep and "rises until step 100, and the run has 20 steps" in warmup.why
    assert (save.keep, save.value, save.why) == (False, 5, "The run saves nothing before it ends.")
    followed = {**too_much, "warmup_steps": warmup.value, "save_every": save.value}
    assert all(s.keep for s in checked(place, **followed).suggestions if s.key in ("warmup_steps", "save_every"))
