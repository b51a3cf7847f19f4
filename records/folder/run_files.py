"""Small files of a run: its log, the user's note, sample answers, and the prompt format it was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.files import check_record, read_small_file, write_text
from ...core.jobs import SampleGenerated
from .filenames import NOTES, SAMPLES, TRAINING_PROMPT
from .run_records import PromptRecord, read_prompt

_FIRST_KEYS = (
    "base_model_name",
    "base_model_class",
    "base_loaded_in_4bit",
    "base_loaded_in_8bit",
    "projections",
    "loss",
    "learning_rate",
    "epoch",
    "current_steps",
)


def log_entry(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the keys that other programs read first, then all others."""
    return {**{k: values.get(k) for k in _FIRST_KEYS}, **{k: v for k, v in values.items() if k not in _FIRST_KEYS}}


def read_note(folder: Path) -> str:
    """Read the note, or return an empty string."""
    try:
        return read_small_file(folder / NOTES).decode("utf-8-sig").strip()
    except (OSError, ValueError):
        return ""


def write_note(folder: Path, text: str) -> None:
    """Replace the note; an empty text removes it."""
    if text.strip():
        write_text(folder / NOTES, text.strip() + "\n")
    else:
        (folder / NOTES).unlink(missing_ok=True)


def read_samples(folder: Path) -> list[SampleGenerated]:
    """Read the samples of a run folder in their order; skip lines that cannot be read."""
    try:
        lines = (folder / SAMPLES).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    return [sample for line in lines if (sample := _parse_line(line)) is not None]


def write_samples(folder: Path, samples: Iterable[SampleGenerated]) -> None:
    """Write all samples, replacing the file."""
    write_text(
        folder / SAMPLES, "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
    )


def _parse_line(line: str) -> SampleGenerated | None:
    try:
        sample: SampleGenerated = check_record(json.loads(line), SampleGenerated, SAMPLES, [])
    except (ValueError, RecursionError):
        return None
    return sample


@dataclass(frozen=True)
class TrainingPrompt:
    """The text before and after each message."""

    before: str
    after: str
    starts_with_bos: bool

    def message(self, example: str) -> str:
        """Return the first message of an example, or an empty string if the example has another prompt."""
        if not self.after or not example.startswith(self.before):
            return ""
        return example.removeprefix(self.before).partition(self.after)[0].strip()


def find_prompt(folder: Path) -> PromptRecord:
    """Find the record of the prompt of a LoRA or a checkpoint of it; empty if there is none."""
    places = (folder, folder.parent, folder.parent.parent)
    nothing: PromptRecord = {}
    return next((read_prompt(place) for place in places if (place / TRAINING_PROMPT).is_file()), nothing)


def read_training_prompt(folder: Path) -> TrainingPrompt | None:
    """Read the prompt of a LoRA or a checkpoint of it; None if it is unknown or the LoRA learned raw text."""
    values = find_prompt(folder)
    before, after = values.get("before"), values.get("after")
    if values.get("kind") not in ("chat", "format") or before is None or after is None:
        return None
    return TrainingPrompt(before, after, values.get("starts_with_bos") is True)
