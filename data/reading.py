"""Texts from files: whatever encoding they are in, with line ends made one, and whatever is guessed said."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import DataError
from ..train_utils import natural_key, size

TEXTS = (".txt", ".md")
_MARKS: Mapping[bytes, str] = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LEGACY = ("cp1252", "latin-1")


@dataclass(frozen=True)
class ReadText:
    """One file as read: its name below what was asked for, its text, and what had to be guessed."""

    name: str
    text: str
    notes: tuple[str, ...] = ()


def read(path: Path) -> list[ReadText]:
    """A file, or the texts of a folder in natural order (chapter 2 before 10); DataError names all problems."""
    files = _files(path)
    texts, problems = [], []
    for file in files:
        try:
            texts.append(_read_file(file, file.name if file == path else file.relative_to(path).as_posix()))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return texts


def _files(path: Path) -> Sequence[Path]:
    if path.is_file():
        return [path]
    found = [
        p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in TEXTS and not p.name.startswith(".")
    ]
    if not found:
        raise DataError(f"{path.name}/: holds no {' or '.join(TEXTS)} file. Put texts into it, or choose another.")
    return sorted(found, key=lambda p: [natural_key(part) for part in p.relative_to(path).parts])


def _read_file(path: Path, name: str) -> ReadText:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{name}: cannot be read ({error.strerror}). Close it elsewhere, or check its rights."
        ) from error
    text, guessed = _decoded(raw, name)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise DataError(f"{name}: is empty ({size(len(raw))}). Choose a file with text in it.")
    return ReadText(name, text, (f"{name}: read as {guessed}, which is a guess.",) if guessed else ())


def _decoded(raw: bytes, name: str) -> tuple[str, str]:
    """The text, and the encoding where it had to be guessed."""
    for mark, encoding in _MARKS.items():
        if raw.startswith(mark):
            return _strictly(raw, encoding, name), ""
    if b"\x00" in raw:
        return _without_mark(raw, name)
    try:
        return raw.decode("utf-8"), ""
    except UnicodeDecodeError:
        return _legacy(raw, name)


def _strictly(raw: bytes, encoding: str, name: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: begins like {encoding}, but byte {error.start} does not fit. Save it again as UTF-8."
        ) from error


def _without_mark(raw: bytes, name: str) -> tuple[str, str]:
    """UTF-16 without its mark has a zero in every other byte; anything else with zeros is no text."""
    even, odd = raw[0::2].count(0), raw[1::2].count(0)
    most = 0.3 * len(raw) / 2
    if len(raw) % 2 == 0 and max(even, odd) > most and min(even, odd) < 0.02 * len(raw):
        encoding = "utf-16-le" if odd > even else "utf-16-be"
        return _strictly(raw, encoding, name), encoding
    raise DataError(f"{name}: is not a text file (it holds zero bytes). Choose a {' or '.join(TEXTS)} file.")


def _legacy(raw: bytes, name: str) -> tuple[str, str]:
    if _control_share(raw) > 0.01:
        raise DataError(f"{name}: is not a text file (it holds control bytes). Save it as UTF-8 text first.")
    for encoding in _LEGACY:
        try:
            return raw.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise DataError(f"{name}: its encoding is not known. Save it as UTF-8 first.")


def _control_share(raw: bytes) -> float:
    controls = sum(raw.count(bytes([b])) for b in range(32) if b not in (9, 10, 12, 13))
    return controls / max(1, len(raw))
