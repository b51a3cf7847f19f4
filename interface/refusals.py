"""What the host's page is told when something cannot be: needs nothing of ours, so that it always can be said."""

from __future__ import annotations

import gradio as gr


def cannot_draw(error: Exception) -> None:
    """The sentence that stands where the tab would be."""
    gr.Markdown(
        f"**Training PRO cannot draw its tab here** ({type(error).__name__}: {error}). The console has the "
        "details. Update Training PRO and the webui, or run it on its own: `python3 script.py demo`"
    )


def busy(title: str) -> Exception:
    """What a chat message is refused with while a job holds the model."""
    sentence = f"The model is busy: {title}. Chat again when it is done, or stop it in Training PRO."
    refusal: Exception = gr.Error(sentence)
    return refusal
