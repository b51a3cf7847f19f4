"""What of a text may be changed before it is sliced: boilerplate is dropped, and wrapped lines are joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..settings.definitions import TextSettings
from .readers import LoadedText
from .text import Boilerplate, join_wrapped_lines, remove_boilerplate


@dataclass(frozen=True)
class Cleaning:
    """The changes that the user asks for."""

    drop_boilerplate: bool = False
    join_lines: bool = False

    @classmethod
    def of(cls, settings: TextSettings) -> Cleaning:
        return cls(settings.drop_boilerplate, settings.join_lines)


def clean(text: str, found: Sequence[Boilerplate], width: int, cleaning: Cleaning) -> str:
    """The text with the changes that are asked for; `width` is that at which its lines are wrapped, or 0."""
    if cleaning.drop_boilerplate and found:
        text = remove_boilerplate(text, found)
    return join_wrapped_lines(text, width) if cleaning.join_lines and width else text


def mark(text: LoadedText, boilerplate: str, width: int, cleaning: Cleaning) -> LoadedText:
    """The text with notes of what was changed in it, and with what Check can suggest to change."""
    return replace(
        text,
        boilerplate="" if cleaning.drop_boilerplate else boilerplate,
        wrap_width=0 if cleaning.join_lines else width,
        notes=(*text.notes, *_notes(text.name, boilerplate, width, cleaning)),
    )


def _notes(name: str, boilerplate: str, width: int, cleaning: Cleaning) -> Iterator[str]:
    if cleaning.drop_boilerplate and boilerplate:
        yield f"Dropped from {name}: {boilerplate}."
    if cleaning.join_lines and width:
        yield f"Joined the lines of {name}, which were wrapped at about {width} characters."
