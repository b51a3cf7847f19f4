"""`script.py train`: one run, or several one after another, without a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import dist_env
from ..core.engine import Engine
from ..core.errors import DataError, SettingsError, TrainingProError
from ..core.host import Host
from ..core.jobs import SESSION, Job, JobEnded, Request, StartedFromQueue, Step, console
from ..data.dataset_index import dataset_name_at
from ..records.folder import with_final_name
from ..records.queue import start_problems
from ..settings import files, flags, parsing, presets
from ..settings.definitions import TrainingSettings
from ..settings.files import LoadedSettings
from . import options
from .options import say

STOPPING = "Stopping after this step and saving a checkpoint"
STOPPED = "Stopped immediately. Progress since the last checkpoint is lost."


def run(arguments: Sequence[str]) -> int:
    """Train; Ctrl+C stops with a checkpoint, a second one stops at once."""
    parser = options.make_parser("train", model=True)
    resume_help = "resume the run given by --name from its newest full checkpoint, or from CHECKPOINT"
    parser.add_argument("--resume", nargs="?", const="newest", metavar="CHECKPOINT", help=resume_help)
    files_help = "settings file; if you list several, Training PRO runs them one after another"
    add_settings(parser, files="*", words=files_help)
    args = parser.parse_args(arguments)
    host = options.make_host(args)
    options.warn_about_closing()
    if len(args.settings) > 1:
        return _train_several(args, host)
    settings = read_settings(args, host, next(iter(args.settings), None))
    job = _train_one(settings, host, options.make_engine(args), resume=args.resume or "")
    return 1 if job.end is None or job.end.outcome == "failed" else 0  # a stopped run is saved, and can resume


def add_settings(parser: argparse.ArgumentParser, *, files: str = "?", words: str = "settings file") -> None:
    """Add the options for the settings of a run: a file (or `files`), presets, and a flag for each setting."""
    parser.add_argument("settings", nargs=files, type=Path, metavar="SETTINGS.json", help=words)
    preset_help = (
        "presets, or the paths of preset files, PEFT configs or optimizer configs, separated by spaces or commas; "
        "later presets override earlier ones, and the settings file and flags override all presets"
    )
    parser.add_argument("--preset", nargs="+", action="extend", default=[], metavar="NAME", help=preset_help)
    flags.add_flags(parser)
    # argparse would list the flags of all 96 settings in the usage line.
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
    # On the command line, a dataset may also be a path; the settings of a run hold names.
    data: dict[str, list[str]] = {key: [] for key in ("data", "eval_data", "exam") if key in vars(args)}
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


def _train_one(
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

    asked = settings.what.name
    # A resumed run keeps its name; a new one may get a number at its end, by the choice for names that exist.
    if not resume:
        settings = with_final_name(settings, host.folders)
    job = SESSION.train(settings.what.name, host, work)
    with options.stop_on_signal(job, STOPPING, STOPPED):
        console.print_events(job, say, options.terminal())
    end = job.end
    if end and end.outcome == "stopped" and end.folder:
        named = f'--name "{settings.what.name}" ' if settings.what.name != asked else ""
        only = "only this settings file and " if first_message else ""
        say(f"To resume this run, enter the same command again with {only}{named}--resume.")
    # `say` is silent in processes other than the first. An error without details before the first step is one that
    # all processes have, and that the first one prints.
    begun = any(isinstance(event, Step) for event in job.log.since(0))
    if end and end.outcome == "failed" and (end.details or begun) and not dist_env.is_main_process():
        print(f"Process {dist_env.rank()}: {end.text}\n{end.details}", file=sys.stderr)
    return job


def _train_several(args: argparse.Namespace, host: Host) -> int:
    """Check all runs first, then train each, even if another one fails; Ctrl+C also cancels the rest."""
    if dist_env.world_size() > 1:
        raise SettingsError(
            [
                "With several processes, the train command takes only one settings file at a time. Start torchrun "
                "(or accelerate) once for each file."
            ]
        )
    runs, problems = list[TrainingSettings](), list[str]()
    for file in args.settings:
        try:
            runs.append(read_settings(args, host, file))
        except TrainingProError as error:
            lines = error.problems if isinstance(error, SettingsError) else str(error).splitlines()
            problems += _with_file_name(file, lines)
    if problems:
        raise SettingsError(problems)
    engine, resume = options.make_engine(args), args.resume or ""
    for number, (file, settings) in enumerate(zip(args.settings, runs, strict=True)):
        say(f"Checking {file.name} ...")
        report = engine.check_start(settings, host, resume=resume)
        names = [earlier.what.name for earlier in runs[:number]]  # also of runs with problems
        problems += _with_file_name(file, start_problems(settings, report, names))
    if problems:
        raise SettingsError(problems)
    results: list[tuple[str, str]] = []
    for number, (file, settings) in enumerate(zip(args.settings, runs, strict=True), 1):
        message = f"Run {number} of {len(runs)}: {file.name}"
        job = _train_one(settings, host, engine, resume=resume, first_message=message)
        end = job.end
        results.append((end.outcome, end.text.strip().partition("\n")[0]) if end else ("failed", ""))
        if job.control.asked(Request.STOP):
            # With --resume, a file whose name has an older LoRA would resume that run.
            if later := " ".join(map(str, args.settings[number:])):
                say(f"To train the others, enter it with only these files, and without --resume: {later}")
            break
    rest = [("not started", "")] * (len(runs) - len(results))
    for settings, (outcome, text) in zip(runs, [*results, *rest], strict=True):
        say(f"{outcome:<9}  {settings.what.name}  {text}".rstrip())
    return 1 if any(outcome == "failed" for outcome, _ in results) else 0


def _with_file_name(file: Path, problems: Sequence[str]) -> list[str]:
    """Begin each problem with the file name unless it has it already."""
    return [line if line.startswith(f"{file.name}: ") else f"{file.name}: {line}" for line in problems]
