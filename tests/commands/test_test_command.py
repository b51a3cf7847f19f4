"""The `test` command, and what CI runs."""

from __future__ import annotations

import os
import re
import sys

import pytest
from training_pro.commands import test as command

ROOT = command.ROOT


@pytest.fixture
def start(monkeypatch):
    """Start the command, and return what it would start: the words after pytest's, and all that it was given."""
    seen = {}
    monkeypatch.setattr(command, "ensure_environment", lambda need, **more: seen.update(need=need, **more))
    monkeypatch.setattr(command, "run_program", lambda words, **more: seen.update(words=words, **more) or 5)
    monkeypatch.setenv("PYTHONPATH", "theirs")

    def call(*words):
        assert command.run([*words]) == 5
        assert seen["words"][:3] == [sys.executable, "-m", "pytest"] and seen["cwd"] == ROOT
        return [word for word in seen["words"][3:] if word not in command.PARALLEL_OPTIONS], seen

    return call


def test_pytest_runs_the_short_tests_side_by_side_where_no_file_is_named(start):
    for given in ([], ["-k", "memory"], ["--ignore=tests/core"], ["-x", "tests/hosts"], ["tests/test_docs.py::x"]):
        words, seen = start(*given)
        assert words == ["-m", "not long", *given]
        named = any("tests/" in word and "=" not in word for word in given)
        assert (command.PARALLEL_OPTIONS[0] in seen["words"]) != named
    assert (seen["need"], seen["webui_pins"], seen["torch_spec"]) == ("test", False, None)
    assert seen["env"]["PYTHONPATH"] == "theirs"


def test_the_webuis_pins_and_the_wished_torch_are_not_pytests(start):
    words, seen = start("--webui-pins", "--torch", "cpu", "-q")
    assert words == ["-m", "not long", "-q"] and seen["webui_pins"] and seen["torch_spec"] == "cpu"
    assert seen["env"]["PYTHONPATH"].split(os.pathsep) == [str(command.WEBUI_PINS), "theirs"]


def test_ci_runs_both_kinds_of_tests_and_its_smoke_tests_exist():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    smoke = re.findall(r"tests/[\w/]+\.py", lines)
    assert 'script.py test "$@"' in lines and "script.py test --webui-pins" in lines
    assert lines.count("|| status=$?") == 2 and 'exit "$status"' in lines  # either fails the whole
    assert len(smoke) > 5 and all((ROOT / name).exists() for name in smoke)
