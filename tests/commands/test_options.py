"""What several commands say alike, and what the page's command refuses before it takes the time to make a page."""

from __future__ import annotations

import json
import re
import socket
import sys

import pytest
from training_pro.commands import page
from training_pro.commands.main import main
from training_pro.core.errors import SettingsError


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train --model m --lr 1", "Did you mean --learning-rate?"),
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


def test_a_port_that_is_taken_or_none_is_refused_in_a_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^Port {port} is not available .* \(--port {port + 1}\)\.$"):
            page.refuse_used_port(port)
    page.refuse_used_port(port)
    for port in (-1, 70000):
        with pytest.raises(SettingsError, match=f"^Port {port} is not available"):
            page.refuse_used_port(port)
