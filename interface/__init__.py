"""The Gradio page."""

__all__ = ["base", "page", "run"]
