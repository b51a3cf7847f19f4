"""Perplexity of a dataset, with and without LoRAs: of texts in sliding windows, or of each row."""

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
"""A single window may have more."""
WITHOUT = "-"
TELLS = 10
"""Most progress events per pass."""


def perplexity(request: PerplexityOf, settings: TrainingSettings, host: Host, job: Job) -> Ended:
    """Measure a dataset with each LoRA in turn, and restore the model."""
    folders = [(str(lora), lora_folder(lora, host)) for lora in request.loras]
    dataset, card = _find_dataset(request.data, host), card_of(host)
    inputs = _load_input(dataset, request, _load_context(settings, host, card, job))
    for note in inputs.notes:
        job.log.append(Note(text=note))
    results: list[PerplexityFound] = []
    with without_loras(host) as (base, _), text_by_text(base):
        for name, folder in [(WITHOUT, None)] * request.without + folders:
            if job.control.stopping:
                break
            started = time.monotonic()
            with _with_lora(base, folder, name) as model:
                capabilities = tried(model, settings)
                sums = _sums(
                    model,
                    capabilities,
                    inputs,
                    f"Perplexity of {inputs.name} {_lora_phrase(name)}",
                    job,
                )
            if sums is not None:
                figures = _figures(sums, inputs)
                results.append(
                    PerplexityFound(model=card.name, lora=name, seconds=time.monotonic() - started, **figures)
                )
                _log_result(results[-1], request.comment, host, job)
    lines = [
        f"{result.dataset} {_lora_phrase(result.lora)}: perplexity {result.perplexity:.4f}" for result in results
    ]
    return Ended(outcome="stopped" if job.control.stopping else "finished", text="\n".join(lines))


def _find_dataset(name: str, host: Host) -> DataSet:
    """Look a dataset up by its name or its path."""
    if not name.strip():
        raise DataError("No data are chosen. Choose a text or rows, or press Add files.")
    path = dataset_index.located(name, host.folders)
    return DataSet(path.name + "/" * path.is_dir(), path)


def _load_context(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> Work:
    """Return the context for loading data, the same as for a run."""
    tokenizer = working_tokenizer(card.tokenizer, host.chat_template())

    def say(text: str, share: float | None) -> None:
        job.log.append(Stage(text=text, share=share))

    return Work(settings, host.folders, card, tokenizer, say, store=arrow_store.store(host.folders))


def _load_input(dataset: DataSet, request: PerplexityOf, context: Work) -> Material:
    """Load a dataset as windows over its texts, or as its rows."""
    max_length = request.max_length or min(context.card.context or LONGEST, LONGEST)
    if problems := list(_problems(max_length, context.card)):
        raise SettingsError(problems)
    loaded = opened_set(context, dataset)
    if loaded.texts and loaded.rows:
        raise DataError(
            f"{dataset.name} holds texts and rows, which are not measured alike. Name one of its files."
        )
    if not loaded.rows:
        return windows(dataset.path.name, loaded.texts, context.tokenizer, max_length, request.stride)
    if request.stride:
        raise SettingsError([f"Stride: {dataset.name} has rows, each of which is measured whole. Leave it at 0."])
    return known_rows(dataset.path.name, loaded.rows, context, max_length)


def _problems(length: int, card: ModelCard) -> Iterator[str]:
    if length < 2:
        yield f"Longest window: {length} is too short. Use 2 or more, or 0 for what the model takes."
    if card.context and length > card.context:
        yield f"Longest window: {length} is more than {card.name} takes ({card.context} tokens). Use that or less."


@contextmanager
def _with_lora(base: Any, folder: Path | None, name: str) -> Iterator[Any]:
    """Load a LoRA onto the model within this context, or none."""
    if folder is None:
        yield base
        return
    try:
        yield loaded_onto(base, folder, name)
    finally:
        take_out(base)


def _sums(model: Any, capabilities: Ways, inputs: Material, text: str, job: Job) -> Sums | None:
    """Run the evaluation; None if the user stopped it."""
    report = _progress_logger(text, job)
    with measuring(model):
        eval_loop = Pass(model, capabilities, AT_ONCE, lambda: job.control.stopping)
        return eval_loop.sums(inputs.examples, inputs.groups, inputs.count, report)


def _figures(sums: Sums, inputs: Material) -> dict[str, Any]:
    scores = inputs.score(sums)
    return {
        "dataset": inputs.name,
        "perplexity": train_utils.perplexity(sums.loss),
        "loss": sums.loss,
        "tokens": int(sums.tokens.sum()),
        "stride": inputs.stride,
        "max_length": inputs.max_length,
        "right": float(sums.hits.sum() / sums.tokens.sum()),
        **scores._asdict(),
    }


def _progress_logger(text: str, job: Job) -> Told:
    """Return a function that logs the progress a few times."""
    reported = 0

    def tell(share: float) -> None:
        nonlocal reported
        if (part := int(share * TELLS)) > reported:
            reported = part
            job.log.append(Stage(text=text, share=share))

    job.log.append(Stage(text=text))
    return tell


def _log_result(result: PerplexityFound, comment: str, host: Host, job: Job) -> None:
    """Add a result to the log and to the table of evaluations; a table that cannot be written is only logged."""
    job.log.append(result)
    date = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    row = Row(
        result.model,
        result.lora,
        result.dataset,
        result.perplexity,
        result.stride,
        result.max_length,
        date,
        comment,
    )
    try:
        host.note_evaluation(row)
    except (TrainingProError, OSError) as error:
        job.log.append(Advice(text=f"Not in the table of evaluations: {error}"))


def _lora_phrase(name: str) -> str:
    return "without a LoRA" if name == WITHOUT else f"with {name}"
