"""The Gradio page."""

__all__ = ["base", "fallback", "page", "run"]
