"""Reading of a single value, and the message for one that cannot be read."""

import math

import pytest
from training_pro.settings.definitions import SECTIONS, SETTINGS, TrainingSettings
from training_pro.settings.setting import Setting


def setting(kind, default, **more):
    return Setting(key="a_key", section="what", kind=kind, default=default, label="Label", help="Help.", **more)


WHOLE = setting("whole", 4, bounds=(1, 10))
AUTO = setting("whole", "auto", bounds=(16, 99), words=("auto",))
NUMBER = setting("number", 0.5, bounds=(0, 1))
FREE = setting("choice", "all", choices={"all": "All", "few": "Few"}, free=True)
CHOICE = setting("choice", "all", choices={"all": "All", "few": "Few"})
YES_NO = setting("yes/no", True)
NAMES = setting("names", ())
TEXT = setting("text", "")
TEXTS = setting("texts", "auto", words=("auto",))


@pytest.mark.parametrize(
    ("of", "value", "read"),
    [
        (WHOLE, "3", 3),
        (WHOLE, 3.0, 3),
        (WHOLE, 1, 1),
        (WHOLE, 10, 10),
        (AUTO, " auto ", "auto"),
        (AUTO, "16", 16),
        (NUMBER, "2e-1", 0.2),
        (NUMBER, 1, 1.0),
        (YES_NO, False, False),
        (YES_NO, "false", False),
        (YES_NO, "True", True),
        (YES_NO, 0, False),
        (TEXTS, "auto", "auto"),
        (TEXTS, ["auto"], "auto"),
        (TEXTS, " ", "auto"),
        (TEXTS, [], "auto"),
        (TEXTS, "Once upon\n\n Tell\\nme ", ("Once upon", "Tell\nme")),
        (TEXTS, ["a\\nb", "auto"], ("a\\nb", "auto")),
        (TEXTS, r"C:\\new\nline", ("C:\\new\nline",)),
        (NAMES, "one.txt", ("one.txt",)),
        (NAMES, ["one.txt", " two/ ", ""], ("one.txt", "two/")),
        (NAMES, None, ()),
        (TEXT, "\\n", "\\n"),
        (CHOICE, "few", "few"),
        (FREE, "few", "few"),
        (FREE, ["q_proj"], ("q_proj",)),
    ],
)
def test_a_value_becomes_its_type(of, value, read):
    result = of.read(value)
    assert (result, type(result)) == (read, type(read))


@pytest.mark.parametrize(
    ("of", "value", "sentence"),
    [
        (WHOLE, 0, "Label: 0 is out of range. Allowed: 1 to 10."),
        (WHOLE, 11, "Label: 11 is out of range. Allowed: 1 to 10."),
        (WHOLE, 2.5, "Label: 2.5 is not a whole number. Allowed: 1 to 10."),
        (WHOLE, "many", "Label: 'many' is not a number. Allowed: 1 to 10."),
        (WHOLE, True, "Label: True is not a number. Allowed: 1 to 10."),
        (WHOLE, None, "Label: this field is empty. Enter a value such as 4."),
        (AUTO, "", "Label: this field is empty. Enter a value such as auto."),
        (WHOLE, "auto", "Label: 'auto' is not a number. Allowed: 1 to 10."),
        (NUMBER, "1,5e-4", "Label: '1,5e-4' is not a number. Write 1.5e-4 with a decimal point."),
        (NUMBER, ",05", "Label: ',05' is not a number. Write 0.05 with a decimal point."),
        (WHOLE, " 2,0 ", "Label: ' 2,0 ' is not a number. Write 2.0 with a decimal point."),
        (
            AUTO,
            "1,024",
            "Label: '1,024' is not a number. "
            "Write 1.024 with a decimal point, or 1024 if the comma separates thousands.",
        ),
        (NUMBER, "1,2,3", "Label: '1,2,3' is not a number. Allowed: 0 to 1."),
        (AUTO, 15, "Label: 15 is out of range. Allowed: auto or 16 to 99."),
        (NUMBER, math.nan, "Label: nan is out of range. Allowed: 0 to 1."),
        (NUMBER, "inf", "Label: inf is out of range. Allowed: 0 to 1."),
        (YES_NO, "maybe", "Label: 'maybe' is neither true nor false."),
        (TEXTS, 5, "Label: 5 is not a list of strings."),
        (NAMES, 5, "Label: 5 is not a list of names."),
        (NAMES, ["a", 5], "Label: ['a', 5] is not a list of names."),
        (TEXT, 5, "Label: 5 is not text."),
        (CHOICE, "none", "Label: 'none' is not one of all, few."),
        (CHOICE, ["few"], "Label: ['few'] is not one of all, few."),
        (FREE, 7, "Label: 7 is not a list of names."),
    ],
)
def test_a_bad_value_is_a_sentence(of, value, sentence):
    with pytest.raises(ValueError) as error:
        of.read(value)
    assert str(error.value) == sentence


def test_the_message_of_a_check_begins_with_the_label():
    checked = setting("text", "", check=lambda value: "is too plain." if value == "a" else "")
    assert checked.read("b") == "b"
    with pytest.raises(ValueError, match=r"^Label: is too plain\.$"):
        checked.read("a")


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (WHOLE, "1 to 10"),
        (AUTO, "auto or 16 to 99"),
        (setting("whole", 1, bounds=(0, 2**32 - 1)), "0 to 4294967295"),
        (setting("number", 1, bounds=(1e-9, 0.5)), "1e-09 to 0.5"),
        (CHOICE, "all, few"),
        (FREE, "all, few, or module names"),
        (TEXT, ""),
    ],
)
def test_accepted_values_in_words(of, words):
    assert of.range() == words


def test_the_flag_is_the_key():
    assert WHOLE.flag == "--a-key"


@pytest.mark.parametrize("key", [key for key in SETTINGS if key != "name"])
def test_every_default_is_an_accepted_value(key):
    default = SETTINGS[key].default
    assert SETTINGS[key].read(default) == default


def test_every_setting_is_explained_and_belongs_to_a_section():
    for key, of in SETTINGS.items():
        assert of.key == key
        assert of.label and of.help.endswith("."), key
        assert of.section in SECTIONS, key
        assert not of.choices or all(of.choices.values()), key


def test_labels_are_unique():
    assert len({of.label for of in SETTINGS.values()}) == len(SETTINGS)


def test_the_values_of_the_settings_are_flat_and_plain():
    values = TrainingSettings().values()
    assert values.keys() == SETTINGS.keys()
    assert values["data"] == []
    assert values["cutoff"] == "auto"
    assert all(isinstance(value, (str, int, float, bool, list)) for value in values.values())
