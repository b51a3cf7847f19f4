"""Three tastes that are planted by rule, and how much of them a model learns from preferences.

    python3 bench/preferences.py --model FOLDER [--objectives dpo kto] [--seeds 42 43 44] [--results FILE]

For each taste there are 150 pairs to train on and 50 that are kept aside: replies without a certain word are
better than the same with it, short ones better than long ones, and couplets that rhyme better than those that
don't. KTO gets the same replies as single ones with a label. Printed are the share of the kept pairs whose margin
(with the LoRA less without it, chosen less rejected) is above 0, ties half, and the loss on general text. With
--results, each result is also a line of a file, and a run that has one there is not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bench_utils
import numpy as np

PAIRS, KEPT = 200, 50
PLACES = ("harbor", "mill", "garden", "market", "bridge", "orchard", "lighthouse", "station", "valley", "library")
TIMES = ("in spring", "at dawn", "in the rain", "at noon", "after the storm", "in winter", "at night")
LOOKS = ("quiet", "cold", "bright", "crowded", "old", "green", "empty", "warm", "windy", "small")
ENDINGS = (
    "People come here to rest and to talk with their friends for an hour or two.",
    "Most visitors stay longer than they had planned, and they often return in the following year.",
    "A narrow path leads around it, and from its end you can see the hills.",
)
RHYMES = (
    ("night", "light", "lamp"), ("sea", "tree", "wood"), ("day", "gray", "blue"), ("rain", "lane", "road"),
    ("snow", "glow", "shine"), ("stone", "alone", "apart"), ("sky", "high", "tall"), ("hill", "still", "calm"),
    ("moon", "noon", "hour"), ("ground", "sound", "noise"), ("door", "floor", "roof"), ("fire", "spire", "tower"),
    ("boat", "coat", "shirt"), ("clock", "rock", "cliff"), ("sand", "land", "shore"), ("rose", "close", "near"),
)  # fmt: skip
GENERAL_WINDOWS, GENERAL_TOKENS = 8, 256
FIGURES = ("share before", "share after", "general loss before", "general loss after", "CPU seconds of training")


def make_pairs(taste: str, seed: int = 7) -> list[dict[str, str]]:
    """The pairs of a taste, the same ones for every run."""
    rng = random.Random(seed)
    scenes = [*itertools.product(PLACES, TIMES, LOOKS)]
    pairs = []
    for place, when, look in rng.sample(scenes, PAIRS):
        question = f"What is the {place} like {when}?"
        other, ending = rng.choice([each for each in LOOKS if each != look]), rng.choice(ENDINGS)
        chosen = f"The {place} is {look} and {other} {when}."
        rejected = f"The {place} is very {look} and very {other} {when}."
        if taste == "shorter":
            rejected = f"{chosen} {ending}"
        elif taste == "rhymed":
            question = f"Write two lines about the {place} {when}."
            first, rhyme, none = rng.choice(RHYMES)
            lines = f"I saw the {look} {place} {when} {rng.choice(('under', 'before', 'beside'))} the {first},\n"
            chosen, rejected = (f"{lines}and all that it had was {other} and {end}." for end in (rhyme, none))
        pairs.append({"instruction": question, "chosen": chosen, "rejected": rejected})
    return pairs


def labeled(pairs: Sequence[dict[str, str]]) -> Iterator[dict[str, Any]]:
    for side, pair in itertools.product(("chosen", "rejected"), pairs):
        yield {"instruction": pair["instruction"], "output": pair[side], "kto_tag": side == "chosen"}


def measure(host: Any, lora: Path | None, settings: Any) -> tuple[float, float]:
    """The share of the kept pairs that a LoRA prefers as their taste, and the loss on general text."""
    from training_pro.core.jobs import Job
    from training_pro.data import general
    from training_pro.data.examples import Example
    from training_pro.engine.compute import probe_model
    from training_pro.engine.inference import eval_loop, prepare_for_host
    from training_pro.engine.lora import adapter
    from training_pro.engine.tokenizer import make_working_tokenizer

    card = host.card()
    kept = list(prepare_for_host(settings, host, card, Job("training", "kept pairs")).examples)
    ids = make_working_tokenizer(card.tokenizer).encode([general.PROSE.read_text(encoding="utf-8")])[0].ids
    starts = np.linspace(0, len(ids) - GENERAL_TOKENS, GENERAL_WINDOWS).astype(int).tolist()
    prose = [Example(ids[start : start + GENERAL_TOKENS], None, kept[0].source, 0) for start in starts]
    with adapter.without_loras(host) as (base, _), adapter.loaded_lora(base, lora, "measured") as model:
        capabilities, figures = probe_model(model, settings), []
        for examples, objective in ((kept, settings), (prose, None))[lora is None :]:
            loop = eval_loop.EvalLoop(model, capabilities, lambda: False, max_examples=4, settings=objective)
            sums = loop.sums(examples, [0] * len(examples), 1)
            assert sums is not None
            figures.append(sums)
    # Without a LoRA, there is no difference from itself: all are ties.
    share = 0.5 if lora is None else float(figures[0].hits[0] / figures[0].tokens[0])
    return share, figures[-1].loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tastes", nargs="+", default=["no 'very'", "shorter", "rhymed"])
    parser.add_argument("--objectives", nargs="+", default=["dpo", "kto"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--chosen-weight", default="auto")
    parser.add_argument("--results", type=Path, help="a file of JSON lines")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    if args.results and args.results.exists():
        results += map(json.loads, args.results.read_text(encoding="utf-8").splitlines())
    bench_utils.load()
    from training_pro.core.jobs import Job
    from training_pro.engine.peft_engine import PeftEngine
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders
    from training_pro.settings.parsing import training_settings

    with tempfile.TemporaryDirectory() as scratch:
        host = StandaloneHost(standalone_folders(Path(scratch)), model=str(args.model), loading="float32")
        host.folders.datasets.mkdir(parents=True)
        bench_utils.print_table(("taste", "objective", "seed", *FIGURES))
        for taste, seed, objective in itertools.product(args.tastes, args.seeds, args.objectives):
            key = {"model": args.model.name, "taste": taste, "objective": objective, "seed": seed}
            key |= {"epochs": args.epochs, "rate": args.rate, "chosen_weight": args.chosen_weight}
            done = next((result for result in results if key.items() <= result.items()), None)
            if done is not None:
                print_result(done)
                continue
            pairs = make_pairs(taste)
            trained = list(labeled(pairs[KEPT:])) if objective == "kto" else pairs[KEPT:]
            for name, rows in {"trained": trained, "kept": pairs[:KEPT]}.items():
                lines = "\n".join(map(json.dumps, rows))
                (host.folders.datasets / f"{name}.jsonl").write_text(lines, encoding="utf-8")
            values = {
                "name": "taste", "data": ["trained.jsonl"], "objective": objective, "seed": seed,
                "epochs": args.epochs, "learning_rate": args.rate, "chosen_weight": args.chosen_weight,
                "schedule": "cosine", "sample_every": "never", "save_each_epoch": False, "backup_minutes": 0,
                "keep_awake": False, "if_exists": "replace",
            }  # fmt: skip
            measured = training_settings({**values, "data": ["kept.jsonl"], "objective": "dpo"})
            before, began = measure(host, None, measured), time.process_time()
            job = Job("training", taste)
            ended = PeftEngine().train(training_settings(values), host, job)
            print(ended.text, file=sys.stderr)
            seconds, after = time.process_time() - began, measure(host, ended.folder, measured)
            figures = (before[0], after[0], before[1], after[1], seconds)
            result = {**key, **dict(zip(FIGURES, figures, strict=True))}
            print_result(result)
            if args.results:
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")


def print_result(result: dict[str, Any]) -> None:
    share_before, share_after, loss_before, loss_after, seconds = (result[name] for name in FIGURES)
    what = (result["taste"], result["objective"], str(result["seed"]), f"{share_before:.0%}", f"{share_after:.0%}")
    cells = (*what, f"{loss_before:.4f}", f"{loss_after:.4f}", f"{seconds:.0f}")
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
