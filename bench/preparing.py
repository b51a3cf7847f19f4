"""Time and memory of preparing a large text in parts and undivided.

    python3 bench/preparing.py --tokenizer FOLDER [--megabytes 125 250 500 1000] [--undivided 125]

Prints the table of docs/benchmarks.md. Each row is measured in a process of its own, from the file to the examples
and Check's report, with nothing stored before. Memory is anonymous memory, which the system can't take back as it
can take pages of mapped files; it is read from Linux's /proc ten times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench_utils
import slicing

STORY_CHARS = 20_000  # from one hard cut to the next
MB = slicing.MEGABYTE


def write_text(path: Path, size: int) -> None:
    """Write the example texts again and again, in numbered stories, so that no two parts are the same."""
    text = slicing.make_text(None, 50 * STORY_CHARS)
    stories = [text[start : start + STORY_CHARS] for start in range(0, len(text), STORY_CHARS)]
    with path.open("w", encoding="utf-8") as file:
        number = 0
        while file.tell() < size * MB:
            file.write(f"Story {number}\n\n{stories[number % len(stories)].strip()}\n\n\n\n")
            number += 1


class Meter:
    """The peaks of anonymous memory of this process, and of all its memory."""

    def __init__(self) -> None:
        self.own = self.resident = 0

    def read(self) -> None:
        memory = _memory(os.getpid())
        self.own = max(self.own, memory["RssAnon"])
        self.resident = max(self.resident, memory["VmRSS"])

    @contextmanager
    def running(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.1):
                self.read()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _memory(pid: int) -> dict[str, int]:
    """Bytes of memory by kind; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    kinds = dict(line.split(":", 1) for line in lines)
    return {kind: int(kinds.get(kind, "0").split()[0]) * 1024 for kind in ("RssAnon", "VmRSS")}


def print_measurement(tokenizer_folder: Path, path: Path, divided: int) -> None:
    """Prepare a text and print what it took; undivided in memory, as small texts are."""
    from training_pro.core.host import Folders, ModelCard
    from training_pro.data import large_texts
    from training_pro.data.prepare import prepare
    from training_pro.settings.parsing import training_settings

    if not divided:
        large_texts.DIVIDED_BYTES = 10**12
    root = path.parents[2]
    folders = Folders(root, *(root / name for name in ("models", "loras", "logs", "examples")))
    settings = training_settings({"name": "bench", "data": [path.name], "cutoff": 256})
    tokenizer = slicing.load_working_tokenizer(tokenizer_folder)
    tokenizer.encode(["once, for the memory of its threads"])
    meter = Meter()
    meter.read()
    base, started = meter.own, time.perf_counter()
    with meter.running():
        card = ModelCard("bench", {}, None, "auto")
        data = prepare(settings, folders, card, tokenizer, lambda *_: None, keep=False)
    seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result = {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime}
    result |= {"own": meter.own - base, "resident": meter.resident}
    print(json.dumps(result | {"examples": len(data.examples)}))


def measure(tokenizer_folder: Path, path: Path, divided: int) -> dict[str, Any]:
    arguments = [__file__, "--tokenizer", tokenizer_folder, "--one", path, divided]
    return dict(bench_utils.run_python(arguments))


def print_row(size: int, name: str, figures: dict[str, Any]) -> None:
    memory = (f"{figures[kind] / MB:,.0f}" for kind in ("own", "resident"))
    cells = (size, name, f"{figures['seconds']:.0f}", f"{figures['cpu']:.0f}", *memory)
    print(f"| {' | '.join(map(str, (*cells, figures['examples'])))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a model's folder")
    parser.add_argument("--megabytes", type=int, nargs="*", default=[125, 250, 500, 1000])
    parser.add_argument("--undivided", type=int, nargs="*", default=[], help="sizes to prepare in memory as well")
    parser.add_argument("--folder", type=Path, help="where the texts are written, with four times their size free")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    bench_utils.load()
    if args.one:
        return print_measurement(args.tokenizer, Path(args.one[0]), int(args.one[1]))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}\n")
    heading = ("text, MB", "read", "wall time, s", "CPU time, s")
    memory = ("memory of the program, MB", "with mapped files, MB")
    bench_utils.print_table((*heading, *memory, "examples"))
    for size in args.megabytes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder) / "training" / "datasets" / "text.txt"
            path.parent.mkdir(parents=True)
            write_text(path, size)
            if size in args.undivided:
                print_row(size, "undivided", measure(args.tokenizer, path, 0))
            print_row(size, "in parts", measure(args.tokenizer, path, 1))
    return None


if __name__ == "__main__":
    main()
