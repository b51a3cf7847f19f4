"""`script.py test`: the tests of the project, in an environment with everything they need."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from .environment import ROOT, ensure_environment, run_program

WEBUI_PINS = ROOT / "tests" / "webui_pins"
WITHOUT_LONG_TESTS = ["-m", "not long"]
PARALLEL_OPTIONS = ["-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
"""One process per core, at most 4; `-n 0` runs the tests in one process, for a debugger.

Files go in order of their names: browser tests, the longest files, come first and many short files last.
"""


def run(arguments: list[str]) -> int:
    """Run pytest with the unknown arguments and return its exit code."""
    args, pytest_args = _parser().parse_known_args(arguments)
    if args.durations:
        pytest_args.append("--durations=10")
    ensure_environment({"test"}, torch_spec=args.torch, webui_pins=args.webui_pins)
    command = [sys.executable, "-m", "pytest", *parallel_options(pytest_args), *add_marks(pytest_args)]
    return run_program(command, cwd=ROOT, env=_environ(webui_pins=args.webui_pins))


def parallel_options(arguments: Sequence[str]) -> Sequence[str]:
    """Options of pytest-xdist; none if files are named, since only one process reports a wrong file name well."""
    words = [word for word in arguments if not word.startswith("-")]
    has_files = any("/" in word or word.endswith(".py") for word in words)
    return [] if has_files else PARALLEL_OPTIONS


def add_marks(arguments: Sequence[str]) -> list[str]:
    """Leave out the long tests, unless the user gives `-m`."""
    has_marks = any(re.match(r"-[qvxslh]*m", word) for word in arguments)
    return [*arguments] if has_marks else [*WITHOUT_LONG_TESTS, *arguments]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--webui-pins", action="store_true")
    parser.add_argument("--torch")
    parser.add_argument("--durations", action="store_true")
    return parser


def _environ(*, webui_pins: bool) -> dict[str, str]:
    """Environment of pytest; with the webui's pins, also a path to the patch that its Gradio needs."""
    if not webui_pins:
        return dict(os.environ)
    paths = [str(WEBUI_PINS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
