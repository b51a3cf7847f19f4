"""The visible files of a folder; the types among them that are not read, and what to do with each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...core.errors import DataError
from ...train_utils import natural_key, plural

# The webui's placeholder, Word's lock files, and the thumbnails of Windows Explorer.
HIDDEN_PREFIXES = (".", "put-trainer-datasets-here", "~$", "thumbs.db", "ehthumbs.db")
RECIPE_SUFFIX = ".recipe.json"  # beside a dataset that was cleaned
MAP_SUFFIX = ".map.jsonl"  # beside one that was mapped
MAX_LISTED = 4
WORD = "save it as .docx or .odt, or save its text as .txt"
BOOK = "convert it to .epub, for example with Calibre"
PLAIN = "if it is plain text, rename it to end in .txt"
REMEDIES = {
    **dict.fromkeys((".rtf", ".doc", ".dot", ".pages", ".wpd", ".wps", ".sxw", ".abw", ".fodt", ".ott"), WORD),
    **dict.fromkeys((".mobi", ".azw", ".azw3", ".azw4", ".kfx", ".prc", ".fb2", ".lit", ".lrf", ".pdb"), BOOK),
    **dict.fromkeys((".djvu", ".xps", ".ps"), "save it as a .pdf with selectable text, or save its text as .txt"),
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "save the sheet as .csv"),
    ".arrow": "use the .jsonl or .parquet file that it was made from",
    **dict.fromkeys((".pptx", ".ppt", ".odp", ".key"), "save its text as .txt, or save the slides as .pdf"),
    **dict.fromkeys((".zip", ".rar", ".7z", ".gz", ".bz2", ".xz", ".zst", ".tar", ".tgz"), "unpack it"),
    **dict.fromkeys((".mht", ".mhtml", ".webarchive"), "save the page as .html"),
    **dict.fromkeys((".ass", ".ssa", ".sub", ".sbv"), "save the subtitles as .srt"),
    **dict.fromkeys((".fdx", ".celtx", ".scriv", ".one"), "save it as .docx or .txt in the program that made it"),
    **dict.fromkeys((".mp3", ".wav", ".m4a", ".mp4", ".mkv"), "transcribe it to a .txt file"),
}
PLAIN_KINDS = {
    *("", ".log", ".text", ".rst", ".tex", ".fountain", ".asc", ".nfo", ".org", ".markdown"),
    *(".xml", ".yaml", ".yml"),
}


def is_hidden(name: str) -> bool:
    return name.lower().startswith(HIDDEN_PREFIXES) or name.lower().endswith((RECIPE_SUFFIX, MAP_SUFFIX))


def visible_files(folder: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    """The wanted files of a folder, no hidden ones, in natural order: chapter 2 before chapter 10."""
    parts = {
        path: path.relative_to(folder).parts for path in folder.rglob("*") if is_wanted(path) and path.is_file()
    }
    visible = [path for path in parts if not any(map(is_hidden, parts[path]))]
    return sorted(visible, key=lambda path: [natural_key(part) for part in parts[path]])


def find_remedy(path: Path) -> str:
    """What to do with a file of a type that is not read; empty for types that nobody would train on."""
    ending = path.suffix.lower()
    return PLAIN if ending in PLAIN_KINDS else REMEDIES.get(ending, "")


def refuse_unsupported(path: Path, name: str) -> None:
    """A DataError for a type that cannot be read; plain text can be, whatever its suffix."""
    if advice := REMEDIES.get(path.suffix.lower()):
        raise DataError(f"{name}: {path.suffix.lower()} files are not supported. To train on this file, {advice}.")


def describe_unsupported(folder: Path) -> str:
    """A sentence on the files of a folder that are not read; empty where there are none."""
    skipped = visible_files(folder, lambda path: bool(find_remedy(path))) if folder.is_dir() else []
    if not skipped:
        return ""
    listed = "; ".join(
        f"{path.relative_to(folder).as_posix()} ({find_remedy(path)})" for path in skipped[:MAX_LISTED]
    )
    rest = f"; and {len(skipped) - MAX_LISTED} more" if len(skipped) > MAX_LISTED else ""
    files_are = plural(len(skipped), "This file is", "These files are")
    return f"{files_are} not supported: {listed}{rest}."
