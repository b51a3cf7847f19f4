"""`script.py recall`: how much of its training data a LoRA reproduces word for word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ...core.engine import RecallRequest
from ...core.files import dump_json
from ...core.jobs import SESSION, RecallMeasured, console, part_table
from ...train_utils import align_columns
from .. import options
from ..options import say


def run(arguments: Sequence[str]) -> int:
    """Measure, and print the figures without the LoRA and with it; they are also written into its folder."""
    parser = options.make_parser(
        "recall",
        "Measure how much of the training data the model reproduces word for word, with and without the LoRA.",
    )
    options.add_model(parser)
    parser.add_argument(
        "--lora", required=True, metavar="NAME", help="a LoRA, a checkpoint (NAME/checkpoint-40) or a path"
    )
    parser.add_argument(
        "--passages",
        type=int,
        default=256,
        metavar="N",
        help="number of passages that the model has to continue (default: 256)",
    )
    parser.add_argument("--json", action="store_true", help="output one JSON object per line, with all figures")
    args = parser.parse_args(arguments)
    host = options.make_host(args)
    lora = options.find_lora(args.lora, host.folders)
    work = partial(options.make_engine(args).recall, RecallRequest(lora, args.passages), host)
    job = SESSION.start("recall", f"Recall of {args.lora}", host, work)
    console.print_events(job, say, options.terminal())
    measured = [event for event in job.log.since(0) if isinstance(event, RecallMeasured)]
    for name, event in zip(("-", args.lora), measured, strict=False):
        print(dump_json({"lora": name, **event.as_log()}) if args.json else "\n".join(_format_lines(name, event)))
    return 1 if job.end is None or job.end.outcome == "failed" else 0


def _format_lines(name: str, event: RecallMeasured) -> Iterator[str]:
    """The recall, and a line for each chapter or file."""
    unseen = f"\tunseen {event.control.recall:.4f}" if event.control else ""
    yield f"{event.learned.recall:.4f}{unseen}\t{name}"
    yield from (f"  {line}" for line in align_columns(part_table(event)))
