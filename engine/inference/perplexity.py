"""Perplexity of a dataset, with and without LoRAs: of texts in sliding windows, or of each row."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

from ... import train_utils
from ...core.engine import PerplexityRequest
from ...core.errors import DataError, SettingsError, TrainingProError
from ...core.evaluations_table import EvaluationRow
from ...core.host import Host, ModelCard, get_model_card
from ...core.jobs import Advice, Job, JobEnded, Note, PerplexityMeasured, Request, Stage
from ...data import dataset_index
from ...data.arrow_store import Store
from ...data.dataset_index import DatasetEntry
from ...data.load import PrepareContext, load_dataset
from ...settings.definitions import TrainingSettings
from ..compute import ModelCapabilities, probe_model, use_packed_attention
from ..lora import loaded_lora, lora_folder, without_loras
from ..tokenizer import make_working_tokenizer
from .eval_loop import BatchLimit, EvalLoop, GroupSums, ProgressFn, evaluation_context
from .perplexity_input import PerplexityInput, window_input
from .row_perplexity import row_input

MAX_LENGTH = 2048
BATCH_LIMIT = BatchLimit(tokens=2048)
"""A single window may have more."""
NO_LORA = "-"
PROGRESS_PARTS = 10
"""Most progress events per pass."""


def measure_perplexity(request: PerplexityRequest, settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
    """Measure a dataset with each LoRA in turn, and restore the model."""
    folders = [(str(lora), lora_folder(lora, host)) for lora in request.loras]
    dataset, card = _find_dataset(request.data, host), get_model_card(host)
    inputs = _load_input(dataset, request, _load_context(settings, host, card, job))
    for note in inputs.notes:
        job.log.append(Note(text=note))
    results: list[PerplexityMeasured] = []
    with without_loras(host) as (base, _), use_packed_attention(base):
        for name, folder in [(NO_LORA, None)] * request.include_base + folders:
            if job.control.asked(Request.STOP):
                break
            started = time.monotonic()
            with loaded_lora(base, folder, name) as model:
                capabilities = probe_model(model, settings)
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
                    PerplexityMeasured(model=card.name, lora=name, seconds=time.monotonic() - started, **figures)
                )
                _log_result(results[-1], request.comment, host, job)
    lines = [
        f"{result.dataset} {_lora_phrase(result.lora)}: perplexity {result.perplexity:.4f}" for result in results
    ]
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="\n".join(lines))


def _find_dataset(name: str, host: Host) -> DatasetEntry:
    """Look a dataset up by its name or its path."""
    if not name.strip():
        raise DataError("No dataset is chosen. Choose one, then measure again.")
    path = dataset_index.locate_dataset(name, host.folders)
    return DatasetEntry(path.name + "/" * path.is_dir(), path)


def _load_context(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> PrepareContext:
    """Return the context for loading data, the same as for a run."""
    tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())

    def say(text: str, share: float | None) -> None:
        job.log.append(Stage(text=text, share=share))

    return PrepareContext(settings, host.folders, card, tokenizer, say, store=Store(host.folders.prepared_data))


def _load_input(dataset: DatasetEntry, request: PerplexityRequest, context: PrepareContext) -> PerplexityInput:
    """Load a dataset as windows over its texts, or as its rows."""
    max_length = request.max_length or min(context.card.context or MAX_LENGTH, MAX_LENGTH)
    if problems := list(_problems(max_length, context.card)):
        raise SettingsError(problems)
    loaded = load_dataset(context, dataset)
    if loaded.texts and loaded.rows:
        raise DataError(
            f"{dataset.name} contains both text and rows, which are measured differently. Choose one of its files."
        )
    if not loaded.rows:
        return window_input(dataset.path.name, loaded.texts, context.tokenizer, max_length, request.stride)
    if request.stride:
        raise SettingsError(
            [f"Stride: {dataset.name} has rows, and each row is measured as a whole. Set Stride to 0."]
        )
    return row_input(dataset.path.name, loaded.rows, context, max_length)


def _problems(length: int, card: ModelCard) -> Iterator[str]:
    if length < 2:
        yield (
            f"Window length: {length} is too short. Use 2 tokens or more, or 0 for the model's context (up to "
            f"{MAX_LENGTH} tokens)."
        )
    if card.context and length > card.context:
        yield (f"Window length: {length} is more than {card.name} supports. Use {card.context} tokens or fewer.")


def _sums(
    model: Any, capabilities: ModelCapabilities, inputs: PerplexityInput, text: str, job: Job
) -> GroupSums | None:
    """Run the evaluation; None if the user stopped it."""
    report = _progress_logger(text, job)
    with evaluation_context(model):
        eval_loop = EvalLoop(model, capabilities, BATCH_LIMIT, lambda: job.control.asked(Request.STOP))
        return eval_loop.sums(inputs.examples, inputs.groups, inputs.count, report)


def _figures(sums: GroupSums, inputs: PerplexityInput) -> dict[str, Any]:
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


def _progress_logger(text: str, job: Job) -> ProgressFn:
    """Return a function that logs the progress a few times."""
    reported = 0

    def tell(share: float) -> None:
        nonlocal reported
        if (part := int(share * PROGRESS_PARTS)) > reported:
            reported = part
            job.log.append(Stage(text=text, share=share))

    job.log.append(Stage(text=text))
    return tell


def _log_result(result: PerplexityMeasured, comment: str, host: Host, job: Job) -> None:
    """Add a result to the log and to the table of evaluations; a table that cannot be written is only logged."""
    job.log.append(result)
    date = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    row = EvaluationRow(
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
        host.add_evaluation(row)
    except (TrainingProError, OSError) as error:
        job.log.append(Advice(text=f"The result could not be saved in the evaluations table: {error}"))


def _lora_phrase(name: str) -> str:
    return "without a LoRA" if name == NO_LORA else f"with the LoRA {name}"
