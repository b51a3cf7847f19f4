"""Runs in another process, seen and controlled through small files beside their locks, or on another machine."""

from __future__ import annotations

from .portable_run import PortableRun
from .remote_control import read_progress, remote_control
from .requests import REQUESTS, is_waiting, send_request

__all__ = ["REQUESTS", "PortableRun", "is_waiting", "read_progress", "remote_control", "send_request"]
