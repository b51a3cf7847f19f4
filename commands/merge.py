"""`script.py merge` and `gguf`: a LoRA as a full model, or as a file for llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..core.engine import GgufRequest, MergeRequest
from ..hosts.standalone import StandaloneHost
from ..settings import flags
from ..settings.parsing import parse_keys
from . import options
from .options import say


def run(arguments: Sequence[str]) -> int:
    """Merge the LoRA and print the folder of the model."""
    parser = options.make_parser("merge")
    options.add_model(parser)
    options.add_lora(parser)
    out_help = "the folder of the new model, which must not exist yet"
    parser.add_argument("--out", required=True, metavar="DIR", help=out_help)
    flags.add_flag_group(parser, "Files", ["shard_size"])
    args = parser.parse_args(arguments)
    shard_size = parse_keys(flags.given_settings(args)).get("shard_size", "")
    host = options.make_host(args)
    request = MergeRequest(options.find_lora(args.lora, host.folders), args.out, shard_size)
    engine = options.make_engine(args)
    job = options.run_job("merge", f"Merging {args.lora}", host, partial(engine.merge, request, host))
    if job.end is not None and job.end.outcome != "failed":
        print(job.end.folder)
    return options.exit_code(job)


def run_gguf(arguments: Sequence[str]) -> int:
    """Write the GGUF file and print its path."""
    parser = options.make_parser("gguf")
    options.add_lora(parser)
    parser.add_argument(
        "--out", default="", metavar="FILE", help="the new file (default: NAME.gguf in the LoRA's folder)"
    )
    parser.add_argument(
        "--model",
        default="",
        metavar="M",
        help="the base model (only its config is read), or the GGUF file to use the LoRA with "
        "(default: the base model named in the LoRA's config)",
    )
    args = parser.parse_args(arguments)
    host = StandaloneHost(options.find_folders(args))
    engine = options.make_engine(args)
    lora = options.find_lora(args.lora, host.folders)
    file = engine.export_gguf(GgufRequest(lora, args.out, args.model), host)
    say(f"To use the LoRA with llama.cpp, add: --lora {file}")
    print(file)
    return 0
