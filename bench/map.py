"""How well the map of a dataset finds planted topics, by layer and by tokens of a row, and how long it takes.

    python3 bench/map.py MODEL [--rows 300] [--time 5000]

The texts are made by rule: all topics share their sentences, and differ in their nouns and verbs. Purity is the
share of rows that are of the commonest topic of their cluster. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import bench_utils

TOPICS = {  # nouns and verbs
    "kitchen": ("onion butter flour oven soup pan knife salt dough sauce garlic", "stir bake fry peel season"),
    "sea": ("harbor anchor sail tide mast captain reef storm crew island deck", "steer moor drift sink row"),
    "court": ("judge witness verdict lawyer trial contract appeal jury clause law", "sue swear plead accuse rule"),
}
SENTENCES = (
    "In the morning they {v} near the {n}, and nobody asked about the {m}.",
    "The old {n} was of no use without a {m}, so she had to {v} once more.",
    "He told me to {v} before the {n} is gone.",
    "There is a {n} beside the {m}, and it takes an hour to {v}.",
)


def plant(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """So many texts of a few sentences, with their topics."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        topic = [*TOPICS][number % len(TOPICS)]
        nouns, verbs = (words.split() for words in TOPICS[topic])
        fill = lambda s: s.format(n=rng.choice(nouns), m=rng.choice(nouns), v=rng.choice(verbs))  # noqa: E731, B023
        rows.append((" ".join(fill(rng.choice(SENTENCES)) for _ in range(rng.randint(3, 8))), topic))
    return rows


def purity(topics: Sequence[str], clusters: Sequence[int]) -> float:
    of = {n: Counter(t for t, c in zip(topics, clusters, strict=True) if c == n) for n in set(clusters)}
    return sum(max(counts.values()) for counts in of.values()) / len(topics)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--time", type=int, default=0, help="also time a map of so many rows")
    args = parser.parse_args()
    bench_utils.load()
    from training_pro.core.jobs import Job
    from training_pro.data.workshop import mapping
    from training_pro.engine.inference import topics
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders

    with TemporaryDirectory() as folder:
        host = StandaloneHost(standalone_folders(Path(folder)), model=str(Path(args.model).resolve()))
        tokenizer, model = host.card().tokenizer, host.loaded_model().model

        def measure(count: int, layer: float, tokens: int) -> tuple[float, int, float]:
            rows, began = plant(count), time.process_time()
            ids = [tokenizer(text)["input_ids"][:tokens] for text, _ in rows]
            vectors, out = topics.embed(model, ids, Job("map", "a map"), layer), Path(folder) / f"{time.time_ns()}"
            mapping.write_map([(text, {"text": text}) for text, _ in rows], vectors, out)
            clusters = [row["cluster"] for row in mapping.read_map(out).rows]
            return purity([topic for _, topic in rows], clusters), len({*clusters}), time.process_time() - began

        cases = [(args.rows, layer, tokens) for tokens in (32, 64, 128) for layer in (0.25, 0.5, 0.75, 1.0)]
        cases = [*cases, *[(args.time, topics.LAYER, topics.MAX_TOKENS)] * bool(args.time)]
        heading = ("rows", "layers", "tokens of a row", "purity", "clusters", "seconds")
        bench_utils.print_table(heading)
        for case in cases:
            found, clusters, seconds = measure(*case)
            print(
                "|",
                " | ".join([*map(str, case), f"{found:.3f}", str(clusters), f"{seconds:.1f}"]),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
