"""`script.py merge`: merge a LoRA into a full model."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.engine import MergeRequest
from ..core.jobs import SESSION, console
from ..settings import flags
from ..settings.parsing import parse_keys
from . import options
from .options import say


def run(arguments: Sequence[str]) -> int:
    """Merge the LoRA and print the folder of the model."""
    parser = options.make_parser(
        "merge",
        "Merge a LoRA into its base model and save a full model (safetensors, config and tokenizer).",
    )
    options.add_model(parser)
    parser.add_argument(
        "--lora", required=True, metavar="NAME", help="a LoRA, a checkpoint (NAME/checkpoint-40) or a path"
    )
    out_help = "the folder of the new model, which must not exist yet"
    parser.add_argument("--out", required=True, metavar="DIR", help=out_help)
    flags.add_flag_group(parser, "Files", ["shard_size"])
    args = parser.parse_args(arguments)
    shard_size = parse_keys(flags.given_settings(args)).get("shard_size", "")
    host = options.make_host(args)
    request = MergeRequest(options.find_lora(args.lora, host.folders), args.out, shard_size)
    engine = options.make_engine(args)
    job = SESSION.start("merge", f"Merging {args.lora}", host, lambda job: engine.merge(request, host, job))
    console.print_events(job, say, options.terminal())
    if job.end is None or job.end.outcome == "failed":
        return 1
    print(job.end.folder)
    return 0
