"""What stands for the model when llama.cpp runs it: a program of its own, with nothing in it to train."""

from __future__ import annotations

import io
import shlex
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from modules import shared

REFUSAL = (
    b"0.01.2 I loading\n0.01.3 E llama_adapter_lora_init: failed to apply lora adapter: tensor 'x' has 8 rows\n"
)


class LlamaServer:
    """Takes LoRAs from the flags, in the webui's two notations, and refuses a file that ends with 'other'."""

    def __init__(self, model_path: Path) -> None:
        self.model_path, self.port, self.session = model_path, 1, self
        flags = (shared.args.extra_flags or "").strip()
        if flags[:1] == flags[-1:] == '"':
            flags = flags[1:-1]
        self.command = shlex.split(flags)
        if flags and not flags.startswith("-"):
            self.command = [part for item in flags.split(",") for part in f"--{item}".split("=")]
        files = [value for flag, value in zip(self.command, self.command[1:], strict=False) if flag == "--lora"]
        refused = any(Path(file.strip('"')).read_bytes().endswith(b"other") for file in files)
        log = io.BytesIO(REFUSAL if refused else b"listening\n")
        threading.Thread(target=filter_stderr_with_progress, args=(log,)).start()
        if refused:
            raise RuntimeError("Server process terminated unexpectedly with exit code: 1")
        self.asked: list[object] = []
        self.loras = [{"id": k, "path": file.strip('"'), "scale": 1.0} for k, file in enumerate(files)]

    def request(self, method: str, url: str, json: Any = None, timeout: float = 0) -> SimpleNamespace:
        path = url.rpartition("/")[2]
        if method == "POST":
            self.asked.append((path, json))
        if method == "POST" and path == "lora-adapters":
            for lora in self.loras:
                lora["scale"] = next((each["scale"] for each in json if each["id"] == lora["id"]), 0.0)
        reply = {"lora-adapters": self.loras, "props": {"total_slots": 2}}.get(path, {})
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: reply)

    def stop(self) -> None: ...


def filter_stderr_with_progress(pipe: Any) -> None:
    while pipe.read(4096):
        pass
    pipe.close()
