"""Parsing of plain values into the settings of a run, or into all problems at once."""

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import ROW_SETTING_KEYS, row_settings, training_settings


def problems(**values):
    with pytest.raises(SettingsError) as error:
        training_settings({"name": "a", "data": ["x.txt"], **values})
    assert str(error.value) == "\n".join(error.value.problems)
    return error.value.problems


def test_values_become_settings_and_the_rest_is_default():
    settings = training_settings({"name": "a", "data": "x.txt", "epochs": "3", "overlap": "false", "rank": 8.0})
    assert settings.what.name == "a"
    assert settings.what.data == ("x.txt",)
    assert settings.steps.epochs == 3.0
    assert settings.text.overlap is False
    assert settings.lora.rank == 8
    assert settings.learning.learning_rate == 2e-4


def test_all_problems_come_at_once():
    found = problems(name="a.b", data=[], learning_rate="abc", cutoff=0, telepathy="on", ranks=8)
    assert len(found) == 6
    expected = (
        "Name:",
        "Learning Rate:",
        "Maximum context length",
        "Unknown setting 'telepathy'",
        "Unknown setting 'ranks'",
        "Dataset:",
    )
    assert [[sentence.startswith(start) for sentence in found].count(True) for start in expected] == [1] * 6


def test_no_values_at_all_ask_for_a_name_and_data():
    with pytest.raises(SettingsError) as error:
        training_settings({})
    assert error.value.problems == (
        "Name: this field is empty. Enter a name for the LoRA, for example 'my-story'.",
        "Dataset: choose at least one file, for example story.txt.",
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "Name: this field is empty. Enter a name for the LoRA, for example 'my-story'."),
        (
            "v1.5",
            "Name: 'v1.5' contains a dot, and a LoRA with a dot in its name can't be attached. Use - "
            "or _ instead.",
        ),
        ("../x", "Name: '../x' is a path. Enter only a name. The LoRA is always saved in the LoRA folder."),
        (
            "C:\\x",
            "Name: 'C:\\\\x' is a path. Enter only a name. The LoRA is always saved in the LoRA folder.",
        ),
        ("a" * 300, "Name: this name has 300 characters; the limit is 60. Choose a shorter name."),
        (None, "Name: None is not text."),
    ],
)
def test_a_bad_name(name, sentence):
    assert problems(name=name) == (sentence,)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("learning_rate", "1,5e-4", "Learning Rate: '1,5e-4' is not a number. Write 1.5e-4 with a decimal point."),
        ("learning_rate", "abc", "Learning Rate: 'abc' is not a number. Allowed: 1e-09 to 0.9999."),
        ("learning_rate", 2, "Learning Rate: 2 is out of range. Allowed: 1e-09 to 0.9999."),
        ("cutoff", 0, "Maximum context length (Cutoff): 0 is out of range. Allowed: auto or 16 to 131072."),
        (
            "cutoff",
            "long",
            "Maximum context length (Cutoff): 'long' is not a number. Allowed: auto or 16 to 131072.",
        ),
        ("epochs", 0, "Epochs: 0 is out of range. Allowed: 0.01 to 1000."),
        ("rank", 2.5, "LoRA Rank: 2.5 is not a whole number. Allowed: 1 to 32768."),
        ("overlap", "perhaps", "Overlap blocks: 'perhaps' is neither true nor false."),
        ("chunking", "pages", "Chunking: 'pages' is not one of blocks, dementor."),
        ("epoch", 3, "Unknown setting 'epoch'. Did you mean 'epochs'?"),
        ("learning-rate", 1, "Unknown setting 'learning-rate'. Did you mean 'learning_rate'?"),
        ("zzzz", 3, "Unknown setting 'zzzz'. `script.py settings` lists all settings."),
    ],
)
def test_a_bad_value(key, value, sentence):
    assert problems(**{key: value}) == (sentence,)


def test_only_the_settings_of_rows():
    values = {"train_on": "last_reply", "add_bos": False, "epochs": "many", "name": ""}
    settings = row_settings(values)
    assert (settings.rows.train_on, settings.text.add_bos) == ("last_reply", False)
    with pytest.raises(SettingsError, match="Train on"):
        row_settings({"train_on": "nothing"})


def test_all_settings_that_decide_on_the_ids_of_a_row_are_there():
    """All settings of the section; `too_long` is not needed by callers that take rows of any length."""
    row_keys = {key for key, setting in SETTINGS.items() if setting.section == "rows"}
    assert row_keys - {"too_long"} == set(ROW_SETTING_KEYS) & row_keys
