"""`test`: the project's tests, in an environment that holds all they need."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from .environment import ROOT, ready, wait_for

WEBUI_PINS = ROOT / "tests" / "webui_pins"
SHORT = ["-m", "not long"]
SIDE_BY_SIDE = ["-n", "logical", "--maxprocesses", "4", "--dist", "loadfile"]
"""As many files at a time as there are cores, to a few; `-n 0` goes one by one, for a debugger."""


def run(arguments: list[str]) -> int:
    """What is not ours is pytest's, and so is the last line: its summary. Its exit code is passed on."""
    own, rest = _parser().parse_known_args(arguments)
    ready({"test"}, torch_spec=own.torch, webui_pins=own.webui_pins)
    command = [sys.executable, "-m", "pytest", *side_by_side(rest), *with_marks(rest)]
    return wait_for(command, cwd=ROOT, env=_environ(webui_pins=own.webui_pins))


def side_by_side(arguments: Sequence[str]) -> Sequence[str]:
    """Not where files are named: only in one process pytest says what is wrong with a name."""
    named = any("/" in word or word.endswith(".py") for word in arguments)
    return [] if named else SIDE_BY_SIDE


def with_marks(arguments: Sequence[str]) -> list[str]:
    """Without the long tests, unless the user's own `-m` says which."""
    chosen = any(re.match(r"-[qvxslh]*m", word) for word in arguments)
    return [*arguments] if chosen else [*SHORT, *arguments]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--webui-pins", action="store_true")
    parser.add_argument("--torch")
    return parser


def _environ(*, webui_pins: bool) -> dict[str, str]:
    """With the webui's pins, every Python that a test starts gets the name its Gradio misses."""
    if not webui_pins:
        return dict(os.environ)
    paths = [str(WEBUI_PINS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
