"""Our scripts for the browser, read from the files beside this one."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def script(name: str) -> str:
    """A script of ours for the browser, without the lines that explain it."""
    lines = (HERE / f"{name}.js").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//"))
