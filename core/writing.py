"""Files written whole: aside first, then renamed, so that a kill at any moment leaves the old or the new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(path.name + ".part")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
