"""The settings as flags of a command line."""

import argparse

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import flags
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.settings.reference import title
from training_pro.tests.settings.test_files import UNUSUAL


def parser():
    found = argparse.ArgumentParser(prog="train")
    found.add_argument("--model")
    flags.add_to(found)
    return found


def given(*words):
    return flags.given(parser().parse_args(words))


def test_only_what_was_given_is_there():
    assert given() == {}
    assert given("--model", "m", "--epochs", "3") == {"epochs": "3"}


def test_every_setting_has_a_flag_and_keeps_its_text():
    for key, setting in SETTINGS.items():
        found = given(setting.flag, "7")
        assert found == {key: ["7"] if setting.kind in ("names", "texts") else "7"}


def test_lists_take_several_values_and_may_be_repeated():
    assert given("--data", "a.txt", "b/") == {"data": ["a.txt", "b/"]}
    assert given("--data", "a.txt", "--epochs", "1", "--data", "b/") == {"data": ["a.txt", "b/"], "epochs": "1"}
    assert given("--data", "c.txt") == {"data": ["c.txt"]}


def test_a_choice_that_may_be_a_list_is_one_word_or_several():
    assert given("--targets", "q-v") == {"targets": "q-v"}
    assert given("--targets", "q_proj", "o_proj") == {"targets": ["q_proj", "o_proj"]}


def test_empty_and_odd_texts_come_through():
    assert given("--hard-cut", "", "--name", "100%", "--warmup-steps=-1") == {
        "hard_cut": "",
        "name": "100%",
        "warmup_steps": "-1",
    }


def test_flags_read_as_settings():
    asked = training_settings(
        given("--name", "a", "--data", "x.txt", "--overlap", "false", "--learning-rate", "1e-3")
    )
    assert (asked.what.name, asked.what.data) == ("a", ("x.txt",))
    assert (asked.text.overlap, asked.learning.learning_rate) == (False, 1e-3)


def test_bad_values_are_left_for_reading_to_refuse():
    with pytest.raises(SettingsError, match="Learning Rate: 'abc' is not a number"):
        training_settings(given("--name", "a", "--data", "x.txt", "--learning-rate", "abc"))


def test_an_unknown_flag_is_a_wrong_command_line():
    with pytest.raises(SystemExit) as exit:
        given("--no-such-thing", "1")
    assert exit.value.code == 2


def test_the_help_lists_what_works_by_section(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    words = parser().format_help()
    for setting in SETTINGS.values():
        assert f"{setting.flag} " in words
        assert setting.help in words
        assert f"{title(setting.section)}:" in words


def test_what_differs_from_the_defaults_is_typed_and_read_back():
    asked = training_settings({**UNUSUAL, "targets": ["q_proj", "o_proj"], "sample_prompts": ["-a", "b\nc"]})
    typed = list(flags.as_words(asked.values()))
    assert training_settings(given(*typed)) == asked
    assert set(given(*typed)) == {*UNUSUAL, "sample_prompts"}


def test_nothing_is_typed_for_the_defaults():
    asked = training_settings({"name": "a", "data": ["-x.txt"]})
    assert list(flags.as_words(asked.values())) == ["--name", "a", "--data=-x.txt"]
    asked = training_settings({"name": "a", "data": ["x.txt"], "hard_cut": ""})
    typed = list(flags.as_words(asked.values()))
    assert typed[-1] == "--hard-cut=" and training_settings(given(*typed)) == asked
