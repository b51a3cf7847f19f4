"""Notices on outdated results. Every result has a hidden notice; a style sheet shows it when needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from ...settings import presets

ResultKind = Literal["check", "example", "probe"]
NOTICES: Mapping[ResultKind, str] = {
    "check": "Settings have changed since this check. Press Check for a new report.",
    "example": "Settings have changed since this example was shown. Press Show again.",
    "probe": "Settings have changed since this test. Press 'Test one step' or 'Fit to my GPU' again.",
}


@dataclass(frozen=True)
class ResultInputs:
    """The form and the model that a result was made from."""

    values: Mapping[str, Any]
    model: str

    def differs(self, other: ResultInputs) -> bool:
        """Whether a new result could differ from this one."""
        if self.model != other.model:
            return True
        return self.values != other.values and bool(presets.differing_keys(self.values, other.values))


def notice(kind: ResultKind) -> Markup:
    """The notice inside a result, hidden until `style` shows it."""
    return Markup('<p class="tp-outdated tp-outdated-{}">{}</p>').format(kind, NOTICES[kind])


def style(kinds: Iterable[ResultKind]) -> Markup:
    """A style sheet that shows the notices of these results, and dims what is below them."""
    notices = [f".tp-card .tp-outdated-{kind}" for kind in kinds]
    if not notices:
        return Markup()
    shown, dimmed = ", ".join(notices), ", ".join(f"{notice} ~ *" for notice in notices)
    return Markup("<style>{} {{display: block !important}} {} {{opacity: .5}}</style>").format(shown, dimmed)
