"""Datasets to examples: split off validation data, slice texts, truncate rows, take the share asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import cast

from ..chunking import Ints, SlicedText, SlicingRules, Text
from ..core.findings import Finding, advice, note, problem
from ..train_utils import format_count, plural
from .dataset_index import WHOLE_DATASET, DatasetEntry, DatasetShare
from .examples import (
    Examples,
    RowSource,
    Source,
    TextSource,
    TruncatedRows,
    group_parts,
    pick_examples,
    split_rows,
    split_texts,
    truncate_rows,
)
from .large_texts import describe_first_part
from .load import LoadedDataset, PrepareContext
from .readers import LoadedText, unsupported
from .report import RowReport, SourceReport, report_source, report_texts
from .rows import RowDataset, inspect_texts
from .stored_text import StoredText
from .text import slice_parts, slice_texts

MAX_BEGINNING, SHORT_BEGINNING = 200, 40  # characters of a section, and of its first words as shown
MAX_DROPPED_SHARE = 0.05
TRUNCATION_WORDS = {
    "drop": "dropped",
    "drop_any": "dropped",
    "cut_end": "truncated at the end",
    "cut_start": "truncated at the start",
    "split": "split",
}


@dataclass(frozen=True)
class Split:
    """Training or validation data: the sources, the examples to take of each, and the texts they are made of."""

    sources: tuple[Source, ...] = ()
    picks: tuple[Ints | None, ...] = ()
    texts: tuple[Text, ...] = ()

    @staticmethod
    def of(sources: Sequence[Source], share: DatasetShare, seed: int, texts: Iterable[LoadedText] = ()) -> Split:
        """The share of one dataset."""
        picks = pick_examples(sources, share, seed)
        return Split(tuple(sources), tuple(picks), tuple(text.text for text in texts))

    @staticmethod
    def join(splits: Iterable[Split]) -> Split:
        parts = list(splits)
        return Split(
            tuple(source for split in parts for source in split.sources),
            tuple(pick for split in parts for pick in split.picks),
            tuple(text for split in parts for text in split.texts),
        )

    @property
    def examples(self) -> Examples:
        return Examples(self.sources, self.picks)


@dataclass(frozen=True)
class PreparedDataset:
    """The examples of some datasets, their reports, and what Check says of them."""

    training: Split = Split()
    validation: Split = Split()
    reports: tuple[SourceReport, ...] = ()
    findings: tuple[Finding, ...] = ()

    @staticmethod
    def join(datasets: Sequence[PreparedDataset]) -> PreparedDataset:
        return PreparedDataset(
            Split.join(dataset.training for dataset in datasets),
            Split.join(dataset.validation for dataset in datasets),
            tuple(report for dataset in datasets for report in dataset.reports),
            tuple(finding for dataset in datasets for finding in dataset.findings),
        )


def prepare_dataset(
    context: PrepareContext, dataset: LoadedDataset, rules: SlicingRules
) -> Iterator[PreparedDataset]:
    """Yield the texts of a dataset, then each of its files of rows."""
    if dataset.texts:
        context.say(f"Slicing {dataset.data.name}", 0.5)
        yield _prepare_texts(context, dataset, rules)
    if skipped := unsupported.describe_unsupported(dataset.data.path):
        not_read = f"In {dataset.data.name}, {skipped[0].lower()}{skipped[1:]}"
        yield PreparedDataset(findings=(advice("data", not_read),))
    for rows in dataset.rows:
        yield _prepare_rows(context, dataset.data, rows, rules)


def prepare_validation_dataset(
    context: PrepareContext, dataset: LoadedDataset, rules: SlicingRules
) -> PreparedDataset:
    """A dataset of which all is validation data."""
    seed, share, truncate = context.settings.what.order_seed, dataset.data.share, _truncation(context, rules)
    sources = _slice_texts(context, dataset.data, dataset.texts, rules)
    splits = [Split.of(sources, share, seed, dataset.texts)]
    findings = [f for rows in dataset.rows for f in rows.findings if f.level == "problem"]
    for rows in dataset.rows:
        truncated = truncate(rows.source)
        splits.append(Split.of([truncated.source], share, seed))
        dropped = _dropped_rows_problem(context.settings.rows.too_long, rows.source, truncated.too_long, rules)
        findings += [advice("too_long", f"Evaluation dataset: {finding.text}") for finding in dropped]
    validation = Split.join(splits)
    if not len(validation.examples):
        remedy = "Raise the cutoff, or choose another one."
        text = f"Evaluation dataset: nothing of {dataset.data.name} is left to evaluate. {remedy}"
        findings.append(problem("eval_data", text))
    return PreparedDataset(validation=validation, findings=tuple(findings))


def _prepare_texts(context: PrepareContext, dataset: LoadedDataset, rules: SlicingRules) -> PreparedDataset:
    data, seed, eval_share = dataset.data, context.settings.what.order_seed, context.settings.aside.eval_share
    learned, held_out = split_texts(
        dataset.texts, eval_share, rules.hard_cut, rules.block_ends, seed=seed, name=data.name
    )
    sources = _slice_texts(context, data, learned, rules)
    training = Split.of(sources, data.share, seed, learned)
    validation = Split.of(_slice_texts(context, data, held_out, rules), WHOLE_DATASET, seed, held_out)
    notes = (
        *(text_note for text in learned for text_note in text.notes),
        *_line_units_note(sources, rules),
        *_hard_cut_note(learned, rules),
        *_share_note(data.share, training.examples),
    )
    kind = "raw text" + (" (an example dataset that comes with Training PRO)" if data.example else "")
    report = report_source(
        data.name,
        kind,
        training.examples,
        notes,
        files=len({text.name for text in dataset.texts}),
        text=report_texts(sources),
    )
    findings = tuple(_check_texts(context, dataset, validation, rules))
    return PreparedDataset(training, validation, (report,), findings)


def _check_texts(
    context: PrepareContext, dataset: LoadedDataset, validation: Split, rules: SlicingRules
) -> Iterator[Finding]:
    name, settings, tokenizer = dataset.data.name, context.settings, context.tokenizer
    if settings.aside.eval_share and not validation.sources:
        yield _empty_split_problem(name)
    searched = [text for text in dataset.texts if text.part <= 1]
    yield from inspect_texts(name, searched, rules.hard_cut, context.folders, tokenizer.fingerprint, context.store)
    if len(searched) < len(dataset.texts):
        yield note(
            "data",
            f"{name}: in each large file, Check searched only the {describe_first_part()} for refusals, leftover "
            "HTML, duplicates and similar problems.",
        )


def _slice_texts(
    context: PrepareContext, dataset: DatasetEntry, texts: Sequence[LoadedText], rules: SlicingRules
) -> list[TextSource]:
    tokenizer, contents = context.tokenizer, [str(text.text) for text in texts if not text.part]
    whole, stored = slice_texts(contents, tokenizer.encode, tokenizer.fingerprint, rules, context.store)
    if stored:
        context.say(f"Using the cached version of {dataset.name}", None)
    whole_texts = iter(whole)
    sliced_texts = (
        sliced
        for group in group_parts(texts)
        for sliced in (_slice_parts(context, group, rules) if group[0].part else [next(whole_texts)])
    )
    prefix = dataset.name if dataset.name.endswith("/") else ""
    return [
        TextSource(prefix + text.name if prefix else dataset.name, sliced, text.open_end, text.part, text.start)
        for text, sliced in zip(texts, sliced_texts, strict=True)
    ]


def _slice_parts(context: PrepareContext, parts: Sequence[LoadedText], rules: SlicingRules) -> list[SlicedText]:
    """The sliced parts of a large text."""
    texts, tokenizer, name = [cast(StoredText, part.text) for part in parts], context.tokenizer, parts[0].name

    def say(done: int) -> None:
        words = f"Slicing {name}: {done} of {format_count(len(texts), 'part')}"
        context.say(words, done / len(texts))

    sliced, stored = slice_parts(texts, tokenizer.encode, tokenizer.fingerprint, rules, say, context.check_stop)
    if stored:
        context.say(f"Using the cached version of {name}", None)
    return sliced


def _prepare_rows(
    context: PrepareContext, dataset: DatasetEntry, rows: RowDataset, rules: SlicingRules
) -> PreparedDataset:
    settings, seed, truncate = context.settings, context.settings.what.order_seed, _truncation(context, rules)
    source, validation, findings = rows.source, Split(), list(rows.findings)
    if settings.aside.eval_share:
        in_order = settings.steps.batching == "length_then_order"  # its context gain needs whole conversations
        share = settings.aside.eval_share
        source, held_out = split_rows(source, share, seed=seed, whole_conversations=in_order)
        validation = Split.of([truncate(held_out).source], WHOLE_DATASET, seed)
        findings += [] if len(held_out) else [_empty_split_problem(source.name)]
    truncated = truncate(source)
    training = Split.of([truncated.source], dataset.share, seed)
    figures = RowReport(
        rows=rows.counts.rows,
        unreadable=len(rows.counts.bad),
        without_marker=rows.counts.without_marker,
        without_reply=rows.counts.no_reply,
        too_long=truncated.too_long,
        too_long_how=TRUNCATION_WORDS[settings.rows.too_long],
        long_prompts=rows.counts.long_prompts,
        long_replies=rows.counts.long_replies,
        nothing_learned=truncated.nothing_learned,
    )
    notes = (*rows.notes, *_share_note(dataset.share, training.examples))
    report = report_source(source.name, rows.what, training.examples, notes, rows=figures)
    findings += _dropped_rows_problem(settings.rows.too_long, source, truncated.too_long, rules)
    return PreparedDataset(training, validation, (report,), tuple(findings))


def _truncation(context: PrepareContext, rules: SlicingRules) -> Callable[[RowSource], TruncatedRows]:
    too_long, bos = context.settings.rows.too_long, context.tokenizer.bos
    return partial(truncate_rows, cutoff=rules.cutoff, too_long=too_long, bos=bos)


def _empty_split_problem(name: str) -> Finding:
    return problem(
        "eval_share",
        f"{name} is too short for a validation split. Choose an Evaluation dataset, or set Validation split to 0.",
    )


def _dropped_rows_problem(
    too_long: str, source: RowSource, long_rows: int, rules: SlicingRules
) -> Iterator[Finding]:
    count = len(source)
    if too_long == "drop" and long_rows > MAX_DROPPED_SHARE * count:
        yield problem(
            "too_long",
            f"{source.name}: {long_rows} of {count} rows ({100 * long_rows / count:.0f}%) "
            f"{plural(long_rows, 'is', 'are')} longer than the cutoff of {rules.cutoff} tokens. The longest row "
            f"has {int(source.lengths.max())} tokens. Raise the cutoff, or choose what to do with these rows "
            "under 'Rows over the cutoff'.",
        )


def _line_units_note(sources: Sequence[TextSource], rules: SlicingRules) -> Iterator[str]:
    """A note where blocks of a text end at lines."""
    by_lines = sum(int(source.sliced.sections.by_lines.sum()) for source in sources)
    if rules.block_ends == "auto" and by_lines:
        sections = sum(len(source.sliced.sections) for source in sources)
        which = plural(by_lines, "the one that begins with", "the first one begins with")
        yield (
            f"{by_lines:,} of {format_count(sections, 'section')} {plural(by_lines, 'looks', 'look')} like a "
            f"list, verse, a script or a chat log ({which} {_first_by_lines(sources)!r}), so "
            f"{plural(by_lines, 'its', 'their')} blocks end at the end of a line instead of a sentence. "
            "To change this, use the 'Blocks end at' setting."
        )


def _first_by_lines(sources: Sequence[TextSource]) -> str:
    """The first words of the first section whose blocks end at lines."""
    source = next(source for source in sources if source.sliced.sections.by_lines.any())
    sections = source.sliced.sections
    start = int(sections.content_start[sections.by_lines.argmax()])
    return shorten(source.sliced.text[start : start + MAX_BEGINNING], SHORT_BEGINNING, placeholder=" ...")


def _hard_cut_note(texts: Sequence[LoadedText], rules: SlicingRules) -> Iterator[str]:
    """A note that a hard cut made of words is not learned: with CHAPTER, the model never sees that word."""
    if any(letter.isalnum() for letter in rules.hard_cut):
        count = sum(str(text.text).count(rules.hard_cut) for text in texts)
        yield (
            f"The hard cut {rules.hard_cut!r} appears {count} {plural(count, 'time')} in the text. "
            "It is left out of the blocks, so the model never sees it."
        )


def _share_note(share: DatasetShare, examples: Examples) -> Iterator[str]:
    if share.percent != 100:
        yield f"{share.percent:g}% of this dataset is used: {format_count(len(examples), 'example')}."
