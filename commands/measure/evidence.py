"""`script.py evidence`: what a LoRA kept of the base model, what it copies, and what it answers from memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core.engine import EvidenceRequest
from ...core.files import dump_json
from ...core.jobs import SESSION, EvidenceMeasured, console, evidence_table
from .. import options
from ..options import say


def run(arguments: Sequence[str]) -> int:
    """Measure, and print a sentence for each kind of evidence; the figures are also written into its folder."""
    parser = options.make_parser(
        "evidence",
        "Test a LoRA: what the model has forgotten, what it copies, and what it answers from memory.",
    )
    options.add_model(parser)
    parser.add_argument(
        "--lora", required=True, metavar="NAME", help="a LoRA, a checkpoint (NAME/checkpoint-40) or a path"
    )
    parser.add_argument("--json", action="store_true", help="output one JSON object with all figures")
    args = parser.parse_args(arguments)
    host = options.make_host(args)
    lora = options.find_lora(args.lora, host.folders)
    work = partial(options.make_engine(args).evidence, EvidenceRequest(lora), host)
    job = SESSION.start("evidence", f"Testing {args.lora}", host, work)
    console.print_events(job, say, options.terminal())
    for event in job.log.since(0):
        if isinstance(event, EvidenceMeasured):
            figures = {"lora": args.lora, **event.as_log()}
            rows = evidence_table(event)[1:]
            lines = (f"{what}: without the LoRA: {base}; with the LoRA: {lora}" for what, base, lora in rows)
            print(dump_json(figures) if args.json else "\n".join(lines))
    return 1 if job.end is None or job.end.outcome == "failed" else 0
