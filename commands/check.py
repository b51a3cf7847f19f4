"""`script.py check`: report on the data of a run, without loading any weights."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..core.engine import PreviewQuery
from ..core.errors import SettingsError
from . import options
from .environment import interpreter
from .train import add_settings, settings_and_problems


def run(arguments: Sequence[str]) -> int:
    """Print the report; return 1 if its verdict is 'not ready'."""
    parser = options.make_parser(
        "check", "Check a dataset and settings, and show the same report as the Check button."
    )
    options.add_model(parser)
    parser.add_argument("--show", metavar="N", type=int, help="print N examples as the model will see them")
    parser.add_argument(
        "--from", dest="first", metavar="N", type=int, default=0, help="start at this example (the first is 1)"
    )
    parser.add_argument(
        "--containing",
        "--holding",
        metavar="WORDS",
        default="",
        help="show only examples that contain these words",
    )
    parser.add_argument("--json", action="store_true", help="output one JSON object")
    add_settings(parser)
    args = parser.parse_args(arguments)
    interpreter.ensure_environment({"train"}, torch_spec=args.torch)
    from ..data.report import DatasetReport
    from ..engine.peft_engine import PeftEngine

    host = options.make_host(args)
    shown = args.show if args.show is not None else 1 if args.first or args.containing else 0
    preview = PreviewQuery(max(0, shown), max(0, args.first), args.containing)
    try:
        settings, problems = settings_and_problems(args, host, args.settings)
        report = PeftEngine().check_start(settings, host, show=preview, problems=problems)
    except SettingsError as error:  # a file can't be read
        report = DatasetReport.of_problems(error.problems)
    print(json.dumps(report.as_json(), ensure_ascii=False, indent=2) if args.json else report.text())
    return 1 if report.verdict == "not ready" else 0
