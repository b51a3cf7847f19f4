"""Upload of a LoRA to the Hugging Face Hub: what would be uploaded, to be shown and confirmed first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..train_utils import format_count, size
from .errors import SavingError

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class UploadFile:
    """A file under its name on the Hub; one that is made for the upload is given as its bytes."""

    name: str
    content: Path | bytes


@dataclass(frozen=True)
class HubUpload:
    """The files of a LoRA, the repository that they go to, and who can see it."""

    lora: str
    repository: str
    public: bool
    files: tuple[UploadFile, ...]
    left_out: tuple[str, ...] = ()  # records of a run on private chats

    def __post_init__(self) -> None:
        if not REPOSITORY.fullmatch(self.repository):
            raise SavingError(
                f"{self.repository!r} is not the name of a repository. Enter OWNER/REPO: your user name or "
                "organization on the Hub, then a name for the LoRA."
            )

    @property
    def lines(self) -> list[str]:
        """What is uploaded where, in lines."""
        visible = (
            "public: everyone can see and download it" if self.public else "private: only its owner can see it"
        )
        lines, total = [], 0
        for file in self.files:
            file_size = len(file.content) if isinstance(file.content, bytes) else file.content.stat().st_size
            total += file_size
            lines.append(f"  {file.name}  {size(file_size)}")
        count = f"{format_count(len(lines), 'file')}, {size(total)}"
        if self.left_out:
            lines.append(f"Not uploaded, because they may quote your private chats: {', '.join(self.left_out)}.")
        return [f"Upload of {self.lora} to {self.repository} ({visible}), {count}:", *lines]
