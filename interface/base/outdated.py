"""Marks on results whose form or model has changed since: a line in each that a style sheet shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from ...settings import presets

Kind = Literal["check", "example", "probe"]
NOTICES: Mapping[Kind, str] = {
    "check": "The form has changed since this check. Press Check again.",
    "example": "The form has changed since this example was shown. Press Show again.",
    "probe": "The form has changed since this step was tried. Press the button again.",
}


@dataclass(frozen=True)
class MadeFrom:
    """The form and the model that a result was made from."""

    values: Mapping[str, Any]
    model: str

    def differs(self, now: MadeFrom) -> bool:
        """Whether a new result could be another one."""
        if self.model != now.model:
            return True
        return self.values != now.values and bool(presets.apart(self.values, now.values))


def notice(kind: Kind) -> str:
    """The line in a result, hidden until its style sheet is on the page."""
    return f'<p class="tp-outdated tp-outdated-{kind}">{escape(NOTICES[kind])}</p>'


def style(kinds: Iterable[Kind]) -> str:
    """A style sheet that shows the lines of these results."""
    shown = ", ".join(f".tp-card .tp-outdated-{kind}" for kind in kinds)
    return f"<style>{shown} {{display: block !important}}</style>" if shown else ""
