"""The engine for hosts that can't train: each run is a process of its own, and all else is done by a worker.

A run goes on if the page, the program with the tab or its whole process group ends, and is found again by its
folder among those of running runs. It and the worker run a copy of this program, which an update doesn't change.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, TypeVar, cast

from ..core import errors, files
from ..core.channel import Channel
from ..core.engine import GgufRequest
from ..core.errors import BusyError, ModelError, SavingError, TrainingProError, error_message
from ..core.host import Folders, Host, OwnProcess
from ..core.jobs import Advice, Job, JobEnded, Request, Session, Stage, event_file
from ..core.version import ROOT, VERSION, newest_mtime
from ..records import queue
from ..records.folder import choose_run_folder, is_in_progress, loras, refuse_in_progress
from ..records.remote import FOLLOWED, follow_run, running_folder
from ..settings.definitions import FULL_FINETUNE, TrainingSettings
from ..settings.files import as_file
from .peft_engine import PeftEngine, still_attached

Method = TypeVar("Method", bound=Callable[..., Any])
# In the folder of a run that was started here: what it was started with, all that it printed, and its process.
STARTED, OUTPUT, NUMBER = "settings.json", "output.txt", "process.txt"
# Importing the libraries takes up to a minute on a slow disk; until then, a new process has no lock.
START_SECONDS = 120.0
# A run writes its end just after it has released its lock.
END_SECONDS = 5.0
# Starts a program that this one's end leaves without a parent, with the same streams, and writes its number.
LAUNCHER = """import subprocess, sys
number = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL).pid
open(sys.argv[1], "w").write(str(number))"""
NOT_FOR_RUNNING = ("tests", "bench", "docs", "user_data", "__pycache__", ".*")
LAST_LINES = 12


def _in_worker(method: Method, *, gguf_loading: str = "") -> Method:
    """Let a method of the engine run in the worker if the host's model is for processes of their own.

    With `gguf_loading`, another worker loads a GGUF file like this, into RAM, and ends with the work.
    """
    signature = inspect.signature(method)

    @wraps(method)
    def call(engine: ProcessEngine, *args: Any, **more: Any) -> Any:
        given = signature.bind(engine, *args, **more).arguments
        target: OwnProcess | None = given["host"].own_process
        if target is None:
            return method(engine, *args, **more)
        given["host"].card()  # an error where the environment is not ready: a worker would make another one
        folders = given["host"].folders
        job: Job | None = given.get("job")
        if job is not None:
            job.log.append(Stage(text="Starting"))
        values = {name: value for name, value in given.items() if name not in ("self", "host", "job")}
        if gguf_loading and (target.model.endswith(".gguf") or target.loading in ("4bit", "8bit")):
            with engine.other_worker(replace(target, loading=gguf_loading), folders) as worker:
                return worker.ask(method.__name__, values, job)
        return engine.worker(target, folders).ask(method.__name__, values, job)

    return cast("Method", call)


class ProcessEngine(PeftEngine):
    """Trains in the program with the tab, or in processes of their own if the host's model is for these."""

    check = _in_worker(PeftEngine.check)
    check_start = _in_worker(PeftEngine.check_start)
    _probe = _in_worker(PeftEngine.probe)
    layers = _in_worker(PeftEngine.layers)
    answer = _in_worker(PeftEngine.answer)
    perplexity = _in_worker(PeftEngine.perplexity)
    recall = _in_worker(PeftEngine.recall)
    evidence = _in_worker(PeftEngine.evidence)
    write_pairs = _in_worker(PeftEngine.write_pairs)
    study = _in_worker(PeftEngine.study)
    exam = _in_worker(PeftEngine.exam)
    draw_map = _in_worker(PeftEngine.draw_map)
    merge = _in_worker(PeftEngine.merge, gguf_loading="bfloat16")  # packed blocks can't take in a LoRA
    _export_gguf = _in_worker(PeftEngine.export_gguf)

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._others: list[Worker] = []
        self._lock = threading.Lock()

    def train(self, settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
        if (target := host.own_process) is None:
            return super().train(settings, host, job, resume=resume)
        host.card()  # as for a worker
        job.log.append(Stage(text="Starting a process for the run"))
        folders = host.folders
        folder = choose_run_folder(settings, folders, resume)
        refuse_in_progress(folder.name, folders)
        self.close()  # its model takes the memory that the run needs
        ended: JobEnded | None = None
        try:
            with _tell_detached(host, job), target.lend_memory():
                try:
                    is_alive = start_run(settings.with_name(folder.name), folder.path, target, folders, resume)
                except OSError as error:
                    reason = files.write_error_reason(error, folders.training)
                    raise SavingError(f"The run can't be started in {folders.training}: {reason}.") from error
                ended = follow_to_end(job, folder.path, folders, is_alive)
        except Exception as error:  # loading a model may raise anything, and the run has ended
            if ended is None:
                raise
            text = f"The model of the chat could not be loaded again. {error_message(error)}"
            job.log.append(Advice(text=text))
        if ended.folder and ended.folder.name in host.model_status().loras:
            job.log.append(Advice(text=still_attached(ended.folder.name)))
        return ended

    def probe(self, settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
        """Try a step in the memory that the run will have, and free it before the chat's model comes back."""
        target = host.own_process
        if target is None or not target.unloads_chat:
            return self._probe(settings, host, job)
        self.close()
        with _tell_detached(host, job), target.lend_memory():
            try:
                return self._probe(settings, host, job)
            finally:
                self.close()

    def export_gguf(self, asked: GgufRequest, host: Host) -> Path:
        """Only files are read and written, so this needs no other process where this one has torch."""
        return (super().export_gguf if find_spec("torch") else self._export_gguf)(asked, host)

    def find_runs(self, session: Session, host: Host) -> None:
        """Follow a run again that a tab has started in a process of its own before this program was started."""
        folders = host.folders
        ended_last = lambda running: not is_in_progress(running.name, folders)  # noqa: E731
        for running in sorted(files.usable_entries(folders.running), key=ended_last):
            if not (running / STARTED).is_file() or session.latest("training") is not None:
                continue
            values = files.read_json(running / STARTED, {})
            home = folders.output_folder(full_finetune=values.get("method") == FULL_FINETUNE)
            is_alive = _watch(running, home / running.name, folders)
            queued = [run.number for run in queue.load(folders.queue).begun if run.name == running.name]

            work = partial(follow_to_end, folder=home / running.name, folders=folders, is_alive=is_alive)
            number = queued[0] if queued else None
            with suppress(TrainingProError):  # another job has begun meanwhile
                session.auto_start.current_number = number  # so that the queue does not take it back meanwhile
                session.train(running.name, host, work, queue_number=number, is_elsewhere=True)

    def attach_lora(self, name: str, strength: float, host: Host, job: Job) -> JobEnded:
        with _exclusive(host):
            return super().attach_lora(name, strength, host, job)

    def detach_lora(self, host: Host, job: Job) -> JobEnded:
        with _exclusive(host):
            return super().detach_lora(host, job)

    def close(self) -> None:
        """End the workers, and with them what they are doing."""
        with self._lock:
            for worker in filter(None, [self._worker, *self._others]):
                worker.close()
            self._worker = None

    def worker(self, target: OwnProcess, folders: Folders) -> Worker:
        """The worker that has this model; it is started (again) where that is needed."""
        with self._lock:
            if self._worker is None or self._worker.target != target or not self._worker.is_alive():
                if self._worker is not None:
                    if self._worker.jobs and self._worker.is_alive():
                        raise BusyError("Another job uses a model now. Wait until it has ended, or stop it.")
                    self._worker.close()
                self._worker = Worker(target, folders)
            return self._worker

    @contextmanager
    def other_worker(self, target: OwnProcess, folders: Folders) -> Iterator[Worker]:
        """A worker beside that one, which leaves the GPU alone."""
        worker = Worker(target, folders, CUDA_VISIBLE_DEVICES="")
        self._others.append(worker)
        try:
            yield worker
        finally:
            self._others.remove(worker)
            worker.close()


def _exclusive(host: Host) -> AbstractContextManager[None]:
    """Exclusive use of the host's model, which a job on a model of its own has not taken."""
    return nullcontext() if host.own_process is None else host.exclusive_use()


@contextmanager
def _tell_detached(host: Host, job: Job) -> Iterator[None]:
    """Say which LoRAs the chat's model has lost, since it was unloaded within this context."""
    attached = host.model_status().loras
    try:
        yield
    finally:
        if lost := ", ".join(name for name in attached if name not in host.model_status().loras):
            text = f"{lost}: detached, because the chat's model was unloaded meanwhile. Attach it again."
            job.log.append(Advice(text=text))


class Worker:
    """A process that holds the model that is chosen, and does for the tab what needs it."""

    def __init__(self, target: OwnProcess, folders: Folders, **variables: str) -> None:
        self.target = target
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        command, pipe = _command("worker", target, folders), subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._errors, env={**os.environ, **variables}
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._channel = Channel(self._process.stdout, self._process.stdin)
        self._answers: dict[int, SimpleQueue[tuple[str, Any]]] = {}
        self._lock, self._count, self._is_closed = threading.Lock(), 0, False
        self.jobs = 0  # that it works on
        threading.Thread(target=self._receive, name="worker", daemon=True).start()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._is_closed = True
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, given: Mapping[str, Any], job: Job | None) -> Any:
        """Call a method of the engine there; its events go to the log of the job."""
        with self._lock:
            self._count += 1
            number, answers = self._count, SimpleQueue[tuple[str, Any]]()
            self._answers[number] = answers
            self.jobs += job is not None
        has_stopped = False
        with suppress(OSError):  # it has ended, which is said below
            self._channel.send((number, method, given, job is not None))
        while True:
            if job is not None and job.control.asked(Request.STOP) and not has_stopped:
                has_stopped = True
                with suppress(OSError):
                    self._channel.send((number, "stop"))
            kind: str = "crash"
            value: Any = ("The process that works on the model has ended unexpectedly", "")
            try:
                kind, value = answers.get(timeout=0.2)
            except Empty:
                if self.is_alive():
                    continue
            if kind == "crash" and self._is_closed:
                raise BusyError("This was stopped for a run, or for the training environment. Try again later.")
            if kind == "event":
                if job is not None:
                    job.log.append(value)
                continue
            del self._answers[number]
            self.jobs -= job is not None
            if kind == "result":
                return value
            if kind == "crash":
                raise ModelError(f"{value[0]}. {value[1] or self._last_lines()}".strip())
            name, values = value
            error = TrainingProError.__new__(getattr(errors, name, TrainingProError))
            Exception.__init__(error, values.pop("text"))
            vars(error).update(values)
            raise error

    def _last_lines(self) -> str:
        """What it printed last; only of one that has ended, because its stream shares this position."""
        self._errors.seek(0)
        return last_lines(self._errors.read())

    def _receive(self) -> None:
        try:
            while True:
                number, kind, value = self._channel.receive()
                if (answers := self._answers.get(number)) is not None:
                    answers.put((kind, value))
        except (EOFError, OSError):
            pass
        except Exception:  # noqa: BLE001 - after an update, it sends what this program does not know
            self._process.kill()


def start_run(
    settings: TrainingSettings, folder: Path, target: OwnProcess, folders: Folders, resume: str
) -> Callable[[], bool]:
    """Start a run in a process that outlives this one; returns a function that says whether it is alive."""
    running = running_folder(settings.what.name, folders)
    if _is_starting(running, folder):
        raise BusyError(f"Another program has just started '{folder.name}'. Choose another name, or wait for it.")
    shutil.rmtree(running, ignore_errors=True)
    running.mkdir(parents=True)
    files.write_json(running / STARTED, as_file(settings))
    command = _command("train", target, folders, str(running / STARTED), *(["--resume", resume] if resume else []))
    with (running / OUTPUT).open("wb") as output:

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            return subprocess.Popen(command, **streams, env={**os.environ, FOLLOWED: "1"}, **options)

        # A window that is closed ends the process group of its program: a run has one of its own.
        if sys.platform != "win32":
            process = start(command, start_new_session=True)
            return lambda: process.poll() is None
        # On Windows, it ends all descendants (taskkill /T): a run has no parent. The python.exe of an environment
        # starts the real one without flags: without a console to inherit, that would open a window of its own.
        launch = [sys.executable, "-I", "-c", LAUNCHER, str(running / NUMBER), *command]
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        try:  # out of the job object that would end it with its window; some job objects forbid that
            start(launch, creationflags=flags | subprocess.CREATE_BREAKAWAY_FROM_JOB).wait()
        except OSError:
            start(launch, creationflags=flags).wait()
        return _watch_process(int((running / NUMBER).read_text()))


def _watch_process(number: int) -> Callable[[], bool]:
    """Return a function that says whether a process of Windows is alive."""
    import ctypes

    synchronize, timeout = 0x100000, 0x102
    kernel: Any = vars(ctypes)["windll"].kernel32
    handle = ctypes.c_void_p(kernel.OpenProcess(synchronize, False, number))
    return lambda: bool(handle) and kernel.WaitForSingleObject(handle, 0) == timeout


def _watch(running: Path, folder: Path, folders: Folders) -> Callable[[], bool]:
    """Return a function that says whether a run is alive that is not our child: by its lock."""
    free_since: list[float] = []

    def is_alive() -> bool:
        if is_in_progress(running.name, folders) or _is_starting(running, folder):
            free_since.clear()
            return True
        free_since.append(time.monotonic())
        return time.monotonic() < free_since[0] + END_SECONDS

    return is_alive


def _is_starting(running: Path, folder: Path) -> bool:
    """Whether a process was started for a run that has not begun yet: it has no lock, but may soon have it."""
    started = files.modified_at(running / STARTED)
    # A run that is resumed, or replaces another one, has the events of that one in its folder.
    has_begun = (running / event_file.EVENTS).exists() or files.modified_at(folder / event_file.EVENTS) > started
    return not has_begun and time.time() < started + START_SECONDS


def follow_to_end(job: Job, folder: Path, folders: Folders, is_alive: Callable[[], bool]) -> JobEnded:
    """Follow a run in a process of its own to its end, and remove what was only for following it."""
    running, before = running_folder(folder.name, folders), len(job.log)
    ended = follow_run(folder, job, folders, is_alive, files.modified_at(running / STARTED))
    if ended is None:
        output = last_lines((running / OUTPUT).read_bytes()) if (running / OUTPUT).is_file() else ""
        text = f"The process that trained '{folder.name}' has ended unexpectedly."
        if len(job.log) > before:  # it had begun, and would have said why it failed: the system has ended it
            text += " Perhaps the computer ran out of RAM."
            if loras.resumable_checkpoints(folder):
                text += " You can resume it from its last checkpoint."
        elif output:  # the error is in it
            text, output = output, text
        ended = JobEnded(outcome="failed", text=text, details=output)
    latest = time.monotonic() + END_SECONDS
    while is_alive() and time.monotonic() < latest:  # until then its model is in memory, and its output is open
        time.sleep(0.1)
    if not is_in_progress(folder.name, folders):  # another program may have been faster with this name
        shutil.rmtree(running, ignore_errors=True)
    with suppress(OSError):
        folders.running.rmdir()  # if no other run is in progress
    return ended


def last_lines(output: bytes) -> str:
    return "\n".join(output.decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:])


def _command(name: str, target: OwnProcess, folders: Folders, *words: str) -> list[str]:
    if not target.python.is_file():
        raise ModelError("The environment for training is missing. Set it up on the Train tab.")
    # -I: neither the variables nor the folder of the program with the tab have modules for another Python.
    command = [str(target.python), "-I", str(copy_program(folders) / "script.py"), name, *words]
    command += ["--model", target.model, "--load", target.loading, "--user-data", str(folders.user_data)]
    return [*command, "--models", str(folders.models), "--loras", str(folders.loras)]


def copy_program(folders: Folders) -> Path:
    """A copy of this program for processes that go on after an update; copies that no run needs are removed."""
    home = folders.training / "program"
    copy = home / f"{VERSION}-{int(newest_mtime())}"
    if not copy.is_dir():
        if not files.usable_entries(folders.running):
            shutil.rmtree(home, ignore_errors=True)
        with files.staging_folder(copy) as scratch:
            shutil.copytree(ROOT, scratch / copy.name, ignore=shutil.ignore_patterns(*NOT_FOR_RUNNING))
            files.move_new_folder(scratch / copy.name, copy)
    return copy


# That of the tab: TextGen draws the tab anew when it restarts, and the worker must not stay behind with its model.
ENGINE = ProcessEngine()
