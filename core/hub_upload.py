"""Upload of a LoRA to the Hugging Face Hub: what would be uploaded, to be shown and confirmed first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..train_utils import plural, size
from .errors import SavingError

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class UploadFile:
    """A file under its name on the Hub; one that is made for the upload is given as its bytes."""

    name: str
    content: Path | bytes

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


@dataclass(frozen=True)
class HubUpload:
    """The files of a LoRA, the repository that they go to, and who can see it."""

    lora: str
    repository: str
    public: bool
    files: tuple[UploadFile, ...]

    def __post_init__(self) -> None:
        if not REPOSITORY.fullmatch(self.repository):
            raise SavingError(
                f"{self.repository!r} is not the name of a repository. Enter OWNER/REPO: your user name or "
                "organization on the Hub, then a name for the LoRA."
            )

    @property
    def total(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def lines(self) -> list[str]:
        """What is uploaded where, in lines."""
        visible = (
            "public: everyone can see and download it" if self.public else "private: only its owner can see it"
        )
        count = f"{len(self.files)} {plural(len(self.files), 'file')}, {size(self.total)}"
        files = (f"  {file.name}  {size(file.size)}" for file in self.files)
        return [f"Upload of {self.lora} to {self.repository} ({visible}), {count}:", *files]
