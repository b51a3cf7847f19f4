"""The form as a command: what is shown is what the command line reads."""

from __future__ import annotations

import re
import shlex
from html import unescape

import pytest
from training_pro.commands.train import _parsed
from training_pro.interface.as_command import as_command
from training_pro.settings import flags
from training_pro.settings.reading import training_settings
from training_pro.tests.fakes import FakeHost, made_folders


@pytest.fixture
def host(tmp_path):
    return FakeHost(folders=made_folders(tmp_path / "a folder"))


def test_what_is_shown_trains_the_same(host):
    values = {"name": "my story", "data": ["a b.txt"], "cutoff": "128", "hard_cut": "<'\\n\">"}
    shown = re.search(r"<pre[^>]*>(.*)</pre>", as_command(values, host), re.DOTALL)[1]
    python, script, command, *words = shlex.split(unescape(re.sub("</?span>", "", shown)))
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
