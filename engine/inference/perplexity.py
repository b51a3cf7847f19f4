"""How well a data set is known, without a LoRA and with each of some: a text in windows, or each of its rows."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ... import train_utils
from ...core.engine import PerplexityOf
from ...core.errors import DataError, SettingsError, TrainingProError
from ...core.evaluations_table import Row
from ...core.host import Host, ModelCard, card_of
from ...core.jobs import Advice, Ended, Job, Note, PerplexityFound, Stage
from ...data import arrow_store, dataset_index
from ...data.dataset_index import DataSet
from ...data.load import Work, opened_set
from ...settings.definitions import TrainingSettings
from ..compute import Ways, text_by_text, tried
from ..lora import loaded_onto, lora_folder, take_out, without_loras
from ..tokenizer import working_tokenizer
from .eval_loop import AtOnce, Pass, Sums, Told, measuring
from .perplexity_input import Material
from .row_perplexity import known_rows
from .sliding_windows import windows

LONGEST = 2048
AT_ONCE = AtOnce(tokens=2048)
"""One window that has more goes alone."""
WITHOUT = "-"
TELLS = 10
"""How often the progress is told at most."""


def perplexity(asked: PerplexityOf, settings: TrainingSettings, host: Host, job: Job) -> Ended:
    """Each LoRA alone, one after the other; everything as it was afterwards."""
    folders = [(str(lora), lora_folder(lora, host)) for lora in asked.loras]
    data, card = _data_of(asked.data, host), card_of(host)
    material = _material(data, asked, _work(settings, host, card, job))
    for note in material.notes:
        job.log.append(Note(text=note))
    found: list[PerplexityFound] = []
    with without_loras(host) as (base, _), text_by_text(base):
        for name, folder in [(WITHOUT, None)] * asked.without + folders:
            if job.control.stopping:
                break
            began = time.monotonic()
            with _wearing(base, folder, name) as model:
                ways = tried(model, settings)
                sums = _sums(model, ways, material, f"Perplexity of {material.name} {_with(name)}", job)
            if sums is not None:
                figures = _figures(sums, material)
                found.append(
                    PerplexityFound(model=card.name, lora=name, seconds=time.monotonic() - began, **figures)
                )
                _told(found[-1], asked.comment, host, job)
    lines = [f"{one.dataset} {_with(one.lora)}: perplexity {one.perplexity:.4f}" for one in found]
    return Ended(outcome="stopped" if job.control.stopping else "finished", text="\n".join(lines))


def _data_of(asked: str, host: Host) -> DataSet:
    """By its name among the data sets, or by its path."""
    if not asked.strip():
        raise DataError("No data are chosen. Choose a text or rows, or press Add files.")
    path = dataset_index.located(asked, host.folders)
    return DataSet(path.name + "/" * path.is_dir(), path)


def _work(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> Work:
    """What reading takes, the same as for a run."""
    tokenizer = working_tokenizer(card.tokenizer, host.chat_template())

    def say(text: str, share: float | None) -> None:
        job.log.append(Stage(text=text, share=share))

    return Work(settings, host.folders, card, tokenizer, say, store=arrow_store.store(host.folders))


def _material(data: DataSet, asked: PerplexityOf, work: Work) -> Material:
    """The texts of a data set in windows, or its rows."""
    length = asked.max_length or min(work.card.context or LONGEST, LONGEST)
    if problems := list(_problems(length, work.card)):
        raise SettingsError(problems)
    opened = opened_set(work, data)
    if opened.texts and opened.rows:
        raise DataError(f"{data.name} holds texts and rows, which are not measured alike. Name one of its files.")
    if not opened.rows:
        return windows(data.path.name, opened.texts, work.tokenizer, length, asked.stride)
    if asked.stride:
        raise SettingsError([f"Stride: {data.name} has rows, each of which is measured whole. Leave it at 0."])
    return known_rows(data.path.name, opened.rows, work, length)


def _problems(length: int, card: ModelCard) -> Iterator[str]:
    if length < 2:
        yield f"Longest window: {length} is too short. Use 2 or more, or 0 for what the model takes."
    if card.context and length > card.context:
        yield f"Longest window: {length} is more than {card.name} takes ({card.context} tokens). Use that or less."


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


def _sums(model: Any, ways: Ways, material: Material, text: str, job: Job) -> Sums | None:
    """None where the user does not want to wait for them."""
    told = _telling(text, job)
    with measuring(model):
        passing = Pass(model, ways, AT_ONCE, lambda: job.control.stopping)
        return passing.sums(material.examples, material.groups, material.count, told)


def _figures(sums: Sums, material: Material) -> dict[str, Any]:
    known = material.told(sums)
    return {
        "dataset": material.name,
        "perplexity": train_utils.perplexity(sums.loss),
        "loss": sums.loss,
        "tokens": int(sums.tokens.sum()),
        "stride": material.stride,
        "max_length": material.max_length,
        "right": float(sums.hits.sum() / sums.tokens.sum()),
        **known._asdict(),
    }


def _telling(text: str, job: Job) -> Told:
    """Tells how much is done, a few times."""
    told = 0

    def tell(share: float) -> None:
        nonlocal told
        if (tenth := int(share * TELLS)) > told:
            told = tenth
            job.log.append(Stage(text=text, share=share))

    job.log.append(Stage(text=text))
    return tell


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
