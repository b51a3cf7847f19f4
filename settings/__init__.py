"""What the user chooses: every setting declared once, with its file, its flags, its checks and its reference."""

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
