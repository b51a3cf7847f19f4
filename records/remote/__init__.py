"""A run seen and controlled from another process, through small files beside its lock."""

from __future__ import annotations

from .remote_control import read_progress, remote_control
from .requests import REQUESTS, is_waiting, send_request

__all__ = ["REQUESTS", "is_waiting", "read_progress", "remote_control", "send_request"]
