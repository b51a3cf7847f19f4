"""`script.py perplexity`, `recall` and `evidence`: what a model knows, with a LoRA and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from ..core.engine import RECALL_PASSAGES, PerplexityRequest
from ..core.files import dump_json
from ..core.jobs import EvidenceMeasured, PerplexityMeasured, RecallMeasured, event_words
from ..data.dataset_index import LOOKUP_ORDER
from ..settings import flags
from ..settings.parsing import ROW_SETTING_KEYS, row_settings
from ..train_utils import align_columns, format_count
from . import options


def run_perplexity(arguments: Sequence[str]) -> int:
    """Measure and print the perplexities; each is also added to logs/evaluations.csv."""
    parser = options.make_parser("perplexity", model=True, json=options.JSON_LINES)
    data_help = f"a text file, a table or chat file, or a folder of them: {LOOKUP_ORDER}"
    parser.add_argument("--data", required=True, metavar="FILE", help=data_help)
    loras_help = "LoRAs, checkpoints (NAME/checkpoint-40) or paths to measure one after another"
    parser.add_argument("--lora", nargs="+", default=[], metavar="NAME", help=loras_help)
    length_help = "window length in tokens; longer rows are truncated (0: the model's context, at most 2048)"
    parser.add_argument("--max-length", type=int, default=0, metavar="TOKENS", help=length_help)
    parser.add_argument(
        "--stride",
        type=int,
        default=0,
        metavar="TOKENS",
        help="tokens from the start of one window to the start of the next (0: half a window); ignored for "
        "datasets of rows",
    )
    parser.add_argument("--comment", default="", metavar="TEXT", help="comment to save with the results")
    flags.add_flag_group(parser, "How rows are read", ROW_SETTING_KEYS)
    args = parser.parse_args(arguments)
    settings = row_settings(flags.given_settings(args))
    host = options.make_host(args)
    path = options.find_dataset(args.data, host.folders)
    loras = tuple(options.find_lora(name, host.folders) for name in args.lora)
    request = PerplexityRequest(str(path), loras, True, args.stride, args.max_length, args.comment)
    work = partial(options.make_engine(args).perplexity, request, settings, host)
    job = options.run_job("perplexity", f"Perplexity of {args.data}", host, work)
    for result in job.log.since(0):
        if not isinstance(result, PerplexityMeasured):
            continue
        if args.json:
            print(dump_json({name: value for name, value in asdict(result).items() if name != "at"}))
            continue
        print(f"{result.perplexity:.4f}\t{result.model}\t{result.lora}\t{result.dataset}")
        # Of a dataset of rows, also those that the model knows least and best.
        for words, rows in (("highest perplexity", result.least_known), ("lowest perplexity", result.best_known)):
            for row in rows:
                text = " -> ".join(filter(None, (row.read, row.begins)))
                figures = f"{row.perplexity:.4g} over {format_count(row.tokens, 'token')}"
                print(f"  {words}  {row.place}  {figures}  {text}")
    return options.exit_code(job)


def run_recall(arguments: Sequence[str]) -> int:
    """Measure, and print the figures without the LoRA and with it; they are also written into its folder."""
    parser = options.make_parser("recall", model=True, lora=True, json=options.JSON_LINES)
    passages_help = f"number of passages that the model has to continue (default: {RECALL_PASSAGES})"
    parser.add_argument("--passages", type=int, default=RECALL_PASSAGES, metavar="N", help=passages_help)
    args = parser.parse_args(arguments)
    host = options.make_host(args)
    lora = options.find_lora(args.lora, host.folders)
    work = partial(options.make_engine(args).recall, lora, host, passages=args.passages)
    job = options.run_job("recall", f"Recall of {args.lora}", host, work)
    measured = [event for event in job.log.since(0) if isinstance(event, RecallMeasured)]
    # The model without the LoRA is measured first.
    for name, event in zip(("-", args.lora), measured, strict=False):
        if args.json:
            print(dump_json({"lora": name, **event.as_log()}))
            continue
        unseen = f"\tunseen {event.control.recall:.4f}" if event.control else ""
        print(f"{event.learned.recall:.4f}{unseen}\t{name}")
        for line in align_columns(event_words.part_table(event)):  # a line for each chapter or file
            print(f"  {line}")
    return options.exit_code(job)


def run_evidence(arguments: Sequence[str]) -> int:
    """Measure, and print a sentence for each kind of evidence; the figures are also written into its folder."""
    json_help = "output one JSON object with all figures"
    args = options.make_parser("evidence", model=True, lora=True, json=json_help).parse_args(arguments)
    host = options.make_host(args)
    lora = options.find_lora(args.lora, host.folders)
    work = partial(options.make_engine(args).evidence, lora, host)
    job = options.run_job("evidence", f"Testing {args.lora}", host, work)
    for event in job.log.since(0):
        if isinstance(event, EvidenceMeasured) and args.json:
            print(dump_json({"lora": args.lora, **event.as_log()}))
        elif isinstance(event, EvidenceMeasured):
            for what, without, with_lora in event_words.evidence_table(event)[1:]:
                print(f"{what}: without the LoRA: {without}; with the LoRA: {with_lora}")
    return options.exit_code(job)
