"""What the webui holds for everybody, under its own names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

model: Any = None
tokenizer: Any = None
model_name = "None"
lora_names: list[str] = []
generation_lock: Lock | None = None  # made by the server, once it has loaded its model
persistent_interface_state: dict[str, Any] = {}
gradio: dict[str, Any] = {}
settings: dict[str, Any] = {}
need_restart = False

parser = argparse.ArgumentParser()
parser.add_argument("--user-data-dir", default="user_data")
parser.add_argument("--model-dir")
parser.add_argument("--lora-dir")
parser.add_argument("--model")
parser.add_argument("--loader")
parser.add_argument("--extra-flags")
parser.add_argument("--extensions", nargs="+", default=[])
parser.add_argument("--listen-port", type=int)
parser.add_argument("--idle-timeout", type=int, default=0)
for flag in ("multi-user", "cpu", "bf16", "load-in-4bit", "load-in-8bit"):
    parser.add_argument(f"--{flag}", action="store_true")

args = argparse.Namespace()
user_data_dir = Path()


def read(arguments: Sequence[str]) -> None:
    """The command line; the real module reads it when it is imported."""
    global user_data_dir
    vars(args).clear()
    parser.parse_args(arguments, args)
    user_data_dir = Path(args.user_data_dir)
    args.model_dir = args.model_dir or str(user_data_dir / "models")
    args.lora_dir = args.lora_dir or str(user_data_dir / "loras")


read([])
