"""Settings in files and as flags of the command line."""

import argparse
import json

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import flags
from training_pro.settings.definitions import SETTINGS, TrainingSettings
from training_pro.settings.files import as_file, load_settings
from training_pro.settings.parsing import training_settings

UNUSUAL = {
    "name": "täle", "data": ["a b.txt", "folder/"], "if_exists": "new_name", "seed": 7, "cutoff": 640,
    "chunking": "dementor", "overlap": False, "dementor_repeats": 3, "hard_cut": "\\t***\n", "min_chars": 12,
    "add_bos": False, "add_eos": "never", "batch_size": 3, "accumulation": 5, "epochs": 1.7, "max_steps": 11,
    "learning_rate": 1.0000000000000002e-5, "schedule": "one_cycle", "warmup_steps": 0.1, "weight_decay": 0.01,
    "max_grad_norm": 0.3, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "rank": 7, "alpha": 14.5,
    "dropout": 0.1, "rslora": True, "targets": "q-v", "save_every": 9, "save_each_epoch": False,
    "gradient_checkpointing": "off",
}  # fmt: skip
"""None of these values is a default."""


def test_a_saved_file_gives_the_same_settings_and_holds_every_one(tmp_path):
    settings, defaults = training_settings(UNUSUAL), TrainingSettings().values()
    assert [key for key in UNUSUAL if settings.values()[key] == defaults[key]] == []
    file = as_file(settings)
    (tmp_path / "training_parameters.json").write_text(json.dumps(file), encoding="utf-8")
    loaded = load_settings(tmp_path / "training_parameters.json")
    assert loaded.notes == () and training_settings(loaded.values) == settings
    assert (file.pop("made_by"), file.pop("settings_version")) == ("Training PRO", 1)
    assert file.keys() == SETTINGS.keys()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not a settings file"),
        (b"\xff\xfe\x00{", "is not a settings file"),
        (b"[1]", "does not contain a JSON object"),
        (b'{"settings_version": 2}', "a newer version of Training PRO saved these settings (settings version 2)"),
    ],
)
def test_a_file_that_is_no_settings_file_is_named(tmp_path, content, said):
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        load_settings(path)
    (problem,) = error.value.problems
    assert "mine.json" in problem and said in problem
    for other in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(SettingsError, match=other.name):
            load_settings(other)


def parser():
    train_parser = argparse.ArgumentParser(prog="train")
    train_parser.add_argument("--model")
    flags.add_flags(train_parser)
    return train_parser


def parse_flags(*words):
    return flags.given_settings(parser().parse_args(words))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", {}),
        ("--data a.txt --epochs 1 --data b/ c/", {"data": ["a.txt", "b/", "c/"], "epochs": "1"}),
        ("--targets q-v", {"targets": "q-v"}),
        ("--targets q_proj o_proj", {"targets": ["q_proj", "o_proj"]}),
        ("--hard-cut= --name 100% --warmup-steps=-1", {"hard_cut": "", "name": "100%", "warmup_steps": "-1"}),
    ],
)
def test_only_given_flags_are_there_as_texts_and_lists(words, values):
    assert parse_flags(*words.split()) == values


def test_every_setting_has_a_flag_and_the_help_lists_it_by_section(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    help_text = parser().format_help()
    for key, setting in SETTINGS.items():
        assert parse_flags(setting.flag, "7") == {key: ["7"] if setting.kind in ("names", "texts") else "7"}
        assert f"{setting.flag} " in help_text and setting.help in help_text
        assert f"{flags.section_title(setting.section)}:" in help_text


@pytest.mark.parametrize(
    "values",
    [
        {"name": "a", "data": ["-x.txt"], "hard_cut": ""},
        {**UNUSUAL, "targets": ["q_proj", "o_proj"], "sample_prompts": ["-a", "b\nc", "C:\\new"]},
    ],
)
def test_only_values_that_differ_from_the_defaults_are_written_and_they_are_read_back(values):
    settings = training_settings(values)
    arguments = list(flags.as_arguments(settings.values()))
    assert training_settings({**parse_flags(*arguments), "hard_cut": values["hard_cut"]}) == settings
    assert parse_flags(*arguments).keys() == values.keys()
    assert "\n" not in " ".join(arguments)  # a line break would end the command in the Command Prompt
