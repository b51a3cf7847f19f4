"""The command line; the only place that prints."""

__all__ = ["main"]
