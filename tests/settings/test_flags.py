"""Command-line flags for the settings."""

import argparse

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import flags, reference
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.settings.test_files import UNUSUAL


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
        ("--model m --epochs 3", {"epochs": "3"}),
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
        assert f"{reference.section_title(setting.section)}:" in help_text


def test_bad_values_are_left_for_parsing_and_an_unknown_flag_is_a_wrong_command_line():
    with pytest.raises(SettingsError, match="Learning Rate: 'abc' is not a number"):
        training_settings(parse_flags("--name", "a", "--data", "x.txt", "--learning-rate", "abc"))
    with pytest.raises(SystemExit) as error:
        parse_flags("--no-such-thing", "1")
    assert error.value.code == 2


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
    assert training_settings(parse_flags(*arguments)) == settings
    assert parse_flags(*arguments).keys() == values.keys()
    assert "b\nc" not in " ".join(arguments)  # a line break would end the command in the Command Prompt
