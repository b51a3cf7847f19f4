"""`script.py train`: one run, or several one after another, without a page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ..core import dist_env
from ..core.engine import Engine
from ..core.errors import DataError, SettingsError
from ..core.host import Host
from ..core.jobs import SESSION, Job, JobEnded, Note, Request, StartedFromQueue, Step, console
from ..data.dataset_index import dataset_name_at
from ..records.folder import with_final_name
from ..settings import files, flags, parsing, presets
from ..settings.definitions import TrainingSettings
from ..settings.legacy_settings import LoadedSettings
from . import options, run_queue
from .options import handle_end_signals, say

FORWARDED_SIGNAL_SECONDS = 10


def run(arguments: Sequence[str]) -> int:
    """Train; Ctrl+C stops with a checkpoint, a second one stops at once."""
    args = _parse_args(arguments)
    host = options.make_host(args)
    options.warn_about_closing()
    resume = args.resume or ""
    if len(args.settings) > 1:
        runs = run_queue.read_files(args.settings, partial(read_settings, args, host))
        engine = options.make_engine(args)
        check_start = partial(engine.check_start, host=host, resume=resume)
        run_queue.check_runs(args.settings, runs, check_start)
        train = partial(train_and_print, host=host, engine=engine, resume=resume)
        return run_queue.train_runs(args.settings, runs, train)
    settings = read_settings(args, host, next(iter(args.settings), None))
    job = train_and_print(settings, host, options.make_engine(args), resume=resume)
    return 1 if job.end is None or job.end.outcome == "failed" else 0


def train_and_print(
    settings: TrainingSettings,
    host: Host,
    engine: Engine[TrainingSettings, Any],
    *,
    resume: str,
    first_message: str = "",
) -> Job:
    """Train one run and print its events; `first_message` begins its log."""

    def work(job: Job) -> JobEnded:
        if first_message:
            job.log.append(StartedFromQueue(text=first_message))
        return engine.train(settings, host, job, resume=resume)

    if not resume:
        settings = with_final_name(settings, host.folders)
    job = SESSION.train(settings.what.name, host, work)
    with _stop_on_signal(job):
        console.print_events(job, say, options.terminal())
    if job.end is not None and job.end.outcome == "stopped" and job.end.folder is not None:
        say("To resume this run, enter the same command again with --resume.")
    _print_other_failure(job)
    return job


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser("train", "Train without the page: one run, or one run per settings file.")
    options.add_model(parser)
    parser.add_argument(
        "--resume",
        nargs="?",
        const="newest",
        metavar="CHECKPOINT",
        help="resume the run given by --name from its newest full checkpoint, or from CHECKPOINT",
    )
    add_settings(
        parser, files="*", words="settings file; if you list several, Training PRO runs them one after another"
    )
    return parser.parse_args(arguments)


def add_settings(parser: argparse.ArgumentParser, *, files: str = "?", words: str = "settings file") -> None:
    """Add the options for the settings of a run: a file (or `files`), presets, and a flag for each setting."""
    parser.add_argument("settings", nargs=files, type=Path, metavar="SETTINGS.json", help=words)
    parser.add_argument(
        "--preset",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="presets, or the paths of preset files, PEFT configs or optimizer configs, separated by spaces or "
        "commas; later presets override earlier ones, and the settings file "
        "and flags override all presets",
    )
    flags.add_flags(parser)
    # The file stands first: after --data, it would be taken for another dataset.
    more_files = " ..." if files == "*" else ""
    parser.usage = (
        f"{parser.prog} [SETTINGS.json{more_files}] --model M [--preset NAME ...] [--KEY VALUE ...]  "
        "(--help lists all options)"
    )


def read_settings(args: argparse.Namespace, host: Host, file: Path | None) -> TrainingSettings:
    """Merge the settings; a SettingsError lists all problems."""
    settings, problems = settings_and_problems(args, host, file)
    if problems:
        raise SettingsError(problems)
    return settings


def settings_and_problems(
    args: argparse.Namespace, host: Host, file: Path | None
) -> tuple[TrainingSettings, list[str]]:
    """Merge the settings: flags win over the file, which wins over presets. Invalid values are the defaults."""
    chosen_presets = presets.find_presets(args.preset, host.folders.presets)
    loaded = files.load_settings(file, host.folders.datasets) if file else LoadedSettings({})
    for note in (*loaded.notes, *(note for preset in chosen_presets for note in preset.notes)):
        say(note)
    overrides = {**loaded.values, **flags.given_settings(args)}
    if overruled_note := presets.override_note(chosen_presets, overrides):
        say(overruled_note)
    values = {key: value for preset in chosen_presets for key, value in preset.values.items()}
    problems = list[str]()
    data: dict[str, list[str]] = {key: [] for key in ("data", "eval_data") if key in vars(args)}
    for key, found in data.items():
        for name in vars(args)[key]:
            try:
                found.append(dataset_name_at(name, host.folders))
            except DataError as error:
                problems.append(str(error))
    values |= {**overrides, **{key: found for key, found in data.items() if found}}
    settings, others = parsing.settings_and_problems(values)
    if data.get("data") == []:  # none was found, which is said already
        settings = replace(settings, what=replace(settings.what, data=()))
    return settings, [*problems, *others]


@contextmanager
def _stop_on_signal(job: Job) -> Iterator[None]:
    """Handle signals: the first one asks the run to stop, a second one exits at once."""

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # No print here: the signal may have interrupted one.
        if job.control.asked(Request.STOP) and _is_second_request(signal_times):
            os.write(2, b"Stopped immediately. Progress since the last checkpoint is lost.\n")
            os._exit(1)  # a normal exit would abort, because the training thread is inside torch
        signal_times.append(time.monotonic())
        job.control.ask(Request.STOP)
        job.log.append(
            Note(text="Stopping after this step and saving a checkpoint. Press Ctrl+C again to stop immediately.")
        )

    signal_times: list[float] = []
    with handle_end_signals(handle_signal):
        yield


def _is_second_request(signal_times: Sequence[float]) -> bool:
    """Whether a second signal comes from the user; torchrun passes on the first one to its processes again."""
    return dist_env.world_size() == 1 or (
        bool(signal_times) and time.monotonic() - signal_times[0] > FORWARDED_SIGNAL_SECONDS
    )


def _print_other_failure(job: Job) -> None:
    """Print the error of a process other than the first, unless all have it: then the first prints it."""
    begun = any(isinstance(event, Step) for event in job.log.since(0))
    if dist_env.is_main_process() or job.end is None or job.end.outcome != "failed":
        return
    if begun or job.end.details:
        print(f"Process {dist_env.rank()}: {job.end.text}\n{job.end.details}", file=sys.stderr)
