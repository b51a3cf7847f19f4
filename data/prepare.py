"""One road for Check and for training: from the settings and a tokenizer to examples and their report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ..chunking import Cutting, Ends, unescaped
from ..core import dist_env
from ..core.engine import NOTHING_SHOWN, Showing
from ..core.errors import DataError, TrainingProError
from ..core.host import Folders, Memory, ModelCard
from ..settings import rules
from ..settings.definitions import Text, TrainingSettings
from ..train_utils import StepPlan, plural, several
from . import arrow_store
from .arrow_store import Store
from .build_examples import Made, make, make_test
from .examples import RUN_WORDS, Examples, TextSource, shared_rows, shared_runs
from .load import AUTO_CUTOFF, Say, Tokenizer, Work, cutoff_of, opened_sets
from .report import (
    DatasetReport,
    Expecting,
    cuts,
    disk_plan,
    padding,
    plan_checks,
    report_stats,
    said,
    shown,
    stops,
    suggest_settings,
)


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from, what is kept aside for testing, and what Check says of both."""

    examples: Examples
    report: DatasetReport
    plan: StepPlan
    kept_aside: Examples


def prepare(
    settings: TrainingSettings,
    folders: Folders,
    card: ModelCard,
    tokenizer: Tokenizer,
    say: Say,
    machine: Memory | None = None,
    *,
    keep: bool = True,
) -> TrainingData:
    """Read, cut and count, or take what is kept of that; DataError or SettingsError where that is not possible."""
    store = arrow_store.store(folders) if keep else Store()
    work = Work(settings, folders, card, tokenizer, say, machine, store)
    opened, tests = opened_sets(work, settings.what.data), opened_sets(work, settings.aside.eval_data)
    cut = cutting(settings.text, card, tokenizer, cutoff_of(work, opened))
    made = Made()
    for each in opened:
        make(made, work, each, cut)
    for each in tests:
        make_test(made, work, each, cut)
    made.problems.extend([*_no_writer(card), *_problems(card, cut)])
    examples = made.learned.examples
    plan = _plan(settings, len(examples), made.problems)
    return TrainingData(examples, _report(work, cut, plan, examples, made), plan, made.kept.examples)


def checked(
    settings: TrainingSettings,
    folders: Folders,
    card: ModelCard,
    tokenizer: Tokenizer,
    say: Say,
    *,
    show: Showing = NOTHING_SHOWN,
    machine: Memory | None = None,
    keep: bool = True,
) -> DatasetReport:
    """The report, also where nothing could be prepared: then its problems say why."""
    try:
        data = prepare(settings, folders, card, tokenizer, say, machine, keep=keep)
    except TrainingProError as error:
        return DatasetReport(0, 0, 0, 0, 0, 0, 0, problems=tuple(str(error).splitlines()))
    return replace(data.report, shown=shown(data.examples, show, tokenizer.decode, tokenizer.stops))


def cutting(text: Text, card: ModelCard, tokenizer: Tokenizer, resolved: int = 0) -> Cutting:
    """The rules for raw text; `resolved` is the cutoff where the whole of the data decides on it."""
    cutoff = resolved or (AUTO_CUTOFF if text.cutoff == "auto" else int(text.cutoff))
    if text.cutoff == "auto" and card.context:
        cutoff = min(cutoff, card.context)
    return Cutting(
        cutoff=cutoff,
        chunking=cast(Literal["blocks", "dementor"], text.chunking),
        overlap=text.overlap,
        dementor_repeats=text.dementor_repeats,
        hard_cut=unescaped(text.hard_cut),
        min_chars=text.min_chars,
        bos=tokenizer.bos if text.add_bos else None,
        eos=tokenizer.eos,
        add_eos=cast(Literal["hard_cut", "every_block", "never"], text.add_eos),
        block_ends=cast(Ends, text.block_ends),
    )


def _plan(settings: TrainingSettings, examples: int, problems: Sequence[str]) -> StepPlan:
    steps = settings.steps
    if not examples:
        raise DataError("\n".join(problems) or "Data: nothing is left to learn from. " + _why_nothing(settings))
    sizes = (steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    return StepPlan(examples, *sizes, dist_env.count())


def _why_nothing(settings: TrainingSettings) -> str:
    if marker := settings.rows.train_only_after:
        return f"No row holds {marker!r} with something behind it ('Learn only after')."
    if settings.text.min_chars:
        return "Lower 'Leave out blocks up to', or choose another text."
    return "Raise the cutoff, or change what is learned from ('Learn from'), or choose other data."


def _report(work: Work, cut: Cutting, plan: StepPlan, examples: Examples, made: Made) -> DatasetReport:
    lengths, expected = examples.lengths(), Expecting.of(work.card, examples, work.machine)
    longest = {"longest_row": made.longest_row, "cutoff": cut.cutoff, "context": work.card.context}
    place = work.folders.kept(whole_model=work.settings.lora.whole_model)
    disk = disk_plan(work.settings, work.card, plan, place, work.machine)
    return DatasetReport(
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=sum(examples.learned()),
        longest=max(lengths),
        cutoff=cut.cutoff,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        sources=tuple(made.reports),
        problems=(*made.problems, *(disk.problems() if disk else ()), *plan_checks.problems(work.settings, plan)),
        advice=(
            *rules.advice(work.settings),
            *(disk.advice() if disk else ()),
            *_advice(cut, plan),
            *plan_checks.advice(work.settings, plan, examples, work.card.context),
            *said(made.learned.sources, work.tokenizer.stops),
            *made.advice,
            *_leaks(made),
        ),
        notes=(
            *rules.notes(work.settings),
            *_notes(work, cut, examples),
            *plan_checks.notes(work.settings, plan, made.kept.examples),
            *_together(plan),
        ),
        resolved=_resolved(work, cut, plan, expected),
        lengths=report_stats.lengths(lengths),
        kept_aside=report_stats.kept(made.kept.examples),
        suggestions=(*suggest_settings(work.settings, plan, **longest), *cuts(made.learned.sources)),
        padding=padding(lengths, work.settings.steps.batch_size, work.settings.what.seed),
        memory=expected.memory(work.settings) if expected else None,
        disk=disk,
        stops=stops(made.learned.sources, work.tokenizer.stops),
        tokens_known=_tokens_known(work.tokenizer),
    )


def _resolved(work: Work, cut: Cutting, plan: StepPlan, expected: Expecting | None) -> dict[str, Any]:
    """What was left to us to choose."""
    return {
        "cutoff": cut.cutoff,
        "accumulation": plan.accumulated,
        "gradient_checkpointing": "on" if expected and expected.checkpoints(work.settings) else "off",
    }


def _tokens_known(tokenizer: Tokenizer) -> dict[str, str]:
    """What BOS and EOS are; padding is read by nobody, so any id may pad."""
    bos = "none is put" if tokenizer.bos is None else tokenizer.decode([tokenizer.bos])
    eos = "none" if tokenizer.eos is None else tokenizer.decode([tokenizer.eos])
    return {"BOS": bos, "EOS": eos, "padding": "any id, masked"}


def _leaks(made: Made) -> Iterator[str]:
    """The same text on both sides."""
    if not len(made.kept.sources):
        return
    if runs := shared_runs(made.kept.texts, made.learned.texts):
        many = plural(len(runs), "passage stands", "passages stand")
        yield (
            f"Kept aside: {len(runs)} {many} in the training text too, {RUN_WORDS} words and longer, "
            f"since the text repeats itself; one begins {runs[0][:60]!r}."
        )
    if both := shared_rows(made.kept.sources, made.learned.sources):
        yield f"Kept aside: {both} of its rows stand in the training data too. Take them out of one of the two."


def _no_writer(card: ModelCard) -> Iterator[str]:
    if not card.writes_on:
        kind = ", ".join(card.config.get("architectures") or ["an encoder"])
        yield (
            f"{card.name} ({kind}) does not write text on: nothing in it predicts a next token. Choose a model "
            "for text generation."
        )


def _problems(card: ModelCard, cut: Cutting) -> list[str]:
    if card.context and cut.cutoff > card.context:
        return [
            f"Maximum context length (Cutoff): {cut.cutoff} is more than {card.name} takes "
            f"({card.context} tokens). Use {card.context} or less."
        ]
    return []


def _advice(cut: Cutting, plan: StepPlan) -> Iterator[str]:
    if plan.accumulated < plan.accumulation:
        yield (
            f"Gradient Accumulation {plan.accumulation} is more than the "
            f"{several(plan.batches, 'batch', 'batches')} of an epoch: it is lowered to {plan.accumulated}."
        )
    if cut.eos is None and cut.add_eos != "never":
        yield "This tokenizer has no end token: the model will not learn where a text ends."


def _together(plan: StepPlan) -> Iterator[str]:
    """Several processes: how large a step is, and what happens where an epoch does not divide."""
    if plan.processes == 1:
        return
    yield (
        f"{plan.processes} processes: a step takes {plan.batch_size} x {plan.accumulated} x {plan.processes} = "
        f"{plan.per_step} examples."
    )
    if plan.learned_twice:
        yield (
            f"The {plan.examples} examples do not fill the batches of all processes: at the end of each epoch "
            f"{plan.learned_twice} of its first ones come again."
        )


def _notes(work: Work, cut: Cutting, examples: Examples) -> Iterator[str]:
    rows = work.settings.rows
    if work.settings.text.cutoff == "auto":
        yield f"Maximum context length (Cutoff): auto = {cut.cutoff}."
    kinds = {type(source) for source in examples.sources}
    if TextSource in kinds and rows.train_only_after:
        yield "Learn only after: it is for rows; raw text is learned as a whole."
