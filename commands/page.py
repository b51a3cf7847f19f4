"""`script.py page` and `demo`: the page in the browser, with the user's own models or with example data."""

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

from ..core.errors import ModelError, SettingsError
from ..core.jobs import SESSION, Request, console
from ..hosts.demo_model import make_demo_model
from ..hosts.standalone import StandaloneHost
from ..hosts.tiny import make_tiny
from ..settings import presets
from . import options
from .environment import interpreter
from .options import handle_end_signals, say

PORT = 7862
MAX_PAGES = 200  # whose state Gradio keeps, nearly a megabyte each; it is kept for pages that vanished, too
# Handlers that run at once. Each open page keeps a stream, so Gradio's 40 would block the 41st page.
MAX_STREAMS = 1_000
PASSWORD_VARIABLE = "TRAINING_PRO_PASSWORD"
TINY_NAME = "tiny-random-llama"


def run(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl+C."""
    parser = options.make_parser("page")
    options.add_model(parser, required=False)
    _add_server_options(parser)
    args = parser.parse_args(arguments)
    interpreter.ensure_environment("page", torch_spec=args.torch)
    _serve(options.make_host(args), args)
    return 0


def run_demo(arguments: Sequence[str]) -> int:
    """From a bare Python to a page with a model and a text, ready to train."""
    parser = options.make_parser("demo")
    tiny_help = "use a tiny model with random weights, which is ready in seconds"
    parser.add_argument("--tiny", action="store_true", help=tiny_help)
    _add_server_options(parser)
    args = parser.parse_args(arguments)
    interpreter.ensure_environment("page", torch_spec=args.torch)
    folders = options.find_folders(args)
    model = None
    if not args.tiny:
        try:
            model = make_demo_model(folders.models, say)
        except ModelError as error:
            say(
                f"{error}\nContinuing with a tiny model with random weights. Its output is meaningless, but "
                "everything else works."
            )
    if model is None:
        if not (folders.models / TINY_NAME).exists():
            say("Creating a tiny model with random weights ...")
        model = make_tiny(folders.models / TINY_NAME)
    if not folders.form.exists():  # a later demo shows the form as the user left it
        presets.save_form(folders.form, presets.DEMO)
    _serve(StandaloneHost(folders, model=model.name, load_gguf=options.load_gguf), args)
    return 0


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the page (default: {PORT})")
    parser.add_argument("--listen", action="store_true", help="let people on other computers open the page")
    password, variable = os.environ.get(PASSWORD_VARIABLE, ""), f"the environment variable {PASSWORD_VARIABLE}"
    password_help = f"password for the page, with any user name (or set {variable})"
    parser.add_argument("--password", default=password, metavar="WORD", help=password_help)
    host_help = "another host name that people use to reach this computer, such as the name of a proxy"
    parser.add_argument("--host-name", nargs="+", default=[], metavar="NAME", help=host_help)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def _serve(host: StandaloneHost, args: argparse.Namespace) -> None:
    """Serve the page until Ctrl+C; then stops a run in progress with a checkpoint."""
    refuse_used_port(args.port)  # before the seconds that the imports take
    # Before Gradio is imported: some versions send at their start what a page can't turn off.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from ..engine.peft_engine import PeftEngine
    from ..interface.page import build_page, guard_middleware

    host.folders.models.mkdir(parents=True, exist_ok=True)  # the page tells people to put models there
    SESSION.set_observer(console.console_observer(say))
    blocks, launch_options = build_page(host, PeftEngine(), SESSION)
    guard = guard_middleware(listens=args.listen, asks_password=bool(args.password), names=args.host_name)
    login: dict[str, Any] = {}
    if expected := args.password.encode():
        login = {
            # In constant time: the duration of a comparison must not tell how much of a guess is right.
            "auth": lambda _, given: hmac.compare_digest(given.encode(), expected),
            "auth_message": "Training PRO: enter any user name, and the password that was set with --password.",
        }
    blocks.launch(
        server_name="0.0.0.0" if args.listen else "127.0.0.1",
        server_port=args.port,
        inbrowser=not args.no_browser,
        prevent_thread_lock=True,
        quiet=True,
        state_session_capacity=MAX_PAGES,
        max_threads=MAX_STREAMS,
        app_kwargs={"middleware": [guard]},
        **login,
        **launch_options,
    )
    say(f"Training PRO is running at http://127.0.0.1:{args.port} (press Ctrl+C to quit).")
    if args.listen:
        say(f"From other computers: http://{socket.gethostname()}:{args.port}")
        if not args.password:
            say("Anyone who can reach this computer can use the page. Set a password with --password WORD.")
    options.warn_about_closing()
    # The run is in a thread of this process: an end without this would lose the steps since the last checkpoint.
    with handle_end_signals(signal.default_int_handler):
        with suppress(KeyboardInterrupt, OSError):  # Gradio prints at the end, also to a terminal that was closed
            blocks.block_thread()
        job = SESSION.current
        if job is not None and job.kind == "training":
            say("Stopping the run after this step and saving a checkpoint.")
            job.control.ask(Request.STOP)
            job.log.wait_closed()


def refuse_used_port(port: int) -> None:
    """Raise SettingsError if the port is in use, before the page is built; Gradio would print a traceback."""
    with socket.socket() as probe:
        if sys.platform != "win32":  # on Windows, this option would allow two servers on one port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise SettingsError(
                [
                    f"Port {port} is not available ({error}). Training PRO may already be running on it. Open the "
                    f"page that is running, or choose another port (--port {port + 1})."
                ]
            ) from error
