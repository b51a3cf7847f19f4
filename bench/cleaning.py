"""How well and how fast `data clean` finds what was planted: duplicates, near duplicates and refusals.

    python3 bench/cleaning.py [--rows 100000] [--changed 0.05]

Every row has a prompt that begins like those of all other rows, and words as rare as in a book (by Zipf's law). In
near duplicates, a share of the words is replaced, dropped or doubled. Decoys have a refusal in the prompt only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[1] / "script.py"
INTRODUCTION = "Below is an instruction that describes a task. Write a reply that completes it as well as you can."
REFUSAL = "I'm sorry, but as an AI language model I can't help with that."
KINDS = {"plain": 80, "exact": 7, "near": 7, "refusal": 4, "decoy": 2}  # percent
# Each step alone, with the kinds that it should drop; what is the same is nearly the same, too.
OFF = {"exact_duplicates": "false", "near_duplicates": "0", "refusals": "off"}
STEPS = {
    "exact_duplicates=true": ("exact",),
    "near_duplicates=0.7": ("exact", "near"),
    "refusals=drop": ("refusal",),
}


def plant(count: int, changed: float = 0.05, seed: int = 1) -> list[dict[str, Any]]:
    """So many rows, each with its kind; duplicates are somewhere behind their originals."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnoprstuvw", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = list(accumulate(1 / rank for rank in range(1, len(vocabulary) + 1)))

    def words(number: int) -> str:
        return " ".join(rng.choices(vocabulary, cum_weights=weights, k=number))

    placed: list[tuple[float, dict[str, Any]]] = []
    plain: list[tuple[int, dict[str, Any]]] = []
    for number, kind in enumerate(["plain", *rng.choices(list(KINDS), list(KINDS.values()), k=count - 1)]):
        place: float = number
        row = {"instruction": f"{INTRODUCTION} {words(12)}?", "output": words(rng.randint(25, 80))}
        if kind in ("exact", "near"):
            original, row = rng.choice(plain)
            place = rng.uniform(original, count)
        if kind == "near":
            reply = row["output"].split()
            for at in rng.sample(range(len(reply)), max(1, int(changed * len(reply)))):
                reply[at] = rng.choice([words(1), "", f"{reply[at]} {reply[at]}"])
            row = {**row, "output": " ".join(filter(None, reply))}
        elif kind == "refusal":
            row["output"] = f"{REFUSAL} {row['output']}"
        elif kind == "decoy":
            row["instruction"] += f" Somebody said: {REFUSAL}"
        elif kind == "plain":
            plain.append((number, row))
        placed.append((place, {**row, "kind": kind, "id": number}))
    return [row for _, row in sorted(placed, key=lambda each: each[0])]


def clean(folder: Path, *steps: str) -> tuple[set[int], float, int]:
    """The rows that are left with these steps, the seconds of CPU time, and the bytes of memory that it took."""
    out = folder / "clean.jsonl"
    command = [sys.executable, str(SCRIPT), "data", "clean", str(folder / "rows.jsonl"), "--out", str(out)]
    command += ["--user-data", str(folder / "user_data"), *(["--set", *steps] if steps else [])]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}.")
    kept = {json.loads(line)["id"] for line in out.open(encoding="utf-8")}
    out.unlink()
    out.with_name(out.name + ".recipe.json").unlink()
    return kept, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    import bench_utils

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--changed", type=float, default=0.05, help="share of the words of a near duplicate")
    args = parser.parse_args()
    rows = plant(args.rows, args.changed)
    table: list[Sequence[object]] = [("step", "planted", "dropped", "precision", "recall", "CPU seconds", "MB")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        others = {step.partition("=")[0] for step in STEPS}
        for step, kinds in {"": ("exact", "near", "refusal"), **STEPS}.items():
            off = [f"{other}={OFF[other]}" for other in others - {step.partition("=")[0]}] if step else []
            kept, seconds, memory = clean(folder, *filter(None, [step, *off]))
            dropped = {row["id"] for row in rows} - kept
            wanted = {row["id"] for row in rows if row["kind"] in kinds}
            hits = len(dropped & wanted)
            figures = f"{hits / max(len(dropped), 1):.4f}", f"{hits / max(len(wanted), 1):.4f}"
            print(step or "all", *figures, f"{seconds:.0f} s", file=sys.stderr)
            table.append((step or "all", len(wanted), len(dropped), *figures, f"{seconds:.0f}", memory // 10**6))
    bench_utils.print_table(*table)


if __name__ == "__main__":
    main()
