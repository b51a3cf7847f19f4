"""How the machine is used during a run: memory that is kept, and switched back afterwards."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM, _MAP = -1, -3  # glibc's names for when memory goes back to the system, and from which size on it is mapped
_LARGEST_MAP = 32 * 2**20  # glibc takes no more


@contextmanager
def kept_memory(device: str) -> Iterator[None]:
    """Inside, on a Linux CPU, freed memory stays ours: a step needs the same again, and new pages are slow.

    Afterwards it goes back, and the limits are those that glibc itself comes to in a process with large tensors.
    """
    libc = _glibc() if device == "cpu" else None
    if libc is None:
        yield
        return
    libc.mallopt(_MAP, _LARGEST_MAP)
    libc.mallopt(_TRIM, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(_TRIM, 2 * _LARGEST_MAP)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
