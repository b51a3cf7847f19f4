"""Processes of a distributed run: requests apply to all, and only rank 0 writes into the run folder."""

from __future__ import annotations

import re
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
from ...core.errors import ModelError
from ...core.jobs import Request, RunControl
from ...records.folder import RunFolder

SHUTDOWN_SECONDS = 0.5
PAUSE_LOOK_SECONDS = 0.5
SHARED_REQUESTS = (Request.STOP, Request.DISCARD, Request.CHECKPOINT, Request.WIND_DOWN)
# What gloo and NCCL say if another process is gone. One that was killed is noticed at once, since its connection
# closes. A machine that is switched off closes nothing: then the time limit of torch's process group ends the call
# (`ddp_timeout` of TrainingArguments, 30 minutes).
LOST_CONNECTION = re.compile(
    r"(?i)connection (?:was )?(?:closed|reset|refused)|connectfullmesh|broken pipe|socket|timed out waiting"
)
Item = TypeVar("Item")


@contextmanager
def process_run_folder(folder: RunFolder) -> Iterator[RunFolder]:
    """Yield the run folder on rank 0, and a temporary folder in every other process."""
    if dist_env.is_main_process():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="training-pro-", ignore_cleanup_errors=True) as scratch:
        yield replace(folder, path=Path(scratch, folder.name), logs=Path(scratch))


def sync_control(control: RunControl, clock: float) -> tuple[frozenset[Request], float]:
    """Return the requests that every process carries out after this step, and rank 0's clock."""
    if not _is_distributed():
        return control.pending, clock
    # A request that reaches a process after this call waits for the next step: a process that stopped or wound
    # down alone would leave the others waiting for it.
    asked = any_rank(*map(control.asked, SHARED_REQUESTS))
    requests = frozenset(request for request, is_asked in zip(SHARED_REQUESTS, asked, strict=True) if is_asked)
    for request in requests:
        control.ask(request)
    shared_clock = torch.tensor([clock], dtype=torch.float64, device=_collective_device())
    dist.broadcast(shared_clock, 0)
    return requests, float(shared_clock[0])


def wait_while_paused(control: RunControl) -> bool:
    """Block the training thread; several processes look together, since one that waits alone would be given up."""
    if not _is_distributed():
        return control.wait_while_paused()
    paused, stopped = True, False
    while paused and not stopped:
        time.sleep(PAUSE_LOOK_SECONDS)
        paused, stopped = any_rank(control.asked(Request.PAUSE), control.asked(Request.STOP))
    control.resume()
    return False


@contextmanager
def explain_lost_process() -> Iterator[None]:
    """Turn the error of a collective call into a sentence if another process has ended."""
    try:
        yield
    except RuntimeError as error:
        if not _is_distributed() or not LOST_CONNECTION.search(str(error)):
            raise
        raise ModelError(
            "Another process of this run has ended or can't be reached. Start the run again with --resume to "
            "continue from the last checkpoint. If you start a different number of processes, change Gradient "
            "Accumulation so that the number of processes times Gradient Accumulation stays the same."
        ) from error


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is set in any process; every process must call this."""
    if not _is_distributed():
        return flags
    highest = torch.tensor(list(map(float, flags)), dtype=torch.float64, device=_collective_device())
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return tuple(bool(flag) for flag in highest.tolist())


def split_over_ranks(work: Sequence[Item]) -> Sequence[Item]:
    """Return this rank's share of the work: every n-th item of n processes."""
    return work[dist.get_rank() :: dist.get_world_size()] if _is_distributed() else work


def sum_over_ranks(arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Replace the sums by those of all processes, bit-identical in each; every process must call this."""
    if not _is_distributed():
        return
    total = torch.as_tensor(np.concatenate(arrays), dtype=torch.float64, device=_collective_device())
    dist.all_reduce(total)
    parts = np.split(total.cpu().numpy(), np.cumsum([len(sums) for sums in arrays])[:-1])
    for sums, part in zip(arrays, parts, strict=True):
        sums[:] = part


def shutdown() -> None:
    """End the process group once every process is done with its last collective call."""
    if not _is_distributed():
        return
    with suppress(RuntimeError):  # the run is already saved, whatever the others do
        dist.barrier()
        time.sleep(SHUTDOWN_SECONDS)
        dist.destroy_process_group()


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and bool(dist.get_world_size() > 1)


def _collective_device() -> torch.device:
    """The device for collective calls: NCCL only takes tensors on a GPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
