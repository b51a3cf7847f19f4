"""Folder of a run: its lock, its journal, what becomes of the files already in it, and when files are written.

Before a run or a discard moves or removes files, it writes into a journal what it is about to do. Whoever opens
the folder after a kill finishes or undoes what the journal says: `RunFolder.recover` is the only repair.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from ...core import dist_env, files
from ...core.errors import BusyError, SavingError, SettingsError
from ...core.files import Count, safe_paths
from ...core.host import Folders
from ...settings.definitions import SETTINGS, TrainingSettings
from ...settings.files import as_file
from ...train_utils import checkpoint_name, checkpoint_step
from . import loras, run_files
from .loras import Checkpoint

LOCK_SUFFIX = ".lock"
BEING_TRAINED = "{!r} is being trained. Stop the run first, or wait until it ends."
IF_EXISTS = SETTINGS["if_exists"]
# In the folder for partial files: the records from before the run was resumed.
EARLIER_RECORDS = "before"


def _lock_path(name: str, folders: Folders) -> Path:
    link = folders.loras / name
    if not safe_paths.name_fault(name) and link.is_symlink():  # both names of a folder have one lock
        name = link.resolve().name
    return safe_paths.child(folders.training, f"{name}{LOCK_SUFFIX}", "Name")


@contextmanager
def hold_run_lock(name: str, folders: Folders) -> Iterator[None]:
    """Hold the lock of a LoRA, so that no other process trains or deletes it; its owner's death releases it."""
    # In distributed training, only the first process writes files, so only it holds the lock.
    if not dist_env.is_main_process():
        yield
        return
    path = _lock_path(name, folders)
    with files.lock(path) as acquired:
        if not acquired:
            raise BusyError(BEING_TRAINED.format(name))
        try:
            yield
        finally:
            files.remove_lock_file(path)


def is_in_progress(name: str, folders: Folders) -> bool:
    """Return whether a LoRA is being trained; False for a name that no LoRA can have."""
    return not safe_paths.name_fault(f"{name}{LOCK_SUFFIX}") and files.is_locked(_lock_path(name, folders))


def refuse_in_progress(name: str, folders: Folders) -> None:
    """Raise BusyError if a LoRA is being trained, before data is read for a run that could not start."""
    if dist_env.is_main_process() and is_in_progress(name, folders):
        raise BusyError(BEING_TRAINED.format(name))


def runs_in_progress(folders: Folders) -> list[str]:
    """Names of the LoRAs that are being trained now, by any process."""
    paths = (path for path in files.usable_entries(folders.training) if path.suffix == LOCK_SUFFIX)
    return sorted(path.stem for path in paths if "." not in path.stem and files.is_locked(path))


def refuse_while_training(folders: Folders) -> None:
    """Raise BusyError if a run is in progress, which may need what is about to change."""
    if runs_in_progress(folders):
        raise BusyError("A run is in progress. Wait until it has ended, or stop it first.")


@dataclass(frozen=True)
class Journal:
    """The action under way, the step that the run began from, and the backup of what it replaces.

    begin    files are moved to the backup; undone after a kill
    run      the run trains, until its last record is written
    discard  the run's own files are removed; finished after a kill, and then undone like `begin`
    """

    action: Literal["begin", "run", "discard"]
    began_at_step: Count = 0
    backup: str = ""
    initial_lora: bool = False  # the backup is a finished LoRA, and the run began with its weights


def read_journal(folder: Path) -> Journal | None:
    return files.read_record(folder / run_files.JOURNAL, Journal, None)


def _write_journal(folder: Path, journal: Journal) -> None:
    files.write_json(folder / run_files.JOURNAL, asdict(journal))


@dataclass(frozen=True)
class RunFolder:
    """The folder that a run writes to. Nothing is written before `open`, after the first step."""

    path: Path
    logs: Path
    start: Checkpoint | None = None
    resumes: bool = False
    is_open: bool = False
    initial_lora: Path | None = None  # a finished LoRA that is trained further: the run begins with its weights

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def partial_folder(self) -> Path:
        """The folder for files that are not complete yet."""
        return self.path / files.PART_SUFFIX

    @property
    def start_step(self) -> int:
        """The step from which it resumes; 0 for a new run."""
        return self.start.step if self.start else 0

    def checkpoint(self, step: int, reason: str) -> Path:
        """Return the path for a checkpoint. The reason is part of its name; backups have a folder of their own."""
        if reason == run_files.BACKUP_FOLDER:
            return self.path / run_files.BACKUP_FOLDER / checkpoint_name(step, "")
        return self.path / checkpoint_name(step, reason)

    def finished(self) -> tuple[int, int]:
        """Return the steps that a finished run took and had planned; 0 if it is not finished, or new."""
        log = run_files.read_log(self.path)
        if not self.resumes or self.initial_lora is not None or log.get("ended") != "finished":
            return 0, 0
        steps = log.get("current_steps") or 0
        return steps, log.get("steps") or steps  # a stopping rule may have ended it early

    def refuse_without_start(self) -> None:
        """Raise SavingError if the run is to resume, but its folder has no checkpoint."""
        begins = self.start is None and self.initial_lora is None and read_journal(self.path) is None
        if self.resumes and begins and loras.has_weights(self.path):
            advice = f"choose 'continue' under '{IF_EXISTS.label}' ({IF_EXISTS.flag})"
            if (noun := loras.output_kind(self.path)) == "model":
                advice = "load it as the model and choose another name for the run"
            raise SavingError(
                f"{self.name!r} is a {noun} without a checkpoint to resume from. To continue "
                f"training, {advice}. Otherwise, choose 'replace' or 'new_name'."
            )

    def open(self, settings: TrainingSettings) -> None:
        """Create the folder, and move what the run replaces into a backup inside it. A failure changes nothing."""
        crashed: Journal | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.recover()
            crashed = read_journal(self.path)
            if crashed is not None and self.start is None and not loras.resumable_checkpoints(self.path):
                # It left nothing to resume from: this run begins with what was there before it.
                self.discard()
                self.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.partial_folder, ignore_errors=True)
            # Also what was put there since the run was asked for: a LoRA from the trash, a copy.
            replaced = _files_to_replace(self.path) if self.start is None else []
            if self.start:
                replaced = _checkpoints_after(self.path, self.start.step)
                if self.finished()[0] > self.start.step:  # its last step may have no checkpoint
                    weights = loras.weight_files(self.path)
                    replaced += [file for file in weights if file.name not in run_files.RUN_FILES]
            name = f"{run_files.REPLACED_PREFIX}{datetime.date.today().isoformat()}"
            # A second run of the same day does not mix its backup with that of the first.
            backup = self.path / (loras.free_name(self.path, name) if (self.path / name).exists() else name)
            earlier = self.partial_folder / EARLIER_RECORDS
            names = run_files.RECORDS if self.start else ()
            records = [self.path / name for name in names if (self.path / name).is_file()]
            # The journal of the crashed run that this one resumes; a discard restores it.
            if (self.path / run_files.JOURNAL).is_file():
                earlier.mkdir(parents=True)
                shutil.copyfile(self.path / run_files.JOURNAL, earlier / run_files.JOURNAL)
            # The journal comes before the first move, so that a kill in between can be undone.
            began_with_lora = self.initial_lora is not None
            journal = Journal("begin", self.start_step, backup.name if replaced else "", began_with_lora)
            _write_journal(self.path, journal)
            for folder, items in ((backup, replaced), (earlier, records)):
                for item in items:
                    folder.mkdir(parents=True, exist_ok=True)
                    files.move_atomically(item, folder / item.name)
            _write_journal(self.path, replace(journal, action="run"))
            self.write_settings(settings)
        except OSError as error:
            # Undo what was begun. An unchanged journal is that of a crashed run, which stays resumable.
            with suppress(OSError):
                if read_journal(self.path) != crashed:
                    self.discard()
            reason = files.write_error_reason(error, self.path)
            raise SavingError(
                f"Can't write to {self.path}: {reason}. Fix the problem, or choose another name."
            ) from error

    def recover(self) -> None:
        """Finish or undo what a kill interrupted, and remove incomplete files; a crashed run stays resumable."""
        journal = read_journal(self.path)
        if journal is not None and journal.action == "discard":
            # Remove all but the backup, or else the checkpoints after the one that the run resumed from.
            step = journal.began_at_step
            for item in _checkpoints_after(self.path, step) if step else _files_to_replace(self.path):
                files.remove_folder(item) if item.is_dir() else files.with_retries(item.unlink)
            journal = replace(journal, action="begin")
            _write_journal(self.path, journal)
        if journal is not None and journal.action == "begin":
            # Move everything that was set aside back. The journal of an earlier run comes last: until then, this
            # journal says what is left to do after another kill.
            earlier, backup = self.partial_folder / EARLIER_RECORDS, _backup_of(self.path, journal)
            for folder in (backup, earlier):
                for item in list(folder.iterdir()) if folder and folder.is_dir() else ():
                    if item.name != run_files.JOURNAL:
                        files.move_atomically(item, self.path / item.name)
            if backup is not None:
                backup.rmdir()
            if (earlier / run_files.JOURNAL).is_file():
                files.move_atomically(earlier / run_files.JOURNAL, self.path / run_files.JOURNAL)
                shutil.rmtree(self.partial_folder, ignore_errors=True)
            else:
                self.close()
            if not any(self.path.iterdir()):
                self.path.rmdir()
        # Checkpoints that were being removed or slimmed.
        for parent in (self.path, self.path / run_files.BACKUP_FOLDER):
            for name in ("checkpoint-*", run_files.BACKUP_FOLDER):
                for leftover in parent.glob(f".{name}{files.PART_SUFFIX}"):
                    files.remove_folder(leftover)
            for marker in parent.glob(f"checkpoint-*/{run_files.STATE}{files.PART_SUFFIX}"):
                loras.slim_checkpoint(marker.parent)
        for name in (*run_files.RUN_FILES, run_files.JOURNAL):
            (self.path / f"{name}{files.PART_SUFFIX}").unlink(missing_ok=True)
        # The log is written last, so a run that says that it has ended is complete.
        ended = run_files.read_log(self.path).get("ended")
        if ended == "finished":
            self.remove_backups()
        if ended:
            self.close()

    def close(self) -> None:
        """Remove what only an unfinished run needs, after its last record is written."""
        shutil.rmtree(self.partial_folder, ignore_errors=True)
        (self.path / run_files.JOURNAL).unlink(missing_ok=True)

    def discard(self) -> None:
        """Restore the folder as before the run: empty, an earlier LoRA, or the run before it was resumed."""
        journal = read_journal(self.path)
        if journal is not None and journal.action == "run":
            _write_journal(self.path, replace(journal, action="discard"))
        if journal is not None:
            self.recover()

    def write_settings(self, settings: TrainingSettings) -> None:
        """Write the settings that the user chose; the answer for this folder is none for another run."""
        values = {**as_file(settings), "if_exists": IF_EXISTS.default}
        files.write_json(self.path / run_files.PARAMETERS, values)

    def write_data_sample(self, sample: Sequence[Mapping[str, str]], *, private: bool) -> None:
        """Write the first examples, to the folder of the LoRA and, unless they are chats, to the webui's logs."""
        # A copy in the logs would stay there when the run is deleted.
        for folder in (self.path,) if private else (self.path, self.logs):
            files.write_json(folder / run_files.DATA_SAMPLE, list(sample))

    def empty_weights_folder(self) -> Path:
        """Return the folder for weights that are not in place yet, without those that a kill left there."""
        folder = self.partial_folder / "lora"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def move_into_place(self, written: Path) -> None:
        """Move complete files to their place, the weights first: if they are held open, nothing has changed."""
        # Weights under other names are removed, since transformers would load a single file before new shards. The
        # index of the shards is moved last, so that a kill in between leaves no index of a mixture.
        names = {file.name for file in written.iterdir() if file.is_file()}
        weights = {name for name in names if loras.holds_tensors(name)}
        for name in sorted(weights):
            files.move_atomically(written / name, self.path / name)
        for name in loras.weight_names(self.path) - names:
            files.with_retries((self.path / name).unlink)
        for name in sorted(names - weights):
            files.move_atomically(written / name, self.path / name)
        shutil.rmtree(written, ignore_errors=True)

    def remove_partial_checkpoints(self) -> None:
        """Remove checkpoints that could not be written completely."""
        for leftover in self.partial_folder.glob("checkpoint-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def remove_backups(self) -> None:
        """Remove the timed backups, which are not needed after a good end."""
        with suppress(OSError, SavingError):  # none was made, or one is held open: the run is saved all the same
            loras.remove_checkpoint(self.path / run_files.BACKUP_FOLDER)

    def copy_records_to(self, place: RunFolder) -> None:
        """Copy the records to another folder, to which the LoRA was saved."""
        for name in run_files.RECORDS:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, place.path / name)
        shutil.rmtree(self.partial_folder, ignore_errors=True)


def recover_interrupted(path: Path, folders: Folders) -> None:
    """Finish or undo what a killed program was doing to a LoRA's folder, unless a program works on it now."""
    journal = None if path.is_symlink() or not dist_env.is_main_process() else read_journal(path)
    if journal is not None and (journal.action != "run" or run_files.read_log(path).get("ended")):
        with suppress(BusyError, OSError), hold_run_lock(path.name, folders):
            RunFolder(path, folders.logs).recover()


def choose_run_folder(settings: TrainingSettings, folders: Folders, resume: str) -> RunFolder:
    """Return the folder of a run; raise SettingsError or SavingError if the user has to choose first."""
    home = folders.output_folder(full_finetune=settings.lora.whole_model)
    path = safe_paths.child(home, settings.what.name, "Name")
    if path.is_symlink():  # it would be trained under two names, each with a lock of its own
        target = path.resolve().name
        raise SettingsError([f"Name: {path.name!r} is a link to {target!r}. Enter {target!r} or another name."])
    # Before anything is decided by what is in the folder, what a kill left half done is finished or undone.
    recover_interrupted(path, folders)
    if_exists = settings.what.if_exists
    if resume or if_exists == "continue":
        start, crashed = _find_start(path, resume), read_journal(path)
        # A run that continued a finished LoRA and crashed before its first checkpoint begins with that LoRA again.
        if start is None and crashed is not None and crashed.initial_lora and (lora := _backup_of(path, crashed)):
            return RunFolder(path, folders.logs, resumes=True, initial_lora=lora)
        if not resume and loras.has_lora(path) and (start is None or loras.run_status(path) == "finished"):
            return RunFolder(path, folders.logs, resumes=True, initial_lora=path)
        return RunFolder(path, folders.logs, start, resumes=True)
    in_progress = is_in_progress(path.name, folders)
    # Files that were never completed are no result to ask about.
    is_free = not path.exists() or all(item.name.endswith(files.PART_SUFFIX) for item in path.iterdir())
    if if_exists == "new_name" and (in_progress or not is_free):
        return RunFolder(home / loras.free_name(home, path.name), folders.logs)
    if is_free or if_exists == "replace":
        return RunFolder(path, folders.logs)
    if in_progress:
        refuse_in_progress(path.name, folders)
    raise SettingsError(
        [
            f"Name: {path.name!r} already exists: {loras.describe_folder(path)}. Under '{IF_EXISTS.label}' "
            f"({IF_EXISTS.flag}), choose whether to continue its training, replace it (a backup is kept), or use "
            "a new name."
        ]
    )


def with_final_name(settings: TrainingSettings, folders: Folders) -> TrainingSettings:
    """Return the settings with the final name of the LoRA, which is another one if a new name was asked for."""
    if settings.what.if_exists != "new_name":
        return settings
    return settings.with_name(choose_run_folder(settings, folders, "").name)


def _find_start(path: Path, resume: str) -> Checkpoint | None:
    checkpoints = loras.resumable_checkpoints(path)
    if resume in ("", "newest"):
        return checkpoints[-1] if checkpoints else None
    name = Path(resume).name
    if matches := [c for c in checkpoints if c.folder.name == name]:
        return matches[0]
    names = ", ".join(c.folder.name for c in checkpoints) or "none"
    is_slim = name in [folder.name for folder in loras.checkpoints_with_weights(path)]
    exists = name in [entry.name for entry in files.usable_entries(path)]
    reason = "is not a checkpoint" if exists else "does not exist"
    reason = "contains only the LoRA, so a run can't resume from it" if is_slim else reason
    raise SavingError(f"The checkpoint {resume!r} of {path.name!r} {reason}. Available: {names}.")


def _backup_of(path: Path, journal: Journal) -> Path | None:
    """Return the backup that a journal names; a name that leads elsewhere is that of none."""
    return next((folder for folder in run_files.replaced_folders(path) if folder.name == journal.backup), None)


def _files_to_replace(path: Path) -> list[Path]:
    """Return everything in a folder but the backups, which always stay there, and what this run has written."""
    own = (files.PART_SUFFIX, run_files.JOURNAL)
    items = path.iterdir() if path.is_dir() else ()
    return [p for p in items if not p.name.startswith(run_files.REPLACED_PREFIX) and p.name not in own]


def _checkpoints_after(path: Path, step: int) -> list[Path]:
    return [folder for folder in loras.checkpoint_folders(path) if (checkpoint_step(folder.name) or 0) > step]
