"""Prepare data for Check and for training: from settings and a tokenizer to examples and their report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..chunking import SlicingRules
from ..core import dist_env
from ..core.engine import NO_PREVIEW, PreviewQuery
from ..core.errors import DataError, StoppedError, TrainingProError
from ..core.findings import Finding, Suggestion, merge_suggestions, texts
from ..core.host import DeviceMemory, Folders, ModelCard
from ..settings.definitions import TrainingSettings
from ..settings.rules import check_settings, unused_settings
from ..train_utils import StepPlan
from .arrow_store import Store
from .build_examples import PreparedDataset, prepare_dataset, prepare_validation_dataset
from .examples import Examples, RowSource, pick_passages
from .load import LoadedDataset, PrepareContext, ProgressFn, load_datasets
from .readers import reader_process
from .report import (
    DatasetReport,
    DiskEstimate,
    MemoryModel,
    RunFacts,
    check_examples,
    check_model,
    check_plan,
    count_evaluations,
    count_learned_stops,
    count_sample_rounds,
    estimate_disk,
    preview_examples,
    report_examples,
    suggest_for_data,
    suggest_settings,
    uses_checkpointing,
)
from .resolve import ResolvedSettings, check_rules, longest_row, slicing_rules, suggest_cutoff
from .rows import Tokenizer


@dataclass(frozen=True)
class TrainingData:
    """The training and validation examples of a run, its steps, what was resolved, and Check's report.

    `unused` names the settings that ask for something and have no effect; they are among the findings, too.
    """

    examples: Examples
    validation: Examples
    plan: StepPlan
    resolved: ResolvedSettings
    report: DatasetReport
    unused: tuple[Finding, ...] = ()


def prepare(
    settings: TrainingSettings,
    folders: Folders,
    card: ModelCard,
    tokenizer: Tokenizer,
    say: ProgressFn,
    machine: DeviceMemory | None = None,
    *,
    keep: bool = True,
    is_stopped: Callable[[], bool] = lambda: False,
    processes: int = 0,  # that slice large texts; 0: one for each core
) -> TrainingData:
    """Load, split, slice or truncate, and report; stored results are reused. Raises TrainingProError."""
    store, check_stop = Store(folders.prepared_data if keep else None), partial(_check_stop, is_stopped)
    context = PrepareContext(
        settings, folders, card, tokenizer, _say_until_stopped(say, check_stop), store, check_stop, processes
    )
    with reader_process(is_stopped):
        loaded = load_datasets(context, settings.what.data)
        loaded_aside = load_datasets(context, settings.aside.eval_data)
    rules = slicing_rules(settings.text, card, tokenizer, loaded)
    learned = (prepared for dataset in loaded for prepared in prepare_dataset(context, dataset, rules))
    data = PreparedDataset.join([*learned, *(prepare_validation_dataset(context, d, rules) for d in loaded_aside)])
    examples, validation = data.training.examples, data.validation.examples
    if not len(examples):
        raise DataError("\n".join(texts(_findings(context, rules, data), "problem")) or _nothing_left(settings))
    plan = _step_plan(settings, len(examples))
    memory = MemoryModel.of(card, examples, machine)
    checkpointing, alpha = uses_checkpointing(memory, settings), settings.lora.effective_alpha
    resolved = ResolvedSettings(rules.cutoff, plan.effective_accumulation, checkpointing, alpha)
    disk = estimate_disk(settings, card, plan, _output_folder(context), machine)
    kinds = {"rows" if isinstance(source, RowSource) else "text" for source in data.training.sources}
    on_cpu = machine is not None and machine.device.lower().startswith("cpu")
    unused = tuple(unused_settings(settings.values(), kinds, on_cpu=on_cpu))
    report = replace(
        report_examples(examples, validation, settings.steps.batch_size, settings.what.order_seed),
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        evaluations=count_evaluations(settings, plan, validation),
        sample_rounds=count_sample_rounds(settings, plan),
        recall_tokens=_recall_tokens(settings, examples, validation, tokenizer),
        sources=data.reports,
        findings=(*_findings(context, rules, data), *_plan_findings(context, data, plan, disk), *unused),
        resolved=resolved,
        suggestions=_suggestions(context, rules, loaded, data, plan, memory),
        memory=memory.estimate(settings, checkpointing=resolved.gradient_checkpointing) if memory else None,
        disk=disk,
        stops=count_learned_stops(data.training.sources, tokenizer.stops),
        tokens_known=_special_tokens(tokenizer),
    )
    return TrainingData(examples, validation, plan, resolved, report, unused)


def _check_stop(is_stopped: Callable[[], bool]) -> None:
    """End the work once the user stopped it."""
    if is_stopped():
        raise StoppedError("Stopped while preparing the data. Nothing was trained.")


def _say_until_stopped(say: ProgressFn, check_stop: Callable[[], None]) -> ProgressFn:
    """Report progress, and end the work there once the user stopped it."""

    def say_or_stop(text: str, share: float | None) -> None:
        check_stop()
        say(text, share)

    return say_or_stop


def _output_folder(context: PrepareContext) -> Path:
    return context.folders.output_folder(full_finetune=context.settings.lora.whole_model)


def check_datasets(
    settings: TrainingSettings,
    folders: Folders,
    card: ModelCard,
    tokenizer: Tokenizer,
    say: ProgressFn,
    *,
    show: PreviewQuery = NO_PREVIEW,
    machine: DeviceMemory | None = None,
    keep: bool = True,
) -> DatasetReport:
    """The report of Check; where nothing could be prepared, its problems say why."""
    try:
        data = prepare(settings, folders, card, tokenizer, say, machine, keep=keep)
    except TrainingProError as error:
        return DatasetReport.of_problems(str(error).splitlines())
    return replace(data.report, shown=preview_examples(data.examples, show, tokenizer.decode, tokenizer.stops))


def _recall_tokens(
    settings: TrainingSettings, examples: Examples, validation: Examples, tokenizer: Tokenizer
) -> int:
    count, bos = settings.aside.recall_passages, tokenizer.bos
    learned = pick_passages(examples, count, bos)
    passages = [*learned, *pick_passages(validation, count, bos)] if learned else []
    return sum(len(passage.example.ids) for passage in passages)


def _step_plan(settings: TrainingSettings, examples: int) -> StepPlan:
    steps = settings.steps
    sizes = (steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    return StepPlan(examples, *sizes, dist_env.world_size())


def _findings(context: PrepareContext, rules: SlicingRules, data: PreparedDataset) -> Iterator[Finding]:
    """Yield what is known of data and model without any example."""
    yield from data.findings
    yield from check_model(context.card)
    yield from check_rules(context.settings, context.card, rules)


def _plan_findings(
    context: PrepareContext, data: PreparedDataset, plan: StepPlan, disk: DiskEstimate | None
) -> Iterator[Finding]:
    """Yield what is known of disk, settings, steps and examples."""
    learned, aside = data.training, data.validation
    yield from disk.findings() if disk else ()
    yield from check_settings(context.settings)
    yield from check_plan(context.settings, plan, learned.examples, aside.examples, context.card.context)
    stops = context.tokenizer.stops
    yield from check_examples(learned.sources, aside.sources, learned.texts, aside.texts, stops)


def _suggestions(
    context: PrepareContext,
    rules: SlicingRules,
    loaded: Sequence[LoadedDataset],
    data: PreparedDataset,
    plan: StepPlan,
    memory: MemoryModel | None,
) -> tuple[Suggestion, ...]:
    trained_tokens = sum(data.training.examples.learned())
    return merge_suggestions(
        suggest_cutoff(context.settings.text, rules, context.card, longest_row(loaded)),
        *suggest_settings(RunFacts(context.settings, plan, memory, trained_tokens)),
        *suggest_for_data(data.training.sources, [text for dataset in loaded for text in dataset.texts]),
    )


def _nothing_left(settings: TrainingSettings) -> str:
    if marker := settings.rows.train_only_after:
        reason = f"No row contains {marker!r} followed by text. Change 'Train only after'."
    elif settings.text.min_chars:
        reason = "Lower 'Ignore small blocks', or choose another dataset."
    else:
        reason = "Raise the cutoff, change 'Train on', or choose another dataset."
    return f"Dataset: there is nothing left to train on. {reason}"


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """BOS and EOS in words; padding is masked."""
    bos = "not added" if tokenizer.bos is None else tokenizer.decode([tokenizer.bos])
    eos = "none" if tokenizer.eos is None else tokenizer.decode([tokenizer.eos])
    return {"BOS": bos, "EOS": eos, "padding": "masked"}
