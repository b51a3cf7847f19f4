"""Prepare data for Check and for training: from settings and a tokenizer to examples and their report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ..chunking import BlockEnds, SlicingRules, unescape_hard_cut
from ..core import dist_env
from ..core.engine import NO_PREVIEW, PreviewQuery
from ..core.errors import DataError, TrainingProError
from ..core.host import DeviceMemory, Folders, ModelCard
from ..settings import rules
from ..settings.definitions import TextSettings, TrainingSettings
from ..train_utils import StepPlan, format_count, plural
from . import arrow_store
from .arrow_store import Store
from .build_examples import PreparedData, add_dataset, add_validation_dataset
from .examples import NGRAM_WORDS, Examples, TextSource, count_shared_rows, find_shared_passages
from .load import AUTO_CUTOFF, PrepareContext, ProgressFn, Tokenizer, load_datasets, resolve_cutoff
from .report import (
    DatasetReport,
    DiskEstimate,
    MemoryModel,
    count_learned_stops,
    estimate_disk,
    padding_shares,
    plan_checks,
    preview_examples,
    report_stats,
    stop_token_advice,
    suggest_hard_cuts,
    suggest_settings,
)


@dataclass(frozen=True)
class TrainingData:
    """The training examples, the validation examples, the step plan, and Check's report."""

    examples: Examples
    report: DatasetReport
    plan: StepPlan
    validation: Examples


def prepare(
    settings: TrainingSettings,
    folders: Folders,
    card: ModelCard,
    tokenizer: Tokenizer,
    say: ProgressFn,
    machine: DeviceMemory | None = None,
    *,
    keep: bool = True,
) -> TrainingData:
    """Load, slice, encode and count, or reuse stored results; DataError or SettingsError where that fails."""
    store = arrow_store.open_store(folders) if keep else Store()
    context = PrepareContext(settings, folders, card, tokenizer, say, machine, store)
    datasets, validation_datasets = (
        load_datasets(context, settings.what.data),
        load_datasets(context, settings.aside.eval_data),
    )
    slicing = slicing_rules(settings.text, card, tokenizer, resolve_cutoff(context, datasets))
    prepared = PreparedData()
    for dataset in datasets:
        add_dataset(prepared, context, dataset, slicing)
    for dataset in validation_datasets:
        add_validation_dataset(prepared, context, dataset, slicing)
    prepared.problems.extend([*_not_causal_problem(card), *_problems(card, slicing)])
    examples = prepared.training.examples
    plan = _step_plan(settings, len(examples), prepared.problems)
    return TrainingData(
        examples, _report(context, slicing, plan, examples, prepared), plan, prepared.validation.examples
    )


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
        return DatasetReport(0, 0, 0, 0, 0, 0, 0, problems=tuple(str(error).splitlines()))
    return replace(data.report, shown=preview_examples(data.examples, show, tokenizer.decode, tokenizer.stops))


def slicing_rules(text: TextSettings, card: ModelCard, tokenizer: Tokenizer, resolved: int = 0) -> SlicingRules:
    """The rules for slicing raw text; `resolved` is the cutoff where it depends on all of the data."""
    cutoff = resolved or (AUTO_CUTOFF if text.cutoff == "auto" else int(text.cutoff))
    if text.cutoff == "auto" and card.context:
        cutoff = min(cutoff, card.context)
    return SlicingRules(
        cutoff=cutoff,
        chunking=cast(Literal["blocks", "dementor"], text.chunking),
        overlap=text.overlap,
        dementor_repeats=text.dementor_repeats,
        hard_cut=unescape_hard_cut(text.hard_cut),
        min_chars=text.min_chars,
        bos=tokenizer.bos if text.add_bos else None,
        eos=tokenizer.eos,
        add_eos=cast(Literal["hard_cut", "every_block", "never"], text.add_eos),
        block_ends=cast(BlockEnds, text.block_ends),
    )


def _step_plan(settings: TrainingSettings, examples: int, problems: Sequence[str]) -> StepPlan:
    steps = settings.steps
    if not examples:
        raise DataError(
            "\n".join(problems) or "Data: nothing is left to learn from. " + _no_examples_reason(settings)
        )
    sizes = (steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    return StepPlan(examples, *sizes, dist_env.world_size())


def _no_examples_reason(settings: TrainingSettings) -> str:
    if marker := settings.rows.train_only_after:
        return f"No row holds {marker!r} with something behind it ('Learn only after')."
    if settings.text.min_chars:
        return "Lower 'Leave out blocks up to', or choose another text."
    return "Raise the cutoff, or change what is learned from ('Learn from'), or choose other data."


def _report(
    context: PrepareContext, slicing: SlicingRules, plan: StepPlan, examples: Examples, prepared: PreparedData
) -> DatasetReport:
    lengths, memory_model = examples.lengths(), MemoryModel.of(context.card, examples, context.machine)
    longest = {"longest_row": prepared.longest_row, "cutoff": slicing.cutoff, "context": context.card.context}
    folder = context.folders.output_folder(full_finetune=context.settings.lora.whole_model)
    disk = estimate_disk(context.settings, context.card, plan, folder, context.machine)
    return DatasetReport(
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=sum(examples.learned()),
        longest=max(lengths),
        cutoff=slicing.cutoff,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        sources=tuple(prepared.reports),
        problems=tuple(_all_problems(context, plan, prepared, disk)),
        advice=tuple(_all_advice(context, slicing, plan, examples, prepared, disk)),
        notes=tuple(_all_notes(context, slicing, plan, examples, prepared)),
        resolved=_resolved(context, slicing, plan, memory_model),
        lengths=report_stats.length_histogram(lengths),
        kept_aside=report_stats.report_validation_split(prepared.validation.examples),
        suggestions=(
            *suggest_settings(context.settings, plan, **longest),
            *suggest_hard_cuts(prepared.training.sources),
        ),
        padding=padding_shares(lengths, context.settings.steps.batch_size, context.settings.what.seed),
        memory=memory_model.memory(context.settings) if memory_model else None,
        disk=disk,
        stops=count_learned_stops(prepared.training.sources, context.tokenizer.stops),
        tokens_known=_special_tokens(context.tokenizer),
    )


def _all_problems(
    context: PrepareContext, plan: StepPlan, prepared: PreparedData, disk: DiskEstimate | None
) -> Iterator[str]:
    yield from prepared.problems
    yield from disk.problems() if disk else ()
    yield from plan_checks.problems(context.settings, plan)


def _all_advice(
    context: PrepareContext,
    slicing: SlicingRules,
    plan: StepPlan,
    examples: Examples,
    prepared: PreparedData,
    disk: DiskEstimate | None,
) -> Iterator[str]:
    yield from rules.advice(context.settings)
    yield from disk.advice() if disk else ()
    yield from _advice(slicing, plan)
    yield from plan_checks.advice(context.settings, plan, examples, context.card.context)
    yield from stop_token_advice(prepared.training.sources, context.tokenizer.stops)
    yield from prepared.advice
    yield from _leak_advice(prepared)


def _all_notes(
    context: PrepareContext, slicing: SlicingRules, plan: StepPlan, examples: Examples, prepared: PreparedData
) -> Iterator[str]:
    yield from rules.notes(context.settings)
    yield from _notes(context, slicing, examples)
    yield from plan_checks.notes(context.settings, plan, prepared.validation.examples)
    yield from _process_notes(plan)


def _resolved(
    context: PrepareContext, slicing: SlicingRules, plan: StepPlan, memory_model: MemoryModel | None
) -> dict[str, Any]:
    """The values chosen for settings of "auto"."""
    return {
        "cutoff": slicing.cutoff,
        "accumulation": plan.effective_accumulation,
        "gradient_checkpointing": "on" if memory_model and memory_model.checkpoints(context.settings) else "off",
    }


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """BOS and EOS in words; padding is masked, so any id serves."""
    bos = "none is put" if tokenizer.bos is None else tokenizer.decode([tokenizer.bos])
    eos = "none" if tokenizer.eos is None else tokenizer.decode([tokenizer.eos])
    return {"BOS": bos, "EOS": eos, "padding": "any id, masked"}


def _leak_advice(prepared: PreparedData) -> Iterator[str]:
    """Findings on text that stands in both the training and the validation data."""
    if not len(prepared.validation.sources):
        return
    if runs := find_shared_passages(prepared.validation.texts, prepared.training.texts):
        verb = plural(len(runs), "passage stands", "passages stand")
        yield (
            f"Kept aside: {len(runs)} {verb} in the training text too, {NGRAM_WORDS} words and longer, "
            f"since the text repeats itself; one begins {runs[0][:60]!r}."
        )
    if shared := count_shared_rows(prepared.validation.sources, prepared.training.sources):
        yield f"Kept aside: {shared} of its rows stand in the training data too. Take them out of one of the two."


def _not_causal_problem(card: ModelCard) -> Iterator[str]:
    if not card.is_causal_lm:
        architectures = ", ".join(card.config.get("architectures") or ["an encoder"])
        yield (
            f"{card.name} ({architectures}) does not write text on: nothing in it predicts a next token. Choose a "
            "model for text generation."
        )


def _problems(card: ModelCard, slicing: SlicingRules) -> list[str]:
    if card.context and slicing.cutoff > card.context:
        return [
            f"Maximum context length (Cutoff): {slicing.cutoff} is more than {card.name} takes "
            f"({card.context} tokens). Use {card.context} or less."
        ]
    return []


def _advice(slicing: SlicingRules, plan: StepPlan) -> Iterator[str]:
    if plan.effective_accumulation < plan.accumulation:
        yield (
            f"Gradient Accumulation {plan.accumulation} is more than the "
            f"{format_count(plan.batches, 'batch', 'batches')} of an epoch: it is lowered to "
            f"{plan.effective_accumulation}."
        )
    if slicing.eos is None and slicing.add_eos != "never":
        yield "This tokenizer has no end token: the model will not learn where a text ends."


def _process_notes(plan: StepPlan) -> Iterator[str]:
    """Notes on several processes: the size of a step, and an epoch that does not divide evenly."""
    if plan.processes == 1:
        return
    yield (
        f"{plan.processes} processes: a step takes {plan.batch_size} x {plan.effective_accumulation} x "
        f"{plan.processes} = {plan.examples_per_step} examples."
    )
    if plan.repeated_examples:
        yield (
            f"The {plan.examples} examples do not fill the batches of all processes: at the end of each epoch "
            f"{plan.repeated_examples} of its first ones come again."
        )


def _notes(context: PrepareContext, slicing: SlicingRules, examples: Examples) -> Iterator[str]:
    rows = context.settings.rows
    if context.settings.text.cutoff == "auto":
        yield f"Maximum context length (Cutoff): auto = {slicing.cutoff}."
    source_types = {type(source) for source in examples.sources}
    if TextSource in source_types and rows.train_only_after:
        yield "Learn only after: it is for rows; raw text is learned as a whole."
