"""`script.py test`: the tests of the project, in an environment with everything they need."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from .environment import ROOT, ensure_environment, run_program

WEBUI_PINS = ROOT / "tests" / "webui_pins"
# One process per core, at most 4; `-n 0` runs the tests in one process, for a debugger. Files go in order of
# their names: browser tests, the longest files, come first and many short files last.
PARALLEL_OPTIONS = ["-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"]


def run(arguments: Sequence[str]) -> int:
    """Run pytest with the unknown arguments and return its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--webui-pins", action="store_true")
    parser.add_argument("--torch")
    parser.add_argument("--durations", action="store_true")
    args, words = parser.parse_known_args(arguments)
    if args.durations:
        words.append("--durations=10")
    ensure_environment("test", torch_spec=args.torch, webui_pins=args.webui_pins)
    # If files are named, all run in this process, since only then pytest reports a wrong file name well.
    has_files = any("/" in word or word.endswith(".py") for word in words if not word.startswith("-"))
    has_marks = any(re.match(r"-[qvxslh]*m", word) for word in words)
    command = [sys.executable, "-m", "pytest", *([] if has_files else PARALLEL_OPTIONS)]
    command += [*([] if has_marks else ["-m", "not long"]), *words]
    environment = dict(os.environ)
    if args.webui_pins:  # also the patch that the webui's Gradio needs
        paths = [str(WEBUI_PINS), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return run_program(command, cwd=ROOT, env=environment)
