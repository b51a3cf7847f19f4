"""The texts of a file or folder, in natural order, whatever kind of document holds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..core.errors import DataError
from . import dataset_index
from .readers import ReadText, documents, text_files, unsupported

ReadDocument = Callable[[Path, str, str], ReadText]  # file, name, hard cut


def read(path: Path, hard_cut: str = "\n\n\n", document: ReadDocument | None = None) -> list[ReadText]:
    """The text of a file, or of all texts in a folder; a DataError lists everything that cannot be read.

    `hard_cut` is put between the chapters of documents that have some; `document` replaces `documents.read`.
    """
    texts, problems = [], []
    for file in _files(path):
        try:
            name = file.relative_to(path).as_posix() if file != path else path.name
            texts.append(_read(file, name, hard_cut, document))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return texts


def _files(path: Path) -> list[Path]:
    files = dataset_index.files(path, dataset_index.TEXTS)
    if not files:
        raise DataError(
            f"{path.name}: the folder holds no text ({', '.join(dataset_index.TEXTS)}). Put the texts to learn "
            f"from into it. {unsupported.said(path)}".rstrip()
        )
    return files


def _read(file: Path, name: str, hard_cut: str, document: ReadDocument | None) -> ReadText:
    unsupported.refuse(file, name)
    if file.suffix.lower() in documents.READERS:
        return (document or documents.read)(file, name, hard_cut)
    text, notes = text_files.text_of(file, name)
    if not text or text.isspace():
        raise DataError(f"{name} is empty. Put text into it, or take it out of the data.")
    return ReadText(name, text, notes)
