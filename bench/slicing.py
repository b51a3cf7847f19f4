"""Speed and memory of slicing text, compared to the fastest call of the tokenizer.

    python3 bench/slicing.py --tokenizer FOLDER [--text FILE] [--megabytes 1 10 100]

Prints the rows of docs/benchmarks.md: the multiples of the floor on one megabyte, alternating in one process,
then time and memory for texts of growing size, each in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_utils

MEGABYTE = 1_000_000
ROUNDS = 5


def make_text(file: Path | None, size: int) -> str:
    """Text of the given size without hard cuts: the project's example texts or a file, repeated."""
    files = [file] if file else [*sorted((bench_utils.ROOT / "examples").rglob("*.txt"))]
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in files)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return (text * (size // len(text) + 1))[:size]


def make_rules(chunking: str, eos: int | None) -> Any:
    from training_pro.chunking import SlicingRules

    return SlicingRules(cutoff=256, chunking=chunking, overlap=True, eos=eos)


def count_examples(text: str, tokenizer: Any, chunking: str) -> int:
    """Slice a text and get the ids of every training example; return their number."""
    from training_pro.data.text import slice_text

    sliced = slice_text(text, tokenizer.encode, make_rules(chunking, tokenizer.eos))
    return sum(1 for block in sliced if len(sliced.ids_of(block)))


def load_working_tokenizer(folder: Path) -> Any:
    from training_pro.engine.tokenizer import make_working_tokenizer

    return make_working_tokenizer(bench_utils.load_tokenizer(folder))


def print_multiples(folder: Path, text: str) -> None:
    """Print medians of five alternating rounds, so that other load on the machine affects all ways equally."""
    from training_pro.chunking import find_sections
    from training_pro.data.text import find_bounds

    tokenizer = load_working_tokenizer(folder)
    backend, lines = tokenizer.tokenizer.backend_tokenizer, text.split("\n")
    ways: dict[str, Callable[[], object]] = {
        "floor: `encode_batch_fast` on the lines": lambda: backend.encode_batch_fast(
            lines, add_special_tokens=False
        ),
        "`tokenizer(lines)`": lambda: tokenizer.tokenizer(lines, add_special_tokens=False),
        "sentences and lines alone": lambda: find_bounds(text, find_sections(text, "")),
        "blocks with overlap": lambda: count_examples(text, tokenizer, "blocks"),
        "DEMENTOR at every sentence": lambda: count_examples(text, tokenizer, "dementor"),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, act in ways.items():
            start = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - start)
    floor, *_ = (statistics.median(row) for row in times.values())
    rows = []
    for name, row in times.items():
        count = ways[name]() if "DEMENTOR" in name or "blocks" in name else ""
        median = statistics.median(row)
        rows.append((name, f"{median * 1000:.0f}", f"{median / floor:.2f}", count))
    print()
    bench_utils.print_table((f"{len(text):,} characters", "median, ms", "times the floor", "examples"), *rows)


def print_growth(folder: Path, file: Path | None, megabytes: list[int]) -> None:
    rows = []
    for chunking in ("blocks", "dementor"):
        previous = 0.0
        for size in megabytes:
            row = measure_in_process(folder, file, size, chunking)
            ratio = f"{row['cpu'] / previous:.1f}" if previous else ""
            rows.append(
                (size, chunking, f"{row['seconds']:.2f}", f"{row['cpu']:.2f}", ratio, f"{row['bytes']:.1f}")
            )
            previous = row["cpu"]
    print()
    heading = ("seconds by the clock", "of the processor", "times the one before")
    bench_utils.print_table(
        ("text, MB", "chunking", *heading, "peak above the tokenizer, bytes a character"), *rows
    )


def measure_in_process(folder: Path, file: Path | None, size: int, chunking: str) -> dict[str, float]:
    """Measure one size in its own process, for its own peak memory."""
    with tempfile.TemporaryDirectory() as folder_name:
        path = Path(folder_name) / "prose.txt"
        path.write_text(make_text(file, size * MEGABYTE), encoding="utf-8")
        return dict(bench_utils.run_python([__file__, "--tokenizer", folder, "--one", path, chunking]))


def print_measurement(folder: Path, path: Path, chunking: str) -> None:
    """Print the best wall-clock and processor time of two passes, and the peak memory above the tokenizer."""
    from training_pro.data.load import read_texts

    tokenizer = load_working_tokenizer(folder)
    # The threads of the tokenizer allocate their memory once.
    count_examples(make_text(None, 300_000), tokenizer, chunking)
    base = bench_utils.reset_peak_memory()
    seconds, cpu = [], []
    for _ in range(2):
        start, processor_start = time.perf_counter(), time.process_time()
        [text_read] = read_texts(path)
        count_examples(text_read.text, tokenizer, chunking)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - processor_start)
        peak = bench_utils.peak_memory()
    print(json.dumps({"seconds": min(seconds), "cpu": min(cpu), "bytes": (peak - base) / len(text_read.text)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a model's folder")
    parser.add_argument("--text", type=Path, help="prose to use instead of the examples")
    parser.add_argument("--megabytes", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    bench_utils.load()
    if args.one:
        return print_measurement(args.tokenizer, Path(args.one[0]), args.one[1])
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print_multiples(args.tokenizer, make_text(args.text, MEGABYTE))
    return print_growth(args.tokenizer, args.text, args.megabytes)


if __name__ == "__main__":
    main()
