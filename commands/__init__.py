"""The command line; the only package that prints."""

__all__ = ["main"]
