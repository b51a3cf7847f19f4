"""Settings: declared once, with their file format, command-line flags, checks, presets and reference."""
