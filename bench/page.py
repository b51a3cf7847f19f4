"""Cost of a long run for the page: replay of its events into a view, and one update of the view.

python3 bench/page.py [STEPS]
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import bench_utils

ROUNDS = 7


def make_run(steps: int) -> Any:
    """Make a job with a log of `steps` steps: losses of two datasets, twenty checkpoints."""
    from training_pro.core.jobs import (  # type: ignore[import-not-found]
        CheckpointSaved,
        Job,  # type: ignore[import-not-found]
        RunPlanned,
        Step,
    )

    job = Job("training", "Training 'long'")
    rates = tuple(2e-4 * (1 - n / steps) for n in range(steps))
    job.log.append(
        RunPlanned(
            name="long", model="m", steps=steps, steps_per_epoch=steps // 3, first_step=0, rates=rates, settings={}
        )
    )
    for n in range(1, steps + 1):
        loss = 2 + math.exp(-5 * n / steps) + (n % 97) / 300
        job.log.append(
            Step(
                step=n, steps=steps, epoch=3 * n / steps, loss=loss, smoothed=loss, learning_rate=rates[n - 1],
                gradient_norm=loss / 3, tokens=900, seconds=0.5, by_source={"a.txt": loss, "b.jsonl": loss / 2},
            )
        )  # fmt: skip
        if n % (steps // 20) == 0:
            job.log.append(CheckpointSaved(step=n, folder=Path(f"checkpoint-{n}"), reason=""))
    return job


def main(steps: int) -> None:
    bench_utils.load()
    from training_pro.interface.run import RunView  # type: ignore[import-not-found]

    job = make_run(steps)
    replay, update, sent_bytes = [], [], 0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        view = RunView(job)
        view.catch_up()
        replay.append(time.perf_counter() - start)
        start = time.perf_counter()
        html = view.html() + view.extra_charts()
        update.append(time.perf_counter() - start)
        sent_bytes = len(html.encode())
    print(f"{steps:,} steps, median of {ROUNDS}")
    print(f"replayed into a page that is opened now: {1000 * statistics.median(replay):.0f} ms")
    print(f"one update, every part of it: {1000 * statistics.median(update):.0f} ms, {sent_bytes / 1000:.0f} kB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
