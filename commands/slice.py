"""`script.py slice`: how a text is cut into blocks, without loading any weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..chunking import Block
from ..core.host import Host
from ..data import texts
from ..data.dataset_index import LOOKED_FOR
from ..data.prepare import cutting
from ..data.text import SliceMap, build_slice_map, slices, unit_said, units_said
from ..settings import flags
from ..settings.definitions import TrainingSettings
from ..settings.parsing import training_settings
from ..train_utils import several
from . import options
from .environment import interpreter
from .options import say


def run(arguments: Sequence[str]) -> int:
    """Print the blocks, and a summary on standard error."""
    asked = _parsed(arguments)
    # A text is cut by these settings alone; the name and the data are what a run would need besides.
    settings = training_settings({"name": "slice", "data": ["-"], **flags.given(asked)})
    interpreter.ready({"train"}, torch_spec=asked.torch)
    host = options.host(asked)
    path = options.located(asked.path, host.folders)
    for line in _lines(asked, path, host, settings):
        print(line)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("slice", "How a text is cut into blocks.")
    parser.add_argument("path", metavar="PATH", help=f"a text or document, or a folder of them: {LOOKED_FOR}")
    options.add_model(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a block")
    flags.add_to(parser, ("text",))
    return parser.parse_args(arguments)


def _lines(asked: argparse.Namespace, path: Path, host: Host, settings: TrainingSettings) -> Iterator[str]:
    from ..engine.tokenizer import working_tokenizer

    card = host.card()
    tokenizer = working_tokenizer(card.tokenizer)
    rules = cutting(settings.text, card, tokenizer)
    for text in texts.read(path, rules.hard_cut):
        for note in text.notes:
            say(note)
        sliced = slices(text.text, tokenizer.encode, rules)
        for block in sliced:
            row = _row(text.name, sliced.text_of(block), block)
            yield json.dumps(row, ensure_ascii=False) if asked.json else _told(row)
        say(_summary(text.name, build_slice_map(sliced)))


def _row(file: str, text: str, block: Block) -> dict[str, object]:
    return {
        "file": file,
        "start": block.start,
        "end": block.end,
        "text": text,
        "tokens": block.tokens,
        "kind": block.kind,
        "section": block.section,
        "ends_section": block.ends_section,
    }


def _told(block: dict[str, object]) -> str:
    ending = ", ends its part" if block["ends_section"] else ""
    head = (
        f"--- {block['file']} {block['start']}-{block['end']}, {block['tokens']} tokens, {block['kind']}{ending}"
    )
    return f"{head}\n{block['text']}"


def _summary(name: str, found: SliceMap) -> str:
    counts = ((found.blocks, "block"), (found.overlaps, "overlap block"), (found.windows, "DEMENTOR window"))
    cut = ", ".join(several(number, word) for number, word in counts if number)
    unit, made_of = unit_said(found.sentences, found.lines), units_said(found.sentences, found.lines)
    seen = f"each {unit} seen {found.seen.least} to {found.seen.most} times, {found.seen.mean:g} on average"
    return (
        f"{name}: {several(found.sections, 'part')}, {made_of}, {several(found.tokens, 'token')} -> "
        f"{cut or 'no block'}, ending at {found.ends}; {found.trained_tokens} tokens trained a pass "
        f"({found.growth:.2f} times the text), {seen}; {found.proof}"
    )
