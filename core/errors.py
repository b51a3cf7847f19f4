"""The errors whose message may be shown to the user as it is.

TrainingProError
├── SettingsError   what was asked for does not fit; every problem at once
├── DataError       a file or folder cannot be used as it is
├── ModelError      no model, or one that cannot be trained
├── BusyError       the model is in use by another job
└── SavingError     a LoRA or checkpoint cannot be written or read
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """What may help, in words, and the settings that it changes: a page makes a button of it."""

    words: str
    values: Mapping[str, object]


def in_words(error: TrainingProError | OSError) -> str:
    """What the user is told; of a file that cannot be read or written which one, and why."""
    if isinstance(error, TrainingProError):
        return str(error)
    why = error.strerror or str(error)
    return f"{error.filename}: {why}." if error.filename else f"A file cannot be read or written: {why}."


def failure_in_words(what: str, error: Exception) -> str:
    """The sentence for any exception of something that was asked for, such as 'Check'."""
    if isinstance(error, TrainingProError) and str(error).strip():
        return str(error)
    if isinstance(error, OSError):
        why = in_words(error)
    else:
        said = first_line(error)
        kind = type(error).__name__
        why = f"{kind}." if said == kind else f"{kind}: {said.rstrip('.')}."
    return f"{what} failed: {why} The console has the details."


def first_line(error: BaseException) -> str:
    """What an error says first, or its kind where it says nothing."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


class TrainingProError(Exception):
    """Something the user can understand and mend: what, which value, what to do."""

    remedies: tuple[Remedy, ...] = ()


class SettingsError(TrainingProError):
    """All problems of the settings, so that they can be mended in one go."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class DataError(TrainingProError):
    """A data set that cannot be read or that holds nothing to learn from."""


class ModelError(TrainingProError):
    """No model is loaded, or the loaded one cannot be trained."""

    def __init__(self, text: str, remedies: Sequence[Remedy] = ()) -> None:
        self.remedies = tuple(remedies)
        super().__init__(text)


class BusyError(TrainingProError):
    """Another job has the model."""


class SavingError(TrainingProError):
    """A folder of a run cannot be written or read."""
