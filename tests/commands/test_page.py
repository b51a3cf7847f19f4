"""The page's command: what it refuses before it takes the time to make a page."""

from __future__ import annotations

import socket

import pytest
from training_pro.commands.page import refuse_taken
from training_pro.core.errors import SettingsError


def test_a_port_that_is_taken_is_refused_in_a_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^Port {port} cannot be had .* \(--port {port + 1}\)\.$"):
            refuse_taken(port)
    refuse_taken(port)


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_number_that_is_no_port_is_refused_too(port):
    with pytest.raises(SettingsError, match=f"^Port {port} cannot be had"):
        refuse_taken(port)
