"""`script.py data`: get, look at, clean, split, convert, study and examine a dataset; nothing is overwritten."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.engine import EXAM_QUESTIONS, NOTE_KINDS, PAIR_TOKENS, MapRequest, StudyRequest
from ..core.errors import DataError
from ..core.files import dump_json, safe_paths
from ..core.host import Host
from ..core.jobs import ExamAsked, NotesTaken, Stage, console, event_text
from ..data import dataset_index
from ..data.readers import unsupported
from ..settings import flags
from ..settings.parsing import row_settings
from . import options
from .environment import interpreter

if TYPE_CHECKING:
    from ..data import workshop


def run(arguments: Sequence[str]) -> int:
    """Do what the action says and print its figures."""
    parser = _make_parser()
    args = parser.parse_args(arguments)
    action = ACTIONS[args.action]
    for option in (*action.needs, *(["exam"] if args.failed else [])):
        if not getattr(args, option):
            parser.error(f"{args.action} needs --{option}.")
    # The workshop imports numpy, which a bare Python does not have.
    interpreter.ensure_environment("train", torch_spec=args.torch)
    return action.function(Asked(args, options.make_host(args)))


@dataclass(frozen=True)
class Asked:
    """What was asked for on the command line, read when an action uses it."""

    args: argparse.Namespace
    host: Host

    @property
    def rows(self) -> Mapping[str, object]:
        """The settings that say how rows are read."""
        return flags.given_settings(self.args)

    @cached_property
    def dataset(self) -> workshop.Dataset:
        from ..data import workshop

        path = options.find_dataset(self.args.data, self.host.folders)

        def report(records: int) -> None:
            if options.terminal():
                self.printer.print_event(Stage(text=f"Reading {path.name}: {records:,} records"))

        return workshop.Dataset(path, row_settings(self.rows), report=report)

    @cached_property
    def printer(self) -> console.EventPrinter:
        return console.EventPrinter(options.say, options.terminal())

    @cached_property
    def out(self) -> Path:
        """In the folder of datasets, unless it is a path from here or absolute."""
        name = self.args.out
        if Path(name).is_absolute() or name.startswith(("./", ".\\", "../", "..\\")):
            return dataset_index.absolute_path(name)
        return safe_paths.descendant(self.host.folders.datasets, name, "Output", refusal=DataError)

    def cleaning(self, default: workshop.Recipe) -> tuple[workshop.Recipe, tuple[str, ...]]:
        """The recipe, and the phrases of refusals."""
        from ..data import workshop
        from ..data.rows import load_refusal_phrases

        recipe = workshop.read_recipe(self.args.recipe) if self.args.recipe else default
        steps = _steps(self.args.set, self.args.phrase)
        recipe = workshop.check_recipe({**asdict(recipe), **steps}, "--set")
        return recipe, load_refusal_phrases(self.host.folders)

    def show(self, result: workshop.Cleaned | workshop.Overview, **more: Any) -> int:
        """Print the figures, and where the output is."""
        content, lines = {**vars(result), **more}, result.lines()
        self.printer.clear()
        print(dump_json(content) if self.args.json else "\n".join(lines))
        if self.args.out and self.out.exists():
            options.say(f"Written: {self.out}")
        return 0


def _read(asked: Asked) -> int:
    """Look at the dataset, clean, split or convert it."""
    from ..data import workshop

    args = asked.args
    if args.action == "clean":
        out = asked.out if args.out else None
        return asked.show(workshop.clean_dataset(asked.dataset, *asked.cleaning(workshop.DEFAULT), out))
    if args.action == "split":
        return asked.show(workshop.split_dataset(asked.dataset, args.validation, args.seed, asked.out))
    if args.action == "convert":
        return asked.show(workshop.convert_dataset(asked.dataset, args.form, asked.out))
    measure: dict[str, Any] = {}
    if args.model:
        from ..engine.tokenizer import make_working_tokenizer

        encode = make_working_tokenizer(asked.host.card().tokenizer).encode
        measure = {"measure": lambda text: len(encode([text])[0].ids), "unit": "tokens"}
    overview = workshop.look_at(asked.dataset, *asked.cleaning(workshop.EVERYTHING), **measure)
    return asked.show(overview, **vars(overview.found), found={})


def _pairs(asked: Asked) -> int:
    args, write = asked.args, options.make_engine(asked.args).write_pairs
    name = dataset_index.dataset_name_at(args.data, asked.host.folders)
    work = partial(write, name, args.out, args.tokens or PAIR_TOKENS, asked.host)
    return options.exit_code(options.run_job("pairs", f"Pairs from {args.data}", asked.host, work))


def _exam(asked: Asked) -> int:
    args, host = asked.args, asked.host
    if args.out:
        return _study(asked, args.per_section)
    lora = options.find_lora(args.lora, host.folders) if args.lora else ""
    work = partial(options.make_engine(args).exam, args.data, lora, host)
    job = options.run_job("evidence", f"Exam {args.data}", host, work)
    events = [event for event in job.log.since(0) if isinstance(event, ExamAsked)]
    if args.json:
        print(dump_json(dict(zip(("without", "with"), map(asdict, events), strict=False))))
    for event in () if args.json else events:
        print(event_text(event))
        print("\n".join(f"  {each.right} of {each.asked}  {each.name}" for each in event.sections))
    return options.exit_code(job)


def _study(asked: Asked, per_section: int = 0) -> int:
    from ..data import workshop

    args, folders = asked.args, asked.host.folders
    limits = (args.rounds or int(not args.minutes and not args.tokens), args.minutes, args.tokens, args.seed)
    exams = tuple(options.find_dataset(name, folders) for name in args.exam)
    failed = options.find_lora(args.failed, folders) if args.failed else ""
    again = {"per_section": per_section, "exams": exams, "failed": failed, "target": args.target}
    files = (str(asked.dataset.path), asked.out)
    request = StudyRequest(*files, tuple(args.notes), *limits, **again, rows=asked.rows)
    work = partial(options.make_engine(args).study, request, asked.host)
    title = f"Exam about {args.data}" if per_section else f"Notes on {args.data}"
    job = options.run_job("study", title, asked.host, work)
    for event in job.log.since(0):
        if isinstance(event, NotesTaken):  # one, unless the job failed before
            figures = {key: getattr(event, key) for key in ("rows", "kept", "dropped", "examples")}
            asked.show(workshop.Cleaned(**figures))
    return options.exit_code(job)


def _get(asked: Asked) -> int:
    from ..downloads import dataset

    args = asked.args
    wanted = (tuple(args.keep_columns), args.rows, args.share, args.max_gb, args.allow_private)
    source = dataset.DatasetSource(args.data, args.subset, args.split, *wanted)
    args.out = args.out or source.default_name
    try:
        with options.handle_end_signals(signal.default_int_handler):
            suffixes = dataset_index.DATA_SUFFIXES
            dataset.get_dataset(source, asked.out, suffixes, asked.printer.print_event, lambda: False)
    except KeyboardInterrupt:
        raise DataError("Stopped. Nothing was kept.") from None
    finally:
        asked.printer.clear()
    print(dump_json({"out": str(asked.out)}) if args.json else asked.out)
    return 0


def _map(asked: Asked) -> int:
    from ..data.workshop import mapping

    args = asked.args
    path = options.find_dataset(args.data, asked.host.folders)
    if args.keep:
        shares = mapping.parse_shares(args.keep)
        return asked.show(mapping.keep_shares(mapping.read_map(path), shares, args.seed, asked.out))
    if not args.model:
        raise DataError("map needs --model to draw a map, or --keep and --out to write a share of a map.")
    args.out = args.out or path.name + unsupported.MAP_SUFFIX
    words = f"Remove {asked.out} to draw it anew."
    if not asked.out.exists():
        request = MapRequest(str(path), asked.out, asked.rows)
        work = partial(options.make_engine(args).draw_map, request, asked.host)
        job = options.run_job("map", f"Map of {args.data}", asked.host, work)
        if job.end is None or job.end.outcome != "finished":
            return options.exit_code(job)
        words = f"Written: {asked.out}"
    topic_map = mapping.read_map(asked.out)
    clusters = {number: {"name": name, "rows": count} for number, (name, count) in topic_map.clusters.items()}
    print(dump_json(clusters) if args.json else "\n".join(topic_map.lines()))
    options.say(words)
    return 0


class Action(NamedTuple):
    """What an action does, in words, and the options that it can't do without."""

    function: Callable[[Asked], int]
    words: str
    needs: Sequence[str] = ()


NOTES_HELP = "let --model take notes on it into --out, to train on: questions, rewordings, summaries and others"
PAIRS_HELP = "write OUT.pairs.jsonl: the author of a text in training/datasets against what --model writes"
EXAM_HELP = "let --model write an exam about it into --out; without --out, ask --model this exam, also with --lora"
SPLIT_HELP = "write train and validation (.jsonl, or .txt of a text) into --out, without a leak between them"
MAP_HELP = (
    "sort its rows by what they are about, with --model; of a map, write a share of each cluster with --keep"
)
ACTIONS: Mapping[str, Action] = {
    "get": Action(_get, "download a dataset of the Hugging Face Hub, OWNER/NAME, or the file at a URL"),
    "look": Action(_read, "show what is in it, and what stands out"),
    "clean": Action(_read, "drop duplicates, refusals and more; without --out, only show what would be dropped"),
    "split": Action(_read, SPLIT_HELP, ["out"]),
    "convert": Action(_read, "write it as rows of JSON, in one of the common forms", ["out"]),
    "pairs": Action(_pairs, PAIRS_HELP, ["out"]),
    "study": Action(_study, NOTES_HELP, ["out", "model"]),
    "map": Action(_map, MAP_HELP),
    "exam": Action(_exam, EXAM_HELP, ["model"]),
}


def _make_parser() -> argparse.ArgumentParser:
    parser = options.make_parser("data", json="output one JSON object")
    action_help = "; ".join(f"{name}: {action.words}" for name, action in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), metavar="ACTION", help=action_help)
    in_help = f"a file or a folder: {dataset_index.LOOKUP_ORDER}; for get, OWNER/NAME or a URL"
    parser.add_argument("data", metavar="IN", help=in_help)
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
    exam_help = "write no note that is a question of these exams"
    study.add_argument("--exam", nargs="+", default=[], metavar="EXAM", help=exam_help)
    failed_help = "study again, in a further round, the sections that this LoRA had wrong in its last exam"
    study.add_argument("--failed", metavar="LORA", default="", help=failed_help)
    target_help = "the share of right answers from which a section is not studied again (default: 0.8)"
    study.add_argument("--target", type=float, default=0.8, metavar="SHARE", help=target_help)
    exams = parser.add_argument_group("Exams")
    section_help = f"questions about each section between hard cuts (default: {EXAM_QUESTIONS})"
    exams.add_argument("--per-section", type=int, default=EXAM_QUESTIONS, metavar="N", help=section_help)
    exams.add_argument("--lora", metavar="NAME", default="", help="a LoRA, to be asked with it, too")
    keep_help = (
        "of a map: the shares of clusters to write to --out, such as 2=0.5 5=0 (default: all of the others)"
    )
    parser.add_argument("--keep", nargs="+", default=[], metavar="CLUSTER=SHARE", help=keep_help)
    get = parser.add_argument_group("What to get")
    get.add_argument("--subset", default="", metavar="NAME", help="the subset of a dataset on the Hub")
    get.add_argument("--split", default="", metavar="NAME", help="the split (default: train, or the only one)")
    columns_help = "write only these columns (default: all)"
    get.add_argument("--keep-columns", nargs="+", default=[], metavar="COLUMN", help=columns_help)
    get.add_argument("--rows", type=int, default=0, metavar="N", help="get only the first N rows")
    get.add_argument("--share", type=float, default=1, metavar="SHARE", help="draw this share of the rows")
    limit_help = "refuse more than so many GB (default: 1)"
    get.add_argument("--max-gb", type=float, default=1, metavar="GB", help=limit_help)
    private_help = "also open a URL that leads to this machine or its network"
    get.add_argument("--allow-private", action="store_true", help=private_help)
    options.add_model(parser, required=False)
    keys = ["columns", "chat_side", "chat_user", "chat_context", "chat_names"]
    flags.add_flag_group(parser, "How rows are read", keys)
    return parser


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
