"""Speed of turning chat rows into examples, compared to the fastest call of the tokenizer.

    python3 bench/data.py --tokenizer FOLDER [--rows 200000]

Prints the rows of docs/benchmarks.md, section Data. Every way runs in its own process: the floor is
`encode_batch_fast` on the rows as written by the chat template; ours goes from the JSONL file to masked examples,
then to the whole report of Check; the second start reads the prepared data.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bench_utils

ROUNDS = 3
BATCH_ROWS = 1000
WAYS = ("floor", "floor, a thousand rows a call", "examples only", "first start", "second start")


def write_chats(path: Path, rows: int) -> None:
    """Write different chats of one to three questions, made from words of the project's examples."""
    rng = random.Random(1)
    words = re.findall(r"\S+", (bench_utils.ROOT / "examples" / "story.txt").read_text(encoding="utf-8"))

    def random_words(least: int, most: int) -> str:
        start, count = rng.randrange(len(words) - most), rng.randrange(least, most)
        return " ".join(words[start : start + count]) + f" {rng.randrange(10**6)}"

    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            turns = []
            for _ in range(rng.randrange(1, 4)):
                turns += [
                    {"role": "user", "content": random_words(4, 20)},
                    {"role": "assistant", "content": random_words(10, 60)},
                ]
            file.write(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")


def measure(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure one way once, in this process: wall-clock seconds, processor seconds and memory in GB."""
    bench_utils.load()
    work = _floor(args, way) if way.startswith("floor") else _ours(args, way)
    start, processor_start = time.perf_counter(), time.process_time()
    count = work()
    seconds, processor = time.perf_counter() - start, time.process_time() - processor_start
    return {"seconds": seconds, "processor": processor, "peak": bench_utils.peak_memory() / 1e9, "count": count}


def _floor(args: argparse.Namespace, way: str) -> Callable[[], float]:
    """Tokenize the rows in one call; its time grows faster than the number of rows."""
    tokenizer = bench_utils.load_tokenizer(args.tokenizer)
    with (args.folder / "training" / "datasets" / "chats.jsonl").open(encoding="utf-8") as file:
        chats = [json.loads(line)["messages"] for line in file]
    rows = tokenizer.apply_chat_template(chats, tokenize=False)
    backend = tokenizer.backend_tokenizer
    return lambda: float(
        sum(len(piece.ids) for piece in backend.encode_batch_fast(rows, add_special_tokens=False))
    )


def _ours(args: argparse.Namespace, way: str) -> Callable[[], float]:
    from training_pro.core.host import Folders, ModelCard
    from training_pro.data.prepare import prepare
    from training_pro.data.rows import PrepareContext, load_row_dataset
    from training_pro.engine.tokenizer import make_working_tokenizer
    from training_pro.settings.parsing import training_settings

    tokenizer = make_working_tokenizer(bench_utils.load_tokenizer(args.tokenizer))
    config = json.loads((args.tokenizer / "config.json").read_text(encoding="utf-8"))
    card = ModelCard("model", config, tokenizer.tokenizer, "auto")
    data = args.folder
    folders = Folders(data, data / "models", data / "loras", data / "logs", bench_utils.ROOT / "examples")
    settings = training_settings({"name": "a", "data": ["chats.jsonl"]})
    if way == "examples only":
        context = PrepareContext(settings, folders, card, tokenizer, lambda *_: None)
        path = folders.datasets / "chats.jsonl"
        return lambda: float(len(load_row_dataset(context, path, path.name).source.all_ids))
    return lambda: float(prepare(settings, folders, card, tokenizer, lambda *_: None).report.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args)))
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {args.rows:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        args.folder = Path(folder)
        (args.folder / "training" / "datasets").mkdir(parents=True)
        write_chats(args.folder / "training" / "datasets" / "chats.jsonl", args.rows)
        _print_all(args)


def _print_all(args: argparse.Namespace) -> None:
    """Alternate the ways in each round, so that other load on the machine affects all of them equally."""
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            if way == "first start":
                for file in (args.folder / "training" / "prepared").glob("*"):
                    file.unlink()
            command = [__file__, "--tokenizer", args.tokenizer, "--rows", args.rows, "--way", way]
            results[way].append(bench_utils.run_python([*command, "--folder", args.folder]))
    rows = []
    floor = _medians(results["floor"])
    for way, measurements in results.items():
        row = _medians(measurements)
        ratios = [f for key in ("seconds", "processor") for f in (row[key], row[key] / floor[key])]
        rows.append((way, *(f"{figure:.2f}" for figure in (*ratios, row["peak"]))))
    times = ("seconds", "times the floor", "processor seconds", "times the floor")
    bench_utils.print_table(("way", *times, "peak memory, GB"), *rows)
    print(f"{results['floor'][0]['count']:,.0f} tokens; ours {results['first start'][0]['count']:,.0f}")


def _medians(measurements: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(result[key] for result in measurements) for key in measurements[0]}


if __name__ == "__main__":
    main()
