"""What several commands take: the working folder, the model, how it is loaded."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ..core import dist_env
from ..core.errors import SavingError
from ..core.host import Folders
from ..core.launcher import launcher
from ..data import dataset_index
from ..hosts.standalone import LOADINGS, StandaloneHost, folders
from ..records.folder import loras

ENDINGS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""Ctrl+C, an end from outside, a window that is closed, Ctrl+Break; not every system has each."""
UNSAVED = "Ctrl+C saves a run before it ends. Closing this window does not: Windows leaves no time for that."

HERE = Path(__file__).resolve().parent.parent


class _Parser(argparse.ArgumentParser):
    """One that knows what was nearly written."""

    def error(self, message: str) -> NoReturn:
        wrong = re.findall(r"--[\w-]+", message) if message.startswith("unrecognized") else []
        near = [flag for one in wrong for flag in get_close_matches(one, self._option_string_actions, 1)]
        super().error(message + (f". Did you mean {', '.join(near)}?" if near else ""))


def parser(command: str, words: str) -> argparse.ArgumentParser:
    """A parser with --user-data; a wrong command line ends with 2 by itself."""
    made = _Parser(prog=f"{launcher()} {command}", description=words, allow_abbrev=False)
    made.add_argument("--user-data", metavar="DIR", type=Path, help="the working folder (default: user_data)")
    made.add_argument(
        "--torch", metavar="SPEC", help="which torch an environment of our own gets, e.g. torch==2.13.0"
    )
    return made


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--model", metavar="M", required=required, help="a model under models/, or any folder or path"
    )
    parser.add_argument("--load", choices=tuple(LOADINGS), default="auto", help="how it is loaded (default: auto)")


def user_data(asked: Path | None) -> Path:
    """The working folder: as asked, the webui's own when we lie inside one, else user_data here."""
    found = asked or _webuis_own() or Path("user_data")
    say(f"Working folder: {found.resolve()}")
    return found


def host(options: argparse.Namespace) -> StandaloneHost:
    """The standalone host for what the command line says."""
    return StandaloneHost(folders(user_data(options.user_data)), model=options.model or "", loading=options.load)


@contextmanager
def ended_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, whatever asks this process to end calls `handler`; under nohup a closed window asks nothing."""
    there = [getattr(signal, name) for name in ENDINGS if hasattr(signal, name)]
    nohup = {s for s in there if s.name == "SIGHUP" and signal.getsignal(s) is signal.SIG_IGN}
    before = {s: signal.signal(s, handler) for s in there if s not in nohup}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def say_what_saves() -> None:
    """On Windows a process is ended with its window, whatever its handlers would still do."""
    if sys.platform == "win32":
        say(UNSAVED)


def located(asked: str, folders: Folders) -> Path:
    """What is named on the command line; where two things have the name, which one is meant is said."""
    found, here = dataset_index.located(asked, folders), dataset_index.from_here(asked)
    if found != here and here.exists() and not here.samefile(found):
        say(f"{asked}: the data set in {folders.datasets} is meant; for {here} write ./{asked}.")
    return found


def lora(asked: str, folders: Folders) -> str | Path:
    """Return what --lora names: a LoRA or checkpoint by its name, else any path, which a page never takes."""
    try:
        loras.named(asked, folders.loras)
    except SavingError as error:
        if loras.has_lora(Path(asked)):
            return Path(asked)
        there = ", ".join(loras.listed(folders.loras)) or "none"
        raise SavingError(
            f"There is no LoRA {asked!r} in {folders.loras}, nor as a path. There are: {there}."
        ) from error
    return asked


def say(text: str) -> None:
    """Progress and messages; standard output carries only what was asked for."""
    if dist_env.is_first():
        with suppress(OSError):  # the window may be closed by now; the run is not
            print(text, file=sys.stderr, flush=True)


def _webuis_own() -> Path | None:
    """user_data of the webui that we lie in, in either of its extension folders."""
    above = HERE.parent
    if above.name != "extensions":
        return None
    if above.parent.name == "user_data":
        return above.parent
    inside = above.parent / "user_data"
    return inside if inside.is_dir() and (above.parent / "server.py").is_file() else None
