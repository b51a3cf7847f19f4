"""`script.py check` and `slice`: the data of a run, without loading any weights."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..core.engine import PreviewQuery
from ..core.errors import SettingsError
from ..data.dataset_index import LOOKUP_ORDER
from ..settings import flags
from ..settings.parsing import training_settings
from ..train_utils import format_count
from . import options
from .environment import interpreter
from .options import say
from .train import add_settings, settings_and_problems


def run(arguments: Sequence[str]) -> int:
    """Print the report; return 1 if its verdict is 'not ready'."""
    parser = options.make_parser("check", model=True, json="output one JSON object")
    parser.add_argument("--show", metavar="N", type=int, help="print N examples as the model will see them")
    from_help = "start at this example (the first is 1)"
    parser.add_argument("--from", dest="first", metavar="N", type=int, default=0, help=from_help)
    containing_help = "show only examples that contain these words"
    parser.add_argument("--containing", "--holding", metavar="WORDS", default="", help=containing_help)
    add_settings(parser)
    args = parser.parse_args(arguments)
    engine = options.make_engine(args)
    # After the environment is there: this imports numpy.
    from ..data.report import DatasetReport

    host = options.make_host(args)
    shown = args.show if args.show is not None else 1 if args.first or args.containing else 0
    preview = PreviewQuery(max(0, shown), max(0, args.first), args.containing)
    try:
        settings, problems = settings_and_problems(args, host, args.settings)
        report = engine.check_start(settings, host, show=preview, problems=problems)
    except SettingsError as error:  # a file can't be read
        report = DatasetReport.of_problems(error.problems)
    print(json.dumps(report.as_json(), ensure_ascii=False, indent=2) if args.json else report.text())
    return 1 if report.verdict == "not ready" else 0


def run_slice(arguments: Sequence[str]) -> int:
    """Print the blocks of a text to standard output and a summary to standard error."""
    parser = options.make_parser("slice", model=True, json="output one JSON object per block")
    parser.add_argument("data", metavar="PATH", help=f"a text or document, or a folder of them: {LOOKUP_ORDER}")
    flags.add_flags(parser, ("text",))
    args = parser.parse_args(arguments)
    # Only these settings matter for slicing; a run would also need a name.
    settings = training_settings({"name": "slice", **flags.given_settings(args)})
    interpreter.ensure_environment("train", torch_spec=args.torch)
    # These import numpy, which a bare Python does not have.
    from ..data.load import read_texts, slicing_rules
    from ..data.text import build_slice_map, slice_text
    from ..engine.tokenizer import make_working_tokenizer

    host = options.make_host(args)
    path = options.find_dataset(args.data, host.folders)
    card = host.card()
    tokenizer = make_working_tokenizer(card.tokenizer)
    rules = slicing_rules(settings.text, card, tokenizer)
    for text in read_texts(path, rules.hard_cut, settings=settings.text):
        for note in text.notes:
            say(note)
        sliced = slice_text(str(text.text), tokenizer.encode, rules)
        for block in sliced:
            words = sliced.text_of(block)
            if args.json:
                place = {"file": text.name, "start": block.start, "end": block.end, "text": words}
                kind = {"kind": block.kind, "section": block.section, "ends_section": block.ends_section}
                print(json.dumps({**place, "tokens": block.tokens, **kind}, ensure_ascii=False))
            else:
                ending = ", ends its section" if block.ends_section else ""
                what = f"{block.start}-{block.end}, {block.tokens} tokens, {block.kind}{ending}"
                print(f"--- {text.name} {what}\n{words}")
        figures = build_slice_map(sliced)
        kinds = {
            "block": figures.blocks - figures.windows,
            "overlap block": figures.overlaps,
            "DEMENTOR window": figures.windows,
        }
        blocks = ", ".join(format_count(number, word) for word, number in kinds.items() if number)
        say(
            f"{text.name}: {format_count(figures.parts, 'section')}, {figures.units_text}, "
            f"{format_count(figures.text_tokens, 'token')} -> {blocks or 'no blocks'}; "
            f"{figures.words(figures.trained_tokens)}. {figures.proof}."
        )
    return 0
