"""Error messages for the host's page. They work even when the rest of the interface cannot be imported."""

from __future__ import annotations

import html

import gradio as gr

from ..core.version import launch_command


def show_draw_error(error: Exception) -> None:
    gr.Markdown(
        f"**Training PRO can't show its tab here** ({type(error).__name__}: {error}). See the console "
        "for details. Update Training PRO and the webui, or run Training PRO without the webui: "
        f"`{launch_command()} demo`"
    )


def busy_error(title: str, message: str) -> Exception:
    """The error that refuses a chat message while a job uses the model; it stays until the user closes it."""
    text = f"The model is busy: {title}. To chat, wait until this job is done, or stop it in Training PRO."
    if message.strip():  # the webui has already emptied the chat box, so the user gets the message to copy
        text += f" Your message was not sent: {message}"
    # Gradio treats messages as HTML since version 5. When Gradio 4.37 goes, escape always.
    is_html = int(gr.__version__.split(".")[0]) >= 5
    error: Exception = gr.Error(html.escape(text) if is_html else text, duration=None)
    return error
