"""What followers cost a run: processor seconds of a training step without readers of its events and with 20.

    python3 bench/readers.py --model FOLDER [--readers 20] [--rounds 5]

Each reader is a process that follows events.jsonl as a page does, four looks a second. The two ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bench_utils

SCRIPT = Path(__file__).resolve().parents[1] / "script.py"
SETTINGS = [
    "--name",
    "a",
    "--data",
    "story.txt",
    "--cutoff",
    "64",
    "--epochs",
    "30",
    "--recall-passages",
    "0",
    "--sample-every",
    "never",
]
READER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import bench_utils
bench_utils.load()
from training_pro.core.jobs import event_file
from pathlib import Path
home = Path(sys.argv[2])
reader = event_file.EventReader(home / "training" / "running" / "a", home / "loras" / "a")
while True:
    reader.read()
    time.sleep(0.25)
"""
TRAINER = """
import json, resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps(used.ru_utime + used.ru_stime))
"""


def measure(model: Path, readers: int) -> float:
    """Processor milliseconds of a step, with everything that a run does before and after its steps."""
    with tempfile.TemporaryDirectory() as home:
        reader = [sys.executable, "-c", READER, str(Path(__file__).parent), home]
        followers = [subprocess.Popen(reader) for _ in range(readers)]
        command = [sys.executable, "-c", TRAINER, str(SCRIPT), "train", "--model", str(model), "--user-data", home]
        trained = subprocess.run([*command, *SETTINGS], capture_output=True, text=True, check=True)
        for follower in followers:
            follower.kill()
        events = (Path(home) / "loras" / "a" / "events.jsonl").read_text(encoding="utf-8").splitlines()
        steps = sum(json.loads(line)["event"] == "step" for line in events)
        return 1000 * float(trained.stdout.splitlines()[-1]) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a model's folder")
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ways: dict[int, list[float]] = {0: [], args.readers: []}
    for _ in range(args.rounds):
        for readers, results in ways.items():
            results.append(measure(args.model, readers))
    alone, followed = (statistics.median(results) for results in ways.values())
    bench_utils.print_table(
        ("readers", "processor ms a step, median", "all rounds"),
        *((str(n), f"{statistics.median(r):.1f}", ", ".join(f"{one:.1f}" for one in r)) for n, r in ways.items()),
    )
    print(f"With {args.readers} readers: {followed / alone:.3f} times as much.")


if __name__ == "__main__":
    main()
