"""training_prompt.json: the prompt in which the user messages stood in training, to use it again in a chat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.files import read_json
from .filenames import TALKING


@dataclass(frozen=True)
class Talk:
    """The text before and after each message."""

    before: str
    after: str
    starts_with_bos: bool

    def message(self, example: str) -> str:
        """Return the first message of an example, or an empty string if the example has another prompt."""
        if not self.after or not example.startswith(self.before):
            return ""
        return example.removeprefix(self.before).partition(self.after)[0].strip()


def how_to_talk(folder: Path) -> Talk | None:
    """Read the prompt of a LoRA or a checkpoint of it; None if it is unknown or the LoRA learned raw text."""
    for place in (folder, folder.parent, folder.parent.parent):
        if (place / TALKING).is_file():
            return _parse(read_json(place / TALKING, {}))
    return None


def _parse(values: dict[str, Any]) -> Talk | None:
    before, after = values.get("before"), values.get("after")
    if values.get("kind") not in ("chat", "format") or not isinstance(before, str) or not isinstance(after, str):
        return None
    return Talk(before, after, values.get("starts_with_bos") is True)
