"""What the tab is joined from: whoever lends the model, whoever works on it, and the one session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradio.context import Context

from ..core.engine import Engine
from ..core.errors import BusyError, TrainingProError
from ..core.host import Host
from ..core.session import Session
from ..data.report import DatasetReport
from ..settings.declared import TrainingSettings


@dataclass(frozen=True)
class Joined:
    """Host, engine and session, handed to every part of the page."""

    host: Host
    engine: Engine[TrainingSettings, DatasetReport]
    session: Session

    def host_says_read_only(self) -> str:
        """Why this page may only look; a host that cannot be asked is said elsewhere on the page."""
        try:
            return self.host.read_only
        except TrainingProError:
            return ""

    def refuse_where_read_only(self) -> None:
        if reason := self.host_says_read_only():
            raise BusyError(reason)


def on_load(handler: Callable[..., Any] | None, outputs: list[Any], **options: Any) -> None:
    """Run `handler` whenever the page that is being drawn is opened, whoever made that page."""
    assert Context.root_block is not None
    Context.root_block.load(handler, None, outputs, **options)
