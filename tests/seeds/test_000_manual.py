"""Promises of the manual of the original Training PRO."""

from __future__ import annotations

from collections import Counter

import pytest
from training_pro.chunking import SlicingRules, slice_blocks
from training_pro.core.engine import PerplexityRequest
from training_pro.core.jobs import Job, PerplexityMeasured, Session
from training_pro.data.report import largest_batch
from training_pro.data.text import build_slice_map
from training_pro.dementor import slice_windows
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.interface.page import build_page
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.presets import goals
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import (
    change,
    checked,
    lora_weights,
    memory_model,
    rates,
    settings,
    steps_of,
)
from training_pro.tests.slicing_laws import encode_words, find_stops
from training_pro.tests.tiny import Workspace

STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."
LONG_STORY = " ".join([STORY] * 100)
STEPS_PER_EPOCH = 4


def blocks(text, **rules):
    return slice_blocks(text, encode_words, SlicingRules(**{"cutoff": 6, "overlap": False, **rules}), find_stops)


def windows(text, cutoff):
    return slice_windows(text, encode_words, SlicingRules(cutoff=cutoff, chunking="dementor"), find_stops)


@pytest.mark.long
def test_fp_low_epoch_annealing_is_constant_in_the_first_epoch_and_a_cosine_after_it(place):
    annealed = rates("FP_low_epoch_annealing", steps=30)
    assert list(annealed) == pytest.approx([1.0] * 10 + list(rates("cosine", steps=20)))
    steps = steps_of(place, schedule="FP_low_epoch_annealing", warmup_steps=0, epochs=2)
    first, second = ([step.learning_rate for step in part] for part in (steps[:4], steps[4:]))
    assert len(set(first)) == 1 and second == sorted(set(second), reverse=True) and len(second) == STEPS_PER_EPOCH


def test_you_can_make_a_scheduler_of_your_own():
    own = rates("0:0 0.5:1 1:0.5")
    assert own[0] < 0.05 and max(own) == pytest.approx(1) and own[-1] == pytest.approx(0.5, abs=0.02)
    assert "`0:0 0.5:1 1:0.5`" in read_page("Follow the code to make your own scheduler.")


@pytest.mark.long
def test_a_png_at_the_end_shows_the_learning_rate_and_the_loss_with_the_epochs(tmp_path, tiny, monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    figures, save = [], figure_module.Figure.savefig
    monkeypatch.setattr(
        figure_module.Figure, "savefig", lambda figure, *a, **k: figures.append(figure) or save(figure, *a, **k)
    )
    place = Workspace(standalone_folders(tmp_path / "user_data"), tiny)
    place.write("story.txt", TRAINING_TEXT)
    place.train(epochs=2)
    assert (place.lora() / "training_graph.png").read_bytes().startswith(b"\x89PNG")
    (axes, learning_rates) = figures[0].axes
    assert {"loss", "smoothed loss"} <= {line.get_label() for line in axes.lines}
    assert [line.get_label() for line in learning_rates.lines] == ["learning rate"]
    (epochs,) = axes.child_axes
    ticks = zip(epochs.get_xticks(), [label.get_text() for label in epochs.get_xticklabels()], strict=True)
    assert (epochs.get_xlabel(), dict(ticks)) == ("epoch", {STEPS_PER_EPOCH: "1", 2 * STEPS_PER_EPOCH: "2"})
    assert "`training_graph.png`" in read_page("A PNG of the graph is saved at the end.")


@pytest.mark.long
def test_the_target_selector_trains_more_weights_with_q_k_v_and_the_most_with_q_k_v_o(place):
    assert SETTINGS["targets"].default == "all-linear"
    assert "The default is all linear layers" in read_page("q, v is what you should use as targets.")
    sizes = []
    for targets in ("q-v", "q-k-v", "q-k-v-o"):
        counts = Counter()
        place.train(name=targets, targets=targets, max_steps=1)
        for name, tensor in lora_weights(place, targets).items():
            counts[name.split(".")[-3]] += tensor.numel()
        assert set(counts) == {f"{letter}_proj" for letter in targets.split("-")}
        sizes.append(counts.total())
    assert sizes[0] < sizes[1] < sizes[2] == 2 * sizes[0]


def test_dementor_comes_as_presets_of_one_constant_epoch_and_of_two_with_annealing():
    presets = [preset.values for preset in goals() if preset.values.get("chunking") == "dementor"]
    plans = [(values["epochs"], values["schedule"]) for values in presets]
    assert plans == [(1, "constant"), (2, "FP_low_epoch_annealing")]
    statement = "Use DEMENTOR with 1 epoch at a constant rate, or with 2 epochs and FP_low_epoch_annealing."
    assert read_page(statement) == "Choose one of the two DEMENTOR presets."


@pytest.mark.long
@pytest.mark.parametrize(("chunking", "deeper"), [("dementor", True), ("blocks", False)])
def test_a_longer_cutoff_makes_dementor_learn_deeper_which_is_contrary_to_plain_blocks(place, chunking, deeper):
    one_epoch = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 1e-3, "chunking": chunking}
    for cutoff in (32, 96):
        place.train(name=f"cutoff{cutoff}", cutoff=cutoff, **one_epoch)
    job = Job("perplexity", "a test")
    request = PerplexityRequest("story.txt", ("cutoff32", "cutoff96"), stride=16, max_length=32)
    PeftEngine().perplexity(request, place.settings(), place.host(), job)
    losses = {event.lora: event.loss for event in job.log.since(0) if isinstance(event, PerplexityMeasured)}
    assert (losses["cutoff96"] < losses["cutoff32"]) == deeper


def test_a_longer_cutoff_makes_dementor_show_each_sentence_more_often():
    """In slightly fewer windows, where the manual says more; plain blocks become far fewer."""
    short, *between, long = (windows(LONG_STORY, cutoff) for cutoff in (12, 24, 60, 120))
    assert build_slice_map(long).seen_mean > 9 * build_slice_map(short).seen_mean
    assert int(long.lengths.sum()) > 9 * int(short.lengths.sum())
    counts = [len(sliced) for sliced in (short, *between, long)]
    assert counts == sorted(set(counts), reverse=True) and counts[-1] > 0.9 * counts[0]
    assert len(blocks(LONG_STORY, cutoff=120)) < 0.2 * len(blocks(LONG_STORY, cutoff=12))
    assert "slightly fewer windows" in read_page("A longer cutoff makes more DEMENTOR blocks.")


@pytest.fixture
def components(place):
    """The components of the page without choices, by their labels or texts."""
    page, _ = build_page(place.host(), PeftEngine(), Session(), loadings={"auto": "auto"})
    parts = [part for part in page.get_config_file()["components"] if not part["props"].get("choices")]
    return {part["props"].get("label") or part["props"].get("value"): part for part in parts}


def test_the_page_has_a_number_field_for_accumulation_and_a_button_that_saves(components):
    """The manual has a slider."""
    field, accumulation = components["Gradient Accumulation"], SETTINGS["accumulation"]
    assert (field["type"], field["props"]["value"]) == ("number", 1)
    assert [accumulation.read(value) for value in (1, 1024)] == [1, 1024]
    for value in (0, 1025):
        with pytest.raises(ValueError, match="Allowed: 1 to 1024"):
            accumulation.read(value)
    assert "number field that accepts 1 to 1024" in read_page("Gradient Accumulation is a slider.")
    assert components["Save checkpoint"]["type"] == "button"
    assert "Press Save checkpoint" in read_page("A button saves a checkpoint during training.")


def test_about_10_blocks_of_a_13b_model_in_4_bits_fit_into_24_gb():
    asked = settings(targets="q-v", cutoff=256, gradient_checkpointing="off")
    assert 7 <= largest_batch(memory_model(40, 5120, 13824, "4bit", 24, 256), asked) <= 13


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "same"), [({}, True), ({"batching": "by_length"}, False), ({"dropout": 0.1}, False)]
)
def test_batch_4_with_accumulation_2_and_batch_2_with_accumulation_4_train_the_same_weights(place, more, same):
    """The manual says that they never do."""
    for name, (batch, accumulation) in {"a": (4, 2), "b": (2, 4)}.items():
        place.train(name=name, batch_size=batch, accumulation=accumulation, max_steps=2, **more)
    one, other = lora_weights(place, "a"), lora_weights(place, "b")
    whole = change({key: 0 * weight for key, weight in one.items()}, one)
    assert (change(one, other).norm() < 1e-4 * whole.norm()) == same
    statement = "Batch size 4 with accumulation 2 produces other weights than batch size 2 with accumulation 4."
    assert read_page(statement).startswith("Both produce the same weights apart from rounding")


def test_check_suggests_a_warmup_and_how_often_to_save(place):
    too_much = {"warmup_steps": 100, "save_each_epoch": False, "backup_minutes": 0, "epochs": 5}
    suggested = {suggestion.key: suggestion for suggestion in checked(place, **too_much).suggestions}
    warmup, save = suggested["warmup_steps"], suggested["save_every"]
    assert not warmup.keep and "rises until step 100, and the run has 20 steps" in warmup.why
    assert (save.keep, save.value, save.why) == (False, 5, "The run saves nothing before it ends.")
    followed = {**too_much, "warmup_steps": warmup.value, "save_every": save.value}
    assert all(s.keep for s in checked(place, **followed).suggestions if s.key in ("warmup_steps", "save_every"))
