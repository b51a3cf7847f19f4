"""Old settings files: a whole one of each program, and each conversion by itself."""

from pathlib import Path

import pytest
from training_pro.settings.files import convert_values, load_settings
from training_pro.settings.parsing import training_settings

OLD_FILES = Path(__file__).parents[1] / "fixtures" / "old_settings"
ORIGINAL = {
    "train_on": "everything",
    "name": "harbour", "data": ["book/", "chats.jsonl:40"], "if_exists": "continue", "cutoff": 512,
    "chunking": "dementor", "overlap": True, "hard_cut": "\\n\\n\\n", "min_chars": 40, "add_bos": False,
    "add_eos": "every_block", "too_long": "drop_any", "train_only_after": "", "batch_size": 3, "accumulation": 4,
    "batching": "by_length", "epochs": 4, "learning_rate": 3e-4, "schedule": "FP_half_time_annealing",
    "warmup_steps": 25, "neftune_noise": 5, "optimizer": "paged_adamw_8bit", "rank": 64, "alpha": 16,
    "dropout": 0.05, "rslora": True, "targets": "q-k-v-o", "train_head": True, "gradient_checkpointing": "on",
    "eval_data": "chats-kept.jsonl", "eval_every": 7, "save_every": 13, "save_on_loss_drop": 1.8,
    "stop_at_loss": 1.4, "stop_at_epoch": 3, "report_to": "none",
}  # fmt: skip
WEBUI = {
    "name": "helper", "data": ["alpaca.json"], "format": "chat", "if_exists": "replace", "cutoff": 512,
    "overlap": True, "add_eos": "hard_cut", "too_long": "drop_any", "batch_size": 4, "accumulation": 32,
    "epochs": 3, "learning_rate": 3e-4, "schedule": "cosine", "warmup_steps": 4, "optimizer": "adamw_torch",
    "rank": 8, "alpha": 16, "dropout": 0.05, "targets": ["q_proj", "v_proj", "gate_proj"],
    "gradient_checkpointing": "off", "eval_data": "alpaca-kept.json", "eval_every": 4, "save_every": 16,
    "stop_at_loss": 0, "report_to": "none",
}  # fmt: skip
STORY = {"micro_batch_size": 2, "raw_text_file": "story"}


def converted(**values):
    """Convert the smallest old file of the original with these values in it."""
    return convert_values({**STORY, **values}).values


@pytest.mark.parametrize(
    ("name", "expected", "notes"),
    [
        ("original", ORIGINAL, ["These keys are unknown and were ignored: my_own_key."]),
        ("webui", WEBUI, ["The overlap of 256 tokens was replaced by", "Optimizer: 'adamw_hf' no longer exists"]),
    ],
)
def test_a_whole_old_file(tmp_path, name, expected, notes):
    (tmp_path / "book").mkdir()
    path = tmp_path / "training_parameters.json"
    path.write_bytes((OLD_FILES / f"{name}.json").read_bytes())
    loaded = load_settings(path, tmp_path)
    assert loaded.values == expected
    assert [note[: len(start)] for note, start in zip(loaded.notes, notes, strict=True)] == notes
    training_settings(loaded.values)


def test_our_own_files_stay_as_they_are():
    values = {"name": "a", "data": ["x.txt:50"], "targets": "q-k-v", "packing": "on", "nonsense": 1}
    for more in ({}, {"made_by": "Training PRO", "settings_version": 1}):
        loaded = convert_values({**values, **more})
        assert (loaded.values, loaded.notes) == (values, ())


@pytest.mark.parametrize(
    ("old", "there", "data"),
    [
        ({"raw_text_file": "story"}, [], "story.txt"),
        ({"raw_text_file": "story"}, ["story/a.txt", "story.txt"], "story/"),
        ({"text_dataset": "t"}, ["t/a.txt", "t.json"], "t.json"),
        ({"raw_text_file": "None", "datasetJSONL": None, "dataset": "d"}, [], "d.json"),
    ],
)
def test_a_dataset_is_the_folder_or_file_that_is_there(tmp_path, old, there, data):
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert convert_values({"micro_batch_size": 1, **old}, datasets=tmp_path).values["data"] == [data]


HYBRID = {"raw_text_file": "t", "dataset": "j", "hybrid_training": True}


@pytest.mark.parametrize(
    ("filled", "data"),
    [
        ({"raw_text_file": "t", "datasetJSONL": "l", "dataset": "j"}, ["t.txt"]),
        (HYBRID, ["t.txt", "j.json"]),
        ({**HYBRID, "datasetJSONL": "l"}, ["t.txt", "l.jsonl"]),
        ({**HYBRID, "hybrid_text_ratio": 30, "hybrid_data_ratio": 70.0}, ["t.txt:30", "j.json:70"]),
        ({**HYBRID, "hybrid_text_ratio": 0.4, "hybrid_data_ratio": 50}, ["t.txt:1", "j.json:50"]),
        ({**HYBRID, "hybrid_text_ratio": 0, "hybrid_data_ratio": 50}, ["j.json:50"]),
    ],
)
def test_which_of_several_datasets_is_used(filled, data):
    result = convert_values({"micro_batch_size": 1, **filled})
    assert result.values["data"] == data
    rows_lost = len(data) == 1 and data[0].startswith("t.") and bool(filled.keys() & {"dataset", "datasetJSONL"})
    assert any("is ignored" in note for note in result.notes) == rows_lost


def test_the_evaluation_data_is_of_the_kind_of_the_training_data_and_none_is_none():
    both = {"eval_datasetJSONL": "l", "eval_stepsJSONL": 3, "eval_dataset": "j", "eval_steps": 7}
    for old, expected in (({"dataset": "d"}, ("j.json", 7)), ({"datasetJSONL": "d"}, ("l.jsonl", 3))):
        values = converted(**old, **both)
        assert (values["eval_data"], values["eval_every"]) == expected
    assert "data" not in convert_values({"micro_batch_size": 1, "raw_text_file": "None"}).values
    none = converted(format="None", eval_dataset="", eval_steps=5)
    assert not {"format", "eval_data", "eval_every"} & none.keys()


def ticked_projections(*parts):
    return {f"{part}_proj_en": True for part in parts}


ONE_BY_ONE = [
    *(({"grad_accumulation": 8, "batch_size": size}, {"accumulation": 8}) for size in (0, 16)),
    *(({"batch_size": size}, {"accumulation": ours}) for size, ours in ((128, 64), (7, 3), (1, 1))),
    ({"lr_scheduler_type": "constant", "warmup_steps": 10}, {"schedule": "constant", "warmup_steps": 0}),
    ({"lr_scheduler_type": "cosine", "warmup_ratio": 0.1}, {"schedule": "cosine", "warmup_steps": 0.1}),
    ({"warmup_steps": 10, "warmup_ratio": 0.1}, {"schedule": "linear", "warmup_steps": 10}),
    ({"add_eos_token": False, "add_eos_token_type": "Every Block"}, {"add_eos": "never"}),
    ({"add_eos_token": True, "add_eos_token_type": "Every Block"}, {"add_eos": "every_block"}),
    ({"excess_length": "truncate"}, {"too_long": "cut_end"}),
    ({"precize_slicing_overlap": False, "stride_length": 128}, {"overlap": False}),
    ({"lora_alpha": 64, "lora_RS": False, "lora_RS_alpha": 16}, {"rslora": False, "alpha": 64}),
    ({"all_linear": True, **ticked_projections("q")}, {"targets": "all-linear"}),
    ({"all_linear": False, **ticked_projections("k", "v", "down")}, {"targets": "k-v-down"}),
    ({"all_linear": False, **ticked_projections("up", "o")}, {"targets": ["o_proj", "up_proj"]}),
    ({"group_by_length": False}, {"batching": "shuffled"}),
]


@pytest.mark.parametrize(("old", "ours"), ONE_BY_ONE)
def test_one_value_at_a_time(old, ours):
    assert converted(**old) == {**converted(), **ours}


def test_what_a_file_without_a_key_meant():
    values = converted()
    assert (values["accumulation"], values["schedule"], values["warmup_steps"]) == (1, "linear", 0)
    assert (values["add_eos"], values["targets"]) == ("never", "q-v")
    assert not {"too_long", "overlap", "rslora"} & values.keys()
    assert converted(dataset="rows")["too_long"] == "cut_end"
    assert convert_values({"micro_batch_size": 1, "text_dataset": "t"}).values["targets"] == "all-linear"


@pytest.mark.parametrize(("theirs", "accumulation", "steps"), [(100, 8, 13), ("50", 4, 13)])
def test_their_steps_are_batches(theirs, accumulation, steps):
    theirs = {"save_steps": theirs, "warmup_steps": theirs, "eval_dataset": "e", "eval_steps": theirs}
    values = converted(grad_accumulation=accumulation, **theirs)
    assert (values["save_every"], values["warmup_steps"], values["eval_every"]) == (steps, steps, steps)


@pytest.mark.parametrize(
    ("theirs", "noted"),
    [
        *(("constant_with_warmup", ""), ("FP_low_epoch_annealing", ""), ("FP_step_decay_with_warmup", "")),
        *(("cosine_with_restarts", "'cosine'"), ("polynomial", "'linear'"), ("inverse_sqrt", "'constant'")),
    ],
)
def test_every_schedule_of_theirs_is_one_of_ours_and_another_curve_is_noted(theirs, noted):
    loaded = convert_values({**STORY, "lora_name": "a", "lr_scheduler_type": theirs})
    ours = "constant" if theirs == "constant_with_warmup" else theirs
    assert training_settings(loaded.values).learning.schedule == ours
    assert [noted in note for note in loaded.notes] == [True] * bool(noted)
