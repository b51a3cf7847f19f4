"""What several commands say alike."""

from __future__ import annotations

import json
import re
import sys

import pytest
from training_pro.commands import options
from training_pro.commands.main import main


@pytest.mark.parametrize(
    ("system", "said"), [("linux", ""), ("darwin", ""), ("win32", options.CLOSING_WARNING + "\n")]
)
def test_only_on_windows_a_window_that_is_closed_would_save_nothing(monkeypatch, capsys, system, said):
    monkeypatch.setattr(sys, "platform", system)
    options.warn_about_closing()
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train --model m --lr 1", "Did you mean --learning-rate?"),
        ("train --model m --lora-alpha 1", "Did you mean --alpha?"),
        ("train --model m --epoch 1", "Did you mean --epochs?"),
        ("train --model m --momentum 1", "SGD runs without momentum here."),
        ("train --model m --lora-config x", "use --preset on the command line"),
        ("slice --data x.txt --model m", "Enter PATH without --data"),
        ("runs --name x", "Enter NAME without --name"),
        ("trian --model m", "Unknown command 'trian'. Did you mean 'train'?"),
    ],
)
def test_a_wrong_word_leads_to_the_right_one(capsys, command, said):
    try:
        assert main(command.split()) == 2
    except SystemExit as end:
        assert end.code == 2
    assert said in capsys.readouterr().err


def test_settings_shows_one_in_full_and_lines_on_a_terminal(capsys, monkeypatch):
    assert main(["settings", "rank", "learning-rate"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("learning_rate (Learning Rate)\n--learning-rate: 1e-09 to 0.9999\nDefault: 0.0002\n")
    assert "\n\nrank (LoRA Rank)\n" in shown and "hard_cut" not in shown
    assert main(["settings", "rank", "--json"]) == 0
    assert [setting["key"] for setting in json.loads(capsys.readouterr().out)] == ["rank"]
    assert main(["settings", "lr"]) == 1
    assert "it is called 'learning_rate'" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["settings"]) == 0
    lines = capsys.readouterr().out
    assert re.search(r"^  rank +32 +Size of the LoRA$", lines, re.MULTILINE) and "|" not in lines
