"""`script.py perplexity`: how well a model knows a text, without a LoRA and with each of some."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..core import narrator
from ..core.engine import PerplexityOf
from ..core.events import PerplexityFound
from ..core.session import SESSION
from ..core.writing import as_json
from ..data.library import LOOKED_FOR
from . import environment, options
from .options import say


def run(arguments: Sequence[str]) -> int:
    """A line for each on standard output; the same goes into logs/evaluations.csv."""
    asked = _parsed(arguments)
    host = options.host(asked)
    path = options.located(asked.data, host.folders)
    environment.ready({"train"}, torch_spec=asked.torch)
    from ..engine.peft_engine import PeftEngine

    wanted = PerplexityOf(str(path), tuple(asked.lora), True, asked.stride, asked.max_length, asked.comment)
    job = SESSION.start(
        "perplexity", f"Perplexity of {asked.data}", host, lambda job: PeftEngine().perplexity(wanted, host, job)
    )
    narrator.tell(job, say)
    found = [event for event in job.log.since(0) if isinstance(event, PerplexityFound)]
    for one in found:
        print(as_json(_row(one)) if asked.json else _line(one))
    return 1 if job.end is None or job.end.outcome == "failed" else 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("perplexity", "Perplexity of a text: between how many tokens a model hesitates.")
    options.add_model(parser)
    parser.add_argument("--data", required=True, metavar="FILE", help=f"a text or a folder of texts: {LOOKED_FOR}")
    parser.add_argument(
        "--lora", nargs="+", default=[], metavar="NAME", help="LoRAs, each alone; NAME/checkpoint-40 or a path too"
    )
    parser.add_argument(
        "--max-length", type=int, default=0, metavar="TOKENS", help="the window (0: what the model takes, to 2048)"
    )
    parser.add_argument(
        "--stride", type=int, default=0, metavar="TOKENS", help="how far it slides at a time (0: half a window)"
    )
    parser.add_argument("--comment", default="", metavar="TEXT", help="goes into the table")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args(arguments)


def _row(found: PerplexityFound) -> dict[str, object]:
    return {name: value for name, value in vars(found).items() if name != "at"}


def _line(found: PerplexityFound) -> str:
    return f"{found.perplexity:.4f}\t{found.model}\t{found.lora}\t{found.dataset}"
