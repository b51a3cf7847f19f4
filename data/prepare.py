"""Prepare data for Check and for training: from settings and a tokenizer to examples and their report.

Datasets are loaded, the validation data is split off, texts are sliced and rows truncated, and the share of each
dataset that the settings ask for is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import cast

from ..chunking import SlicedText, SlicingRules
from ..core import dist_env
from ..core.engine import NO_PREVIEW, PreviewQuery
from ..core.errors import DataError, StoppedError, TrainingProError
from ..core.findings import Finding, Suggestion, advice, note, problem
from ..core.host import DeviceMemory, Folders, ModelCard
from ..settings.definitions import TrainingSettings
from ..settings.rules import unused_settings
from ..train_utils import StepPlan, format_count, plural
from .arrow_store import Store, StoredText
from .dataset_index import DatasetEntry
from .examples import Examples, RowSource, Source, TextSource, group_parts, truncate_rows
from .large_texts import describe_first_part
from .load import (
    LoadedDataset,
    PrepareContext,
    ProgressFn,
    ResolvedSettings,
    check_rules,
    load_datasets,
    longest_row,
    slicing_rules,
)
from .readers import LoadedText, reader_process, unsupported
from .report import (
    DatasetReport,
    MemoryModel,
    SourceReport,
    map_texts,
    preview_examples,
    report_run,
    resolve_checkpointing,
)
from .rows import RowDataset, RowReport, Tokenizer, inspect_texts, preferences
from .split import pick_examples, split_rows, split_texts
from .text import slice_parts, slice_texts

MAX_BEGINNING, SHORT_BEGINNING = 200, 40  # characters of a section, and of its first words as shown
MAX_DROPPED_SHARE = 0.05  # of rows over the cutoff, which Check lets pass
PRIVATE = (
    "Your chats are private: Training PRO keeps no prepared copy of them, and `push` never uploads the samples, "
    "the events and the other records of this run, which may quote them."
)
TRUNCATION_WORDS = {
    "drop": "dropped",
    "drop_any": "dropped",
    "cut_end": "truncated at the end",
    "cut_start": "truncated at the start",
    "split": "split",
}


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
    decisions: Mapping[str, preferences.Decision] = field(default_factory=dict)  # about these preferences


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
        data = prepare(settings, folders, card, tokenizer, say, machine, keep=keep, with_dropped=show.with_dropped)
    except TrainingProError as error:
        return DatasetReport.of_problems(str(error).splitlines())
    shown = preview_examples(data.examples, show, tokenizer.decode, tokenizer.stops)
    return replace(data.report, shown=shown)


def prepare(
    settings: TrainingSettings,
    folders: Folders,
    card: ModelCard,
    tokenizer: Tokenizer,
    say: ProgressFn,
    machine: DeviceMemory | None = None,
    *,
    keep: bool = True,
    with_dropped: bool = False,  # also the preferences that the user dropped
    is_stopped: Callable[[], bool] = lambda: False,
) -> TrainingData:
    """Load, split, slice or truncate, and report; stored results are reused. Raises TrainingProError."""

    def check_stop() -> None:
        if is_stopped():
            raise StoppedError("Stopped while preparing the data. Nothing was trained.")

    def say_or_stop(text: str, share: float | None) -> None:
        check_stop()
        say(text, share)

    store = Store(folders.prepared_data if keep else None)
    context = PrepareContext(settings, folders, card, tokenizer, say_or_stop, store, check_stop)
    with reader_process(is_stopped):
        loaded = load_datasets(context, settings.what.data)
        loaded_aside = load_datasets(context, settings.aside.eval_data)
    # A cutoff of "auto" depends on all of the data, so nothing is sliced before everything is loaded.
    rules = slicing_rules(settings.text, card, tokenizer, loaded)
    made = _Making(context, rules, preferences.read_decisions(folders.pairs), with_dropped)
    for dataset in loaded:
        if dataset.texts:
            context.say(f"Slicing {dataset.data.name}", 0.5)
            made.add_texts(dataset)
        if skipped := unsupported.describe_unsupported(dataset.data.path):
            made.said.append(advice("data", f"In {dataset.data.name}, {skipped[0].lower()}{skipped[1:]}"))
        if dataset.rows:
            made.add_rows(dataset.data, dataset.rows)
    for dataset in loaded_aside:
        made.add_validation(dataset)
    # One order for all: that of the datasets as the user listed them, then that of their files.
    examples, validation = Examples.join(made.learned), Examples.join(made.aside)
    made.said += _undivided(made.undivided, validation)
    made.said += check_rules(settings, card, rules, longest_row(loaded))
    private = any(rows.report.private for dataset in (*loaded, *loaded_aside) for rows in dataset.rows)
    made.said += [note("data", PRIVATE)] * private
    said = DatasetReport(sources=tuple(made.reports), private=private).with_findings(made.said)
    if not len(examples):
        reason = "Raise the cutoff, change 'Train on', or choose another dataset."
        if marker := settings.rows.train_only_after:
            reason = f"No row contains {marker!r} followed by text. Change 'Train only after'."
        elif settings.text.min_chars:
            reason = "Lower 'Ignore small blocks', or choose another dataset."
        raise DataError("\n".join(said.problems) or f"Dataset: there is nothing left to train on. {reason}")
    plan = settings.steps.plan(len(examples), dist_env.world_size())
    memory = MemoryModel.of(card, examples, machine)
    checkpointing, alpha = resolve_checkpointing(memory, settings), settings.lora.effective_alpha
    resolved = ResolvedSettings(rules.cutoff, plan.effective_accumulation, checkpointing, alpha)
    of_both = (*examples.sources, *validation.sources)
    kinds = {"rows" if isinstance(source, RowSource) else "text" for source in of_both}
    kinds |= {"chats"} if private else set()
    on_cpu = machine is not None and machine.is_cpu
    unused = tuple(unused_settings(settings.values(), kinds, on_cpu=on_cpu))
    loaded_texts = [text for dataset in loaded for text in dataset.texts]
    report = report_run(context, said, examples, validation, plan, loaded_texts, memory)
    report = replace(report.with_findings(unused), resolved=resolved)
    return TrainingData(examples, validation, plan, resolved, report, unused, made.decided)


@dataclass
class _Making:
    """Makes examples of datasets: those made so far, the reports of the datasets, and what Check says of them."""

    context: PrepareContext
    rules: SlicingRules
    decisions: Mapping[str, preferences.Decision]
    with_dropped: bool
    decided: dict[str, preferences.Decision] = field(default_factory=dict)  # those about preferences of this run
    learned: list[Examples] = field(default_factory=list)
    aside: list[Examples] = field(default_factory=list)
    reports: list[SourceReport] = field(default_factory=list)
    undivided: list[str] = field(default_factory=list)  # datasets of which nothing could be held out
    said: list[Finding | Suggestion] = field(default_factory=list)

    def add_texts(self, dataset: LoadedDataset) -> None:
        """Slice the texts of a dataset, some of them as validation split."""
        data, rules, settings, store = dataset.data, self.rules, self.context.settings, self.context.store
        seed, share = settings.what.order_seed, settings.aside.eval_share
        learned, held_out = split_texts(
            dataset.texts, share, rules.hard_cut, rules.block_ends, seed=seed, name=data.name
        )
        sources = self.slice(data, learned)
        examples = Examples(sources, pick_examples(sources, data.share, seed))
        self.learned.append(examples)
        self.aside.append(Examples(self.slice(data, held_out)))
        if share and not held_out:
            self.undivided.append(data.name)
        notes = [text_note for text in dataset.texts for text_note in text.notes]
        whole = map_texts(sources)
        if rules.block_ends == "auto" and (by_lines := whole.parts_by_lines):
            first = next(source.sliced for source in sources if source.sliced.sections.by_lines.any())
            start = int(first.sections.content_start[first.sections.by_lines.argmax()])
            beginning = shorten(first.text[start : start + MAX_BEGINNING], SHORT_BEGINNING, placeholder=" ...")
            which = plural(by_lines, "the one that begins with", "the first one begins with")
            notes.append(
                f"{by_lines:,} of {format_count(whole.parts, 'section')} {plural(by_lines, 'looks', 'look')} like "
                f"a list, verse, a script or a chat log ({which} {beginning!r}), so "
                f"{plural(by_lines, 'its', 'their')} blocks end at the end of a line instead of a sentence. "
                "To change this, use the 'Blocks end at' setting."
            )
        # With CHAPTER as the hard cut, the model never sees that word.
        if any(letter.isalnum() for letter in rules.hard_cut):
            count = sum(str(text.text).count(rules.hard_cut) for text in learned)
            notes.append(
                f"The hard cut {rules.hard_cut!r} appears {count} {plural(count, 'time')} in the text. "
                "It is left out of the blocks, so the model never sees it."
            )
        kind = "raw text" + (" (an example dataset that comes with Training PRO)" if data.example else "")
        files = len({text.name for text in dataset.texts})
        self.reports.append(SourceReport.of(data.name, kind, examples, notes, data.share, files=files, text=whole))
        # Of a large file, the first part: searching all of it would take its whole text in memory.
        searched = [text for text in dataset.texts if text.part <= 1]
        self.said += inspect_texts(data.name, searched, rules.hard_cut, self.context.folders, store)
        if len(searched) < len(dataset.texts):
            self.said.append(
                note(
                    "data",
                    f"{data.name}: in each large file, Check searched only the {describe_first_part()} for "
                    "refusals, leftover HTML, duplicates and similar problems.",
                )
            )

    def slice(self, dataset: DatasetEntry, loaded: Sequence[LoadedText]) -> list[TextSource]:
        """The blocks of texts. Whole texts are sliced and stored together, a large one by itself, part by part."""
        context, tokenizer, rules = self.context, self.context.tokenizer, self.rules
        contents = [str(text.text) for text in loaded if not text.part]
        whole, stored = slice_texts(contents, tokenizer.encode, tokenizer.fingerprint, rules, context.store)
        if stored:
            context.say(f"Using the cached version of {dataset.name}", None)
        whole_texts, sliced = iter(whole), list[SlicedText]()
        for group in group_parts(loaded):
            if not group[0].part:
                sliced.append(next(whole_texts))
                continue
            name, texts = group[0].name, [cast(StoredText, part.text) for part in group]
            encode, fingerprint = tokenizer.encode, tokenizer.fingerprint
            parts, stored = slice_parts(name, texts, encode, fingerprint, rules, context.say, context.check_stop)
            if stored:
                context.say(f"Using the cached version of {name}", None)
            sliced += parts
        # Files are named within a folder, whose name ends in /.
        names = [dataset.name + text.name * dataset.name.endswith("/") for text in loaded]
        return [
            TextSource(name, blocks, text.open_end, text.part, text.start)
            for name, text, blocks in zip(names, loaded, sliced, strict=True)
        ]

    def add_rows(self, dataset: DatasetEntry, files: Sequence[RowDataset]) -> None:
        """Split and truncate the rows of a dataset, over all of its files."""
        settings, cutoff, bos = self.context.settings, self.rules.cutoff, self.context.tokenizer.bos
        seed, share, too_long = settings.what.order_seed, settings.aside.eval_share, settings.rows.too_long
        applied = [
            preferences.apply_decisions(rows.source, self.decisions, with_dropped=self.with_dropped)
            for rows in files
        ]
        sources, decided = [source for source, _ in applied], [own for _, own in applied]
        for rows, own in zip(files, decided, strict=True):
            self.decided |= own
            self.said += rows.findings
        # Before truncation, so that the pieces of one row stay on one side.
        if share:
            in_order = settings.steps.batching == "length_then_order"  # its context gain needs whole conversations
            sources, held_out = split_rows(
                sources, share, seed=seed, name=dataset.name, whole_conversations=in_order
            )
            self.aside += [Examples([truncate_rows(each, cutoff, too_long, bos).source]) for each in held_out]
            if not any(map(len, held_out)):
                self.undivided.append(dataset.name)
        truncated = [truncate_rows(source, cutoff, too_long, bos) for source in sources]
        picked = pick_examples([each.source for each in truncated], dataset.share, seed)
        for rows, source, own, short, numbers in zip(files, sources, decided, truncated, picked, strict=True):
            examples = Examples([short.source], [numbers])
            self.learned.append(examples)
            figures = replace(
                rows.report,
                too_long=short.too_long,
                too_long_how=TRUNCATION_WORDS[too_long],
                nothing_learned=short.nothing_learned,
            )
            notes = (*rows.notes, *preferences.describe_pairs(short.source, own))
            report = SourceReport.of(source.name, rows.what, examples, notes, dataset.share, rows=figures)
            self.reports.append(report)
            self.said += _dropped_rows_problem(too_long, source, figures, self.rules)

    def add_validation(self, dataset: LoadedDataset) -> None:
        """Add a dataset of which all is validation data."""
        settings, name, share = self.context.settings, dataset.data.name, dataset.data.share
        self.said += [f for rows in dataset.rows for f in rows.findings if f.level == "problem"]
        sources: list[Source] = [*self.slice(dataset.data, dataset.texts)]
        for rows in dataset.rows:
            too_long = settings.rows.too_long
            source, _ = preferences.apply_decisions(rows.source, self.decisions, with_dropped=self.with_dropped)
            truncated = truncate_rows(source, self.rules.cutoff, too_long, self.context.tokenizer.bos)
            sources.append(truncated.source)
            report = replace(rows.report, too_long=truncated.too_long)
            for finding in _dropped_rows_problem(too_long, rows.source, report, self.rules):
                self.said.append(advice("too_long", f"Evaluation dataset: {finding.text}"))
        seed = settings.what.order_seed
        validation = Examples(sources, pick_examples(sources, share, seed))
        self.aside.append(validation)
        if not len(validation):
            left = f"Evaluation dataset: nothing of {name} is left to evaluate."
            self.said.append(problem("eval_data", f"{left} Raise the cutoff, or choose another one."))


def _undivided(names: Sequence[str], validation: Examples) -> Iterator[Finding]:
    short = f"{', '.join(names)} {plural(len(names), 'is', 'are')} too short for a validation split"
    if names and len(validation):
        yield note("eval_share", f"{short}, so the model learns all of {plural(len(names), 'it', 'them')}.")
    elif names:
        remedy = "Choose an Evaluation dataset, or set Validation split to 0."
        yield problem("eval_share", f"{short}. {remedy}")


def _dropped_rows_problem(
    too_long: str, source: RowSource, report: RowReport, rules: SlicingRules
) -> Iterator[Finding]:
    count, long_rows = len(source), report.too_long
    exchanges = "turn on 'Split chats into exchanges', " if report.has_exchanges else ""
    if too_long == "drop" and long_rows > MAX_DROPPED_SHARE * count:
        yield problem(
            "too_long",
            f"{source.name}: {long_rows} of {count} rows ({100 * long_rows / count:.0f}%) "
            f"{plural(long_rows, 'is', 'are')} longer than the cutoff of {rules.cutoff} tokens. The longest row "
            f"has {int(source.longest_sides.max())} tokens. Raise the cutoff, {exchanges}or choose what to do "
            "with these rows under 'Rows over the cutoff'.",
        )
