"""Training on a busy machine: ours and HF's dynamic padding, alone and beside busy processes.

    python3 bench/busy.py --model FOLDER [--samples 16] [--rounds 3] [--busy 2] [--threads 2]

Prints the rows of docs/benchmarks.md. The ways of bench/training.py alternate within a round, each in a process of
its own: quiet and busy, with threads that spin while they wait (OMP_WAIT_POLICY unset) and with threads that sleep
(PASSIVE, as script.py sets it). The quiet rows mean something only if nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import bench_utils

TRAINING = Path(__file__).with_name("training.py")
WAYS = {"dynamic": "HF Trainer, each batch padded to its longest example", "ours": "Training PRO"}
POLICIES = {"": "spin", "PASSIVE": "sleep"}
SPIN = "while True: pass"


def main() -> None:
    args = _parse_args()
    text = args.text or _write_text()
    cases = list(product((False, True), POLICIES, WAYS))
    seconds: dict[tuple[bool, str, str], list[float]] = {case: [] for case in cases}
    for number in range(args.rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            busy, policy, way = case
            with busy_processes(args.busy if busy else 0):
                seconds[case].append(measure(args, way, policy, text))
            print(
                f"{'busy' if busy else 'quiet'}, {POLICIES[policy]}, {way}: {seconds[case][-1]:.1f} s",
                file=sys.stderr,
            )
    medians = {case: statistics.median(values) for case, values in seconds.items()}
    rows = [
        (
            WAYS[way],
            POLICIES[policy],
            f"{quiet:.1f}",
            f"{medians[True, policy, way]:.1f}",
            f"{medians[True, policy, way] / quiet:.1f}",
        )
        for (busy, policy, way), quiet in medians.items()
        if not busy
    ]
    bench_utils.print_table(
        ("way", "waiting threads", "quiet, s", f"with {args.busy} busy processes, s", "ratio"), *rows
    )


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a model, for example the demo model")
    parser.add_argument("--text", type=Path, help="default: the text of bench/training.py")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="busy processes")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def _write_text() -> Path:
    import tempfile

    import training

    path = Path(tempfile.gettempdir()) / "training-pro-busy.txt"
    path.write_text(training.read_text(), encoding="utf-8")
    return path


def measure(args: argparse.Namespace, way: str, policy: str, text: Path) -> float:
    """Seconds of the steps of one way, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
    command = [TRAINING, "--way", way, "--model", args.model, "--text", text, "--samples", args.samples]
    return float(bench_utils.run_python([*command, "--threads", args.threads], environment)["seconds"])


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that keep a core busy each."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
