"""`script.py get`, `push`, `merge`, `gguf`, `perplexity`, `recall` and `evidence`: work with models and LoRAs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ..core.engine import RECALL_PASSAGES, GgufRequest, MergeRequest, PerplexityRequest
from ..core.errors import SavingError
from ..core.files import dump_json
from ..core.jobs import EvidenceMeasured, PerplexityMeasured, RecallMeasured, console, event_words
from ..data.dataset_index import LOOKUP_ORDER
from ..downloads import download, hub_models, upload
from ..hosts.standalone import StandaloneHost, unknown_type_reason
from ..records.folder import loras, plan_upload, run_files
from ..settings import flags
from ..settings.parsing import ROW_SETTING_KEYS, parse_keys, row_settings
from ..train_utils import align_columns, format_count
from . import options
from .environment import interpreter
from .options import handle_end_signals, say

# Patterns of what the folder of a run has besides a whole model; some hold parts of the dataset.
RUN_FILES = (*run_files.RUN_FILES, "checkpoint-*", "backup*", "Backup-*", "tensorboard/*", "wandb/*")


def run_get(arguments: Sequence[str]) -> int:
    """Download the model and print its folder."""
    parser = options.make_parser("get")
    parser.add_argument("model", metavar="OWNER/NAME", help="OWNER/NAME, or the URL of the model's page")
    parser.add_argument("--revision", default="", metavar="R", help="a branch, tag or commit (default: main)")
    args = parser.parse_args(arguments)
    model = hub_models.parse_hub_model(args.model, args.revision)
    models = options.find_folders(args).models
    interpreter.ensure_environment("train", torch_spec=args.torch)
    printer = console.EventPrinter(say, options.terminal())
    with handle_end_signals(signal.default_int_handler):
        end = download.download_model(model, models, unknown_type_reason, printer.print_event)
    printer.clear()
    say(end.text)
    if end.folder is None:
        return 1
    say(f"To use the model in other commands, add: --model {end.folder.name}")
    print(end.folder)
    return 0


def run_merge(arguments: Sequence[str]) -> int:
    """Merge the LoRA and print the folder of the model."""
    parser = options.make_parser("merge", model=True, lora=True)
    out_help = "the new model: a name in the models folder, or the path of a new folder"
    parser.add_argument("--out", required=True, metavar="DIR", help=out_help)
    flags.add_flag_group(parser, "Files", ["shard_size"])
    args = parser.parse_args(arguments)
    shard_size = parse_keys(flags.given_settings(args)).get("shard_size", "")
    host = options.make_host(args)
    out = str(host.folders.models / args.out) if Path(args.out).name == args.out else args.out
    request = MergeRequest(options.find_lora(args.lora, host.folders), out, shard_size)
    engine = options.make_engine(args)
    job = options.run_job("merge", f"Merging {args.lora}", host, partial(engine.merge, request, host))
    if job.end is not None and job.end.folder is not None:
        print(job.end.folder)
    return options.exit_code(job)


def run_gguf(arguments: Sequence[str]) -> int:
    """Write the GGUF file and print its path."""
    parser = options.make_parser("gguf", lora=True)
    out_help = "the new file (default: NAME.gguf in the LoRA's folder)"
    parser.add_argument("--out", default="", metavar="FILE", help=out_help)
    model_help = (
        "the base model (only its config is read), or the GGUF file to use the LoRA with (default: the base model "
        "named in the LoRA's config)"
    )
    parser.add_argument("--model", default="", metavar="M", help=model_help)
    args = parser.parse_args(arguments)
    host = StandaloneHost(options.find_folders(args))
    engine = options.make_engine(args)
    lora = options.find_lora(args.lora, host.folders)
    file = engine.export_gguf(GgufRequest(lora, args.out, args.model), host)
    say(f"To use the LoRA with llama.cpp, add: --lora {file}")
    print(file)
    return 0


def run_push(arguments: Sequence[str]) -> int:
    """Show what would be uploaded, ask for the repository's name, upload, and print the address."""
    parser = options.make_parser("push")
    parser.add_argument("name", metavar="NAME", help="a LoRA, or a checkpoint (NAME/checkpoint-40)")
    to_help = "the repository, which is created if it does not exist"
    parser.add_argument("--to", required=True, metavar="OWNER/REPO", help=to_help)
    parser.add_argument("--public", action="store_true", help="make the repository public (default: private)")
    parser.add_argument("--base-model", default="", metavar="OWNER/NAME", help="the base model's name on the Hub")
    also_help = "other files of the run to upload, such as training_log.json (default: none)"
    parser.add_argument("--also", nargs="+", default=[], metavar="FILE", help=also_help)
    yes_help = "upload without asking you to type the repository's name"
    parser.add_argument("--yes", action="store_true", help=yes_help)
    args = parser.parse_args(arguments)
    folders = options.find_folders(args)
    model = folders.models / args.name
    if loras.output_kind(model) == "model" and not loras.has_lora(
        folders.loras / args.name
    ):  # fully fine-tuned or merged
        exclusions = " ".join(f'--exclude "{pattern}"' for pattern in RUN_FILES)
        visibility = "" if args.public else " --private"
        raise SavingError(
            f"{args.name} is a full model, but `push` uploads only LoRAs. To upload the model without the other "
            f'files of its run, use this command: hf upload {args.to} "{model}" .{visibility} {exclusions}'
        )
    folder = loras.find_lora(args.name, folders.loras)
    plan = plan_upload(folder, args.name, args.to, public=args.public, base=args.base_model, also=args.also)
    say("\n".join(plan.lines))
    if not args.yes:
        say(f"To upload these files, type {plan.repository} and press Enter:")
        try:
            answer = input().strip()
        except EOFError:  # in a script without a terminal
            answer = ""
        if answer != plan.repository:
            say("Nothing was uploaded, because the name you typed does not match.")
            return 1
    interpreter.ensure_environment("train", torch_spec=args.torch)
    with handle_end_signals(signal.default_int_handler):
        address = upload.upload_lora(plan)
    say(f"Uploaded {args.name}. Set the license in its README.md on the Hub.")
    print(address)
    return 0


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
        help="tokens from the start of one window to the start of the next (0: half a window); only for text",
    )
    parser.add_argument("--comment", default="", metavar="TEXT", help="comment to save with the results")
    flags.add_flag_group(parser, "How rows are read", ROW_SETTING_KEYS)
    args = parser.parse_args(arguments)
    settings = row_settings(flags.given_settings(args))
    host = options.make_host(args)
    path = options.find_dataset(args.data, host.folders)
    names = tuple(options.find_lora(name, host.folders) for name in args.lora)
    request = PerplexityRequest(str(path), names, True, args.stride, args.max_length, args.comment)
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
