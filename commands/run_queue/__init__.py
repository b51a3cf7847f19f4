"""A queue of runs on the command line."""

from __future__ import annotations

from .several_runs import check_runs, read_files, train_queue

__all__ = ["check_runs", "read_files", "train_queue"]
