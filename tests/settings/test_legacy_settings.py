"""Old settings files: a whole one of each program, and each conversion by itself."""

import json

import pytest
from training_pro.settings.files import convert_values, load_settings
from training_pro.settings.legacy_settings import LoadedSettings, convert_settings
from training_pro.settings.parsing import training_settings

HYBRID_OF_THE_ORIGINAL = {
    "lora_name": "harbour",
    "always_override": False,
    "save_steps": 50,
    "micro_batch_size": 3,
    "batch_size": 0,
    "epochs": 4,
    "learning_rate": "3e-4",
    "lr_scheduler_type": "FP_half_time_annealing",
    "lora_rank": 64,
    "lora_alpha": 128,
    "lora_dropout": 0.05,
    "cutoff_len": 512,
    "dataset": "None",
    "eval_dataset": "None",
    "format": "None",
    "eval_steps": 100.0,
    "datasetJSONL": "chats",
    "eval_datasetJSONL": "chats-kept",
    "eval_stepsJSONL": 25,
    "raw_text_file": "book",
    "higher_rank_limit": False,
    "warmup_steps": 100.0,
    "optimizer": "paged_adamw_8bit",
    "hard_cut_string": "\\n\\n\\n",
    "train_only_after": "",
    "stop_at_loss": 1.4,
    "stop_at_epoch": 3,
    "add_eos_token": True,
    "add_eos_token_type": "Every Block",
    "min_chars": 40,
    "report_to": "None",
    "precize_slicing_overlap": True,
    "save_steps_under_loss": 1.8,
    "add_bos_token": False,
    "training_projection": "q-k-v-o",
    "sliding_window": True,
    "warmup_ratio": 0.1,
    "grad_accumulation": 4,
    "neft_noise_alpha": 5,
    "group_by_length": True,
    "eliminate_long_blocks": True,
    "hybrid_training": True,
    "hybrid_text_ratio": 100,
    "hybrid_data_ratio": 40.0,
    "lora_RS": True,
    "lora_RS_alpha": 16,
    "lora_modulessave": True,
    "use_grad_checkpoint": True,
    "my_own_key": 7,
}

WEBUI_TAB = {
    "lora_name": "helper",
    "always_override": True,
    "all_linear": False,
    "q_proj_en": True,
    "v_proj_en": True,
    "k_proj_en": False,
    "o_proj_en": False,
    "gate_proj_en": True,
    "down_proj_en": False,
    "up_proj_en": False,
    "save_steps": 500,
    "micro_batch_size": 4,
    "batch_size": 130,
    "epochs": 3,
    "learning_rate": "3e-4",
    "lr_scheduler_type": "cosine",
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "cutoff_len": 512,
    "dataset": "alpaca",
    "eval_dataset": "alpaca-kept",
    "format": "Chat Template",
    "eval_steps": 100,
    "text_dataset": "None",
    "higher_rank_limit": False,
    "warmup_steps": 100,
    "optimizer": "adamw_hf",
    "stride_length": 256,
    "stop_at_loss": 0,
    "add_eos_token": True,
    "excess_length": "drop",
    "report_to": "None",
    "gradient_checkpointing": False,
    "neft_noise_alpha": None,
}


def convert_original(**values):
    """Convert the smallest old file of the original with these values in it."""
    return convert_settings({"micro_batch_size": 2, "raw_text_file": "story", **values}).values


def test_a_whole_file_of_the_original():
    result = convert_settings(HYBRID_OF_THE_ORIGINAL, {"book/"}.__contains__)
    assert result.values == {
        "name": "harbour",
        "data": ["book/", "chats.jsonl:40"],
        "if_exists": "continue",
        "cutoff": 512,
        "chunking": "dementor",
        "overlap": True,
        "hard_cut": "\\n\\n\\n",
        "min_chars": 40,
        "add_bos": False,
        "add_eos": "every_block",
        "too_long": "drop_any",
        "train_only_after": "",
        "batch_size": 3,
        "accumulation": 4,
        "batching": "by_length",
        "epochs": 4,
        "learning_rate": 3e-4,
        "schedule": "FP_half_time_annealing",
        "warmup_steps": 25,
        "neftune_noise": 5,
        "optimizer": "paged_adamw_8bit",
        "rank": 64,
        "alpha": 16,
        "dropout": 0.05,
        "rslora": True,
        "targets": "q-k-v-o",
        "train_head": True,
        "gradient_checkpointing": "on",
        "eval_data": "chats-kept.jsonl",
        "eval_every": 7,
        "save_every": 13,
        "save_on_loss_drop": 1.8,
        "stop_at_loss": 1.4,
        "stop_at_epoch": 3,
        "report_to": "none",
    }
    assert result.notes == ("These keys are unknown and were ignored: my_own_key.",)


def test_a_whole_file_of_the_webuis_tab():
    result = convert_settings(WEBUI_TAB)
    assert result.values == {
        "name": "helper",
        "data": ["alpaca.json"],
        "format": "chat",
        "if_exists": "replace",
        "cutoff": 512,
        "overlap": True,
        "add_eos": "hard_cut",
        "too_long": "drop_any",
        "batch_size": 4,
        "accumulation": 32,
        "epochs": 3,
        "learning_rate": 3e-4,
        "schedule": "cosine",
        "warmup_steps": 4,
        "optimizer": "adamw_torch",
        "rank": 8,
        "alpha": 16,
        "dropout": 0.05,
        "targets": ["q_proj", "v_proj", "gate_proj"],
        "gradient_checkpointing": "off",
        "eval_data": "alpaca-kept.json",
        "eval_every": 4,
        "save_every": 16,
        "stop_at_loss": 0,
        "report_to": "none",
    }
    assert result.notes == (
        "The overlap of 256 tokens was replaced by overlap blocks, which consist of whole sentences.",
        "Optimizer: 'adamw_hf' no longer exists and was replaced by adamw_torch, which does the same.",
    )


@pytest.mark.parametrize("old", [HYBRID_OF_THE_ORIGINAL, WEBUI_TAB])
def test_a_whole_old_file_reads_as_settings(old, tmp_path):
    path = tmp_path / "training_parameters.json"
    path.write_text(json.dumps(old), encoding="utf-8")
    loaded = load_settings(path)
    settings = training_settings(loaded.values)
    assert settings.what.name == old["lora_name"]
    assert settings.learning.learning_rate == 3e-4
    assert settings.lora.dropout == 0.05
    assert settings.steps.accumulation == convert_settings(old).values["accumulation"]


def test_shares_of_an_old_file_are_converted():
    old = {"micro_batch_size": 1, "raw_text_file": "a", "dataset": "b", "hybrid_training": True}
    loaded = convert_values({**old, "hybrid_text_ratio": 30, "hybrid_data_ratio": 70})
    assert loaded.values["data"] == ["a.txt:30", "b.json:70"]


def test_our_own_files_stay_as_they_are():
    values = {"name": "a", "data": ["x.txt:50"], "targets": "q-k-v", "packing": "on", "nonsense": 1}
    assert convert_settings(values) == LoadedSettings(values)
    assert convert_values({**values, "made_by": "Training PRO", "settings_version": 1}).values == values


@pytest.mark.parametrize(
    ("there", "data"),
    [
        ((), "story.txt"),
        (("story/",), "story/"),
        (("story/", "story.txt"), "story/"),
        (("story.txt",), "story.txt"),
    ],
)
def test_a_raw_text_is_a_folder_where_there_is_one(there, data):
    old = {"micro_batch_size": 1, "raw_text_file": "story"}
    assert convert_settings(old, there.__contains__).values["data"] == [data]


def test_the_folder_is_looked_up_among_the_datasets(tmp_path):
    (tmp_path / "story").mkdir()
    old = {"micro_batch_size": 1, "raw_text_file": "story", "cutoff_len": 256}
    assert convert_values(old, datasets=tmp_path).values["data"] == ["story/"]
    assert convert_values({**old, "raw_text_file": "other"}, datasets=tmp_path).values["data"] == ["other.txt"]


def test_the_webuis_text_is_a_json_file_unless_only_a_text_is_there():
    old = {"micro_batch_size": 1, "text_dataset": "t"}
    assert convert_settings(old).values["data"] == ["t.json"]
    assert convert_settings(old, {"t.json", "t/"}.__contains__).values["data"] == ["t.json"]
    assert convert_settings(old, {"t.txt"}.__contains__).values["data"] == ["t.txt"]


@pytest.mark.parametrize("nothing", ["None", "none", "", None])
def test_none_is_nothing(nothing):
    old = {"micro_batch_size": 1, "raw_text_file": nothing, "datasetJSONL": nothing, "dataset": "d"}
    values = convert_settings({**old, "format": nothing, "eval_dataset": nothing, "eval_steps": 5}).values
    assert values["data"] == ["d.json"]
    assert not {"format", "eval_data", "eval_every"} & values.keys()


def test_no_data_at_all_is_left_to_the_checks():
    assert "data" not in convert_settings({"micro_batch_size": 1, "raw_text_file": "None"}).values


@pytest.mark.parametrize(
    ("filled", "data"),
    [
        ({"raw_text_file": "t", "datasetJSONL": "l", "dataset": "j"}, ["t.txt"]),
        ({"datasetJSONL": "l", "dataset": "j"}, ["l.jsonl"]),
        ({"dataset": "j"}, ["j.json"]),
        ({"text_dataset": "t", "dataset": "j"}, ["t.json"]),
        ({"raw_text_file": "t", "dataset": "j", "hybrid_training": True}, ["t.txt", "j.json"]),
        (
            {"raw_text_file": "t", "datasetJSONL": "l", "dataset": "j", "hybrid_training": True},
            ["t.txt", "l.jsonl"],
        ),
        ({"raw_text_file": "t", "hybrid_training": True, "hybrid_text_ratio": 20}, ["t.txt"]),
    ],
)
def test_which_of_several_datasets_is_used(filled, data):
    result = convert_settings({"micro_batch_size": 1, **filled})
    assert result.values["data"] == data
    rows_lost = len(data) == 1 and data[0].startswith("t.") and bool(filled.keys() & {"dataset", "datasetJSONL"})
    assert any("is ignored" in note for note in result.notes) == rows_lost


@pytest.mark.parametrize(
    ("text", "rows", "data"),
    [
        (100, 100, ["t.txt", "j.json"]),
        (30, 70.0, ["t.txt:30", "j.json:70"]),
        (0.4, 50, ["t.txt:1", "j.json:50"]),
        (0, 50, ["j.json:50"]),
    ],
)
def test_hybrid_shares(text, rows, data):
    old = {"raw_text_file": "t", "dataset": "j", "hybrid_training": True}
    assert convert_original(**old, hybrid_text_ratio=text, hybrid_data_ratio=rows)["data"] == data


@pytest.mark.parametrize(
    ("old", "accumulation"),
    [
        ({}, 1),
        ({"grad_accumulation": 8}, 8),
        ({"grad_accumulation": 8, "batch_size": 0}, 8),
        ({"batch_size": 128}, 64),
        ({"batch_size": 7}, 3),
        ({"batch_size": 1}, 1),
        ({"batch_size": 16, "grad_accumulation": 2}, 8),
        ({"grad_accumulation": 0}, 1),
    ],
)
def test_a_global_batch_size_becomes_accumulation(old, accumulation):
    values = convert_original(**old)
    assert (values["batch_size"], values["accumulation"]) == (2, accumulation)


@pytest.mark.parametrize(
    ("theirs", "accumulation", "steps"),
    [(100, 1, 100), (100, 8, 13), (96, 8, 12), (1, 8, 1), (0, 8, 0), ("50", 4, 13)],
)
def test_their_steps_are_batches(theirs, accumulation, steps):
    values = convert_original(
        grad_accumulation=accumulation, save_steps=theirs, warmup_steps=theirs, eval_dataset="e", eval_steps=theirs
    )
    assert (values["save_every"], values["warmup_steps"], values["eval_every"]) == (steps, steps, steps)


@pytest.mark.parametrize(
    ("old", "schedule", "warmup"),
    [
        ({"lr_scheduler_type": "constant", "warmup_steps": 10}, "constant", 0),
        ({"lr_scheduler_type": "constant", "warmup_ratio": 0.1}, "constant", 0),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10}, "constant", 10),
        ({"lr_scheduler_type": "linear", "warmup_steps": 0, "warmup_ratio": 0.1}, "linear", 0.1),
        ({"lr_scheduler_type": "linear", "warmup_steps": 10, "warmup_ratio": 0.1}, "linear", 10),
        ({"lr_scheduler_type": "linear", "warmup_steps": 0, "warmup_ratio": 0}, "linear", 0),
        ({"warmup_steps": 10}, "linear", 10),
        ({"lr_scheduler_type": "cosine"}, "cosine", 0),
    ],
)
def test_schedule_and_warmup(old, schedule, warmup):
    values = convert_original(**old)
    assert (values["schedule"], values["warmup_steps"]) == (schedule, warmup)


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "constant",
        "constant_with_warmup",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "inverse_sqrt",
        "FP_low_epoch_annealing",
        "FP_half_time_annealing",
        "FP_raise_fall_creative",
        "FP_3epoch_raise_hold_fall",
        "FP_step_decay_with_warmup",
    ],
)
def test_every_schedule_of_theirs_is_one_of_ours(name):
    loaded = convert_values(
        {"micro_batch_size": 1, "lora_name": "a", "raw_text_file": "t", "lr_scheduler_type": name}
    )
    convert_original = "constant" if name == "constant_with_warmup" else name
    assert training_settings(loaded.values).learning.schedule == convert_original


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"lr_scheduler_type": "polynomial"}, "'linear'"),
        ({"lr_scheduler_type": "cosine_with_restarts"}, "'cosine'"),
        ({"lr_scheduler_type": "inverse_sqrt"}, "'constant'"),
        ({"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 10}, None),
        ({"lr_scheduler_type": "linear"}, None),
    ],
)
def test_a_schedule_with_another_curve_is_noted(old, said):
    notes = convert_settings({"micro_batch_size": 1, "raw_text_file": "t", **old}).notes
    assert [said in note for note in notes] == ([] if said is None else [True])


@pytest.mark.parametrize(
    ("old", "add_eos"),
    [
        ({}, "never"),
        ({"add_eos_token": False, "add_eos_token_type": "Every Block"}, "never"),
        ({"add_eos_token": True}, "hard_cut"),
        ({"add_eos_token": True, "add_eos_token_type": "Hard Cut Blocks Only"}, "hard_cut"),
        ({"add_eos_token": True, "add_eos_token_type": "Every Block"}, "every_block"),
    ],
)
def test_end_tokens(old, add_eos):
    assert convert_original(**old)["add_eos"] == add_eos


@pytest.mark.parametrize(
    ("old", "too_long"),
    [
        ({"eliminate_long_blocks": True}, "drop_any"),
        ({"eliminate_long_blocks": False}, "cut_end"),
        ({"excess_length": "drop"}, "drop_any"),
        ({"excess_length": "truncate"}, "cut_end"),
        ({"dataset": "rows"}, "cut_end"),
        ({}, None),
    ],
)
def test_too_long(old, too_long):
    assert convert_original(**old).get("too_long") == too_long


@pytest.mark.parametrize(
    ("old", "overlap"),
    [
        ({"precize_slicing_overlap": False}, False),
        ({"precize_slicing_overlap": True}, True),
        ({"stride_length": 0}, False),
        ({"stride_length": 128}, True),
        ({"precize_slicing_overlap": False, "stride_length": 128}, False),
        ({}, None),
    ],
)
def test_overlap(old, overlap):
    assert convert_original(**old).get("overlap") is overlap


@pytest.mark.parametrize(
    ("old", "rslora", "alpha"),
    [
        ({"lora_alpha": 64}, None, 64),
        ({"lora_alpha": 64, "lora_RS": False, "lora_RS_alpha": 16}, False, 64),
        ({"lora_alpha": 64, "lora_RS": True, "lora_RS_alpha": 16}, True, 16),
        ({"lora_alpha": 64, "lora_RS": True}, True, 64),
    ],
)
def test_rslora_brings_its_own_alpha(old, rslora, alpha):
    values = convert_original(**old)
    assert (values.get("rslora"), values["alpha"]) == (rslora, alpha)


def ticked_projections(*parts):
    return {f"{part}_proj_en": True for part in parts}


@pytest.mark.parametrize(
    ("old", "targets"),
    [
        ({"training_projection": "all"}, "all-linear"),
        ({"training_projection": "q-v"}, "q-v"),
        ({"training_projection": "q-k-v"}, "q-k-v"),
        ({"training_projection": "q-k-v-o"}, "q-k-v-o"),
        ({"training_projection": "k-v-down"}, "k-v-down"),
        ({"training_projection": "q-v", **ticked_projections("k")}, "q-v"),
        ({"all_linear": True, **ticked_projections("q")}, "all-linear"),
        ({"all_linear": False, **ticked_projections("q", "v")}, "q-v"),
        ({"all_linear": False, **ticked_projections("q", "k", "v")}, "q-k-v"),
        ({"all_linear": False, **ticked_projections("q", "k", "v", "o")}, "q-k-v-o"),
        ({"all_linear": False, **ticked_projections("k", "v", "down")}, "k-v-down"),
        ({"all_linear": False, **ticked_projections("up", "o")}, ["o_proj", "up_proj"]),
        ({"raw_text_file": "t"}, "q-v"),
        ({"text_dataset": "t"}, "all-linear"),
    ],
)
def test_targets(old, targets):
    assert convert_settings({"micro_batch_size": 1, **old}).values["targets"] == targets


@pytest.mark.parametrize(
    ("old", "ours_is"),
    [
        ({"always_override": True}, {"if_exists": "replace"}),
        ({"always_override": False}, {"if_exists": "continue"}),
        ({"sliding_window": True}, {"chunking": "dementor"}),
        ({"sliding_window": False}, {"chunking": "blocks"}),
        ({"use_grad_checkpoint": False}, {"gradient_checkpointing": "off"}),
        ({"gradient_checkpointing": True}, {"gradient_checkpointing": "on"}),
        ({"group_by_length": False}, {"batching": "shuffled"}),
        ({"report_to": "wandb"}, {"report_to": "wandb"}),
        ({"optimizer": "adafactor"}, {"optimizer": "adafactor"}),
        ({"format": "alpaca-format"}, {"format": "alpaca-format"}),
        ({"hard_cut_string": ""}, {"hard_cut": ""}),
        ({"higher_rank_limit": True}, {}),
    ],
)
def test_one_value_at_a_time(old, ours_is):
    assert convert_original(**old) == {**convert_original(), **ours_is}


def test_the_evaluation_data_is_of_the_kind_of_the_training_data():
    both = {"eval_datasetJSONL": "l", "eval_stepsJSONL": 3, "eval_dataset": "j", "eval_steps": 7}
    assert convert_original(dataset="d", **both)["eval_data"] == "j.json"
    assert convert_original(datasetJSONL="d", **both)["eval_data"] == "l.jsonl"
    assert (
        convert_original(datasetJSONL="d", **both)["eval_every"],
        convert_original(dataset="d", **both)["eval_every"],
    ) == (3, 7)
    assert "eval_data" not in convert_original(dataset="d", eval_datasetJSONL="l")


def test_what_cannot_be_converted_is_left_for_the_checks_to_refuse():
    garbled = {"learning_rate": "abc", "save_steps": "often", "warmup_steps": "some", "grad_accumulation": "many"}
    values = convert_original(**garbled)
    assert [values[k] for k in ("learning_rate", "save_every", "warmup_steps", "accumulation")] == [
        *garbled.values()
    ]


def test_unknown_keys_are_named_once():
    notes = convert_settings({"micro_batch_size": 1, "raw_text_file": "t", "zeta": 1, "beta": 2}).notes
    assert notes == ("These keys are unknown and were ignored: beta, zeta.",)
