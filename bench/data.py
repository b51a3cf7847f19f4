"""How fast rows of chats become examples, against the cheapest call of the tokenizer there is.

    python3 bench/data.py --tokenizer FOLDER [--rows 200000]

Prints the rows of docs/benchmarks.md, section Data. Every way runs in a process of its own: the floor is
`encode_batch_fast` on the rows as the chat template writes them; ours goes from the JSONL file to masked
examples, then to all that Check says of them; then the same is started again out of what was kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import package

ROUNDS = 3
BATCH = 1000
WAYS = ("floor", "floor, a thousand rows a call", "examples only", "first start", "second start")


def write_chats(path: Path, rows: int) -> None:
    """Chats of one to three questions, put together out of the project's own examples, no two alike."""
    rng = random.Random(1)
    words = re.findall(r"\S+", (package.ROOT / "examples" / "story.txt").read_text(encoding="utf-8"))

    def some(least: int, most: int) -> str:
        at, count = rng.randrange(len(words) - most), rng.randrange(least, most)
        return " ".join(words[at : at + count]) + f" {rng.randrange(10**6)}"

    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            turns = []
            for _ in range(rng.randrange(1, 4)):
                turns += [{"role": "user", "content": some(4, 20)}, {"role": "assistant", "content": some(10, 60)}]
            file.write(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")


def measured(way: str, asked: argparse.Namespace) -> dict[str, float]:
    """One way, once, in this process: seconds by the clock, of the processor, and the memory that it took."""
    package.load()
    work = _floor(asked, way) if way.startswith("floor") else _ours(asked, way)
    before, begun, spent = _peak(), time.perf_counter(), time.process_time()
    count = work()
    return {
        "seconds": time.perf_counter() - begun,
        "processor": time.process_time() - spent,
        "peak": _peak(),
        "before": before,
        "count": count,
    }


def _peak() -> float:
    """In GB, of this process, all of it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _floor(asked: argparse.Namespace, way: str) -> Callable[[], float]:
    """The same rows in one call, and as ours come: what one call takes grows faster than the rows do."""
    tokenizer = _tokenizer(asked.tokenizer)
    with (asked.folder / "training" / "datasets" / "chats.jsonl").open(encoding="utf-8") as file:
        chats = [json.loads(line)["messages"] for line in file]
    rows = tokenizer.apply_chat_template(chats, tokenize=False)
    backend = tokenizer.backend_tokenizer
    return lambda: float(
        sum(len(piece.ids) for piece in backend.encode_batch_fast(rows, add_special_tokens=False))
    )


def _ours(asked: argparse.Namespace, way: str) -> Callable[[], float]:
    from training_pro.core.host import Folders, ModelCard
    from training_pro.data.prepare import prepare
    from training_pro.data.rows import row_set
    from training_pro.engine.tokenizer import working_tokenizer
    from training_pro.settings.parsing import training_settings

    tokenizer = working_tokenizer(_tokenizer(asked.tokenizer))
    config = json.loads((asked.tokenizer / "config.json").read_text(encoding="utf-8"))
    card = ModelCard("model", config, tokenizer.tokenizer, "auto")
    data = asked.folder
    folders = Folders(data, data / "models", data / "loras", data / "logs", package.ROOT / "examples")
    settings = training_settings({"name": "a", "data": ["chats.jsonl"]})
    if way == "examples only":
        path = folders.datasets / "chats.jsonl"
        return lambda: float(
            len(row_set(path, path.name, settings, folders, tokenizer, lambda _: None).source.all_ids)
        )
    return lambda: float(prepare(settings, folders, card, tokenizer, lambda *_: None).report.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(measured(asked.way, asked)))
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {asked.rows:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        asked.folder = Path(folder)
        (asked.folder / "training" / "datasets").mkdir(parents=True)
        write_chats(asked.folder / "training" / "datasets" / "chats.jsonl", asked.rows)
        _print_all(asked)


def _print_all(asked: argparse.Namespace) -> None:
    """Rounds by turns, so that whoever else uses the machine disturbs all alike."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(asked.rounds):
        for way in WAYS:
            if way == "first start":
                for file in (asked.folder / "training" / "prepared").glob("*"):
                    file.unlink()
            found[way].append(_in_a_process(way, asked))
    floor = {key: statistics.median(one[key] for one in found["floor"]) for key in ("seconds", "processor")}
    print("| way | seconds | times the floor | processor seconds | times the floor | peak memory, GB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for way, ones in found.items():
        middle = {key: statistics.median(one[key] for one in ones) for key in ones[0]}
        print(
            f"| {way} | {middle['seconds']:.2f} | {middle['seconds'] / floor['seconds']:.2f} | "
            f"{middle['processor']:.2f} | {middle['processor'] / floor['processor']:.2f} | {middle['peak']:.2f} |"
        )
    print(f"{found['floor'][0]['count']:,.0f} tokens; ours {found['first start'][0]['count']:,.0f}")


def _in_a_process(way: str, asked: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, __file__, "--tokenizer", str(asked.tokenizer), "--rows", str(asked.rows)]
    done = subprocess.run(
        [*words, "--way", way, "--folder", str(asked.folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    read: dict[str, float] = json.loads(done.stdout)
    return read


if __name__ == "__main__":
    main()
