"""What the host's page is told when something cannot be: needs nothing of ours, so that it always can be said."""

from __future__ import annotations

import html

import gradio as gr

from ...core.launcher import launcher


def cannot_draw(error: Exception) -> None:
    """The sentence that stands where the tab would be."""
    gr.Markdown(
        f"**Training PRO cannot draw its tab here** ({type(error).__name__}: {error}). The console has the "
        f"details. Update Training PRO and the webui, or run it on its own: `{launcher()} demo`"
    )


def busy(title: str, message: str = "") -> Exception:
    """What a chat message is refused with while a job holds the model; it stays until it is closed.

    The webui has emptied the box by then, so that here is the last place where the message can be copied from.
    """
    sentence = f"The model is busy: {title}. Chat again when it is done, or stop it in Training PRO."
    written = f" You wrote: {message}" if message.strip() else ""
    refusal: Exception = gr.Error(_as_it_is(sentence + written), duration=None)
    return refusal


def _as_it_is(text: str) -> str:
    """For a message of Gradio's: from 5 on they are HTML."""
    return html.escape(text) if int(gr.__version__.split(".")[0]) >= 5 else text
