"""Command-line flags for the settings."""

import argparse

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import flags
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.settings.reference import section_title
from training_pro.tests.settings.test_files import UNUSUAL


def parser():
    train_parser = argparse.ArgumentParser(prog="train")
    train_parser.add_argument("--model")
    flags.add_flags(train_parser)
    return train_parser


def parse_flags(*words):
    return flags.given_settings(parser().parse_args(words))


def test_only_given_flags_are_there():
    assert parse_flags() == {}
    assert parse_flags("--model", "m", "--epochs", "3") == {"epochs": "3"}


def test_every_setting_has_a_flag_and_keeps_its_text():
    for key, setting in SETTINGS.items():
        values = parse_flags(setting.flag, "7")
        assert values == {key: ["7"] if setting.kind in ("names", "texts") else "7"}


def test_lists_take_several_values_and_may_be_repeated():
    assert parse_flags("--data", "a.txt", "b/") == {"data": ["a.txt", "b/"]}
    assert parse_flags("--data", "a.txt", "--epochs", "1", "--data", "b/") == {
        "data": ["a.txt", "b/"],
        "epochs": "1",
    }
    assert parse_flags("--data", "c.txt") == {"data": ["c.txt"]}


def test_a_choice_that_may_be_a_list_is_one_word_or_several():
    assert parse_flags("--targets", "q-v") == {"targets": "q-v"}
    assert parse_flags("--targets", "q_proj", "o_proj") == {"targets": ["q_proj", "o_proj"]}


def test_empty_and_odd_texts_come_through():
    assert parse_flags("--hard-cut", "", "--name", "100%", "--warmup-steps=-1") == {
        "hard_cut": "",
        "name": "100%",
        "warmup_steps": "-1",
    }


def test_flags_read_as_settings():
    settings = training_settings(
        parse_flags("--name", "a", "--data", "x.txt", "--overlap", "false", "--learning-rate", "1e-3")
    )
    assert (settings.what.name, settings.what.data) == ("a", ("x.txt",))
    assert (settings.text.overlap, settings.learning.learning_rate) == (False, 1e-3)


def test_bad_values_are_left_for_parsing_to_refuse():
    with pytest.raises(SettingsError, match="Learning Rate: 'abc' is not a number"):
        training_settings(parse_flags("--name", "a", "--data", "x.txt", "--learning-rate", "abc"))


def test_an_unknown_flag_is_a_wrong_command_line():
    with pytest.raises(SystemExit) as exit:
        parse_flags("--no-such-thing", "1")
    assert exit.value.code == 2


def test_the_help_lists_what_works_by_section(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    help_text = parser().format_help()
    for setting in SETTINGS.values():
        assert f"{setting.flag} " in help_text
        assert setting.help in help_text
        assert f"{section_title(setting.section)}:" in help_text


def test_values_that_differ_from_the_defaults_are_written_and_read_back():
    settings = training_settings(
        {**UNUSUAL, "targets": ["q_proj", "o_proj"], "sample_prompts": ["-a", "b\nc", "C:\\new"]}
    )
    arguments = list(flags.as_arguments(settings.values()))
    assert training_settings(parse_flags(*arguments)) == settings
    assert "b\\nc" in " ".join(arguments)  # a line break would end the command in the Command Prompt
    assert set(parse_flags(*arguments)) == {*UNUSUAL, "sample_prompts"}


def test_defaults_are_not_written():
    settings = training_settings({"name": "a", "data": ["-x.txt"]})
    assert list(flags.as_arguments(settings.values())) == ["--name", "a", "--data=-x.txt"]
    settings = training_settings({"name": "a", "data": ["x.txt"], "hard_cut": ""})
    arguments = list(flags.as_arguments(settings.values()))
    assert arguments[-1] == "--hard-cut=" and training_settings(parse_flags(*arguments)) == settings
