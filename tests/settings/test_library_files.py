"""Every file that a person may bring is used whole, or refused by key, through every door."""

import json

import pytest
from training_pro.commands import main
from training_pro.core.errors import SettingsError
from training_pro.records.folder import read_log
from training_pro.settings import files, presets
from training_pro.settings.parsing import training_settings

FILES = {
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
    odd = {*theirs, "learning_rat", "amsgrad", "rank_pattern"}
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


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"momentum": 0.9}, "SGD runs without momentum here"),
        ({"relative_step": True}, "Adafactor uses the learning rate of the run"),
        ({"r": 4}, "In Training PRO, it is called 'rank'"),
        ({"peft_type": "LOHA"}, "Training PRO trains LoRAs"),
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
def test_the_settings_of_a_run_are_a_preset(place, lora, capsys):
    """By its path on the command line; name and data stay those of the flags."""
    assert train(place, "--preset", str(lora / "training_parameters.json")) == 1
    assert "a preset does not set data, if_exists, name" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(("asked", "alpha"), [("--rank 16", 16), ("--rank 16 --alpha 8", 8)])
def test_alpha_follows_the_rank_unless_it_was_typed(place, asked, alpha):
    """Rank 128 meant a scaling of 0.25."""
    assert train(place, *asked.split()) == 0
    assert read_log(place.lora("b"))["resolved"]["alpha"] == alpha
