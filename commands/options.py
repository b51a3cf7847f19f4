"""What several commands share: their options, the working folder, jobs, and what is printed where."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ..core import dist_env
from ..core.errors import ModelError, SavingError
from ..core.files import safe_paths
from ..core.host import Folders, Host
from ..core.jobs import SESSION, Job, JobFn, JobKind, Note, Request, console
from ..core.readable import quote
from ..core.version import launch_command
from ..data import dataset_index
from ..hosts.standalone import LOADING_OPTIONS, StandaloneHost, standalone_folders
from ..records.folder import loras
from ..settings import other_names
from .environment import ROOT, interpreter
from .environment import say as say
from .main import COMMANDS, HIDDEN_COMMANDS

if TYPE_CHECKING:
    from ..engine.peft_engine import PeftEngine

# Ctrl+C, termination, a closed window and Ctrl+Break; no system has all of them.
END_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
# torchrun sends the signal that it got to its processes again, at once or a moment later.
FORWARDED_SIGNAL_SECONDS = 10
JSON_LINES = "output one JSON object per line, with all figures"


class _SuggestingParser(argparse.ArgumentParser):
    """Argument parser that says what to use instead of an unknown flag."""

    def error(self, message: str) -> NoReturn:
        # argparse has no public way to its positionals and flags.
        flags, positionals = self._option_string_actions, {a.dest: a for a in self._get_positional_actions()}
        for name in re.findall(r"--([\w-]+)", message) if message.startswith("unrecognized") else ():
            key = name.replace("-", "_")
            ours = f"--{other_names.our_key(key)}".replace("_", "-")
            similar = [ours] if ours in flags else get_close_matches(f"--{name}", flags, 1, cutoff=0.75)
            if key in positionals:
                message += f". Enter {positionals[key].metavar} without --{name}"
            elif ours not in flags and (sentence := other_names.why_not_here(key)):
                message += f". {sentence.rstrip('.')}"
            elif similar:
                message += f". Did you mean {similar[0]}?"
        super().error(message)


def make_parser(
    command: str, *, model: bool = False, lora: bool = False, json: str = ""
) -> argparse.ArgumentParser:
    """Make a parser with --user-data, --torch and what is asked for; on a wrong command line it exits with 2."""
    words = {**COMMANDS, **HIDDEN_COMMANDS}[command]
    parser = _SuggestingParser(
        prog=f"{launch_command()} {command}",
        description=f"{words[0].upper()}{words[1:]}.",
        allow_abbrev=False,
    )
    parser.add_argument("--user-data", metavar="DIR", type=Path, help="the working folder (default: user_data)")
    torch_help = "the torch version for Training PRO's own environment, for example torch==2.13.0"
    parser.add_argument("--torch", metavar="SPEC", help=torch_help)
    # Of a webui whose folders lie elsewhere, for the processes that it starts.
    for folder in ("--models", "--loras"):
        parser.add_argument(folder, type=Path, help=argparse.SUPPRESS)
    if model:
        add_model(parser)
    if lora:
        lora_help = "a LoRA, a checkpoint (NAME/checkpoint-40) or a path"
        parser.add_argument("--lora", required=True, metavar="NAME", help=lora_help)
    if json:
        parser.add_argument("--json", action="store_true", help=json)
    return parser


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    model_help = "a model in models/, or the path of a folder, a GGUF file or a single weights file"
    parser.add_argument("--model", metavar="M", required=required, help=model_help)
    load_help = "how to load the model (default: auto)"
    tokenizer_help = "a folder with another tokenizer (default: the model's own)"
    parser.add_argument("--tokenizer", metavar="T", default="", help=tokenizer_help)
    parser.add_argument("--load", choices=tuple(LOADING_OPTIONS), default="auto", help=load_help)
    memory_help = (
        "memory limits for the weights, such as 20GB (every GPU), 0=10GB (the first GPU) or cpu=30GB; devices "
        "that you don't list are not used (default: one GPU, or the CPU, without a limit)"
    )
    parser.add_argument("--max-memory", nargs="+", default=[], metavar="LIMIT", help=memory_help)


def find_folders(args: argparse.Namespace) -> Folders:
    """The folders in the working folder: the given one, that of the webui around us, or ./user_data."""
    folder = args.user_data or Path("user_data")
    above = ROOT.parent.parent  # of the folder of extensions: the webui, or its user_data
    if args.user_data is None and ROOT.parent.name == "extensions":
        if above.name == "user_data":
            folder = above
        elif (above / "user_data").is_dir() and (above / "server.py").is_file():
            folder = above / "user_data"
    if safe_paths.has_impossible_character(str(folder.resolve())):
        raise SavingError(
            f"The path of the working folder, {quote(folder.resolve())}, is not valid UTF-8. Rename the folder."
        )
    say(f"Working folder: {folder.resolve()}")
    folders = standalone_folders(folder)
    return replace(folders, models=args.models or folders.models, loras=args.loras or folders.loras)


def make_host(args: argparse.Namespace) -> StandaloneHost:
    """Make the host with the model that the options name."""
    folders = find_folders(args)
    # On a page, the model is chosen later, and each has its own tokenizer.
    if args.tokenizer and not args.model:
        raise ModelError("To use --tokenizer, also add --model.")
    return StandaloneHost(
        folders,
        model=args.model or "",
        loading=args.load,
        tokenizer=args.tokenizer,
        max_memory=args.max_memory,
        load_gguf=load_gguf,
    )


def load_gguf(*args: Any, **options: Any) -> Any:
    """The engine's loader, which imports torch, for the host, which may not import the engine."""
    from ..engine.compute import load_gguf

    return load_gguf(*args, **options)


def make_engine(args: argparse.Namespace) -> PeftEngine:
    """Make the engine; makes an environment with torch for it first, where there is none."""
    interpreter.ensure_environment("train", torch_spec=args.torch)
    from ..engine.peft_engine import PeftEngine

    return PeftEngine()


def run_job(kind: JobKind, title: str, host: Host, work: JobFn) -> Job:
    """Run a job and print its events until it ends; Ctrl+C stops it."""
    job = SESSION.start(kind, title, host, work)
    with stop_on_signal(job):
        console.print_events(job, say, terminal())
    return job


def exit_code(job: Job) -> int:
    return 0 if job.end is not None and job.end.outcome == "finished" else 1


@contextmanager
def stop_on_signal(job: Job, words: str = "Stopping", lost: str = "Stopped immediately.") -> Iterator[None]:
    """Handle signals: the first one asks the job to stop, a second one exits at once."""
    signal_times: list[float] = []

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # The handler runs in the main thread, between two of its instructions.
        # No print here: the signal may have interrupted one.
        alone = dist_env.world_size() == 1
        is_late = bool(signal_times) and time.monotonic() - signal_times[0] > FORWARDED_SIGNAL_SECONDS
        if job.control.asked(Request.STOP) and (alone or is_late):
            os.write(2, f"{lost}\n".encode())
            os._exit(1)  # a normal exit would abort, because the job's thread is inside torch
        signal_times.append(time.monotonic())
        job.control.ask(Request.STOP)
        job.log.append(Note(text=f"{words}. Press Ctrl+C again to stop immediately."))

    with handle_end_signals(handle_signal):
        yield


@contextmanager
def handle_end_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle every signal to end with `handler`; under nohup, a closed window stays ignored."""
    signals = [getattr(signal, name) for name in END_SIGNALS if hasattr(signal, name)]
    # nohup ignores SIGHUP before it starts us. A handler of ours would end the run when the window closes.
    nohup = {s for s in signals if s.name == "SIGHUP" and signal.getsignal(s) is signal.SIG_IGN}
    previous_handlers = {s: signal.signal(s, handler) for s in signals if s not in nohup}
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)


def warn_about_closing() -> None:
    """Print how to end a run, on Windows only: it kills a process with its window, without calling handlers."""
    if sys.platform == "win32":
        say(
            "Press Ctrl+C to stop and save. If you close this window, nothing is saved, because Windows ends the "
            "program immediately."
        )


def find_dataset(name: str, folders: Folders) -> Path:
    """Find the dataset for a name or path; says which one is used if both exist."""
    path, path_here = dataset_index.locate_dataset(name, folders), dataset_index.absolute_path(name)
    if path != path_here and path_here.exists() and not path_here.samefile(path):
        say(f"{name}: using the dataset in {folders.datasets}. To use {path_here} instead, write ./{name}.")
    return path


def find_lora(name: str, folders: Folders) -> str | Path:
    """Find the LoRA or checkpoint for a name or, unlike on a page, for any path."""
    try:
        loras.find_lora(name, folders.loras)
    except SavingError as error:
        if loras.has_lora(Path(name)):
            return Path(name)
        names = ", ".join(loras.list_loras(folders.loras)) or "none"
        raise SavingError(
            f"There is no LoRA {name!r} in {folders.loras}, and {name!r} is not the path of a LoRA. "
            f"Available: {names}."
        ) from error
    return name


def terminal() -> TextIO | None:
    """The terminal that shows progress, None where there is none."""
    return sys.stderr if sys.stderr.isatty() and dist_env.is_main_process() else None
