"""The version of Training PRO, and whether the files on disk are newer than those that run."""

from pathlib import Path

VERSION = "1.0.0"
ROOT = Path(__file__).resolve().parents[1]
PARTS = ("core", "settings", "data", "records", "hosts", "downloads", "engine", "interface", "commands")


def sources() -> list[Path]:
    """Every source file of the program."""
    return [*ROOT.glob("*.py"), *(file for part in PARTS for file in (ROOT / part).rglob("*.py"))]


def newest() -> float:
    """The time of the latest change to a source file."""
    return max((source.stat().st_mtime for source in sources()), default=0.0)


LOADED = newest()


def is_updated() -> bool:
    """Whether the sources on disk are newer than those that were loaded."""
    return newest() > LOADED
