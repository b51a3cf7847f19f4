"""Settings: declared once, with their file format, command-line flags, checks, presets and reference."""

__all__ = [
    "columns",
    "definitions",
    "files",
    "flags",
    "live_settings",
    "name_rules",
    "other_names",
    "parsing",
    "presets",
    "rules",
    "setting",
    "target_layers",
]
