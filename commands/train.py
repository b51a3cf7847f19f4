"""`script.py train`: one run, or several one after another, without a page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ..core import dist_env
from ..core.engine import Engine
from ..core.errors import DataError, SettingsError
from ..core.host import Folders, Host
from ..core.jobs import SESSION, Ended, FromQueue, Job, Note, Progress, console
from ..data.dataset_index import named_at
from ..records.folder import under_its_name
from ..settings import files, flags, presets
from ..settings.definitions import TrainingSettings
from ..settings.parsing import training_settings
from . import options, several_runs
from .environment import interpreter
from .options import ended_by, say

PASSED_ON_SECONDS = 10


def run(arguments: Sequence[str]) -> int:
    """Train; Ctrl+C saves a full checkpoint and stops, a second one stops at once."""
    asked = _parsed(arguments)
    host = options.host(asked)
    options.say_what_saves()
    if len(asked.settings) > 1:
        return _several(asked, host)
    settings = settings_from(asked, host, next(iter(asked.settings), None))
    interpreter.ready({"train"}, torch_spec=asked.torch)
    from ..engine.peft_engine import PeftEngine

    job = trained(settings, host, PeftEngine(), resume=asked.resume or "")
    return 1 if job.end is None or job.end.outcome == "failed" else 0


def _several(asked: argparse.Namespace, host: Host) -> int:
    """One run for each settings file."""
    queue = several_runs.read(asked.settings, partial(settings_from, asked, host))
    interpreter.ready({"train"}, torch_spec=asked.torch)
    from ..engine.peft_engine import PeftEngine

    engine, resume = PeftEngine(), asked.resume or ""
    several_runs.refuse(queue, partial(engine.foresee, host=host, resume=resume))
    return several_runs.run(queue, partial(trained, host=host, engine=engine, resume=resume))


def trained(
    settings: TrainingSettings, host: Host, engine: Engine[TrainingSettings, Any], *, resume: str, told: str = ""
) -> Job:
    """A run from its first line on the console to its last; `told` is what its log begins with."""

    def work(job: Job) -> Ended:
        if told:
            job.log.append(FromQueue(text=told))
        return engine.train(settings, host, job, resume=resume)

    if not resume:
        settings = under_its_name(settings, host.folders)
    job = SESSION.train(settings.what.name, host, work)
    with _stopping(job):
        console.tell(job, say)
    _tell_of_another(job)
    return job


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("train", "One run, or one for each settings file, without a page.")
    options.add_model(parser)
    parser.add_argument(
        "--resume",
        nargs="?",
        const="newest",
        metavar="CHECKPOINT",
        help="go on from the newest whole checkpoint of --name, or from the one named",
    )
    add_settings(parser, files="*", words="a file of settings; several are trained one after another")
    return parser.parse_args(arguments)


def add_settings(parser: argparse.ArgumentParser, *, files: str = "?", words: str = "a file of settings") -> None:
    """What says the settings of a run: a file (or `files`), presets, a flag each."""
    parser.add_argument("settings", nargs=files, type=Path, metavar="SETTINGS.json", help=words)
    parser.add_argument(
        "--preset",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="presets, also several (a b, or a,b): where two set the same the later one wins; file and flags win",
    )
    flags.add_to(parser)
    # In front: behind it --data would take the file for one more data set.
    several = " ..." if files == "*" else ""
    parser.usage = (
        f"{parser.prog} [SETTINGS.json{several}] --model M [--preset NAME ...] [--KEY VALUE ...]  (all: --help)"
    )


def settings_from(asked: argparse.Namespace, host: Host, file: Path | None) -> TrainingSettings:
    """Presets, over them the file's settings, over them the flags."""
    chosen = presets.several(asked.preset, host.folders.presets)
    loaded = files.load(file, host.folders.datasets) if file else files.Loaded({})
    for note in loaded.notes:
        say(note)
    over = {**loaded.values, **flags.given(asked)}
    if told := presets.overruled(chosen, over):
        say(told)
    values = {key: value for preset in chosen for key, value in preset.values.items()}
    named, problems = _data_named(flags.given(asked), host.folders)
    try:
        settings = training_settings({**values, **over, **named})
    except SettingsError as error:
        raise SettingsError([*problems, *error.problems]) from None
    if problems:
        raise SettingsError(problems)
    return settings


def _data_named(given: Mapping[str, Any], folders: Folders) -> tuple[dict[str, list[str]], list[str]]:
    """The data of the flags as names of data sets, also where a path leads to one; and what is wrong with them."""
    named, problems = dict[str, list[str]](), list[str]()
    for key in ("data", "eval_data"):
        for one in given.get(key, ()):
            try:
                named[key] = [*named.get(key, ()), named_at(one, folders)]
            except DataError as error:
                problems.append(str(error))
    return named, problems


@contextmanager
def _stopping(job: Job) -> Iterator[None]:
    """The first one asks the run to stop, a second one ends it at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        # No print in here: the signal may have come in the middle of one.
        if job.control.stopping and _is_meant_again(heard):
            os.write(2, b"Stopped at once. What is left is the last checkpoint.\n")
            os._exit(1)  # an ordinary end aborts: the training thread is deep in torch
        heard.append(time.monotonic())
        job.control.stop()
        job.log.append(Note(text="Stopping after this step, with a checkpoint. Once more stops at once."))

    heard: list[float] = []
    with ended_by(ask):
        yield


def _is_meant_again(heard: Sequence[float]) -> bool:
    """Whether a second signal is a second wish; torchrun passes on what its processes heard already."""
    return dist_env.count() == 1 or (bool(heard) and time.monotonic() - heard[0] > PASSED_ON_SECONDS)


def _tell_of_another(job: Job) -> None:
    """What went wrong in a process that is silent otherwise, and only there: what all find out, the first says."""
    begun = any(isinstance(event, Progress) for event in job.log.since(0))
    if dist_env.is_first() or job.end is None or job.end.outcome != "failed":
        return
    if begun or job.end.details:
        print(f"Process {dist_env.rank()}: {job.end.text}\n{job.end.details}", file=sys.stderr)
