"""`script.py perplexity`: how well a model knows a text or rows, without a LoRA and with each of some."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from ..core.engine import PerplexityOf
from ..core.files import as_json
from ..core.jobs import SESSION, PerplexityFound, console
from ..data.dataset_index import LOOKED_FOR
from ..settings import flags
from ..settings.parsing import HOW_ROWS_ARE_READ, row_settings
from ..train_utils import several
from . import options
from .environment import interpreter
from .options import say


def run(arguments: Sequence[str]) -> int:
    """What was found of each on standard output; the same goes into logs/evaluations.csv."""
    asked = _parsed(arguments)
    settings = row_settings(flags.given(asked))
    host = options.host(asked)
    path = options.located(asked.data, host.folders)
    loras = tuple(options.lora(name, host.folders) for name in asked.lora)
    interpreter.ready({"train"}, torch_spec=asked.torch)
    from ..engine.peft_engine import PeftEngine

    wanted = PerplexityOf(str(path), loras, True, asked.stride, asked.max_length, asked.comment)
    work = partial(PeftEngine().perplexity, wanted, settings, host)
    job = SESSION.start("perplexity", f"Perplexity of {asked.data}", host, work)
    console.tell(job, say)
    found = [event for event in job.log.since(0) if isinstance(event, PerplexityFound)]
    for one in found:
        print(as_json(_row(one)) if asked.json else "\n".join(_lines(one)))
    return 1 if job.end is None or job.end.outcome == "failed" else 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser(
        "perplexity", "Perplexity of a text, or of rows: between how many tokens a model hesitates."
    )
    options.add_model(parser)
    parser.add_argument(
        "--data", required=True, metavar="FILE", help=f"a text, rows, or a folder of either: {LOOKED_FOR}"
    )
    parser.add_argument(
        "--lora", nargs="+", default=[], metavar="NAME", help="LoRAs, each alone; NAME/checkpoint-40 or a path too"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=0,
        metavar="TOKENS",
        help="the window; longer rows lose their ends (0: what the model takes, to 2048)",
    )
    parser.add_argument(
        "--stride",
        type=int,
        default=0,
        metavar="TOKENS",
        help="how far the window slides at a time (0: half of it); not for rows",
    )
    parser.add_argument("--comment", default="", metavar="TEXT", help="goes into the table")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with all figures")
    flags.add_some(parser, "How rows are read", HOW_ROWS_ARE_READ)
    return parser.parse_args(arguments)


def _row(found: PerplexityFound) -> dict[str, object]:
    return {name: value for name, value in asdict(found).items() if name != "at"}


def _lines(found: PerplexityFound) -> Iterator[str]:
    """The figure; of rows also a few of both ends."""
    yield f"{found.perplexity:.4f}\t{found.model}\t{found.lora}\t{found.dataset}"
    for words, rows in (("least known", found.least_known), ("best known", found.best_known)):
        for row in rows:
            said = " -> ".join(filter(None, (row.read, row.begins)))
            yield f"  {words}  {row.place}  {row.perplexity:.4g} over {several(row.tokens, 'token')}  {said}"
