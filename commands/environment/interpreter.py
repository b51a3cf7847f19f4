"""Provide a Python interpreter with the libraries that a command needs: the user's as it is, or one in `.venv`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ...core import dist_env, own_environment
from ...core.errors import TrainingProError
from ...core.version import ROOT as ROOT

# For each need, the modules that show that an interpreter has what is needed ...
NEEDED_MODULES = {
    "train": own_environment.TRAIN_MODULES,
    "page": ("torch", "transformers", "peft", "gradio"),
    "test": (
        *("torch", "transformers", "peft", "gradio", "pytest", "pytest_timeout", "xdist", "hypothesis"),
        *("playwright", "psutil", "mistral_common"),
    ),
}
# ... and the requirement lists in pins/ that provide it.
REQUIREMENT_LISTS = {
    "train": own_environment.TRAIN_LISTS,
    "page": ("torch", "train", "page"),
    "test": ("torch", "train", "page", "test"),
}
# Older ones lack what is imported or called here; these are the oldest in pins/.
OLDEST_LIBRARIES = {"transformers": (5, 6), "peft": (0, 18)}
WEBUI_REQUIREMENT_LISTS = ("torch", "webui", "test")


def ensure_environment(need: str, *, torch_spec: str | None = None, webui_pins: bool = False) -> None:
    """Return only in an interpreter that has what is needed; start the command again in our own where it lacks."""
    from ...core.jobs import console
    from ...downloads import virtual_env

    modules = NEEDED_MODULES[need]
    folder = ROOT / (".venv-webui" if webui_pins else ".venv")
    environment = virtual_env.Environment(folder, torch_spec, console.EventPrinter(say).print_event)
    lists = WEBUI_REQUIREMENT_LISTS if webui_pins else REQUIREMENT_LISTS[need]
    if environment.is_running and environment.has_lists(lists):
        return
    # An environment of ours with older lists is brought up to date, even if it has the modules.
    may_use_as_is = not webui_pins and torch_spec is None and not (environment.is_running and environment.is_ours)
    if may_use_as_is and _has_libraries(modules):
        return
    if not (environment.has_lists(lists) and environment.has_modules(modules)):
        if dist_env.world_size() > 1:
            raise TrainingProError(
                "{} does not have the required packages ({}), and several processes can't install "
                "them at the same time. Run the command once without torchrun to create the environment, then "
                "use torchrun from that environment.".format(sys.executable, ", ".join(modules))
            )
        if not environment.python.is_file() and sys.version_info[:2] > own_environment.NEWEST:
            newest = "{}.{}".format(*own_environment.NEWEST)
            raise TrainingProError(
                f"There are no packages for training for Python {sys.version.split()[0]} ({sys.executable}) yet. "
                f"Start the command with Python {newest} or older."
            )
        say(environment.make(lists))
    if not environment.is_running:
        command = [str(environment.python), str(ROOT / "script.py"), *sys.argv[1:]]
        sys.stdout.flush()
        sys.stderr.flush()
        if os.name != "nt":
            os.execv(command[0], command)
        # Windows cannot replace a running program by another one.
        sys.exit(run_program(command))


def _has_libraries(modules: Sequence[str]) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    def is_old(name: str) -> bool:
        try:
            return tuple(map(int, version(name).split(".")[:2])) < OLDEST_LIBRARIES[name]
        except (PackageNotFoundError, ValueError):
            return False

    has_all = all(module in sys.modules or find_spec(module) for module in modules)
    return has_all and not any(map(is_old, OLDEST_LIBRARIES.keys() & set(modules)))


def run_program(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a program in the foreground and return its exit code; it receives and handles Ctrl+C itself."""
    # An exception may come just when the child has ended, and its exit code would be lost. The child has its own.
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.call(command, cwd=cwd, env=env)
    finally:
        signal.signal(signal.SIGINT, handler)


def say(text: str) -> None:
    """Print progress and messages to standard error; standard output is for results."""
    if dist_env.is_main_process():
        with suppress(OSError):  # the window may be closed while the run goes on
            print(text, file=sys.stderr, flush=True)
