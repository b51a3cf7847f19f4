"""General prose and chats, written for this project: on them is measured what a model has forgotten."""

from __future__ import annotations

from pathlib import Path

PROSE = Path(__file__).with_name("prose.txt")
CHATS = Path(__file__).with_name("chats.jsonl")

__all__ = ["CHATS", "PROSE"]
