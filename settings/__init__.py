"""Settings: declared once, with their file format, command-line flags, checks, presets and reference."""

__all__ = [
    "columns",
    "definitions",
    "files",
    "flags",
    "live_settings",
    "name_rules",
    "parsing",
    "presets",
    "reference",
    "rules",
    "setting",
]
