"""Files written whole: aside first, then renamed, so that a kill at any moment leaves the old or the new."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(path.name + ".part")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def write_json(path: Path, value: Any) -> None:
    """What is no number becomes null: NaN is not JSON, and others could not read the file."""
    text = json.dumps(_numbers(value), indent=2, ensure_ascii=False, default=str, allow_nan=False)
    write_text(path, text + "\n")


def _numbers(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _numbers(one) for key, one in value.items()}
    return [_numbers(one) for one in value] if isinstance(value, (list, tuple)) else value
