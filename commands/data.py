"""`script.py data`: look at a dataset, clean, split, convert and study it; no file is ever overwritten."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..core.engine import NOTE_KINDS, PAIR_TOKENS, StudyRequest
from ..core.errors import DataError
from ..core.files import dump_json, safe_paths
from ..core.host import Folders
from ..core.jobs import NotesTaken
from ..data import dataset_index
from ..settings import flags
from ..settings.columns import parse_columns
from ..settings.parsing import row_settings
from . import options
from .environment import interpreter

ACTIONS: Mapping[str, str] = {
    "look": "show what is in it, and what stands out",
    "clean": "drop duplicates, refusals and more; without --out, only show what would be dropped",
    "split": "write train.jsonl and validation.jsonl into the folder --out, without a leak between them",
    "convert": "write it as rows of JSON, in one of the common forms",
    "pairs": "write OUT.pairs.jsonl: the author of a text in training/datasets against what --model writes",
    "study": "let --model take notes on it into --out, to train on: questions, rewordings, summaries and others",
}


def run(arguments: Sequence[str]) -> int:
    """Do what the action says and print its figures."""
    parser = options.make_parser("data", json="output one JSON object")
    action_help = "; ".join(f"{action}: {words}" for action, words in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), metavar="ACTION", help=action_help)
    parser.add_argument("data", metavar="IN", help=f"a file or a folder: {dataset_index.LOOKUP_ORDER}")
    out_help = "the new file, or for split the folder; a relative path is in training/datasets"
    parser.add_argument("--out", metavar="OUT", default="", help=out_help)
    recipe_help = "a file with the steps of cleaning, such as the .recipe.json beside a cleaned dataset"
    parser.add_argument("--recipe", metavar="FILE", type=Path, help=recipe_help)
    set_help = "change steps of the recipe, such as near_duplicates=0.8 refusals=sentence languages=en,de"
    parser.add_argument("--set", nargs="+", default=[], metavar="STEP=VALUE", help=set_help)
    phrase_help = "also drop rows whose replies contain one of these"
    parser.add_argument("--phrase", nargs="+", default=[], metavar="TEXT", help=phrase_help)
    share_help = "the share for the validation file (default: 0.1)"
    parser.add_argument("--validation", type=float, default=0.1, metavar="SHARE", help=share_help)
    parser.add_argument("--seed", type=int, default=42, help="another seed splits otherwise (default: 42)")
    form_help = "the form of the rows (default: messages for chats and pairs, otherwise text)"
    parser.add_argument("--form", choices=("messages", "instruction", "text"), help=form_help)
    study = parser.add_argument_group("How long to study, and what to write")
    study.add_argument("--minutes", type=float, default=0, metavar="N", help="stop after so many minutes")
    tokens_help = f"stop after so many written tokens (for pairs: {PAIR_TOKENS:,} if not given)"
    study.add_argument("--tokens", type=int, default=0, metavar="N", help=tokens_help)
    rounds_help = "pass over the dataset so often, each time for other notes (default: 1 without another limit)"
    study.add_argument("--rounds", type=int, default=0, metavar="N", help=rounds_help)
    kinds_help, usual = f"the kinds of notes: {', '.join(NOTE_KINDS)} (default: all but briefs)", NOTE_KINDS[:-1]
    study.add_argument("--notes", nargs="+", choices=NOTE_KINDS, default=usual, metavar="KIND", help=kinds_help)
    options.add_model(parser, required=False)
    flags.add_flag_group(parser, "How rows are read", ["columns"])
    args = parser.parse_args(arguments)
    if args.action in ("split", "convert", "pairs", "study") and not args.out:
        parser.error(f"{args.action} needs --out.")
    if args.action == "study" and not args.model:
        parser.error("study needs --model.")
    interpreter.ensure_environment("train", torch_spec=args.torch)
    # These import numpy, which a bare Python does not have.
    from ..data import workshop
    from ..data.rows import load_refusal_phrases

    host = options.make_host(args)
    if args.action == "pairs":
        work = partial(
            options.make_engine(args).write_pairs, args.data, args.out, args.tokens or PAIR_TOKENS, host
        )
        return options.exit_code(options.run_job("pairs", f"Pairs from {args.data}", host, work))
    columns = row_settings(flags.given_settings(args)).rows.columns
    dataset = workshop.Dataset(options.find_dataset(args.data, host.folders), parse_columns(columns))
    out = _output_path(args.out, host.folders) if args.out else None
    default = workshop.EVERYTHING if args.action == "look" else workshop.DEFAULT
    recipe = workshop.read_recipe(args.recipe) if args.recipe else default
    recipe = workshop.check_recipe({**asdict(recipe), **_steps(args.set, args.phrase)}, "--set")
    refusals = load_refusal_phrases(host.folders)
    if args.action == "look":
        measure: dict[str, Any] = {}
        if args.model:
            from ..engine.tokenizer import make_working_tokenizer

            encode = make_working_tokenizer(host.card().tokenizer).encode
            measure = {"measure": lambda text: len(encode([text])[0].ids), "unit": "tokens"}
        overview = workshop.look_at(dataset, recipe, refusals, **measure)
        result, lines = overview.found, list(overview.lines())
        content = {**vars(overview), **vars(result), "found": {}}
    else:
        if args.action == "study":
            assert out
            limits = (args.rounds or int(not args.minutes and not args.tokens), args.minutes, args.tokens)
            request = StudyRequest(str(dataset.path), out, tuple(args.notes), *limits, args.seed)
            work = partial(options.make_engine(args).study, request, host)
            job = options.run_job("study", f"Notes on {args.data}", host, work)
            taken = [event for event in job.log.since(0) if isinstance(event, NotesTaken)]
            if not taken:
                return options.exit_code(job)
            figures = {key: getattr(taken[0], key) for key in ("rows", "kept", "dropped", "examples")}
            result = workshop.Cleaned(**figures)
        elif args.action == "clean":
            result = workshop.clean_dataset(dataset, recipe, refusals, out)
        elif args.action == "split":
            assert out
            result = workshop.split_dataset(dataset, args.validation, args.seed, out)
        else:
            assert out
            result = workshop.convert_dataset(dataset, args.form, out)
        lines, content = list(result.lines()), vars(result)
    print(dump_json(content) if args.json else "\n".join(lines))
    if out and out.exists():
        options.say(f"Written: {out}")
    return 0


def _steps(given: Sequence[str], phrases: Sequence[str]) -> dict[str, Any]:
    """The steps that are given on the command line."""
    values: dict[str, Any] = {"phrases": list(phrases)} if phrases else {}
    for each in given:
        key, _, text = each.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text.split(",") if key in ("languages", "phrases") else text
        values[key] = value
    return values


def _output_path(name: str, folders: Folders) -> Path:
    """Where an output of this name is: in the folder of datasets, unless it is a path from here or absolute."""
    if Path(name).is_absolute() or name.startswith(("./", ".\\", "../", "..\\")):
        return dataset_index.absolute_path(name)
    return safe_paths.descendant(folders.datasets, name, "Output", refusal=DataError)
