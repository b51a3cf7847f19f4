"""samples.jsonl: what the model answered in the middle of a run, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from ...core.files import write_text
from ...core.jobs import Sampled
from .filenames import SAMPLES


def read_samples(folder: Path) -> list[Sampled]:
    """What is kept there, in the order in which it was said; lines that cannot be read are left out."""
    try:
        lines = (folder / SAMPLES).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    return [found for line in lines if (found := _read(line)) is not None]


def keep(folder: Path, said: Iterable[Sampled]) -> None:
    """Write them all."""
    write_text(folder / SAMPLES, "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in said))


def _read(line: str) -> Sampled | None:
    try:
        found = Sampled(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return found if isinstance(found.step, int) else None
