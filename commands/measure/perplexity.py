"""`script.py perplexity`: perplexity of a text or of rows, without a LoRA and with each of several."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from ...core.engine import PerplexityRequest
from ...core.files import dump_json
from ...core.jobs import SESSION, PerplexityMeasured, console
from ...data.dataset_index import LOOKUP_ORDER
from ...settings import flags
from ...settings.parsing import ROW_SETTING_KEYS, row_settings
from ...train_utils import format_count
from .. import options
from ..options import say


def run(arguments: Sequence[str]) -> int:
    """Measure and print the perplexities; each is also added to logs/evaluations.csv."""
    args = _parse_args(arguments)
    settings = row_settings(flags.given_settings(args))
    host = options.make_host(args)
    path = options.find_dataset(args.data, host.folders)
    loras = tuple(options.find_lora(name, host.folders) for name in args.lora)
    request = PerplexityRequest(str(path), loras, True, args.stride, args.max_length, args.comment)
    work = partial(options.make_engine(args).perplexity, request, settings, host)
    job = SESSION.start("perplexity", f"Perplexity of {args.data}", host, work)
    console.print_events(job, say, options.terminal())
    results = [event for event in job.log.since(0) if isinstance(event, PerplexityMeasured)]
    for result in results:
        figures = {name: value for name, value in asdict(result).items() if name != "at"}
        print(dump_json(figures) if args.json else "\n".join(_format_lines(result)))
    return 1 if job.end is None or job.end.outcome == "failed" else 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser(
        "perplexity", "Measure perplexity, which shows how well a model predicts a text or the rows of a dataset."
    )
    options.add_model(parser)
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help=f"a text file, a table or chat file, or a folder of them: {LOOKUP_ORDER}",
    )
    parser.add_argument(
        "--lora",
        nargs="+",
        default=[],
        metavar="NAME",
        help="LoRAs, checkpoints (NAME/checkpoint-40) or paths to measure one after another",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=0,
        metavar="TOKENS",
        help="window length in tokens; longer rows are truncated (0: the model's context, at most 2048)",
    )
    parser.add_argument(
        "--stride",
        type=int,
        default=0,
        metavar="TOKENS",
        help="tokens from the start of one window to the start of the next (0: half a window); ignored for "
        "datasets of rows",
    )
    parser.add_argument("--comment", default="", metavar="TEXT", help="comment to save with the results")
    parser.add_argument("--json", action="store_true", help="output one JSON object per line, with all figures")
    flags.add_flag_group(parser, "How rows are read", ROW_SETTING_KEYS)
    return parser.parse_args(arguments)


def _format_lines(result: PerplexityMeasured) -> Iterator[str]:
    """Format the perplexity and, for rows, a few rows with the highest and the lowest."""
    yield f"{result.perplexity:.4f}\t{result.model}\t{result.lora}\t{result.dataset}"
    for words, rows in (("highest perplexity", result.least_known), ("lowest perplexity", result.best_known)):
        for row in rows:
            text = " -> ".join(filter(None, (row.read, row.begins)))
            yield f"  {words}  {row.place}  {row.perplexity:.4g} over {format_count(row.tokens, 'token')}  {text}"
