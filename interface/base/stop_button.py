"""A Stop button for jobs of one kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from ...core.jobs import JobKind
from .gradio_compat import private_options, stream_options
from .handlers import add_handler
from .page_context import PageContext, follow_events, latest_status, stop_job


class StopButton:
    """Enabled only while such a job is running, on every page, also after an error or a reload."""

    def __init__(self, context: PageContext, kind: JobKind, elem_id: str) -> None:
        self._context, self._kind, self._elem_id = context, kind, elem_id

    def draw(self) -> None:
        self._button = gr.Button("Stop", interactive=False, elem_id=self._elem_id)

    def connect(self, status: Any) -> None:
        """Register the click; `status` shows that the job is stopping, and how it ended."""
        add_handler(self._button.click, self.stop, None, status, what="Stop", **stream_options())

    def follow(self, working: Any) -> None:
        """Follow a text box that holds the kind of the running job; a stream of its own would block others."""
        what = "Showing the Stop button"
        add_handler(working.change, self.update, working, self._button, what=what, **private_options())

    def update(self, kind: str) -> Any:
        """Enable or disable the button."""
        return gr.update(interactive=kind == self._kind and not self._context.read_only_reason())

    async def stop(self) -> AsyncIterator[str]:
        """Stop the job, and follow it to its end, which a page that was reloaded meanwhile does not show."""
        job = self._context.session.latest(self._kind)
        status = stop_job(job)
        yield status
        if job is not None and status:
            async for events in follow_events(job):
                status = latest_status(events, status)
            yield status
