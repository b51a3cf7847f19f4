"""training_prompt.json: how a LoRA was talked to in training, and so how to talk to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.files import read_json
from .filenames import TALKING


@dataclass(frozen=True)
class Talk:
    """What stood before and after each message."""

    before: str
    after: str
    starts_with_bos: bool

    def message(self, example: str) -> str:
        """The first message in an example that was written so; empty where it begins in another way."""
        if not self.after or not example.startswith(self.before):
            return ""
        return example.removeprefix(self.before).partition(self.after)[0].strip()


def how_to_talk(folder: Path) -> Talk | None:
    """Of a LoRA or a checkpoint of it; None where nobody knows, or where it was trained on texts."""
    for place in (folder, folder.parent, folder.parent.parent):
        if (place / TALKING).is_file():
            return _talk(read_json(place / TALKING, {}))
    return None


def _talk(found: dict[str, Any]) -> Talk | None:
    before, after = found.get("before"), found.get("after")
    if found.get("kind") not in ("chat", "format") or not isinstance(before, str) or not isinstance(after, str):
        return None
    return Talk(before, after, found.get("starts_with_bos") is True)
