"""Promises of the manual of the original Training PRO, one test for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import gradio as gr
import pytest
import torch
from safetensors.torch import load_file
from training_pro.chunking import SlicedText, SlicingRules, slice_blocks
from training_pro.core.engine import PerplexityRequest
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.core.jobs import CheckpointSaved, Job, PerplexityMeasured, RunControl, Session, Step
from training_pro.data.report import DatasetReport, MemoryModel, largest_batch
from training_pro.data.text import build_slice_map
from training_pro.dementor import slice_windows
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.interface.base import PageContext, form
from training_pro.interface.run.run_buttons import RunButtons
from training_pro.schedulers import SCHEDULES, ScheduleSteps, get_schedule, lr_multipliers
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.settings.presets import goals
from training_pro.tests.coming_from import read_page
from training_pro.tests.data.report.test_memory_estimate import EIGHT_B, FakeExamples
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.slicing_laws import encode_words, find_stops
from training_pro.tests.tiny import Workspace, watched_job
from training_pro.train_utils import StepPlan

BOS, EOS = 1, 2
STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."
SECTIONS = f"{STORY}\n\n\n{STORY}"
FOUR_EPOCHS = {"epochs": 4, "save_each_epoch": False}
STEPS_PER_EPOCH = 4
LLAMA_13B = EIGHT_B | {
    "hidden_size": 5120, "num_hidden_layers": 40, "intermediate_size": 13824, "num_attention_heads": 40,
    "num_key_value_heads": 40, "vocab_size": 32000, "dtype": "float16",
}  # fmt: skip


def blocks(text: str, **rules: object) -> SlicedText:
    return slice_blocks(text, encode_words, SlicingRules(**{"cutoff": 6, "overlap": False, **rules}), find_stops)


def windows(text: str, cutoff: int) -> SlicedText:
    return slice_windows(text, encode_words, SlicingRules(cutoff=cutoff, chunking="dementor"), find_stops)


def texts(sliced: SlicedText, kind: str = "") -> list[str]:
    return [sliced.text_of(block).strip() for block in sliced if kind in ("", block.kind)]


def end_with_eos(sliced: SlicedText) -> list[bool]:
    return [sliced.ids_of(block)[-1] == EOS for block in sliced]


def weights_by_layer(place: Workspace, targets: str) -> dict[str, int]:
    """Train a LoRA and return how many weights each kind of layer has in it."""
    place.train(name=targets, targets=targets, max_steps=1)
    counts: Counter[str] = Counter()
    for name, tensor in load_file(place.lora(targets) / "adapter_model.safetensors").items():
        counts[name.split(".")[-3]] += tensor.numel()
    return counts


def lora_vector(place: Workspace, name: str) -> torch.Tensor:
    weights = load_file(place.lora(name) / "adapter_model.safetensors")
    return torch.cat([weights[key].flatten() for key in sorted(weights)])


def relative_difference(place: Workspace, name: str, other: str) -> float:
    vector, other_vector = lora_vector(place, name), lora_vector(place, other)
    return float((vector - other_vector).norm() / vector.norm())


def multipliers(schedule: str, steps: ScheduleSteps) -> list[float]:
    return lr_multipliers(SCHEDULES[schedule].phases(steps), steps.steps)


def checkpoints_of(job: Job) -> list[str]:
    return [event.folder.name for event in job.log.since(0) if isinstance(event, CheckpointSaved)]


def losses(job: Job) -> list[Step]:
    return [event for event in job.log.since(0) if isinstance(event, Step)]


def trained(place: Workspace, **settings: object) -> Job:
    job = Job("training", "a test")
    place.train(job=job, **settings)
    return job


def final_loss(place: Workspace, **settings: object) -> float:
    """Return the mean loss of the last epoch."""
    return fmean(step.loss for step in losses(trained(place, **settings))[-STEPS_PER_EPOCH:])


def losses_of_the_story(place: Workspace, *loras: str) -> list[float]:
    """Measure how well each LoRA knows the story, in the same windows for all."""
    job, request = Job("perplexity", "a test"), PerplexityRequest("story.txt", loras, stride=16, max_length=32)
    PeftEngine().perplexity(request, place.settings(), place.host(), job)
    measured = {event.lora: event.loss for event in job.log.since(0) if isinstance(event, PerplexityMeasured)}
    return [measured[name] for name in loras]


def check(place: Workspace, **settings: object) -> DatasetReport:
    return PeftEngine().check(place.settings(**settings), place.host())


def test_each_block_starts_and_ends_with_a_sentence_and_no_text_is_lost():
    sliced = texts(blocks(STORY))
    assert all(block.endswith(".") and block[0].isupper() for block in sliced)
    assert " ".join(sliced) == STORY


def test_overlap_blocks_lie_between_two_blocks_and_never_across_a_hard_cut():
    overlaps = texts(blocks(SECTIONS, overlap=True), "overlap")
    assert overlaps == ["Four five six. Seven eight nine."] * 2
    assert "overlap" not in {block.kind for block in blocks("One two.\n\n\nThree four.", overlap=True)}


def test_fp_low_epoch_annealing_is_constant_in_the_first_epoch_and_a_cosine_after_it():
    rates = multipliers("FP_low_epoch_annealing", ScheduleSteps(30, 10))
    cosine = multipliers("cosine", ScheduleSteps(20, 10))
    assert list(rates[:10]) == [1.0] * 10
    assert list(rates[10:]) == pytest.approx(list(cosine))


def test_fp_low_epoch_annealing_is_selected_in_lr_scheduler(place):
    assert "FP_low_epoch_annealing" in SETTINGS["schedule"].choices
    settings = {"schedule": "FP_low_epoch_annealing", "warmup_steps": 0, "epochs": 2}
    rates = [step.learning_rate for step in losses(trained(place, **settings))]
    assert len(set(rates[:STEPS_PER_EPOCH])) == 1
    second_epoch = rates[STEPS_PER_EPOCH:]
    assert second_epoch == sorted(set(second_epoch), reverse=True) and len(second_epoch) == STEPS_PER_EPOCH


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
    (axes, rates) = figures[0].axes
    assert {"loss", "smoothed loss"} <= {line.get_label() for line in axes.lines}
    assert [line.get_label() for line in rates.lines] == ["learning rate"]
    (epochs,) = axes.child_axes
    labels = {
        tick: label.get_text() for tick, label in zip(epochs.get_xticks(), epochs.get_xticklabels(), strict=True)
    }
    assert "`training_graph.png`" in read_page("A PNG of the graph is saved at the end.")
    assert (epochs.get_xlabel(), labels) == ("epoch", {STEPS_PER_EPOCH: "1", 2 * STEPS_PER_EPOCH: "2"})


def test_eos_is_added_to_each_block_or_to_hard_cuts_only():
    at_cuts, each = (blocks(SECTIONS, cutoff=7, eos=EOS, add_eos=where) for where in ("hard_cut", "every_block"))
    assert end_with_eos(at_cuts) == [block.ends_section for block in at_cuts] and sum(end_with_eos(at_cuts)) == 2
    assert len(each) > 2 and all(end_with_eos(each))


def test_gradient_accumulation_above_the_data_is_lowered():
    assert StepPlan(examples=10, batch_size=4, accumulation=99, epochs=1).effective_accumulation == 3


def test_a_run_with_too_much_gradient_accumulation_trains_all_the_same(place):
    steps = losses(trained(place, accumulation=500, epochs=1))
    assert len(steps) == 1 and steps[0].loss > 0


def test_bos_can_be_turned_on_and_off(place):
    on, off = (PeftEngine().check(place.settings(add_bos=on), place.host()) for on in (True, False))
    assert on.tokens - off.tokens >= off.examples > 0
    assert all(sliced.ids_of(block)[0] == BOS for sliced in [blocks(STORY, bos=BOS)] for block in sliced)


def test_the_target_selector_trains_more_weights_with_q_k_v_and_the_most_with_q_k_v_o(place):
    q_v, q_k_v, q_k_v_o = (weights_by_layer(place, targets) for targets in ("q-v", "q-k-v", "q-k-v-o"))
    assert set(q_v) == {"q_proj", "v_proj"}
    assert set(q_k_v) == {"q_proj", "k_proj", "v_proj"}
    assert set(q_k_v_o) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert q_v.total() < q_k_v.total() < q_k_v_o.total() == 2 * q_v.total()


def test_with_q_k_v_o_a_lower_rank_attains_the_loss_of_q_v_with_a_high_rank(place):
    low = final_loss(place, name="low", targets="q-k-v-o", rank=2, alpha=4, epochs=3)
    assert low < final_loss(place, name="high", targets="q-v", rank=8, alpha=16, epochs=3)


def test_q_v_is_a_choice_and_all_linear_layers_are_the_default():
    assert SETTINGS["targets"].default == "all-linear"
    assert {"q-v", "q-k-v", "q-k-v-o"} <= SETTINGS["targets"].choices.keys()
    assert "The default is all linear layers" in read_page("q, v is what you should use as targets.")


def test_dementor_comes_as_presets_of_one_constant_epoch_and_of_two_with_annealing():
    presets = [preset.values for preset in goals() if preset.values.get("chunking") == "dementor"]
    assert [(values["epochs"], values["schedule"]) for values in presets] == [
        (1, "constant"),
        (2, "FP_low_epoch_annealing"),
    ]
    statement = "Use DEMENTOR with 1 epoch at a constant rate, or with 2 epochs and FP_low_epoch_annealing."
    assert read_page(statement) == "Choose one of the two DEMENTOR presets."


@pytest.mark.parametrize(("chunking", "deeper"), [("dementor", True), ("blocks", False)])
def test_a_longer_cutoff_makes_dementor_learn_deeper_which_is_contrary_to_plain_blocks(place, chunking, deeper):
    one_epoch = {"epochs": 1, "schedule": "constant", "warmup_steps": 0, "learning_rate": 1e-3}
    for cutoff in (32, 96):
        place.train(name=f"cutoff{cutoff}", chunking=chunking, cutoff=cutoff, **one_epoch)
    short, long = losses_of_the_story(place, "cutoff32", "cutoff96")
    assert (long < short) == deeper


def test_a_longer_cutoff_makes_dementor_show_each_sentence_more_often():
    story = " ".join([STORY] * 100)
    short, long = windows(story, 12), windows(story, 120)
    assert build_slice_map(long).seen.mean > 9 * build_slice_map(short).seen.mean
    assert int(long.lengths.sum()) > 9 * int(short.lengths.sum())


def test_a_longer_cutoff_makes_slightly_fewer_dementor_windows_where_plain_blocks_become_far_fewer():
    """The manual says that it makes more."""
    story = " ".join([STORY] * 100)
    counts = [len(windows(story, cutoff)) for cutoff in (12, 24, 60, 120)]
    assert counts == sorted(set(counts), reverse=True) and counts[-1] > 0.9 * counts[0]
    assert len(blocks(story, cutoff=120)) < 0.2 * len(blocks(story, cutoff=12))
    assert "slightly fewer windows" in read_page("A longer cutoff makes more DEMENTOR blocks.")


def test_there_is_one_true_batch_size_and_gradient_accumulation():
    labels = [setting.label for setting in SETTINGS.values() if "batch size" in setting.label.lower()]
    assert labels == ["Evaluation batch size", "True Batch Size"], "no micro batch size"
    assert SETTINGS["accumulation"].label == "Gradient Accumulation"
    plan = StepPlan(examples=80, batch_size=4, accumulation=2, epochs=1)
    assert (plan.examples_per_step, plan.steps) == (8, 10)


def test_gradient_accumulation_is_a_number_field_where_the_manual_has_a_slider():
    field, accumulation = form.make_component(SETTINGS["accumulation"]), SETTINGS["accumulation"]
    assert type(field) is gr.Number and (field.label, field.value) == ("Gradient Accumulation", 1)
    assert [accumulation.read(value) for value in (1, 1024)] == [1, 1024]
    for value in (0, 1025):
        with pytest.raises(ValueError, match="Allowed: 1 to 1024"):
            accumulation.read(value)
    assert "number field that accepts 1 to 1024" in read_page("Gradient Accumulation is a slider.")


def test_about_10_blocks_of_a_13b_model_in_4_bits_fit_into_24_gb():
    card = ModelCard("llama-13b", LLAMA_13B, None, "4bit")
    memory = MemoryModel.of(card, FakeExamples(*[256] * 64), DeviceMemory("A GPU", 0, 24 * 2**30))
    values = {"name": "a", "data": ["a.txt"], "targets": "q-v", "cutoff": 256, "gradient_checkpointing": "off"}
    assert 7 <= largest_batch(memory, training_settings(values)) <= 13


@pytest.mark.parametrize(
    ("more", "same"), [({}, True), ({"batching": "by_length"}, False), ({"dropout": 0.1}, False)]
)
def test_batch_4_with_accumulation_2_and_batch_2_with_accumulation_4_train_the_same_weights(place, more, same):
    """The manual says that they never do."""
    for name, (batch, accumulation) in {"a": (4, 2), "b": (2, 4)}.items():
        place.train(name=name, batch_size=batch, accumulation=accumulation, max_steps=2, **more)
    assert (relative_difference(place, "a", "b") < 1e-4) == same
    statement = "Batch size 4 with accumulation 2 produces other weights than batch size 2 with accumulation 4."
    assert read_page(statement).startswith("Both produce the same weights apart from rounding")


def test_the_loss_fluctuates_less_with_gradient_accumulation(place):
    def spread(accumulation):
        settings = {"accumulation": accumulation, "batch_size": 1, "learning_rate": 1e-8, "epochs": 2}
        return stdev(step.loss for step in losses(trained(place, name=f"a{accumulation}", **settings)))

    assert spread(4) < spread(1)


def test_three_line_breaks_are_the_hard_cut_unless_you_say_otherwise():
    assert SETTINGS["hard_cut"].default == r"\n\n\n"
    assert texts(blocks(SECTIONS, cutoff=40)) == [STORY, STORY]
    assert texts(blocks(SECTIONS, cutoff=40, hard_cut="")) == [SECTIONS]


def test_you_can_make_a_scheduler_of_your_own():
    points = get_schedule("0:0 0.5:1 1:0.5").phases(ScheduleSteps(steps=100, steps_per_epoch=10, warmup=0))
    rates = lr_multipliers(points, 100)
    assert rates[0] < 0.05 and max(rates) == pytest.approx(1) and rates[-1] == pytest.approx(0.5, abs=0.02)
    assert "`0:0 0.5:1 1:0.5`" in read_page("Follow the code to make your own scheduler.")


@pytest.fixture
def run_buttons(tmp_path: Path) -> dict[str, Callable[[RunControl], object]]:
    """The buttons below a run on the page: what each does, by its label."""
    with gr.Blocks():
        buttons = RunButtons(
            PageContext(FakeHost(folders=make_folders(tmp_path / "page")), PeftEngine(), Session())
        )
        buttons.draw()
    return {button.value: action for button, action in buttons._actions.items()}


def test_a_button_saves_a_checkpoint_in_the_middle_of_a_run(place, run_buttons):
    def press(job, event):
        if isinstance(event, Step) and event.step == 3:
            run_buttons["Save checkpoint"](job.control)

    job = watched_job(press)
    assert place.train(job=job, **FOUR_EPOCHS).outcome == "finished"
    assert checkpoints_of(job) == ["checkpoint-3-user"]
    assert "Press Save checkpoint" in read_page("A button saves a checkpoint during training.")


def test_stop_loss_can_be_changed_during_a_run(place):
    def change(job, event):
        if isinstance(event, Step) and event.step == 5:
            job.control.live = job.control.live.changed({"stop_at_loss": 50})

    job = watched_job(change)
    end = place.train(job=job, **FOUR_EPOCHS)
    assert (end.outcome, losses(job)[-1].step) == ("finished", 5)
    assert "Change Stop at loss" in read_page("You can change Stop Loss during training.")


@pytest.mark.parametrize(
    ("mode", "folders"),
    [
        ({"save_every": 3}, "checkpoint-3, checkpoint-6"),
        ({"save_each_epoch": True}, "checkpoint-4-epoch-1, checkpoint-8-epoch-2"),
        ({"save_on_loss_drop": 50}, "checkpoint-3-loss-"),
    ],
)
def test_checkpoints_are_saved_by_steps_by_epochs_or_by_the_loss(place, mode, folders):
    saved = checkpoints_of(trained(place, **{**FOUR_EPOCHS, "epochs": 2, **mode}))
    assert ", ".join(saved).startswith(folders)


def test_check_suggests_a_warmup_and_how_often_to_save(place):
    too_much = {"warmup_steps": 100, "save_each_epoch": False, "backup_minutes": 0, "epochs": 5}
    suggested = {s.key: s for s in check(place, **too_much).suggestions}
    warmup, save = suggested["warmup_steps"], suggested["save_every"]
    too_long = "The learning rate rises until step 100, and the run has 20 steps."
    assert (warmup.keep, warmup.why) == (False, too_long)
    assert (save.keep, save.value, save.why) == (False, 5, "The run saves nothing before it ends.")
    followed = {**too_much, "warmup_steps": warmup.value, "save_every": save.value}
    assert all(s.keep for s in check(place, **followed).suggestions if s.key in ("warmup_steps", "save_every"))
    saved = checkpoints_of(trained(place, **followed))
    assert saved == ["checkpoint-5", "checkpoint-10", "checkpoint-15", "checkpoint-20"]
