"""Which Training PRO this is."""

VERSION = "1.0.0"
