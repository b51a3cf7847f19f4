"""`script.py gguf`: write a LoRA as a file for llama.cpp."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..core.engine import GgufRequest
from ..hosts.standalone import StandaloneHost, standalone_folders
from . import options
from .options import say


def run(arguments: Sequence[str]) -> int:
    """Write the GGUF file and print its path."""
    args = _parse_args(arguments)
    host = StandaloneHost(standalone_folders(options.find_user_data(args.user_data)))
    engine = options.make_engine(args)
    lora = options.find_lora(args.lora, host.folders)
    file = engine.export_gguf(GgufRequest(lora, args.out, args.model), host)
    say(f"To use the LoRA with llama.cpp, add: --lora {file}")
    print(file)
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser(
        "gguf", "Export a LoRA as a GGUF file for llama.cpp, to use with a GGUF file of its base model."
    )
    parser.add_argument(
        "--lora", required=True, metavar="NAME", help="a LoRA, a checkpoint (NAME/checkpoint-40) or a path"
    )
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
    return parser.parse_args(arguments)
