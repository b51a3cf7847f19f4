"""How well a text is known, without a LoRA and with each of some: each token counts once, in a sliding window."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import train_utils
from ..core.engine import PerplexityOf
from ..core.errors import DataError, SettingsError, TrainingProError
from ..core.evaluations_table import Row
from ..core.events import Advice, Ended, PerplexityFound, Stage
from ..core.host import Host, ModelCard
from ..core.session import Job
from ..data import library, row_sets, texts
from ..data.examples import Example
from .adapter import loaded_onto, lora_folder, take_out, without_loras
from .measuring import Pass, Sums, measuring
from .ready import card_of
from .stretches import Numbers, Stretches
from .tokenizer import working_tokenizer
from .trial import Ways, usual_loss

if TYPE_CHECKING:
    from ..data.examples import Source

LONGEST = 2048
WITHOUT = "-"
TELLS = 10
"""How often the progress of a text is told."""


@dataclass(frozen=True)
class Windows:
    """The windows over a text, their sizes, and of each of their tokens the stretch that it is in."""

    examples: tuple[Example, ...]
    places: tuple[Numbers, ...]
    stretches: Stretches
    stride: int
    max_length: int


def perplexity(asked: PerplexityOf, host: Host, job: Job) -> Ended:
    """Each LoRA alone, one after the other; everything as it was afterwards."""
    folders = [(name, lora_folder(name, host)) for name in asked.loras]
    path, card = _text_of(asked.data, host), card_of(host)
    windows = _windows(path, asked, card)
    found: list[PerplexityFound] = []
    with without_loras(host) as (base, _):
        for name, folder in [(WITHOUT, None)] * asked.without + folders:
            if job.control.stopping:
                break
            job.log.append(Stage(text=f"Perplexity of {path.name} {_with(name)}"))
            with _wearing(base, folder, name) as model:
                result = _found(model, windows, name, path.name, card, job)
            if result is not None:
                found.append(result)
                _told(result, asked.comment, host, job)
    lines = [f"{one.dataset} {_with(one.lora)}: perplexity {one.perplexity:.4f}" for one in found]
    return Ended(outcome="stopped" if job.control.stopping else "finished", text="\n".join(lines))


def _text_of(data: str, host: Host) -> Path:
    """A text by its name among the data sets, or by its path."""
    if not data.strip():
        raise DataError("No text is chosen. Choose one, or press Add files.")
    path = library.located(data, host.folders)
    if path.is_file() and row_sets.is_rows(path):
        raise DataError(f"{path.name} has rows; perplexity is worked out of texts ({', '.join(library.TEXTS)}).")
    return path


def _windows(path: Path, asked: PerplexityOf, card: ModelCard) -> Windows:
    """With a start token in front of each, where the tokenizer puts one."""
    length = asked.max_length or min(card.context or LONGEST, LONGEST)
    stride = asked.stride or max(1, length // 2)
    if problems := list(_problems(length, stride, card)):
        raise SettingsError(problems)
    tokenizer = working_tokenizer(card.tokenizer)
    written = [text.text for text in texts.read(path)]
    stretches = Stretches(written, tokenizer.encode(written))
    found = [
        (window, _places(window, numbers, tokenizer.bos))
        for one, numbers in zip(stretches.encoded, stretches.of_tokens, strict=True)
        for window in _over(one.ids, tokenizer.bos, length, stride)
    ]
    if not found:
        raise DataError(f"{path.name} is too short: a text of at least two tokens is needed.")
    examples, places = zip(*found, strict=True)
    return Windows(examples, places, stretches, stride, length)


def _places(window: Example, numbers: Numbers, bos: int | None) -> Numbers:
    """Of a window's tokens the stretches; a start token is never predicted, so that any will do for it."""
    first = window.number - (bos is not None)
    places: Numbers = numbers[np.arange(first, first + len(window.ids)).clip(0)]
    return places


def _problems(length: int, stride: int, card: ModelCard) -> Iterator[str]:
    if length < 2:
        yield f"Longest window: {length} is too short. Use 2 or more, or 0 for what the model takes."
    if card.context and length > card.context:
        yield f"Longest window: {length} is more than {card.name} takes ({card.context} tokens). Use that or less."
    if not 0 < stride <= max(length - 1, 1):
        yield f"Stride: {stride} would leave tokens out, or count some twice. Use 1 to {max(length - 1, 1)}."


def _over(ids: np.ndarray[Any, Any], bos: int | None, length: int, stride: int) -> Iterator[Example]:
    """In each window those tokens count that none before it has counted; nothing predicts a very first one."""
    head = np.array([] if bos is None else [bos], ids.dtype)
    room = length - len(head)
    counted, start = 0, 0
    while counted < len(ids):
        end = min(start + room, len(ids))
        window = np.concatenate([head, ids[start:end]])
        flags = np.arange(start - len(head), end) >= counted
        if len(window) > 1:
            yield Example(window, flags, cast("Source", None), start)  # out of no data set
        counted, start = end, start + stride


@contextmanager
def _wearing(base: Any, folder: Path | None, name: str) -> Iterator[Any]:
    """The model with a LoRA on, or bare."""
    if folder is None:
        yield base
        return
    try:
        yield loaded_onto(base, folder, name)
    finally:
        take_out(base)


def _found(
    model: Any, windows: Windows, name: str, dataset: str, card: ModelCard, job: Job
) -> PerplexityFound | None:
    """None where the user does not want to wait for it."""
    began, sums = time.monotonic(), Sums.none(windows.stretches.count)
    with measuring(model):
        passing = Pass(model, Ways(usual_loss(model), packed=False), 1, lambda: job.control.stopping)
        for share, part in _parts(len(windows.examples)):
            added = passing.sums(windows.examples[part], windows.places[part], windows.stretches.count)
            if added is None:
                return None
            for total, more in zip(sums, added, strict=True):
                total += more
            job.log.append(Stage(text=f"Perplexity of {dataset} {_with(name)}", share=share))
    return PerplexityFound(
        model=card.name,
        lora=name,
        dataset=dataset,
        perplexity=train_utils.perplexity(sums.loss),
        loss=sums.loss,
        tokens=int(sums.tokens.sum()),
        stride=windows.stride,
        max_length=windows.max_length,
        seconds=time.monotonic() - began,
        right=float(sums.hits.sum() / sums.tokens.sum()),
        stretches=windows.stretches.told(sums),
    )


def _parts(count: int) -> Iterator[tuple[float, slice]]:
    """Which of so many come next, and how much is done with them."""
    size = -(-count // TELLS)
    for start in range(0, count, size):
        yield min(1.0, (start + size) / count), slice(start, start + size)


def _told(found: PerplexityFound, comment: str, host: Host, job: Job) -> None:
    """Into the log and the table; a table that cannot be written takes nothing of what was found."""
    job.log.append(found)
    date = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    row = Row(
        found.model, found.lora, found.dataset, found.perplexity, found.stride, found.max_length, date, comment
    )
    try:
        host.note_evaluation(row)
    except (TrainingProError, OSError) as error:
        job.log.append(Advice(text=f"Not in the table of evaluations: {error}"))


def _with(name: str) -> str:
    return "without a LoRA" if name == WITHOUT else f"with {name}"
