"""Promises of the manual of the original Training PRO, one test for each."""

from __future__ import annotations

from statistics import stdev

import pytest
from safetensors.torch import load_file
from training_pro.chunking import SlicedText, SlicingRules, slice_blocks
from training_pro.core.jobs.control import Request
from training_pro.core.jobs.events import CheckpointSaved, Step
from training_pro.core.jobs.job import Job
from training_pro.data.report import RunFacts, suggest_settings
from training_pro.data.text.slice_map import build_slice_map
from training_pro.dementor import slice_windows
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.schedulers import SCHEDULES, ScheduleSteps, get_schedule, lr_multipliers
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.settings.presets import goals
from training_pro.tests.slicing_laws import encode_words, find_stops
from training_pro.tests.tiny import Workspace, watched_job
from training_pro.train_utils import StepPlan

BOS, EOS = 1, 2
STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."
SECTIONS = f"{STORY}\n\n\n{STORY}"
FOUR_EPOCHS = {"epochs": 4, "save_each_epoch": False}
STEPS_PER_EPOCH = 4


def blocks(text: str, **rules: object) -> SlicedText:
    return slice_blocks(text, encode_words, SlicingRules(**{"cutoff": 6, "overlap": False, **rules}), find_stops)


def windows(text: str, cutoff: int) -> SlicedText:
    return slice_windows(text, encode_words, SlicingRules(cutoff=cutoff, chunking="dementor"), find_stops)


def texts(sliced: SlicedText, kind: str = "") -> list[str]:
    return [sliced.text_of(block).strip() for block in sliced if kind in ("", block.kind)]


def end_with_eos(sliced: SlicedText) -> list[bool]:
    return [sliced.ids_of(block)[-1] == EOS for block in sliced]


def trained_layers(place: Workspace, targets: str) -> set[str]:
    place.train(name=targets, targets=targets, max_steps=1)
    weights = load_file(place.lora(targets) / "adapter_model.safetensors")
    return {name.split(".")[-3] for name in weights}


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


def test_the_target_selector_trains_q_v_and_q_k_v_and_q_k_v_o(place):
    assert trained_layers(place, "q-v") == {"q_proj", "v_proj"}
    assert trained_layers(place, "q-k-v") == {"q_proj", "k_proj", "v_proj"}
    assert trained_layers(place, "q-k-v-o") == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_dementor_comes_as_presets_of_one_constant_epoch_and_of_two_with_annealing():
    presets = [preset.values for preset in goals() if preset.values.get("chunking") == "dementor"]
    assert [(values["epochs"], values["schedule"]) for values in presets] == [
        (1, "constant"),
        (2, "FP_low_epoch_annealing"),
    ]


def test_a_longer_cutoff_makes_dementor_learn_deeper_where_plain_blocks_become_fewer():
    story = " ".join([STORY] * 100)
    short, long = windows(story, 12), windows(story, 120)
    assert build_slice_map(long).seen.mean > 9 * build_slice_map(short).seen.mean
    assert int(long.lengths.sum()) > 9 * int(short.lengths.sum())
    assert len(long) > 0.9 * len(short)
    assert len(blocks(story, cutoff=120)) < 0.2 * len(blocks(story, cutoff=12))


def test_there_is_one_true_batch_size_and_gradient_accumulation():
    labels = [setting.label for setting in SETTINGS.values() if "batch size" in setting.label.lower()]
    assert labels == ["Evaluation batch size", "True Batch Size"], "no micro batch size"
    assert SETTINGS["accumulation"].label == "Gradient Accumulation"
    plan = StepPlan(examples=80, batch_size=4, accumulation=2, epochs=1)
    assert (plan.examples_per_step, plan.steps) == (8, 10)


def test_batch_4_with_accumulation_2_gives_other_weights_than_batch_2_with_accumulation_4(place):
    for name, (batch, accumulation) in {"a": (4, 2), "b": (2, 4), "c": (4, 2)}.items():
        place.train(name=name, batch_size=batch, accumulation=accumulation, max_steps=3)
    a, b, c = (load_file(place.lora(name) / "adapter_model.safetensors") for name in "abc")
    assert all(a[key].equal(c[key]) for key in a)
    assert not all(a[key].equal(b[key]) for key in a)


def test_the_loss_fluctuates_less_with_gradient_accumulation(place):
    def spread(accumulation):
        settings = {"accumulation": accumulation, "batch_size": 1, "learning_rate": 1e-8, "epochs": 2}
        return stdev(step.loss for step in losses(trained(place, name=f"a{accumulation}", **settings)))

    assert spread(4) < spread(1)


def test_three_line_breaks_are_the_hard_cut_unless_you_say_otherwise():
    assert SETTINGS["hard_cut"].default == r"\n\n\n"
    assert all("\n\n\n" not in text for text in texts(blocks(SECTIONS, cutoff=40)))


def test_you_can_make_a_scheduler_of_your_own():
    points = get_schedule("0:0 0.5:1 1:0.5").phases(ScheduleSteps(steps=100, steps_per_epoch=10, warmup=0))
    rates = lr_multipliers(points, 100)
    assert rates[0] < 0.05 and max(rates) == pytest.approx(1) and rates[-1] == pytest.approx(0.5, abs=0.02)


def test_a_button_saves_a_checkpoint_in_the_middle_of_a_run(place):
    def press(job, event):
        if isinstance(event, Step) and event.step == 3:
            job.control.ask(Request.CHECKPOINT)

    job = watched_job(press)
    assert place.train(job=job, **FOUR_EPOCHS).outcome == "finished"
    assert checkpoints_of(job) == ["checkpoint-3-user"]


def test_stop_loss_can_be_changed_during_a_run(place):
    def change(job, event):
        if isinstance(event, Step) and event.step == 5:
            job.control.live = job.control.live.changed({"stop_at_loss": 50})

    job = watched_job(change)
    end = place.train(job=job, **FOUR_EPOCHS)
    assert (end.outcome, losses(job)[-1].step) == ("finished", 5)


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


def test_check_suggests_a_warmup_and_how_often_to_save():
    settings = training_settings({"name": "a", "data": ["a.txt"], "warmup_steps": 100, "save_each_epoch": False})
    facts = RunFacts(settings, StepPlan(4000, 4, 1, 3), None, 400_000)
    suggested = {s.key: s for s in suggest_settings(facts)}
    assert {"warmup_steps", "save_every"} <= suggested.keys()
    assert suggested["save_every"].value > 0 and suggested["save_every"].why.endswith(".")
