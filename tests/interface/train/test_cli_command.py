"""The form as a command: the command line reads the same settings back."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import pytest
from training_pro.commands import options, train
from training_pro.interface.train import cli_command_html, presets_panel
from training_pro.settings import flags
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import FakeHost, make_folders


@pytest.fixture
def host(tmp_path):
    return FakeHost(folders=make_folders(tmp_path / "a folder"))


def command_line(values, host):
    """The command line inside the HTML, and the HTML."""
    html = cli_command_html(values, host)
    return unescape(re.sub("</?span>", "", re.search(r"<pre[^>]*>(.*)</pre>", html, re.DOTALL)[1])), html


def parse(words):
    train.add_settings(parser := options.make_parser("train", model=True))
    return parser.parse_args(words)


def read_back(words):
    return flags.given_settings(parse(words))


def test_the_command_has_the_same_settings_and_finds_the_model(host):
    values = {"name": "my story", "data": ["a b.txt"], "cutoff": "128", "hard_cut": "<'\\n\">"}
    python, script, command, *words = shlex.split(command_line(values, host)[0])
    assert (python, command) == (sys.executable, "train") and script.endswith("script.py")
    parsed = parse(words)
    assert training_settings(read_back(words)) == training_settings(values)
    assert parsed.user_data == host.folders.user_data
    assert parsed.model == str(host.folders.models / host.card().name)
    elsewhere = FakeHost(folders=host.folders)
    elsewhere.card = lambda: replace(host.card(), given_name="/data/my model")
    assert "/data/my model" in command_line(values, elsewhere)[0]


def test_an_invalid_form_shows_its_problems(host):
    html = cli_command_html({"name": "", "data": ["x.txt"], "rank": "many"}, host)
    assert "so there is no command yet" in html and "is empty" in html and "many" in html and "<pre" not in html


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


@pytest.mark.parametrize("system", ["Be; nice", 'Say "hi" at \\"', "It costs $5.", "a `sign`"])
def test_on_windows_it_works_in_both_consoles_or_says_in_which(monkeypatch, host, system):
    monkeypatch.setattr(presets_panel, "os", SimpleNamespace(name="nt"))
    values = {"name": "Q&A (2)", "data": ["R&B, live.txt", "it's.txt", "a b\\"], "hard_cut": "", "system": system}
    line, html = command_line(values, host)
    (python, _, command, *words), outside = split_like_windows(line)
    assert (python, command) == (sys.executable, "train")
    assert training_settings(read_back(words)) == training_settings(values)
    one_console = system != "Be; nice"
    assert ("Run this command in the Command Prompt (cmd)" in html) == one_console
    if not one_console:
        assert not set("&|<>^(),;'`$@{}#%!~") & set(outside), "a console interprets these outside of quotes"
        assert '""' not in line, "PowerShell drops empty words"
