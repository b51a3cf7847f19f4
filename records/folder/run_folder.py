"""The folder of a run: what happens to what stands there, and what is written at which moment."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import SavingError, SettingsError
from ...core.files import cleared_away, moved, patiently, read_json, safe_paths, why_not_written, write_json
from ...core.host import Folders
from ...settings import files
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import checkpoint_name, checkpoint_step
from . import loras
from .filenames import DATA_SAMPLE, EARLIER, LOG, PARAMETERS, PART, RECORDS, TIMED, WRITTEN, earlier
from .loras import Checkpoint, Finished

EXISTS = SETTINGS["if_exists"]

BEFORE, BACKUP = "before", "backup.json"
"""Beside what is not whole yet: the records of an earlier part, and which backup this run has made."""


@dataclass(frozen=True)
class RunFolder:
    """Where a run is kept; nothing is written before `open`, after the first step."""

    path: Path
    logs: Path
    start: Checkpoint | None = None
    goes_on: bool = False
    replaces: bool = False
    is_open: bool = False
    begins_with: Path | None = None
    """A finished LoRA that is trained further: its weights are where this run begins."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def aside(self) -> Path:
        """Where things are written before they are whole."""
        return self.path / PART

    @property
    def began_at(self) -> int:
        """The step that it goes on from; 0 for a run from its beginning."""
        return self.start.step if self.start else 0

    def checkpoint(self, step: int, reason: str) -> Path:
        """Where the checkpoint of a step goes; its reason names it, and timed ones have a folder of their own."""
        if reason == TIMED:
            return self.path / TIMED / checkpoint_name(step, "")
        return self.path / checkpoint_name(step, reason)

    def finished(self) -> Finished | None:
        """The finished run that is to go on; None for one that is not finished, or a new one."""
        return loras.finished(self.path) if self.goes_on and self.begins_with is None else None

    def refuse_without_start(self) -> None:
        """SavingError where a LoRA stands that nothing can go on from."""
        if self.goes_on and self.start is None and self.begins_with is None and loras.has_weights(self.path):
            further = f"choose continue under {EXISTS.label} ({EXISTS.flag})"
            if (what := loras.kind(self.path)) == "model":
                further = "load it as the model, and give the run another name"
            raise SavingError(
                f"{self.name!r} is a {what} without a checkpoint to go on from. To train it further {further}, "
                "else choose replace or new_name."
            )

    def open(self, settings: TrainingSettings) -> None:
        """Make the folder; what it replaces goes into a backup inside it. Where that fails, all is as it was."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.tidy()
            self._make_way()
            self._begin(settings)
        except OSError as error:
            why = why_not_written(error, self.path)
            raise SavingError(
                f"{self.path} cannot be written: {why}. Mend that, or choose another name."
            ) from error

    def _make_way(self) -> None:
        """The log goes last: while it is there, what a kill leaves is no run that was cut off."""
        items = _all_but_backups(self.path) if self.replaces else self._later()
        if not items:
            return
        backup = _free_backup(self.path)
        write_json(self.aside / BACKUP, {"name": backup.name})
        try:
            _into_backup(backup, sorted(items, key=lambda item: item.name == LOG))
        except SavingError:
            self.sweep()
            raise

    def _begin(self, settings: TrainingSettings) -> None:
        try:
            self._set_aside()
            self.keep_settings(settings)
        except OSError:
            self.discard()
            raise

    def keep_settings(self, settings: TrainingSettings) -> None:
        """What the user asked for."""
        write_json(self.path / PARAMETERS, files.as_file(settings))

    def keep_sample(self, sample: Sequence[Mapping[str, str]]) -> None:
        """The first examples: with the LoRA, and where the webui's user looks for them."""
        for folder in (self.path, self.logs):
            write_json(folder / DATA_SAMPLE, list(sample))

    def _later(self) -> list[Path]:
        """Checkpoints beyond the one that was chosen: they belong to another course of the run."""
        if self.start is None:
            return []
        return [
            path
            for parent in (self.path, self.path / TIMED)
            for path in parent.glob("checkpoint-*")
            if (checkpoint_step(path.name) or 0) > self.start.step
        ]

    def keep(self, written: Path) -> None:
        """Move finished files from aside to their place, each in one move; the weights first: if they are held
        open by another program, nothing has changed."""
        files = [f for f in written.iterdir() if f.is_file()]
        for file in sorted(files, key=lambda f: (f.name not in loras.WEIGHTS, f.name)):
            moved(file, self.path / file.name)
        self.sweep()

    def drop_unfinished(self) -> None:
        """A checkpoint that could not be written to its end."""
        for half in self.aside.glob("checkpoint-*"):
            shutil.rmtree(half, ignore_errors=True)

    def tidy(self) -> None:
        """What a kill left half done, also at the very end of a run."""
        self.sweep()
        for name in WRITTEN:
            (self.path / f"{name}{PART}").unlink(missing_ok=True)
        loras.finish_going(self.path)
        if loras.finished(self.path):
            self.drop_backups()

    def drop_backups(self) -> None:
        """The timed copies, which nobody needs after a good end."""
        shutil.rmtree(self.path / TIMED, ignore_errors=True)

    def discard(self) -> None:
        """Leave what stood here before the run: nothing, the LoRA out of its backup, or the earlier part of it."""
        if self.start is not None:
            self._discard_later()
        else:
            _remove_all(_all_but_backups(self.path))
            self._out_of_backup()
        self.sweep()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _discard_later(self) -> None:
        """What stood behind the chosen checkpoint lies in a backup: what is there now is all of this part."""
        for checkpoint in self._later():
            loras.remove(checkpoint)
        before = self.aside / BEFORE
        for file in before.iterdir() if before.is_dir() else ():
            moved(file, self.path / file.name)
        self._out_of_backup()

    def _out_of_backup(self) -> None:
        """What this run has put away is there again; by its name, since a clock may have been set back."""
        name = read_json(self.aside / BACKUP, {}).get("name", "")
        for backup in [path for path in earlier(self.path) if path.name == name]:
            for item in list(backup.iterdir()):
                moved(item, self.path / item.name)
            backup.rmdir()

    def moved_to(self, place: RunFolder) -> None:
        """The LoRA has come to lie in another place: what was written beside it follows."""
        for name in RECORDS:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, place.path / name)
        self.sweep()

    def _set_aside(self) -> None:
        """The records of an earlier part of the run: of no use any more unless this one is thrown away."""
        earlier = [self.path / name for name in RECORDS if (self.path / name).is_file()]
        for file in earlier:
            (self.aside / BEFORE).mkdir(parents=True, exist_ok=True)
            moved(file, self.aside / BEFORE / file.name)

    def sweep(self) -> None:
        """Remove what was never made whole."""
        shutil.rmtree(self.aside, ignore_errors=True)


def choose_run_folder(settings: TrainingSettings, folders: Folders, resume: str) -> RunFolder:
    """Where this run goes; SettingsError or SavingError where the user has to choose first."""
    home = folders.kept(whole_model=settings.lora.whole_model)
    path = safe_paths.child(home, settings.what.name, "Name")
    asked = settings.what.if_exists
    if resume or asked == "continue":
        start = _start(path, resume)
        if not resume and loras.has_lora(path) and (start is None or loras.standing(path) == "finished"):
            return RunFolder(path, folders.logs, goes_on=True, replaces=True, begins_with=path)
        return RunFolder(path, folders.logs, start, goes_on=True, replaces=start is None and _holds_more(path))
    if not path.exists() or not any(path.iterdir()):
        return RunFolder(path, folders.logs)
    if asked == "new_name":
        return RunFolder(home / loras.free_name(home, path.name), folders.logs)
    if asked == "replace":
        return RunFolder(path, folders.logs, replaces=_holds_more(path))
    raise SettingsError([_choices(path)])


def under_its_name(settings: TrainingSettings, folders: Folders) -> TrainingSettings:
    """Where a new name is asked for, under the one that it will get: so it is called wherever it is spoken of."""
    if settings.what.if_exists != "new_name":
        return settings
    return settings.called(choose_run_folder(settings, folders, "").name)


def _start(path: Path, resume: str) -> Checkpoint | None:
    found = loras.to_go_on_from(path)
    if resume not in ("", "newest"):
        named = [c for c in found if c.folder.name == Path(resume).name]
        if not named:
            there = ", ".join(c.folder.name for c in found) or "none"
            slimmed = Path(resume).name in [checkpoint.name for checkpoint in loras.with_weights(path)]
            why = "is slimmed to the LoRA itself and cannot be gone on from" if slimmed else "is not there"
            raise SavingError(f"The checkpoint {resume!r} of {path.name!r} {why}. There are: {there}.")
        return named[0]
    return found[-1] if found else None


def _choices(path: Path) -> str:
    return (
        f"Name: {path.name!r} exists already: {loras.what_stands(path)}. Choose under {EXISTS.label} "
        f"({EXISTS.flag}): continue (go on with it), replace (a backup is kept) or new_name."
    )


def _holds_more(path: Path) -> bool:
    """Than what stood here before: that lies in its backups, and stays there."""
    return path.is_dir() and bool(_all_but_backups(path))


def _all_but_backups(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if not p.name.startswith(EARLIER) and p.name != PART]


def _into_backup(backup: Path, items: Sequence[Path]) -> None:
    """All of them or none; what another program holds open on Windows cannot be moved."""
    path = backup.parent
    backup.mkdir()
    done: list[Path] = []
    try:
        for item in items:
            moved(item, backup / item.name)
            done.append(item)
    except OSError as error:
        for item in done:
            moved(backup / item.name, item)
        backup.rmdir()
        raise SavingError(
            f"What stands in {path} cannot be moved into a backup: {why_not_written(error, path)}. Close what "
            "uses this LoRA, or choose another name."
        ) from error


def _remove_all(items: Sequence[Path]) -> None:
    for item in items:
        cleared_away(item) if item.is_dir() else patiently(item.unlink)


def _free_backup(path: Path) -> Path:
    name = f"{EARLIER}{datetime.date.today().isoformat()}"
    number, backup = 2, path / name
    while backup.exists():
        backup, number = path / f"{name}-{number}", number + 1
    return backup
