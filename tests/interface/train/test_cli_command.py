"""The form as a command: what is shown is what the command line reads."""

from __future__ import annotations

import re
import shlex
from html import unescape
from types import SimpleNamespace

import pytest
from training_pro.commands.train import _parsed
from training_pro.core import launcher
from training_pro.interface.train import cli_command as module
from training_pro.interface.train.cli_command import as_command
from training_pro.settings import flags
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import FakeHost, made_folders


@pytest.fixture
def host(tmp_path):
    return FakeHost(folders=made_folders(tmp_path / "a folder"))


def shown(html):
    """The line that is copied."""
    return unescape(re.sub("</?span>", "", re.search(r"<pre[^>]*>(.*)</pre>", html, re.DOTALL)[1]))


def test_what_is_shown_trains_the_same(host):
    values = {"name": "my story", "data": ["a b.txt"], "cutoff": "128", "hard_cut": "<'\\n\">"}
    python, script, command, *words = shlex.split(shown(as_command(values, host)))
    assert (python, command) == ("python3", "train")
    assert script.endswith("script.py")
    asked = _parsed(words)
    assert training_settings(flags.given(asked)) == training_settings(values)
    assert asked.user_data == host.folders.user_data
    assert asked.model == str(host.folders.models / host.card().name)


def test_a_form_that_is_not_ready_says_what_is_wrong(host):
    told = as_command({"name": "", "data": ["x.txt"], "rank": "many"}, host)
    assert "not ready for a command" in told
    assert "is empty" in told and "many" in told
    assert "<pre" not in told


def as_windows_takes_apart(line):
    """As a program on Windows gets its words: a backslash counts only before a quote. And what stood outside."""
    words, word, inside, outside = [], "", False, ""
    for piece in re.findall(r'\\*"|\\+|.', line, re.DOTALL):
        if piece.endswith('"'):
            count = len(piece) - 1
            word += "\\" * (count // 2) + '"' * (count % 2)
            inside ^= not count % 2
        elif piece == " " and not inside:
            words, word = [*words, word], ""
        else:
            word += piece
            outside += "" if inside else piece
    return [*words, word], outside


TAKEN_APART = "&|<>^(),;'`$@{}#%!~"
"""Each by the Command Prompt, or by PowerShell, where it stands outside of quotes."""


@pytest.fixture
def windows(monkeypatch):
    for asked in (module, launcher):
        monkeypatch.setattr(asked, "os", SimpleNamespace(name="nt"))


def test_on_windows_it_is_for_both_of_its_consoles(windows, host):
    values = {
        "name": "Q&A (2)",
        "data": ["R&B, live.txt", "it's.txt", "a b\\"],
        "hard_cut": "",
        "system": "Be; nice",
    }
    told = as_command(values, host)
    (python, _, command, *words), outside = as_windows_takes_apart(shown(told))
    assert (python, command) == ("py", "train")
    assert not set(TAKEN_APART) & set(outside)
    assert training_settings(flags.given(_parsed(words))) == training_settings(values)
    assert '""' not in shown(told)  # PowerShell passes no empty word on
    assert "PowerShell" not in told


@pytest.mark.parametrize("system", ['Say "hi" at \\"', "It costs $5.", "a `sign`"])
def test_what_only_one_of_them_can_take_is_said(windows, host, system):
    told = as_command({"name": "a", "data": ["a.txt"], "system": system}, host)
    (_, _, _, *words), _ = as_windows_takes_apart(shown(told))
    assert flags.given(_parsed(words))["system"] == system
    assert "It is written for the Command Prompt (cmd)" in told
