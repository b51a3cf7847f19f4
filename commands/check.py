"""`script.py check`: what a run would learn from, without loading any weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..core.engine import Showing
from ..core.errors import SettingsError
from ..data.report import DatasetReport
from . import options
from .environment import interpreter
from .train import add_settings, settings_from


def run(arguments: Sequence[str]) -> int:
    """Print the report; 1 when the verdict is 'not ready'."""
    asked = _parsed(arguments)
    interpreter.ready({"train"}, torch_spec=asked.torch)
    report = _report(asked)
    print(json.dumps(report.as_json(), ensure_ascii=False, indent=2) if asked.json else report.text())
    return 1 if report.verdict == "not ready" else 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("check", "What a run would learn from: the same report as the Check button.")
    options.add_model(parser)
    parser.add_argument("--show", metavar="N", type=int, help="print N examples as the model will see them")
    parser.add_argument(
        "--from", dest="first", metavar="N", type=int, default=0, help="... from this one on; the first is 1"
    )
    parser.add_argument("--holding", metavar="WORDS", default="", help="... and only those that hold these words")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_settings(parser)
    return parser.parse_args(arguments)


def _report(asked: argparse.Namespace) -> DatasetReport:
    from ..engine.peft_engine import PeftEngine

    host = options.host(asked)
    try:
        settings = settings_from(asked, host, asked.settings)
    except SettingsError as error:
        return DatasetReport(0, 0, 0, 0, 0, 0, 0, problems=error.problems)
    return PeftEngine().check(settings, host, show=_showing(asked))


def _showing(asked: argparse.Namespace) -> Showing:
    """Words or a number to begin from ask for an example, too."""
    some = 1 if asked.first or asked.holding else 0
    return Showing(max(0, some if asked.show is None else asked.show), max(0, asked.first), asked.holding)
