"""`script.py page`: the page in the browser, on the user's own models."""

from __future__ import annotations

import argparse
import hmac
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..core.errors import SettingsError
from ..core.jobs import SESSION, console
from ..hosts.standalone import LOADINGS, StandaloneHost
from . import options
from .environment import interpreter
from .options import ended_by, say

PORT = 7862
PASSWORD = "TRAINING_PRO_PASSWORD"


def run(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl+C."""
    asked = _parsed(arguments)
    interpreter.ready({"train", "page"}, torch_spec=asked.torch)
    serve(options.host(asked), asked)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("page", "The page in the browser, on your own models.")
    options.add_model(parser, required=False)
    add_serving(parser)
    return parser.parse_args(arguments)


def add_serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}")
    parser.add_argument("--listen", action="store_true", help="let other machines open the page too")
    parser.add_argument(
        "--password",
        default=os.environ.get(PASSWORD, ""),
        metavar="WORD",
        help=f"ask for it whoever opens the page, under any user name (also as {PASSWORD})",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def serve(host: StandaloneHost, asked: argparse.Namespace, *, first_look: bool = False) -> None:
    """Open the page and stay until Ctrl+C; a run that goes on then is asked to stop and keep first."""
    refuse_taken(asked.port)
    from ..engine.peft_engine import PeftEngine
    from ..interface.page import build_page

    SESSION.tell_with(console.telling(say))
    made, more = build_page(host, PeftEngine(), SESSION, loadings=LOADINGS, first_look=first_look)
    made.launch(
        server_name="0.0.0.0" if asked.listen else "127.0.0.1",
        server_port=asked.port,
        inbrowser=not asked.no_browser,
        prevent_thread_lock=True,
        quiet=True,
        **_asking_for(asked.password),
        **more,
    )
    say_where(asked)
    options.say_what_saves()
    _wait(made)


def _asking_for(password: str) -> dict[str, Any]:
    """What Gradio is told, so that a page opens to whoever knows the word."""
    if not password:
        return {}
    known = password.encode()
    return {
        "auth": lambda _, word: hmac.compare_digest(word.encode(), known),
        "auth_message": "Training PRO: any user name, and the password it was started with.",
    }


def say_where(asked: argparse.Namespace) -> None:
    say(f"Training PRO is at http://127.0.0.1:{asked.port} - Ctrl+C ends it.")
    if asked.listen:
        say(f"For other machines it is at http://{socket.gethostname()}:{asked.port}")
    if asked.listen and not asked.password:
        say("Whoever reaches this machine can use it: --password WORD asks for a word first.")


def refuse_taken(port: int) -> None:
    """SettingsError before the seconds that a page takes to be made; Gradio would say it with a traceback."""
    with socket.socket() as probe:
        if sys.platform != "win32":  # there this would allow two servers on one port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise SettingsError(
                [f"Port {port} cannot be had ({error}). Another page may be open there already: use that one, or "
                 f"name another port (--port {port + 1})."]
            ) from error  # fmt: skip


def _wait(made: object) -> None:
    with ended_by(signal.default_int_handler):
        with suppress(KeyboardInterrupt):
            made.block_thread()  # type: ignore[attr-defined]
        job = SESSION.current
        if job is not None and job.kind == "training":
            say("Stopping the run after this step, with a checkpoint.")
            job.control.stop()
            job.log.wait_closed()
