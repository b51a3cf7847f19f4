"""The form as a command: the command line reads the same settings back."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import pytest
from training_pro.commands.train import _parse_args
from training_pro.core import launcher
from training_pro.interface.train import cli_command as module
from training_pro.interface.train.cli_command import cli_command_html
from training_pro.settings import flags
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import FakeHost, make_folders


@pytest.fixture
def host(tmp_path):
    return FakeHost(folders=make_folders(tmp_path / "a folder"))


def command_line(html):
    """The command line inside the HTML."""
    return unescape(re.sub("</?span>", "", re.search(r"<pre[^>]*>(.*)</pre>", html, re.DOTALL)[1]))


def test_the_command_has_the_same_settings(host):
    values = {"name": "my story", "data": ["a b.txt"], "cutoff": "128", "hard_cut": "<'\\n\">"}
    python, script, command, *words = shlex.split(command_line(cli_command_html(values, host)))
    assert (python, command) == ("python3", "train")
    assert script.endswith("script.py")
    parsed = _parse_args(words)
    assert training_settings(flags.given_settings(parsed)) == training_settings(values)
    assert parsed.user_data == host.folders.user_data
    assert parsed.model == str(host.folders.models / host.card().name)


def test_an_invalid_form_shows_its_problems(host):
    html = cli_command_html({"name": "", "data": ["x.txt"], "rank": "many"}, host)
    assert "so there is no command yet" in html
    assert "is empty" in html and "many" in html
    assert "<pre" not in html


def split_like_windows(line):
    """Split a line like a program on Windows (backslashes matter only before a quote), and the unquoted text."""
    words, word, inside, outside = [], "", False, ""
    for token in re.findall(r'\\*"|\\+|.', line, re.DOTALL):
        if token.endswith('"'):
            count = len(token) - 1
            word += "\\" * (count // 2) + '"' * (count % 2)
            inside ^= not count % 2
        elif token == " " and not inside:
            words, word = [*words, word], ""
        else:
            word += token
            outside += "" if inside else token
    return [*words, word], outside


SPECIAL_CHARACTERS = "&|<>^(),;'`$@{}#%!~"
"""Characters that the Command Prompt or PowerShell interprets outside of quotes."""


@pytest.fixture
def windows(monkeypatch):
    for patched in (module, launcher):
        monkeypatch.setattr(patched, "os", SimpleNamespace(name="nt"))


def test_on_windows_it_works_in_both_consoles(windows, host):
    values = {
        "name": "Q&A (2)",
        "data": ["R&B, live.txt", "it's.txt", "a b\\"],
        "hard_cut": "",
        "system": "Be; nice",
    }
    html = cli_command_html(values, host)
    (python, _, command, *words), outside = split_like_windows(command_line(html))
    assert (python, command) == ("py", "train")
    assert not set(SPECIAL_CHARACTERS) & set(outside)
    assert training_settings(flags.given_settings(_parse_args(words))) == training_settings(values)
    assert '""' not in command_line(html)  # PowerShell drops empty words
    assert "PowerShell" not in html


@pytest.mark.parametrize("system", ['Say "hi" at \\"', "It costs $5.", "a `sign`"])
def test_a_command_for_only_one_console_says_so(windows, host, system):
    html = cli_command_html({"name": "a", "data": ["a.txt"], "system": system}, host)
    (_, _, _, *words), _ = split_like_windows(command_line(html))
    assert flags.given_settings(_parse_args(words))["system"] == system
    assert "Run this command in the Command Prompt (cmd)" in html


def test_the_command_finds_a_model_outside_the_models_folder(host, monkeypatch):
    card = replace(host.card(), given_name="/data/my model")
    monkeypatch.setattr(FakeHost, "card", lambda self: card)
    *_, command = cli_command_html({"name": "a", "data": ["a.txt"]}, host).partition("train")
    assert "/data/my model" in unescape(command)
