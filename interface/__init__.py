"""The page: everything that needs Gradio."""

__all__ = ["base", "page", "run"]
