"""`script.py slice`: the blocks of a text, without loading any weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.host import Host
from ..data.dataset_index import LOOKUP_ORDER
from ..settings import flags
from ..settings.definitions import TrainingSettings
from ..settings.parsing import training_settings
from ..train_utils import format_count, format_times_range
from . import options
from .environment import interpreter
from .options import say

if TYPE_CHECKING:
    from ..data.text import SliceMap


def run(arguments: Sequence[str]) -> int:
    """Print the blocks to standard output and a summary to standard error."""
    parser = options.make_parser("slice", "Show how a text is sliced into blocks.")
    parser.add_argument("data", metavar="PATH", help=f"a text or document, or a folder of them: {LOOKUP_ORDER}")
    options.add_model(parser)
    parser.add_argument("--json", action="store_true", help="output one JSON object per block")
    flags.add_flags(parser, ("text",))
    args = parser.parse_args(arguments)
    # Only these settings matter for slicing; a run would also need a name.
    settings = training_settings({"name": "slice", **flags.given_settings(args)})
    interpreter.ensure_environment({"train"}, torch_spec=args.torch)
    host = options.make_host(args)
    path = options.find_dataset(args.data, host.folders)
    for line in _slice_lines(args, path, host, settings):
        print(line)
    return 0


def _slice_lines(args: argparse.Namespace, path: Path, host: Host, settings: TrainingSettings) -> Iterator[str]:
    from ..data.load import read_texts
    from ..data.resolve import slicing_rules
    from ..data.text import Cleaning, build_slice_map, slice_text
    from ..engine.tokenizer import make_working_tokenizer

    card = host.card()
    tokenizer = make_working_tokenizer(card.tokenizer)
    rules = slicing_rules(settings.text, card, tokenizer)
    for text in read_texts(path, rules.hard_cut, cleaning=Cleaning.of(settings.text)):
        for note in text.notes:
            say(note)
        sliced = slice_text(str(text.text), tokenizer.encode, rules)
        for block in sliced:
            place = {"file": text.name, "start": block.start, "end": block.end, "text": sliced.text_of(block)}
            kind = {"kind": block.kind, "section": block.section, "ends_section": block.ends_section}
            ending = ", ends its section" if block.ends_section else ""
            what = f"{text.name} {block.start}-{block.end}, {block.tokens} tokens, {block.kind}{ending}"
            record = {**place, "tokens": block.tokens, **kind}
            yield json.dumps(record, ensure_ascii=False) if args.json else f"--- {what}\n{place['text']}"
        say(_summary(text.name, build_slice_map(sliced)))


def _summary(name: str, figures: SliceMap) -> str:
    counts = ((figures.blocks, "block"), (figures.overlaps, "overlap block"), (figures.windows, "DEMENTOR window"))
    blocks = ", ".join(format_count(number, word) for number, word in counts if number)
    seen = figures.seen
    times = format_times_range(seen.least, seen.most)
    if seen.least != seen.most:
        times += f" ({seen.mean:g} on average)"
    return (
        f"{name}: {format_count(figures.sections, 'section')}, {figures.units_text}, "
        f"{format_count(figures.tokens, 'token')} -> {blocks or 'no blocks'}. "
        f"Blocks consist of {figures.contents}. In each epoch, the model trains on {figures.trained_tokens} "
        f"tokens ({figures.growth:.2f} times the text) and sees each {figures.unit_name} {times}. {figures.proof}."
    )
