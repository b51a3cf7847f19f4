"""Which phrases a model overuses, against the author of a text: without a LoRA, and with it.

    python3 bench/phrases.py --model FOLDER --lora FOLDER --data book.txt [--passages 64] [--results FILE]

The model continues passages of the text, without the LoRA and with it, from the same prompts and seeds. Counted
are runs of 3 to 5 words, also those within longer ones. A run is overused if a side repeats it, and has it more
than twice as often in 1,000 words as the author. Printed are all of them together, and then the worst ones. With
--results, each passage is a line of that file as soon as it is written, and is not written again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_utils
import numpy as np

LISTED = 15
SIDES = ("author", "without", "with")


def write_all(args: argparse.Namespace, done: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Continue the passages that are not done, without the LoRA and with it."""
    from training_pro.core.engine import AnswerRequest
    from training_pro.core.jobs import Job
    from training_pro.engine.inference import generation, prepare_for_host
    from training_pro.engine.lora import adapter
    from training_pro.engine.tokenizer import make_working_tokenizer
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders
    from training_pro.settings.parsing import training_settings

    with tempfile.TemporaryDirectory() as scratch:
        host = StandaloneHost(standalone_folders(Path(scratch)), model=str(args.model), loading="float32")
        host.folders.datasets.mkdir(parents=True)
        (host.folders.datasets / "book.txt").write_bytes(args.data.read_bytes())
        card, job = host.card(), Job("pairs", "phrases")
        tokenizer = make_working_tokenizer(card.tokenizer).tokenizer
        settings = training_settings({"name": "phrases", "data": ["book.txt"]})
        examples = prepare_for_host(settings, host, card, job).examples
        places = np.linspace(0, len(examples) - 1, min(args.passages, len(examples))).astype(int).tolist()
        known = {(line["side"], line["passage"]) for line in done}
        yield from ({"side": "author", "passage": n, "text": example.text} for n, example in enumerate(examples))
        with adapter.without_loras(host) as (base, _):
            for side, folder in (("without", None), ("with", args.lora)):
                with adapter.loaded_lora(base, folder, side) as model:
                    for number in (place for place in places if (side, place) not in known):
                        ids = examples[number].ids.tolist()
                        before, tokens = ids[: len(ids) // 2], len(ids) - len(ids) // 2
                        asked = AnswerRequest("", max_tokens=tokens, seed=number)
                        (written,) = generation.generate_ids(model.eval(), [before], asked, tokenizer, job)
                        text = tokenizer.decode(written, skip_special_tokens=True)
                        yield {"side": side, "passage": number, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lora", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="a text file")
    parser.add_argument("--passages", type=int, default=64)
    parser.add_argument("--results", type=Path, help="a file of JSON lines, for this model, LoRA and text")
    args = parser.parse_args()
    bench_utils.load()
    from training_pro.data.split import find_overuse, worst_phrases

    lines: list[dict[str, Any]] = []
    if args.results and args.results.exists():
        lines += map(json.loads, args.results.read_text(encoding="utf-8").splitlines())
    for line in write_all(args, [*lines]):
        lines.append(line)
        if args.results and line["side"] != "author":
            with args.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    texts = {side: [line["text"] for line in lines if line["side"] == side] for side in SIDES}
    overused = find_overuse(texts["author"], ["\n".join(texts[side]) for side in SIDES[1:]])
    totals = [f"{sum(rates):.1f}" for rates in zip(*overused.values(), strict=True)] or ["0.0"] * len(SIDES)
    heading = ("phrase, uses per 1,000 words", "the author", "without the LoRA", "with the LoRA")
    rows = [(phrase, *(f"{rate:.1f}" for rate in overused[phrase])) for phrase in worst_phrases(overused, LISTED)]
    bench_utils.print_table(heading, ("all overused phrases", *totals), *rows)


if __name__ == "__main__":
    main()
