"""`script.py demo`: from a bare Python to a page with a model and a text, ready to train."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import ModelError
from ..hosts.demo_model import make_demo_model
from ..hosts.standalone import StandaloneHost, standalone_folders
from ..hosts.tiny import make_tiny
from ..settings import presets
from . import options, page
from .environment import interpreter
from .options import say

# Settings with a visible effect on such a small model within two minutes: a high learning rate (the best one is
# nearer 1e-3 than 2e-4), short blocks, and enough epochs to learn the story by heart.
DEMO_VALUES: Mapping[str, object] = {
    "name": "first-look",
    "data": ["story.txt"],
    "cutoff": "128",
    "batch_size": "4",
    "epochs": "20",
    "learning_rate": "0.001",
    "schedule": "constant",
    "rank": "16",
    "alpha": "16",
    "save_each_epoch": False,
    # The run itself shows the replies without and with the LoRA: before the first step, halfway, and at its end.
    "sample_prompts": "Old Maren Tull ran the ferry at Low Water, and she ran it by",
    "sample_every": "20",
    "sample_length": "60",
    "sample_temperature": "0",
}
TINY_NAME = "tiny-random-llama"


def run(arguments: Sequence[str]) -> int:
    """Set up the environment and the model, then open the page with example data."""
    args = _parse_args(arguments)
    interpreter.ensure_environment({"train", "page", "demo"}, torch_spec=args.torch)
    folders = standalone_folders(options.find_user_data(args.user_data))
    model = _make_model(folders.models, tiny=args.tiny)
    if not folders.form.exists():  # a later demo shows the form as the user left it
        presets.save_form(folders.form, DEMO_VALUES)
    page.serve(StandaloneHost(folders, model=model.name), args)
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    words = "Try Training PRO: set up the environment, a model and example data, and open the page."
    parser = options.make_parser("demo", words)
    parser.add_argument(
        "--tiny", action="store_true", help="use a tiny model with random weights, which is ready in seconds"
    )
    page.add_server_options(parser)
    return parser.parse_args(arguments)


def _make_model(models: Path, *, tiny: bool) -> Path:
    """Make the embedded model; with `tiny`, or if that fails, the tiny random model."""
    if not tiny:
        try:
            return make_demo_model(models, say)
        except ModelError as error:
            say(
                f"{error}\nContinuing with a tiny model with random weights. Its output is meaningless, but "
                "everything else works."
            )
    if not (models / TINY_NAME).exists():
        say("Creating a tiny model with random weights ...")
    return make_tiny(models / TINY_NAME)
