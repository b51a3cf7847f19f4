"""Folder of a run: what becomes of the files already in it, and when files are written."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import SavingError, SettingsError
from ...core.files import (
    PART_SUFFIX,
    move_atomically,
    read_record,
    remove_folder,
    safe_paths,
    usable_entries,
    with_retries,
    write_error_reason,
    write_json,
)
from ...core.host import Folders
from ...settings import files
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import checkpoint_name, checkpoint_step
from . import loras
from .filenames import (
    BACKUP_FOLDER,
    DATA_SAMPLE,
    LOG,
    PARAMETERS,
    RECORDS,
    REPLACED_PREFIX,
    RUN_FILES,
    replaced_folders,
)
from .loras import Checkpoint, FinishedSteps
from .run_lock import refuse_in_progress

IF_EXISTS = SETTINGS["if_exists"]

EARLIER_RECORDS, BACKUP_FILE = "before", "backup.json"
"""In the folder for partial files: the records from before the run was resumed, and the name of its backup."""


@dataclass(frozen=True)
class RunFolder:
    """The folder that a run writes to. Nothing is written before `open`, after the first step."""

    path: Path
    logs: Path
    start: Checkpoint | None = None
    resumes: bool = False
    replaces: bool = False
    is_open: bool = False
    initial_lora: Path | None = None
    """A finished LoRA that is trained further: this run begins with its weights."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def partial_folder(self) -> Path:
        """The folder for files that are not complete yet."""
        return self.path / PART_SUFFIX

    @property
    def start_step(self) -> int:
        """The step from which it resumes; 0 for a new run."""
        return self.start.step if self.start else 0

    def checkpoint(self, step: int, reason: str) -> Path:
        """Return the path for a checkpoint. The reason is part of its name; backups have a folder of their own."""
        if reason == BACKUP_FOLDER:
            return self.path / BACKUP_FOLDER / checkpoint_name(step, "")
        return self.path / checkpoint_name(step, reason)

    def finished(self) -> FinishedSteps | None:
        """Return the steps of a finished run that is to be continued; None if it is not finished, or new."""
        return loras.finished_steps(self.path) if self.resumes and self.initial_lora is None else None

    def refuse_without_start(self) -> None:
        """Raise SavingError if the run is to resume, but its folder has no checkpoint."""
        if self.resumes and self.start is None and self.initial_lora is None and loras.has_weights(self.path):
            advice = f"choose 'continue' under '{IF_EXISTS.label}' ({IF_EXISTS.flag})"
            if (noun := loras.output_kind(self.path)) == "model":
                advice = "load it as the model and choose another name for the run"
            raise SavingError(
                f"{self.name!r} is a {noun} without a checkpoint to resume from. To continue "
                f"training, {advice}. Otherwise, choose 'replace' or 'new_name'."
            )

    def open(self, settings: TrainingSettings) -> None:
        """Create the folder, and move what the run replaces into a backup inside it. A failure changes nothing."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.clean_up()
            self._back_up_replaced()
            try:
                self._set_records_aside()
                self.write_settings(settings)
            except OSError:
                self.discard()
                raise
        except OSError as error:
            reason = write_error_reason(error, self.path)
            raise SavingError(
                f"Can't write to {self.path}: {reason}. Fix the problem, or choose another name."
            ) from error

    def _back_up_replaced(self) -> None:
        """Move replaced files into a backup. The log is last: while it exists, a kill leaves no crashed run."""
        items = _files_to_replace(self.path) if self.replaces else self._later_checkpoints()
        if not items:
            return
        backup = _free_backup_path(self.path)
        write_json(self.partial_folder / BACKUP_FILE, {"name": backup.name})
        try:
            _move_into_backup(backup, sorted(items, key=lambda item: item.name == LOG))
        except SavingError:
            self.remove_partial_files()
            raise

    def write_settings(self, settings: TrainingSettings) -> None:
        """Write the settings that the user chose."""
        write_json(self.path / PARAMETERS, files.as_file(settings))

    def write_data_sample(self, sample: Sequence[Mapping[str, str]]) -> None:
        """Write the first examples, to the folder of the LoRA and to the logs folder of the webui."""
        for folder in (self.path, self.logs):
            write_json(folder / DATA_SAMPLE, list(sample))

    def _later_checkpoints(self) -> list[Path]:
        """Return the checkpoints after the one that the run resumes from, which this run replaces."""
        if self.start is None:
            return []
        folders = loras.checkpoint_folders(self.path)
        return [path for path in folders if (checkpoint_step(path.name) or 0) > self.start.step]

    def empty_weights_folder(self) -> Path:
        """Return the folder for weights that are not in place yet, without those that a kill left there."""
        folder = self.partial_folder / "lora"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def move_into_place(self, written: Path) -> None:
        """Move complete files to their place, the weights first: if they are held open, nothing has changed.

        Weights under other names are removed, since transformers would load a single file before new shards. The
        index of the shards is moved last, so that a kill in between leaves no index of a mixture.
        """
        names = {file.name for file in written.iterdir() if file.is_file()}
        weights = {name for name in names if loras.holds_tensors(name)}
        for name in sorted(weights):
            move_atomically(written / name, self.path / name)
        for name in loras.weight_names(self.path) - names:
            with_retries((self.path / name).unlink)
        for name in sorted(names - weights):
            move_atomically(written / name, self.path / name)
        self.remove_partial_files()

    def remove_partial_checkpoints(self) -> None:
        """Remove checkpoints that could not be written completely."""
        for leftover in self.partial_folder.glob("checkpoint-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def clean_up(self) -> None:
        """Clean up after a kill, also after one at the very end of a run."""
        self.remove_partial_files()
        self._remove_empty_backups()
        for name in RUN_FILES:
            (self.path / f"{name}{PART_SUFFIX}").unlink(missing_ok=True)
        loras.finish_interrupted(self.path)
        if loras.finished_steps(self.path):
            self.remove_backups()

    def _remove_empty_backups(self) -> None:
        """Remove the folders of backups into which a kill let nothing get."""
        for folder in [self.path / BACKUP_FOLDER, *replaced_folders(self.path)]:
            with suppress(OSError):  # it is not there, or not empty
                folder.rmdir()

    def remove_backups(self) -> None:
        """Remove the timed backups, which are not needed after a good end."""
        with suppress(OSError, SavingError):  # none was made, or one is held open: the run is saved all the same
            loras.remove_checkpoint(self.path / BACKUP_FOLDER)

    def discard(self) -> None:
        """Restore the folder as before the run: empty, an earlier LoRA, or the run before it was resumed."""
        if self.start is not None:
            self._discard_later()
        else:
            _remove_all(_files_to_replace(self.path))
            self._restore_backup()
        self.remove_partial_files()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _discard_later(self) -> None:
        """Remove the checkpoints after the start, all written by this run; restore the earlier ones."""
        for checkpoint in self._later_checkpoints():
            loras.remove_checkpoint(checkpoint)
        earlier_records = self.partial_folder / EARLIER_RECORDS
        for file in earlier_records.iterdir() if earlier_records.is_dir() else ():
            move_atomically(file, self.path / file.name)
        self._restore_backup()

    def _restore_backup(self) -> None:
        """Move the backup of this run back. It is found by its name, since a clock may have been set back."""
        nothing: dict[str, str] = {}
        name = read_record(self.partial_folder / BACKUP_FILE, dict[str, str], nothing).get("name", "")
        for backup in [path for path in replaced_folders(self.path) if path.name == name]:
            for item in list(backup.iterdir()):
                move_atomically(item, self.path / item.name)
            backup.rmdir()

    def copy_records_to(self, place: RunFolder) -> None:
        """Copy the records to another folder, to which the LoRA was saved."""
        for name in RECORDS:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, place.path / name)
        self.remove_partial_files()

    def _set_records_aside(self) -> None:
        """Keep the records from before the run was resumed, in case it is discarded."""
        for file in [self.path / name for name in RECORDS if (self.path / name).is_file()]:
            (self.partial_folder / EARLIER_RECORDS).mkdir(parents=True, exist_ok=True)
            move_atomically(file, self.partial_folder / EARLIER_RECORDS / file.name)

    def remove_partial_files(self) -> None:
        shutil.rmtree(self.partial_folder, ignore_errors=True)


def choose_run_folder(settings: TrainingSettings, folders: Folders, resume: str) -> RunFolder:
    """Return the folder of a run; raise SettingsError or SavingError if the user has to choose first."""
    home = folders.output_folder(full_finetune=settings.lora.whole_model)
    path = safe_paths.child(home, settings.what.name, "Name")
    if_exists = settings.what.if_exists
    if resume or if_exists == "continue":
        start = _find_start(path, resume)
        if not resume and loras.has_lora(path) and (start is None or loras.run_status(path) == "finished"):
            return RunFolder(path, folders.logs, resumes=True, replaces=True, initial_lora=path)
        return RunFolder(path, folders.logs, start, resumes=True, replaces=start is None and _has_files(path))
    if not path.exists() or not any(path.iterdir()):
        return RunFolder(path, folders.logs)
    if if_exists == "new_name":
        return RunFolder(home / loras.free_name(home, path.name), folders.logs)
    if if_exists == "replace":
        return RunFolder(path, folders.logs, replaces=_has_files(path))
    refuse_in_progress(path.name, folders)
    raise SettingsError([_exists_problem(path)])


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
    exists = name in [entry.name for entry in usable_entries(path)]
    reason = "is not a checkpoint" if exists else "does not exist"
    reason = "contains only the LoRA, so a run can't resume from it" if is_slim else reason
    raise SavingError(f"The checkpoint {resume!r} of {path.name!r} {reason}. Available: {names}.")


def _exists_problem(path: Path) -> str:
    return (
        f"Name: {path.name!r} already exists: {loras.describe_folder(path)}. Under '{IF_EXISTS.label}' "
        f"({IF_EXISTS.flag}), choose whether to continue its training, replace it (a backup is kept), or use a "
        "new name."
    )


def _has_files(path: Path) -> bool:
    """Return whether a folder holds more than its backups, which always stay there."""
    return path.is_dir() and bool(_files_to_replace(path))


def _files_to_replace(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if not p.name.startswith(REPLACED_PREFIX) and p.name != PART_SUFFIX]


def _move_into_backup(backup: Path, items: Sequence[Path]) -> None:
    """Move all items or none; on Windows a file that another program holds open cannot be moved."""
    path = backup.parent
    backup.mkdir()
    try:
        for item in items:
            move_atomically(item, backup / item.name)
    except OSError as error:
        for item in list(backup.iterdir()):
            move_atomically(item, path / item.name)
        backup.rmdir()
        raise SavingError(
            f"The contents of {path} can't be moved to a backup: {write_error_reason(error, path)}. "
            "Close the program that uses this LoRA, or choose another name."
        ) from error


def _remove_all(items: Sequence[Path]) -> None:
    for item in items:
        remove_folder(item) if item.is_dir() else with_retries(item.unlink)


def _free_backup_path(path: Path) -> Path:
    name = f"{REPLACED_PREFIX}{datetime.date.today().isoformat()}"
    return path / (loras.free_name(path, name) if (path / name).exists() else name)
