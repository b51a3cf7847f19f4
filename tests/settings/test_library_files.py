"""Every file that a person may bring is used whole, or refused by key, through every door."""

import json

import pytest
from training_pro.commands import main
from training_pro.core.errors import SettingsError
from training_pro.records.folder import read_log
from training_pro.settings import files, presets
from training_pro.settings.parsing import training_settings

LORA = {
    "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.05, "bias": "none",
    "task_type": "CAUSAL_LM", "peft_type": "LORA", "fan_in_fan_out": False, "inference_mode": True,
    "modules_to_save": None, "layers_to_transform": [0, 1], "use_rslora": True, "rank_pattern": {},
    "init_lora_weights": True, "base_model_name_or_path": "a/b", "qalora_group_size": 16, "use_qalora": False,
}  # fmt: skip
OURS = {
    "rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.05, "bias": "none",
    "layers_to_transform": "0,1", "rslora": True,
}  # fmt: skip
ADAMW = {"lr": 5e-4, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.01, "amsgrad": False}
ADAMW_OURS = {
    "learning_rate": 5e-4, "adam_beta1": 0.8, "adam_beta2": 0.99, "adam_epsilon": 1e-7, "weight_decay": 0.01,
}  # fmt: skip
ADAFACTOR = {
    "lr": 1e-3, "eps": [1e-30, 1e-3], "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None,
    "weight_decay": 0.0, "scale_parameter": False, "relative_step": False, "warmup_init": False,
}  # fmt: skip
BITS = {"optim_bits": 8, "min_8bit_size": 4096, "percentile_clipping": 100, "block_wise": True, "is_paged": False}
FILES = {
    "LoRA": (LORA, OURS),
    "AdamW": (ADAMW, {**ADAMW_OURS, "optimizer": "adamw_torch"}),
    "Adafactor": (ADAFACTOR, {"learning_rate": 1e-3, "weight_decay": 0.0, "optimizer": "adafactor"}),
    "AdamW in 8 bits": ({**ADAMW, **BITS}, {**ADAMW_OURS, "optimizer": "adamw_8bit"}),
    "paged": ({**ADAMW, **BITS, "is_paged": True}, {**ADAMW_OURS, "optimizer": "paged_adamw_8bit"}),
    "the original": ({"micro_batch_size": 2, "lora_rank": 8, "lora_alpha": 24}, {"rank": 8, "alpha": 24}),
    "ours": ({"rank": 8, "epochs": 3}, {"rank": 8, "epochs": 3}),
}
DOORS = {
    "preset by name": lambda path: presets.find_presets([path.stem], path.parent)[0].values,
    "preset by path": lambda path: presets.find_presets([str(path)], path.parent / "none")[0].values,
    "settings file": lambda path: _checked(files.load_settings(path).values),
}


def _checked(values):
    training_settings({"name": "a", "data": ["a.txt"], **values})
    return values


def write(folder, values):
    path = folder / "theirs, 1.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_program_is_used_whole_or_refused_by_key_through_every_door(tmp_path, name):
    """{"learning_rat": ...} under training/presets trained the defaults. Each key at a value of none."""
    theirs, ours = FILES[name]
    odd = {*theirs, "learning_rat", "amsgrad", "rank_pattern"} - {*files.ABOUT_THE_FILE}
    for door in DOORS.values():
        values = door(write(tmp_path, theirs))
        if name == "the original":
            assert values.items() >= ours.items()
            continue
        assert values == ours
        for key in odd:
            with pytest.raises(SettingsError) as refused:
                door(write(tmp_path, {**theirs, key: {"odd": 1}}))
            assert "{'odd': 1}" in str(refused.value) or repr(key) in str(refused.value), key


def test_an_empty_text_of_ours_beside_keys_of_theirs_is_kept(tmp_path):
    loaded = files.load_settings(write(tmp_path, {"r": 4, "lora_alpha": 8, "hard_cut": "", "layers": ""}))
    assert loaded.values["hard_cut"] == ""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({**ADAMW, "momentum": 0.9}, "SGD runs without momentum here"),
        ({**ADAFACTOR, "relative_step": True}, "Set relative_step to false"),
        ({**LORA, "rank": 4}, "In Training PRO, it is called 'rank'"),
        ({**LORA, "peft_type": "LOHA"}, "Training PRO trains LoRAs"),
        ([1], "does not contain a JSON object"),
    ],
)
def test_what_can_not_be_used_says_what_to_do(tmp_path, values, sentence):
    with pytest.raises(SettingsError, match=sentence):
        presets.find_preset("theirs, 1", write(tmp_path, values).parent)


def train(place, *words):
    """Train as the command does, for one step of one example; returns its exit code."""
    flags = ["--name", "b", "--data", "story.txt", "--model", str(place.tiny), "--batch-size", "1"]
    quick = ["--max-steps", "1", "--sample-every", "never", "--recall-passages", "0"]
    return main.main(["train", *flags, *quick, "--user-data", str(place.folders.user_data), *words])


@pytest.mark.long
def test_the_config_of_a_lora_is_a_preset_that_trains_the_same_lora(place, lora, capsys):
    """By its path on the command line; name and data stay those of the flags."""
    assert train(place, "--preset", str(lora / "adapter_config.json")) == 0
    theirs, ours = (json.loads((at / "adapter_config.json").read_text("utf-8")) for at in (lora, place.lora("b")))
    assert ours == theirs and ours["lora_alpha"] == 8
    assert train(place, "--preset", str(lora / "training_parameters.json")) == 1
    assert "a preset does not set data, name" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(("asked", "alpha"), [("--rank 16", 16), ("--rank 16 --alpha 8", 8)])
def test_alpha_follows_the_rank_unless_it_was_typed(place, asked, alpha):
    """Rank 128 meant a scaling of 0.25."""
    assert train(place, *asked.split()) == 0
    assert read_log(place.lora("b"))["resolved"]["alpha"] == alpha
