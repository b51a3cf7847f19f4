"""The webui's server, as far as an extension can tell; whoever started it asks and tells it by standard input.

What the host changes in libraries and in the process is changed here too; a comment names its file. More of it is
in modules/models.py and modules/sampler_hijack.py.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # server.py
os.environ["BITSANDBYTES_NOWELCOME"] = "1"  # server.py
os.environ["WANDB_MODE"] = "offline"  # modules/training.py

import gradio as gr
from modules import extensions, models, shared, text_generation

CSS = ".tabs {max-width: 1100px; margin: auto}"
PAUSE_SECONDS = 0.2


def create_interface() -> None:
    """Extensions are loaded and drawn each time; a chat stands in its own tab before them."""
    uploads = shared.user_data_dir.resolve() / "cache" / "gradio"  # server.py: emptied at each interface restart
    shutil.rmtree(uploads, ignore_errors=True)
    uploads.mkdir(parents=True)
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    extensions.load_extensions()
    css = CSS + extensions.apply_css()
    at_making = {"css": css} if "css" in inspect.signature(gr.Blocks.__init__).parameters else {}
    with gr.Blocks(title="The webui", analytics_enabled=False, **at_making) as shared.gradio["interface"]:
        with gr.Tab("Chat"):
            said = gr.Textbox(label="Message", elem_id="chat-input")
            send = gr.Button("Send", elem_id="Generate")
            reply = gr.Textbox(label="Reply", elem_id="webui-reply")
            send.click(_chat, said, reply)
        extensions.create_extensions_tabs()
    shared.gradio["interface"].queue()
    shared.gradio["interface"].launch(
        max_threads=64,
        prevent_thread_lock=True,
        server_name="127.0.0.1",
        server_port=shared.args.listen_port,
        quiet=True,
        **({} if at_making else {"css": css}),
    )


def _chat(message: str) -> Iterator[str]:
    text, _ = extensions.apply_chat_input(message, message, {})
    yield from text_generation.generate_reply(text)


class Window:
    """Every line of standard input asks for a value or tells what to do; the answer is a line of JSON."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._names: dict[str, Any] = {"shared": shared, "models": models, "sys": sys, "restart": restart}

    def serve(self) -> None:
        for line in sys.stdin:
            self._answers.write(json.dumps(self._answer(json.loads(line))) + "\n")
            self._answers.flush()
        os._exit(0)  # nobody is there any more

    def _answer(self, asked: dict[str, str]) -> dict[str, Any]:
        try:
            if "tell" in asked:
                exec(asked["tell"], self._names)
                return {"value": None}
            return {"value": eval(asked["ask"], self._names)}
        except Exception as error:  # noqa: BLE001 - it goes to whoever asked
            return {"error": f"{type(error).__name__}: {error}"}


_restarted = threading.Event()


def restart() -> None:
    """An interface restart, as its Session tab asks for it; comes back when the new page stands."""
    _restarted.clear()
    shared.need_restart = True
    if not _restarted.wait(60):
        raise TimeoutError("the interface did not come back")


def main() -> None:
    warnings.filterwarnings(
        "ignore", category=UserWarning, message="The value passed into gr.Dropdown()"
    )  # server.py
    for number in (signal.SIGINT, signal.SIGTERM):  # server.py
        signal.signal(number, lambda *_: sys.exit(0))
    # modules/logging_colors.py: records of all loggers but the host's own go nowhere
    logging.basicConfig(level=logging.ERROR, handlers=[logging.NullHandler()])
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("webui").addHandler(logging.StreamHandler())
    answers, sys.stdout = sys.stdout, sys.stderr
    shared.read(sys.argv[1:])
    if shared.args.model:
        shared.model, shared.tokenizer = models.load_model(shared.args.model)
    shared.generation_lock = threading.Lock()
    create_interface()
    threading.Thread(target=Window(answers).serve, daemon=True).start()
    while True:
        time.sleep(PAUSE_SECONDS)
        if shared.need_restart:
            shared.need_restart = False
            time.sleep(PAUSE_SECONDS)
            shared.gradio["interface"].close()
            time.sleep(PAUSE_SECONDS)
            create_interface()
            _restarted.set()


if __name__ == "__main__":
    main()
