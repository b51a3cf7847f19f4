"""How threads of OpenMP wait for each other; other programs on the same cores decide how much that costs."""

from __future__ import annotations

import os

WAIT_POLICY = "OMP_WAIT_POLICY"


def set_passive_waiting() -> None:
    """Let waiting threads sleep instead of spin, unless the user chose; only before torch is imported.

    On a machine with other busy programs, a spinning thread keeps a core from the thread that it waits for.
    """
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")
