"""samples.jsonl: the samples of a run, one per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from ...core.files import write_text
from ...core.jobs import Sampled
from .filenames import SAMPLES


def read_samples(folder: Path) -> list[Sampled]:
    """Read the samples of a run folder in their order; skip lines that cannot be read."""
    try:
        lines = (folder / SAMPLES).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    return [sample for line in lines if (sample := _parse_line(line)) is not None]


def keep(folder: Path, samples: Iterable[Sampled]) -> None:
    """Write all samples, replacing the file."""
    write_text(
        folder / SAMPLES, "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
    )


def _parse_line(line: str) -> Sampled | None:
    try:
        sample = Sampled(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return sample if isinstance(sample.step, int) else None
