"""Errors whose message can be shown to the user unchanged, and the message about any other error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .readable import readable


@dataclass(frozen=True)
class Remedy:
    """A change of settings that may fix an error; the page shows it as a button."""

    words: str
    values: Mapping[str, object]


def error_message(error: Exception) -> str:
    """Format an error for the user: an OSError with the file and the reason, an unknown one with its type."""
    if isinstance(error, TrainingProError):
        return str(error)
    if not isinstance(error, OSError):
        message, kind = first_line(error), type(error).__name__
        return f"{kind}." if message == kind else f"{kind}: {message.rstrip('.')}."
    reason = error.strerror or str(error)
    place = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else error.filename
    return readable(f"{place}: {reason}." if place else f"A file can't be read or written: {reason}.")


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its type if it has none."""
    return readable(str(error)).strip().partition("\n")[0].rstrip() or type(error).__name__


class TrainingProError(Exception):
    """Error the user can understand and fix: its message says what is wrong, which value, and what to do."""

    remedies: tuple[Remedy, ...] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(readable(message))


class SettingsError(TrainingProError):
    """All problems of the settings, so that they can be fixed in one go."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(readable, problems))
        super().__init__("\n".join(self.problems))


class DataError(TrainingProError):
    """A dataset that cannot be read or has nothing to learn from."""


class ModelError(TrainingProError):
    """No model is loaded, or the loaded model cannot be trained."""

    def __init__(self, text: str, remedies: Sequence[Remedy] = ()) -> None:
        self.remedies = tuple(remedies)
        super().__init__(text)


class BusyError(TrainingProError):
    """Another job uses the model."""


class SavingError(TrainingProError):
    """A run folder cannot be written or read."""


class StoppedError(TrainingProError):
    """The user stopped the work before it had a result."""
