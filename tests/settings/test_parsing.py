"""Parsing of plain values into the settings of a run, or into all problems at once."""

import math

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import name_rules
from training_pro.settings.definitions import SECTIONS, SETTINGS, TrainingSettings
from training_pro.settings.parsing import ROW_SETTING_KEYS, row_settings, training_settings


def problems(**values):
    with pytest.raises(SettingsError) as error:
        training_settings({"name": "a", "data": ["x.txt"], **values})
    assert str(error.value) == "\n".join(error.value.problems)
    return error.value.problems


def test_every_setting_is_explained_and_its_default_is_an_accepted_plain_value():
    assert len({setting.label for setting in SETTINGS.values()}) == len(SETTINGS)
    for key, setting in SETTINGS.items():
        assert setting.key == key and setting.section in SECTIONS, key
        assert setting.label and setting.help.endswith(".") and all(setting.choices.values()), key
        assert key == "name" or setting.read(setting.default) == setting.default
    values = TrainingSettings().values()
    assert values.keys() == SETTINGS.keys() and (values["data"], values["cutoff"]) == ([], "auto")
    assert all(isinstance(value, str | int | float | bool | list) for value in values.values())


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("rank", 8.0, 8),
        ("cutoff", " auto ", "auto"),
        ("cutoff", "16", 16),
        ("learning_rate", "2e-1", 0.2),
        ("overlap", False, False),
        ("overlap", "True", True),
        ("sample_prompts", ["auto"], "auto"),
        ("sample_prompts", "Once upon\n\n Tell\\nme ", ("Once upon", "Tell\nme")),
        ("sample_prompts", ["a\\nb", "auto"], ("a\\nb", "auto")),
        ("sample_prompts", r"C:\\new\nline", ("C:\\new\nline",)),
        ("data", ["one.txt", " two/ ", ""], ("one.txt", "two/")),
        ("hard_cut", "\\n", "\\n"),
        ("targets", ["q_proj"], ("q_proj",)),
    ],
)
def test_a_value_becomes_its_type(key, value, read):
    settings = training_settings({"name": "a", "data": "x.txt", key: value})
    found = getattr(getattr(settings, SETTINGS[key].section), key)
    assert (found, type(found)) == (read, type(read))
    assert settings.learning.learning_rate == (0.2 if key == "learning_rate" else 2e-4)  # the rest is default


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("learning_rate", "1,5e-4", "Learning Rate: '1,5e-4' is not a number. Write 1.5e-4 with a decimal point."),
        ("learning_rate", math.nan, "Learning Rate: nan is out of range. Allowed: 1e-09 to 0.9999."),
        ("cutoff", "1,024", "or 1024 if the comma separates thousands."),
        ("cutoff", 15, "Maximum context length (Cutoff): 15 is out of range. Allowed: auto or 16 to 131072."),
        ("rank", 2.5, "LoRA Rank: 2.5 is not a whole number. Allowed: 1 to 32768."),
        ("rank", True, "LoRA Rank: True is not a number."),
        ("overlap", "perhaps", "Overlap blocks: 'perhaps' is neither true nor false."),
        ("sample_prompts", 5, ": 5 is not a list of strings."),
        ("chunking", "pages", "Chunking: 'pages' is not one of blocks, dementor."),
        ("targets", 7, ": 7 is not a list of names."),
        ("epoch", 3, "Unknown setting 'epoch'. Did you mean 'epochs'?"),
        ("zzzz", 3, "Unknown setting 'zzzz'. `script.py settings` lists all settings."),
        ("name", None, "Name: None is not text."),
        ("name", "a/b", "Name: 'a/b' is a path. Enter only a name. The LoRA is always saved in the LoRA folder."),
    ],
)
def test_a_bad_value_is_a_sentence(key, value, sentence):
    (problem,) = problems(**{key: value})
    assert sentence in problem


def test_all_problems_come_at_once():
    found = problems(name="a.b", data=[], learning_rate="abc", cutoff=0, telepathy="on", ranks=8)
    starts = ("Name:", "Learning", "Maximum context", "Unknown setting 'te", "Unknown setting 'r", "Data")
    assert [[sentence.startswith(start) for sentence in found].count(True) for start in starts] == [1] * len(found)
    assert len(problems(name="", data=[])) == 2


def test_the_settings_of_rows_are_those_that_decide_on_their_ids():
    """`too_long` is not needed by callers that take rows of any length."""
    row_keys = {key for key, setting in SETTINGS.items() if setting.section == "rows"}
    assert row_keys - {"too_long"} == set(ROW_SETTING_KEYS) & row_keys
    settings = row_settings({"train_on": "last_reply", "add_bos": False, "epochs": "many", "name": ""})
    assert (settings.rows.train_on, settings.text.add_bos) == ("last_reply", False)
    with pytest.raises(SettingsError, match="Train on"):
        row_settings({"train_on": "nothing"})


BAD_NAMES = {
    "": "is empty", "   ": "is empty", "x" * 61: "has 61 characters", "v1.5": "contains a dot",
    ".hidden": "contains a dot", "../x": "is a path", "/etc/passwd": "is a path", "a\\b": "is a path",
    "C:x": "is a path", "what?": "contains '?'", "ab:c": "contains ':'", "tab\there": "contains '\\t'",
    "nul\x00": "contains '\\x00'", " story": "not a valid name on Windows", "con": "not a valid name on Windows",
    "LPT1": "not a valid name on Windows", "story-np": "ends in -np", "-story": "starts with -",
    "half": "is a name that PyTorch uses",
}  # fmt: skip


def test_which_names_a_lora_may_have():
    for name in ("my-story", "Story 2", "x" * 60, "Märchen_ß", "物語", "console", "np", "story-np2", "com10"):
        assert name_rules.name_problem(name) == ""
    for name, said in BAD_NAMES.items():
        assert said in name_rules.name_problem(name), name
    for name, said in (("", "this field is empty"), (".story", "would be hidden")):
        assert said in name_rules.name_problem(name, "preset")
    assert [name_rules.name_problem(name, "preset") for name in ("v1.5", "half")] == ["", ""]


def test_every_plain_attribute_of_torch_modules_is_known():
    import torch

    own = {*dir(torch.nn.ModuleDict()), *dir(torch.nn.ParameterDict())}
    assert [word for word in own if "_" not in word and not name_rules.TORCH_ATTRIBUTES.fullmatch(word)] == []
