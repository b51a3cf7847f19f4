"""Datasets to examples: slice texts, truncate rows, split off validation data, take the share asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..chunking import SlicingRules
from ..train_utils import format_count, plural
from . import arrow_store, example_cache
from .dataset_index import DatasetEntry
from .examples import (
    WHOLE_DATASET,
    DatasetShare,
    Examples,
    RowSource,
    Source,
    SplitText,
    TextSource,
    as_split_texts,
    dataset_share,
    split_rows,
    split_texts,
    truncation,
)
from .load import LoadedDataset, PrepareContext
from .readers import LoadedText, unsupported
from .report import RowReport, SourceReport, report_stats
from .rows import RowDataset, TextInspector, load_refusal_phrases

if TYPE_CHECKING:
    from ..chunking import Ints

MAX_DROPPED_SHARE = 0.05
TRUNCATION_WORDS = {
    "drop": "left out",
    "drop_any": "left out",
    "cut_end": "their ends cut",
    "cut_start": "their starts cut",
    "split": "split",
}


@dataclass(frozen=True)
class Split:
    """The training data or the validation data of a run."""

    sources: list[Source] = field(default_factory=list)
    picks: list[Ints | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, sources: Sequence[Source], share: DatasetShare, seed: int) -> Examples:
        """Add sources, or a share of their examples, and return the examples that were added."""
        picks = dataset_share.pick_examples(sources, share, seed)
        self.sources.extend(sources)
        self.picks.extend(picks)
        return Examples(sources, picks)

    @property
    def examples(self) -> Examples:
        return Examples(self.sources, self.picks)


@dataclass
class PreparedData:
    """The training and validation data of all datasets, with the figures and findings of the report."""

    training: Split = field(default_factory=Split)
    validation: Split = field(default_factory=Split)
    reports: list[SourceReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    longest_row: int = 0


def add_dataset(
    prepared: PreparedData, context: PrepareContext, dataset: LoadedDataset, rules: SlicingRules
) -> None:
    """Add one dataset: split off validation data if asked, and take its share of the rest."""
    if dataset.texts:
        context.say(f"Cutting {dataset.data.name}", 0.5)
        _add_texts(prepared, context, dataset, rules)
    if skipped := unsupported.describe_unsupported(dataset.data.path):
        prepared.advice.append(f"{dataset.data.name}: {skipped[0].lower()}{skipped[1:]}")
    for rows in dataset.rows:
        _add_rows(prepared, context, dataset.data, rows, rules)


def _add_texts(
    prepared: PreparedData, context: PrepareContext, dataset: LoadedDataset, rules: SlicingRules
) -> None:
    data, seed, share = dataset.data, context.settings.what.seed, context.settings.aside.eval_share
    training, validation = as_split_texts(dataset.texts), list[SplitText]()
    if share:
        training, validation = split_texts(dataset.texts, share, rules, seed=seed, name=data.name)
        prepared.problems.extend(_empty_split_problem(data.name, validation))
    sources = _slice_texts(data, training, context, rules)
    examples = prepared.training.add(sources, data.share, seed)
    prepared.validation.add(_slice_texts(data, validation, context, rules), WHOLE_DATASET, seed)
    for split, stretches in ((prepared.training, training), (prepared.validation, validation)):
        split.texts.extend(stretch.text for stretch in stretches)
    prepared.advice.extend(_inspect_texts(context, data.name, dataset.texts, rules))
    kind = "raw text" + (" (an example of the project's)" if data.example else "")
    notes = [
        *(note for stretch in training for note in stretch.notes),
        *_line_units_note(sources, rules),
        *_hard_cut_note(training, rules),
        *_share_note(data.share, len(examples)),
    ]
    prepared.reports.append(
        report_stats.report_texts(data.name, kind, len(dataset.texts), sources, examples, notes)
    )


def _line_units_note(sources: Sequence[TextSource], rules: SlicingRules) -> Iterator[str]:
    """A note where blocks of a text end at lines."""
    if rules.block_ends == "auto" and any(source.sliced.sections.by_lines.any() for source in sources):
        yield (
            "Its blocks end at lines, not at sentences, where many lines end without a full stop or begin with "
            "who speaks ('Blocks end at' changes that)."
        )


def _hard_cut_note(stretches: Sequence[SplitText], rules: SlicingRules) -> Iterator[str]:
    """A note that a hard cut made of words is not learned: with CHAPTER, the model never sees that word."""
    if any(letter.isalnum() for letter in rules.hard_cut):
        count = sum(stretch.text.count(rules.hard_cut) for stretch in stretches)
        yield (
            f"The hard cut {rules.hard_cut!r} stands there {count} {plural(count, 'time')} and is left out of "
            "what is learned, as every hard cut is."
        )


def _inspect_texts(
    context: PrepareContext, name: str, texts: Sequence[LoadedText], rules: SlicingRules
) -> list[str]:
    """Findings on the words of a text, section by section."""
    phrases = load_refusal_phrases(context.folders)

    def inspect() -> list[str]:
        inspector = TextInspector(phrases)
        parts = [part for t in texts for part in (t.text.split(rules.hard_cut) if rules.hard_cut else [t.text])]
        for number, part in enumerate((p for p in parts if p.strip()), start=1):
            inspector.look(part, part, f"part {number}")
        return list(inspector.said(name, "part"))

    fingerprint = context.tokenizer.fingerprint  # without it nothing of this dataset is stored
    cache_key = fingerprint and arrow_store.cache_key(
        "words", name, rules.hard_cut, phrases, *(arrow_store.text_digest(t.text) for t in texts)
    )
    return example_cache.cached_findings(cache_key, context.store, inspect)


def _slice_texts(
    dataset: DatasetEntry, stretches: Sequence[SplitText], context: PrepareContext, rules: SlicingRules
) -> list[TextSource]:
    texts = [stretch.text for stretch in stretches]
    tokenizer = context.tokenizer
    sliced_texts, cached = example_cache.cached_slices(
        texts, tokenizer.encode, tokenizer.fingerprint, rules, context.store
    )
    if cached:
        context.say(f"{dataset.name} was prepared before: nothing is done again", None)
    return [
        TextSource(_source_name(dataset, stretch.name), sliced, stretch.open_end)
        for stretch, sliced in zip(stretches, sliced_texts, strict=True)
    ]


def _source_name(dataset: DatasetEntry, file: str) -> str:
    return f"{dataset.name}{file}" if dataset.name.endswith("/") else dataset.name


def _empty_split_problem(name: str, validation: Sized) -> Iterator[str]:
    if not len(validation):
        yield (
            f"{name} is too short to keep a part of it aside. Keep data sets of their own aside, or set the "
            "share to 0."
        )


def _share_note(share: DatasetShare, count: int) -> Iterator[str]:
    if share.percent != 100:
        yield f"{share.percent:g} % of it is used: {format_count(count, 'example')}."


def _add_rows(
    prepared: PreparedData, context: PrepareContext, dataset: DatasetEntry, rows: RowDataset, rules: SlicingRules
) -> None:
    too_long, counts, seed = context.settings.rows.too_long, rows.counts, context.settings.what.seed
    source = rows.source
    if context.settings.aside.eval_share:
        source, validation = split_rows(source, context.settings.aside.eval_share, seed=seed)
        prepared.problems.extend(_empty_split_problem(source.name, validation))
        prepared.validation.add(
            [truncation.truncate_rows(validation, rules.cutoff, too_long, context.tokenizer.bos).source],
            WHOLE_DATASET,
            seed,
        )
    result = truncation.truncate_rows(source, rules.cutoff, too_long, context.tokenizer.bos)
    examples = prepared.training.add([result.source], dataset.share, seed)
    report = RowReport(
        rows=counts.rows,
        unreadable=len(counts.bad),
        without_marker=counts.without_marker,
        without_reply=counts.no_reply,
        too_long=result.too_long,
        too_long_how=TRUNCATION_WORDS[too_long],
        nothing_learned=result.nothing_learned,
    )
    notes = [*rows.notes, *_share_note(dataset.share, len(examples))]
    prepared.reports.append(report_stats.report_rows(rows.what, result.source.name, examples, report, notes))
    prepared.longest_row = max(prepared.longest_row, int(source.lengths.max(initial=0)))
    prepared.advice.extend(rows.advice)
    prepared.problems.extend([*rows.problems, *_dropped_rows_problem(too_long, source, result.too_long, rules)])


def add_validation_dataset(
    prepared: PreparedData, context: PrepareContext, dataset: LoadedDataset, rules: SlicingRules
) -> None:
    """Add a dataset of which all is validation data."""
    seed, share = context.settings.what.seed, dataset.data.share
    stretches = as_split_texts(dataset.texts)
    prepared.validation.add(_slice_texts(dataset.data, stretches, context, rules), share, seed)
    prepared.validation.texts.extend(stretch.text for stretch in stretches)
    for rows in dataset.rows:
        result = truncation.truncate_rows(
            rows.source, rules.cutoff, context.settings.rows.too_long, context.tokenizer.bos
        )
        prepared.validation.add([result.source], share, seed)
        prepared.problems.extend(rows.problems)


def _dropped_rows_problem(too_long: str, source: RowSource, long_rows: int, rules: SlicingRules) -> Iterator[str]:
    count = len(source)
    if too_long == "drop" and long_rows > MAX_DROPPED_SHARE * count:
        yield (
            f"{source.name}: {long_rows} of {count} rows ({100 * long_rows / count:.0f} %) are longer than the "
            f"cutoff of {rules.cutoff} tokens, the longest has {int(source.lengths.max())}. Raise the cutoff, or "
            "choose under 'Rows too long' what to do with them."
        )
