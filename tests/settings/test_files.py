"""Settings files."""

import json

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings.definitions import SETTINGS, TrainingSettings
from training_pro.settings.files import as_file, convert_values, load_settings
from training_pro.settings.parsing import training_settings

# None of these values is a default.
UNUSUAL = {
    "name": "täle",
    "data": ["a b.txt", "folder/"],
    "if_exists": "new_name",
    "seed": 7,
    "cutoff": 640,
    "chunking": "dementor",
    "overlap": False,
    "dementor_repeats": 3,
    "hard_cut": "\\t***\n",
    "min_chars": 12,
    "add_bos": False,
    "add_eos": "never",
    "batch_size": 3,
    "accumulation": 5,
    "epochs": 1.7,
    "max_steps": 11,
    "learning_rate": 1.0000000000000002e-5,
    "schedule": "one_cycle",
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "max_grad_norm": 0.3,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-6,
    "rank": 7,
    "alpha": 14.5,
    "dropout": 0.1,
    "rslora": True,
    "targets": "q-v",
    "save_every": 9,
    "save_each_epoch": False,
    "gradient_checkpointing": "off",
}


def write_file(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def test_a_saved_file_gives_the_same_settings(tmp_path):
    settings = training_settings(UNUSUAL)
    defaults = TrainingSettings().values()
    assert {key for key in UNUSUAL if settings.values()[key] == defaults[key]} == set()
    path = write_file(tmp_path / "training_parameters.json", json.dumps(as_file(settings)))
    loaded = load_settings(path)
    assert loaded.notes == ()
    assert training_settings(loaded.values) == settings


def test_a_file_holds_every_setting_and_its_version():
    file = as_file(training_settings({"name": "a", "data": ["x.txt"]}))
    assert file.pop("made_by") == "Training PRO"
    assert file.pop("settings_version") == 1
    assert file.keys() == SETTINGS.keys()
    assert (file["cutoff"], file["data"]) == ("auto", ["x.txt"])


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "s.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"data": ["x.txt"]}')
    assert load_settings(path).values == {"data": ["x.txt"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a settings file"),
        ("{", "is not a settings file"),
        ("[1]", "does not contain a JSON object"),
        ("5", "does not contain a JSON object"),
        ('{"settings_version": 2}', "a newer version of Training PRO saved these settings (settings version 2)"),
    ],
)
def test_a_file_that_is_no_settings_file_is_named(tmp_path, content, said):
    with pytest.raises(SettingsError) as error:
        load_settings(write_file(tmp_path / "mine.json", content))
    (problem,) = error.value.problems
    assert "mine.json" in problem
    assert said in problem


def test_a_missing_file_a_folder_and_bytes_are_named(tmp_path):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00{")
    for path in (tmp_path / "gone.json", tmp_path, tmp_path / "bytes.json"):
        with pytest.raises(SettingsError, match=path.name):
            load_settings(path)


def test_an_older_file_is_recognized_by_its_keys():
    loaded = convert_values({"micro_batch_size": 2, "lora_name": "old", "raw_text_file": "t", "cutoff_len": 256})
    settings = training_settings(loaded.values)
    assert (settings.what.name, settings.what.data) == ("old", ("t.txt",))
    assert (settings.steps.batch_size, settings.text.cutoff) == (2, 256)


def test_an_unknown_key_stays_in_for_parsing_to_refuse():
    loaded = convert_values({"data": ["x.txt"], "telepathy": True})
    assert loaded.values["telepathy"] is True
    assert loaded.notes == ()
