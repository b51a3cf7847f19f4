"""Which models fit on which GPU: the table of the README, from the memory estimate of Check.

    python3 bench/fits.py            prints the table
    python3 bench/fits.py --write    writes it into README.md

An estimate by arithmetic: no card has measured it. A card of 8 GB counts as 8e9 bytes, so that some is left for
the display. A run is the default one (rank 32 on all linear layers, AdamW), with gradient checkpointing if needed.
"""

from __future__ import annotations

import argparse

if not __package__:
    import bench_utils

    bench_utils.load()
from training_pro.bench.bench_utils import ROOT
from training_pro.core.host import ModelCard
from training_pro.core.model_shape import ModelShape
from training_pro.data.report import MemoryModel
from training_pro.settings.parsing import training_settings

PAGE = ROOT / "README.md"
BEGIN, END = "<!-- begin fits -->\n", "\n<!-- end fits -->"
CARDS = (8, 12, 16, 24)
LOADINGS_AS = {"bfloat16": "16-bit", "4bit": "4-bit"}
LOADINGS = tuple(LOADINGS_AS)
ENOUGH = 1024
"""Tokens that make a model worth loading in 16 bits."""
CUTOFFS = (256, 512, 1024, 2048, 4096, 8192)
MODELS = {
    # hidden, layers, feed, heads, kv_heads, head, vocabulary: from each config.json
    "1.7B (Qwen3)": ModelShape(2048, 28, 6144, 16, 8, 128, 151_936, gated=True, lean_gate=True, tied=True),
    "4B (Qwen3)": ModelShape(2560, 36, 9728, 32, 8, 128, 151_936, gated=True, lean_gate=True, tied=True),
    "8B (Llama 3.1)": ModelShape(4096, 32, 14336, 32, 8, 128, 128_256, gated=True, lean_gate=True, tied=False),
    "14B (Qwen3)": ModelShape(5120, 40, 17408, 40, 8, 128, 151_936, gated=True, lean_gate=True, tied=False),
    "24B (Mistral Small)": ModelShape(
        5120, 40, 32768, 32, 8, 128, 131_072, gated=True, lean_gate=True, tied=False
    ),
}


def longest_cutoff(shape: ModelShape, loading: str, card_gb: int) -> int:
    """The longest example, in tokens, that a run with a batch of 1 can train on; 0 if none fits."""
    settings = training_settings({"name": "x", "data": ["x.txt"], "batch_size": 1})
    card = ModelCard("x", {}, None, loading)
    fitting = [0]
    for cutoff in CUTOFFS:
        model = MemoryModel(shape, card, (cutoff,), (cutoff,), on_card=True, free=card_gb * 10**9)
        if model.fits(model.memory(settings)):
            fitting.append(cutoff)
    return max(fitting)


def table() -> str:
    """The rows in Markdown: how to load each model on each card, and the longest example then."""
    rows = [["model", *(f"{gb} GB" for gb in CARDS)]]
    rows.append(["---"] * len(rows[0]))
    for name, shape in MODELS.items():
        cells = []
        for gb in CARDS:
            longest = {loading: longest_cutoff(shape, loading, gb) for loading in LOADINGS}
            loading = next((each for each in LOADINGS if longest[each] >= ENOUGH), LOADINGS[-1])
            cells.append(f"{LOADINGS_AS[loading]}, {longest[loading]:,}" if longest[loading] else "no")
        rows.append([name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_table(text: str) -> str:
    """The page with the table between its markers made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into README.md")
    if parser.parse_args().write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    else:
        print(table())
