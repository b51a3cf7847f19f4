"""The scripts for the browser, read from the `.js` files in this folder."""

from __future__ import annotations

from pathlib import Path

SCRIPTS_FOLDER = Path(__file__).parent


def load_script(name: str) -> str:
    """The script of this name, without its comment lines."""
    lines = (SCRIPTS_FOLDER / f"{name}.js").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//"))
