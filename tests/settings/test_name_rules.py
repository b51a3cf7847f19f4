"""Which names a LoRA may have."""

import pytest
from training_pro.settings.name_rules import MAX_NAME_LENGTH, TORCH_ATTRIBUTES, name_problem


@pytest.mark.parametrize(
    "name",
    [
        "my-story",
        "Story 2",
        "a",
        "x" * MAX_NAME_LENGTH,
        "Märchen_ß",
        "物語",
        "console",
        "np",
        "story-np2",
        "com10",
    ],
)
def test_good_names(name):
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("x" * (MAX_NAME_LENGTH + 1), f"has {MAX_NAME_LENGTH + 1} characters"),
        ("v1.5", "contains a dot"),
        (".hidden", "contains a dot"),
        ("..", "is a path"),
        ("../x", "is a path"),
        ("a/b", "is a path"),
        ("/etc/passwd", "is a path"),
        ("a\\b", "is a path"),
        ("C:\\x", "is a path"),
        ("C:x", "is a path"),
        ("what?", "contains '?'"),
        ("a:b c", "is a path"),
        ("ab:c", "contains ':'"),
        ("tab\there", "contains '\\t'"),
        ("nul\x00", "contains '\\x00'"),
        (" story", "not a valid name on Windows"),
        ("story ", "not a valid name on Windows"),
        ("con", "not a valid name on Windows"),
        ("LPT1", "not a valid name on Windows"),
        ("story-np", "ends in -np"),
        ("-story", "starts with -"),
        ("half", "is a name that PyTorch uses"),
    ],
)
def test_bad_names(name, said):
    problem = name_problem(name)
    assert said in problem
    assert problem.endswith(".")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "this field is empty. Enter a name for the preset, for example 'my-story'."),
        ("../x", "'../x' is a path. Enter only a name without a folder."),
        ("story.", "'story.' is not a valid name on Windows. Choose another name."),
        (".story", "'.story' starts with a dot, so it would be hidden. Choose another name."),
        ("Llama-3.1 mine", ""),
        ("half", ""),
    ],
)
def test_other_names_have_fewer_rules_than_those_of_loras(name, said):
    assert name_problem(name, "preset") == said


def test_every_plain_attribute_of_torch_modules_is_known():
    import torch

    own = {*dir(torch.nn.ModuleDict()), *dir(torch.nn.ParameterDict())}
    assert [word for word in own if "_" not in word and not TORCH_ATTRIBUTES.fullmatch(word)] == []
