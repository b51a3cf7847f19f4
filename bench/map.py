"""How well the map of a dataset finds planted topics, by layer, and how long it takes.

    python3 bench/map.py MODEL [--rows 300] [--time 5000]

The texts are made by rule: all topics share their sentences, and differ in their nouns and verbs. Purity is the
share of rows that are of the commonest topic of their cluster. Seconds are those of the processor. Near duplicates
are found as in cleaning: see cleaning.py.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

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


def plant(count: int) -> list[tuple[str, str]]:
    """So many texts of a few sentences, with their topics."""
    rng, rows = random.Random(0), list[tuple[str, str]]()
    for number in range(count):
        topic = [*TOPICS][number % len(TOPICS)]
        nouns, verbs = (words.split() for words in TOPICS[topic])
        sentences = [rng.choice(SENTENCES) for _ in range(rng.randint(3, 8))]
        text = " ".join(s.format(n=rng.choice(nouns), m=rng.choice(nouns), v=rng.choice(verbs)) for s in sentences)
        rows.append((text, topic))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--time", type=int, default=0, help="also draw a map of so many rows")
    args = parser.parse_args()
    bench_utils.load()
    from training_pro.core.jobs import Job
    from training_pro.data.workshop import mapping
    from training_pro.engine.inference import topics
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders

    folder = Path(mkdtemp())
    host = StandaloneHost(standalone_folders(folder), model=str(Path(args.model).resolve()))
    tokenizer, model = host.card().tokenizer, host.loaded_model().model
    bench_utils.print_table(("rows", "layers", "purity", "clusters", "seconds"))
    cases = [(args.rows, layer) for layer in (0.25, 0.5, 0.75, 1.0)]
    for number, (count, layer) in enumerate([*cases, *[(args.time, topics.LAYER)] * bool(args.time)]):
        rows, began, out = plant(count), time.process_time(), folder / f"{number}.map.jsonl"
        ids = [tokenizer(text)["input_ids"][: topics.MAX_TOKENS] for text, _ in rows]
        mapping.write_map(
            [(text, {"text": text}) for text, _ in rows], topics.embed(model, ids, Job("map", "a map"), layer), out
        )
        found = mapping.read_map(out)
        pairs = Counter((row["cluster"], topic) for row, (_, topic) in zip(found.rows, rows, strict=True))
        purity = sum(max(pairs[cluster, topic] for topic in TOPICS) for cluster in found.clusters) / count
        seconds = time.process_time() - began
        figures = f"{purity:.3f} | {len(found.clusters)} | {seconds:.0f}"
        print(f"| {count} | {layer:g} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
