"""What several commands say alike, and what the page's command refuses before it takes the time to make a page."""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
from types import SimpleNamespace

import pytest
from training_pro.commands import options, page
from training_pro.commands.main import main
from training_pro.core.errors import SettingsError
from training_pro.tests.fakes import FakeHost, make_folders


def test_only_on_windows_a_window_that_is_closed_would_save_nothing(monkeypatch, capsys):
    for system, said in (("linux", ""), ("win32", options.CLOSING_WARNING + "\n")):
        monkeypatch.setattr(sys, "platform", system)
        options.warn_about_closing()
        assert capsys.readouterr().err == said


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


def asked(*words):
    parser = argparse.ArgumentParser()
    page.add_server_options(parser)
    return parser.parse_args(words)


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


def test_who_can_reach_the_page_is_said_and_a_password_may_stand_in_the_environment(capsys, monkeypatch):
    for words, known, warned in (
        ((), False, False),
        (("--listen",), True, True),
        (("--listen", "--password", "x"), True, False),
    ):
        page.print_addresses(asked(*words))
        said = capsys.readouterr().err
        assert (socket.gethostname() in said, "--password WORD" in said) == (known, warned)
    monkeypatch.setenv("TRAINING_PRO_PASSWORD", "x")
    assert asked().password == "x"


def test_more_pages_can_be_open_than_gradio_allows_by_itself(monkeypatch, tmp_path):
    """Gradio runs 40 streams at once, and each open page keeps one."""
    given, blocks = {}, SimpleNamespace(launch=lambda **more: given.update(more), block_thread=lambda: None)
    monkeypatch.setattr("training_pro.interface.page.build_page", lambda *_, **__: (blocks, {}))
    page.serve(FakeHost(folders=make_folders(tmp_path)), asked("--no-browser", "--port", "0"))
    assert given["max_threads"] >= 5 * page.MAX_PAGES
