"""A bare Python becomes one that has what a command needs.

Nothing is ever installed into the interpreter that the user started: either it has the large
libraries and is used as it is, or `.venv` beside script.py is made, and the command goes on in it.
This file is read by the oldest Python 3 that somebody may try, to tell them so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ...core import dist_env
from ...core.errors import TrainingProError

ROOT = Path(__file__).resolve().parent.parent.parent
OLDEST = (3, 11)

TOOLS = ("pytest", "pytest_timeout", "xdist", "hypothesis", "playwright", "psutil", "mistral_common")
# By which modules it is known that an interpreter has what is needed.
MODULES = {
    "train": ("torch", "transformers", "peft"),
    "page": ("gradio",),
    "demo": ("gradio",),
    "test": ("gradio", *TOOLS),
}
# Which lists in pins/ bring it.
LISTS = {
    "train": ("torch", "train"),
    "page": ("torch", "train", "page"),
    "demo": ("torch", "train", "page"),
    "test": ("torch", "train", "page", "test"),
}
WEBUI_LISTS = ("torch", "webui", "test")


def ready(needs: Collection[str], *, torch_spec: str | None = None, webui_pins: bool = False) -> None:
    """Come back in an interpreter that has what is needed ('train', 'page', 'demo', 'test').

    That is the running one, or the same command line begun again in an environment of our own.
    """
    check_python()
    from .virtual_env import Environment

    modules = _modules(needs)
    home = Environment(ROOT / (".venv-webui" if webui_pins else ".venv"), modules, torch_spec)
    lists = WEBUI_LISTS if webui_pins else _lists(needs)
    if home.is_running and home.has_noted(lists):
        return
    as_it_is = not webui_pins and torch_spec is None and not (home.is_running and home.is_ours)
    if as_it_is and all(map(_has, modules)):
        return
    if not (home.has_noted(lists) and home.finds_modules()):
        if dist_env.count() > 1:
            raise TrainingProError(
                "{} lacks what is needed ({}), and several processes cannot install it at once. Run the command "
                "once without torchrun, then use the torchrun of that environment.".format(
                    sys.executable, ", ".join(modules)
                )
            )
        home.make(lists)
    if not home.is_running:
        _go_on_in(home.python)


def check_python() -> None:
    """An older Python gets a sentence before it meets a line that it cannot read."""
    if sys.version_info[:2] < OLDEST:
        raise TrainingProError(
            "Training PRO on its own needs Python {}.{} or newer; this is {} ({}).".format(
                *OLDEST, sys.version.split()[0], sys.executable
            )
        )


def _modules(needs: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for need in ("train", *sorted(needs)) for name in MODULES[need]))


def _lists(needs: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for need in ("train", *sorted(needs)) for name in LISTS[need]))


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # loaded, but without a spec
        return True


def _go_on_in(python: Path) -> None:
    command = [str(python), str(ROOT / "script.py"), *sys.argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execv(command[0], command)
    # Windows has no way to become another program.
    sys.exit(wait_for(command))


def wait_for(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a program in the foreground to its end; Ctrl+C is its affair, and reaches it by itself."""
    with subprocess.Popen(command, cwd=cwd, env=env) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue
