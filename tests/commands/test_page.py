"""The page's command: what it refuses before it takes the time to make a page."""

from __future__ import annotations

import argparse
import socket
from types import SimpleNamespace

import pytest
from training_pro.commands import page
from training_pro.commands.page import add_server_options, print_addresses, refuse_used_port
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import SESSION
from training_pro.tests.fakes import FakeHost, make_folders


def test_a_port_that_is_taken_is_refused_in_a_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^Port {port} is not available .* \(--port {port + 1}\)\.$"):
            refuse_used_port(port)
    refuse_used_port(port)


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_number_that_is_no_port_is_refused_too(port):
    with pytest.raises(SettingsError, match=f"^Port {port} is not available"):
        refuse_used_port(port)


def asked(*words):
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "known", "warned"),
    [((), False, False), (("--listen",), True, True), (("--listen", "--password", "x"), True, False)],
)
def test_who_can_reach_the_page_is_said(capsys, words, known, warned):
    print_addresses(asked(*words))
    said = capsys.readouterr().err
    assert (socket.gethostname() in said, "--password WORD" in said) == (known, warned)


def test_a_password_may_stand_in_the_environment(monkeypatch):
    monkeypatch.setenv("TRAINING_PRO_PASSWORD", "x")
    assert asked().password == "x"


def test_more_pages_can_be_open_than_gradio_allows_by_itself(monkeypatch, tmp_path):
    """Gradio runs 40 streams at once, and each open page keeps one."""
    options, blocks = {}, SimpleNamespace(launch=lambda **given: options.update(given), block_thread=lambda: None)
    monkeypatch.setattr("training_pro.interface.page.build_page", lambda *_, **__: (blocks, {}))
    monkeypatch.setattr(SESSION, "set_observer", lambda observer: None)
    page.serve(FakeHost(folders=make_folders(tmp_path)), asked("--no-browser", "--port", "0"))
    assert options["max_threads"] >= 5 * page.MAX_PAGES
