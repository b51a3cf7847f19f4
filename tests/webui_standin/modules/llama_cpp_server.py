"""What stands for the model when llama.cpp runs it: a program of its own, with nothing in it to train."""

from __future__ import annotations

from pathlib import Path


class LlamaServer:
    def __init__(self, model_path: Path) -> None:
        self.model_path = model_path

    def stop(self) -> None: ...
