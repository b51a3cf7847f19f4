"""Several processes of one run: what one hears all obey, and only the first writes where the user looks."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from ...core import dist_env
from ...core.jobs import RunControl
from ...records.folder import RunFolder

LAST_WORD_SECONDS = 0.5
Piece = TypeVar("Piece")


@contextmanager
def only_the_first_writes(folder: RunFolder) -> Iterator[RunFolder]:
    """The folder of the run; for every other process one that is gone afterwards."""
    if dist_env.is_first():
        yield folder
        return
    scratch = Path(tempfile.mkdtemp(prefix="training-pro-"))
    try:
        yield replace(folder, path=scratch / folder.name, logs=scratch, replaces=False)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def agree(control: RunControl[Any], clock: float) -> float:
    """Between two steps: a wish that one process heard is everybody's. The clock of the first counts for all."""
    if not _several():
        return clock
    stopping, throwing_away, saving = heard(control.stopping, control.throwing_away, control.saving)
    if throwing_away:
        control.throw_away()
    elif stopping:
        control.stop()
    if saving:
        control.save_checkpoint()
    now = torch.tensor([clock], dtype=torch.float64, device=_device())
    dist.broadcast(now, 0)
    return float(now[0])


def backend() -> str | None:
    """What they speak with where accelerate's choice cannot be had: PyTorch for Windows is built without NCCL."""
    return "gloo" if sys.platform == "win32" and dist_env.count() > 1 else None


def heard(*wishes: bool) -> tuple[bool, ...]:
    """Of each whether any process has it; all of them have to ask."""
    if not _several():
        return wishes
    asked = torch.tensor(list(map(float, wishes)), dtype=torch.float64, device=_device())
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    return tuple(bool(wish) for wish in asked.tolist())


def share(work: Sequence[Piece]) -> Sequence[Piece]:
    """What this process does of it: every second piece, of two."""
    return work[dist.get_rank() :: dist.get_world_size()] if _several() else work


def add_up(found: Sequence[np.ndarray[Any, Any]]) -> None:
    """The sums of all processes in place of those of this one, to the same bits for each; all have to ask."""
    if not _several():
        return
    everything = torch.as_tensor(np.concatenate(found), dtype=torch.float64, device=_device())
    dist.all_reduce(everything)
    parts = np.split(everything.cpu().numpy(), np.cumsum([len(sums) for sums in found])[:-1])
    for sums, part in zip(found, parts, strict=True):
        sums[:] = part


def leave() -> None:
    """At the end of a run: nobody hangs up while another still waits for his last word."""
    if not _several():
        return
    with suppress(RuntimeError):  # the run is done and kept, whatever the others do
        dist.barrier()
        time.sleep(LAST_WORD_SECONDS)
        dist.destroy_process_group()


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and bool(dist.get_world_size() > 1)


def _device() -> torch.device:
    """NCCL only carries what is on a card."""
    on_card = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_card else torch.device("cpu")
