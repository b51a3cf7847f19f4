"""The report of Check: the figures of the data and the run, with verdict, problems and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ...core.findings import Finding, Suggestion, sort_findings, texts
from ...settings.rules import check_settings
from ...train_utils import StepPlan, format_count, plural
from .. import batch_order
from ..dataset_index import DatasetShare
from ..examples import Examples, RowSource, TextSource, group_parts, pick_passages
from ..load import ResolvedSettings
from ..readers import LoadedText
from ..rows import PrepareContext, RowReport, reply_lead
from ..text import SliceMap, build_slice_map
from .data_checks import check_exam, check_examples, count_learned_stops, show_recipes
from .estimates import DiskEstimate, MemoryEstimate, MemoryModel, check_memory, estimate_disk
from .plan_checks import check_plan, count_evaluations, count_sample_rounds, suggest_settings
from .preview import ExamplePreview

Verdict = Literal["ready", "ready with advice", "not ready"]
MAX_COLUMNS = 32  # of a histogram
# Of a slice map, what is only for drawing.
DRAWN_FIGURES = ("windows", "hard_cuts", "bars", "seen_along", "trained_tokens", "left_out_characters", "lost")


@dataclass(frozen=True)
class LengthHistogram:
    """Histogram of the lengths of examples, in columns of `width` tokens."""

    width: int = 0
    counts: tuple[int, ...] = ()
    longest: int = 0
    second: int = 0

    @staticmethod
    def of(lengths: Sequence[int]) -> LengthHistogram:
        """The histogram of these lengths; the width of its columns is a power of two."""
        if not len(lengths):
            return LengthHistogram()
        two_longest = sorted(lengths)[-2:]
        width = 8
        while two_longest[-1] > width * MAX_COLUMNS:
            width *= 2
        # A length of exactly one column's width still belongs to that column.
        counts = np.bincount((np.asarray(lengths) - 1) // width)
        second = two_longest[0] if len(two_longest) > 1 else 0
        return LengthHistogram(width, tuple(counts.tolist()), two_longest[-1], second)


def map_texts(sources: Sequence[TextSource]) -> SliceMap:
    """The figures of how the texts of a dataset were sliced; the parts of a large text are one."""
    groups = [(group[0].name, [source.sliced for source in group]) for group in group_parts(sources)]
    maps = tuple((name, build_slice_map(*sliced)) for name, sliced in groups)
    whole = maps[0][1] if len(maps) == 1 else build_slice_map(*(source.sliced for source in sources))
    return replace(whole, maps=maps)


@dataclass(frozen=True)
class SourceReport:
    """One dataset: what it is, its examples, what was dropped and why."""

    name: str
    what: str
    files: int
    examples: int
    tokens: int
    trained_tokens: int
    lengths: LengthHistogram = LengthHistogram()
    text: SliceMap | None = None
    rows: RowReport | None = None
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        name: str,
        what: str,
        examples: Examples,
        notes: Iterable[str],
        share: DatasetShare,
        *,
        files: int = 1,
        text: SliceMap | None = None,
        rows: RowReport | None = None,
    ) -> SourceReport:
        """The report of a dataset: how its texts were sliced or its rows read, and the examples that are used."""
        count, lengths, trained_tokens = len(examples), examples.lengths(), sum(examples.learned())
        histogram, notes = LengthHistogram.of(lengths), list(notes)
        if share.percent != 100:
            notes.append(f"{share.percent:g}% of this dataset is used: {format_count(count, 'example')}.")
        return SourceReport(
            name, what, files, count, sum(lengths), trained_tokens, histogram, text, rows, tuple(notes)
        )

    def lines(self) -> Iterator[str]:
        """The dataset in the lines of a report."""
        if text := self.text:
            overlap = f" and {format_count(text.overlaps, 'overlap block')}" if text.overlaps else ""
            yield (
                f"{self.name}: {self.what}, {format_count(self.files, 'file')}, "
                f"{format_count(text.parts, 'section')}, {text.units_text} -> "
                f"{format_count(text.blocks, 'block')}{overlap}"
            )
            yield f"  {text.words(self.tokens)}. {text.proof}"
        if rows := self.rows:
            excluded = "".join(f"; {count} {reason}" for count, reason in rows.exclusion_counts() if count)
            which = f"longest example has {self.lengths.longest}"
            if self.lengths.second:
                which = f"two longest examples have {self.lengths.longest} and {self.lengths.second}"
            yield (
                f"{self.name}: {self.what}; {format_count(rows.rows, 'row')} -> "
                f"{format_count(self.examples, 'example')}{excluded}; {self.tokens:,} tokens, "
                f"{self.trained_tokens:,} trained on; the {which} tokens"
            )
        yield from (f"  {note}" for note in self.notes)


@dataclass(frozen=True)
class StopTokenCount:
    """How many ends of rows or sections are learned with a stop token, of how many."""

    stopping: int
    of: int
    unit: str = "rows or sections"

    def words(self) -> str:
        count = f"all {self.of:,}" if self.stopping == self.of > 1 else f"{self.stopping:,} of {self.of:,}"
        return (
            f"{count} {self.unit} {plural(self.stopping, 'ends', 'end')} with a stop token, which teaches the "
            "model to stop there"
        )


@dataclass(frozen=True)
class ValidationSplit:
    """The validation split: its sections or rows, and the examples made of them."""

    parts: int
    examples: int
    tokens: int
    trained_tokens: int

    def words(self) -> str:
        parts = format_count(self.parts, "section or row", "sections or rows")
        examples = format_count(self.examples, "example")
        return f"{parts}, {examples}, {format_count(self.tokens, 'token')}"


@dataclass(frozen=True)
class DatasetReport:
    """Everything that Check shows; a run computes the same figures with the same code."""

    examples: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    steps_per_epoch: int = 0
    steps: int = 0
    sources: tuple[SourceReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    resolved: ResolvedSettings | None = None
    lengths: LengthHistogram = LengthHistogram()
    kept_aside: ValidationSplit | None = None
    suggestions: tuple[Suggestion, ...] = ()
    padding: Mapping[str, float] = field(default_factory=dict)
    memory: MemoryEstimate | None = None
    free_memory: int = 0  # bytes for the run, with its model; 0 where unknown
    disk: DiskEstimate | None = None
    stops: StopTokenCount | None = None
    evaluations: int = 0
    sample_rounds: int = 0
    recall_tokens: int = 0  # of the passages that recall is measured on; 0 if no example has one
    tokens_known: Mapping[str, str] = field(default_factory=dict)
    shown: tuple[ExamplePreview, ...] = ()
    private: bool = False  # whether there are chats among the data

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", sort_findings(self.findings))

    @staticmethod
    def of_problems(sentences: Iterable[str]) -> DatasetReport:
        """A report that only says why nothing could be prepared."""
        return DatasetReport(findings=tuple(Finding("problem", "", sentence) for sentence in sentences))

    def with_findings(self, said: Iterable[Finding | Suggestion]) -> DatasetReport:
        """The report with what else is to say, behind what it says so far."""
        findings, suggestions = list(self.findings), list(self.suggestions)
        for each in said:
            if isinstance(each, Finding):
                findings.append(each)
            else:
                suggestions.append(each)
        # What one suggestion changes is not fine as it is, whatever another one says.
        changed = {suggestion.key for suggestion in suggestions if not suggestion.keep}
        suggestions = [s for s in suggestions if not s.keep or s.key not in changed]
        return replace(self, findings=tuple(findings), suggestions=tuple(suggestions))

    @property
    def problems(self) -> tuple[str, ...]:
        return texts(self.findings, "problem")

    @property
    def advice(self) -> tuple[str, ...]:
        return texts(self.findings, "advice")

    @property
    def notes(self) -> tuple[str, ...]:
        return texts(self.findings, "note")

    @property
    def cutoff(self) -> int:
        return self.resolved.cutoff if self.resolved else 0

    @property
    def mixture(self) -> str:
        """Each source's share of the trained tokens: 'story.txt 60%, chats.jsonl 40%'."""
        total = sum(s.trained_tokens for s in self.sources) or 1
        return ", ".join(f"{s.name} {100 * s.trained_tokens / total:.0f}%" for s in self.sources)

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "not ready"
        return "ready with advice" if self.advice else "ready"

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON, without the slice maps, which are only for drawing."""
        sources = (replace(s, text=replace(s.text, maps=())) if s.text else s for s in self.sources)
        content: dict[str, Any] = {"verdict": self.verdict, "problems": self.problems, "advice": self.advice}
        content |= {"notes": self.notes, "cutoff": self.cutoff, **asdict(replace(self, sources=tuple(sources)))}
        del content["findings"]
        for text in (source["text"] or {} for source in content["sources"]):
            for key in DRAWN_FIGURES:
                text.pop(key, None)
        content["resolved"] = self.resolved.as_json() if self.resolved else {}
        if self.memory:
            content["memory"]["total"] = self.memory.total
        if self.disk:
            del content["disk"]["free"]  # true only at this moment
        return content

    def text(self) -> str:
        """Return the report as lines of text."""
        lines = [f"Verdict: {self.verdict}"]
        lines += [f"Problem: {p}" for p in self.problems] + [f"Advice: {a}" for a in self.advice]
        for suggestion in self.suggestions:
            heading = "Fine as it is" if suggestion.keep else "Suggestion"
            lines.append(f"{heading}: {suggestion.key} = {suggestion.words}. {suggestion.why}")
        lines += [f"Note: {n}" for n in self.notes]
        lines += [line for source in self.sources for line in source.lines()]
        if len(self.sources) > 1:
            lines.append(f"Trained tokens by dataset: {self.mixture}")
        if self.kept_aside:
            lines.append(f"Validation split: {self.kept_aside.words()}")
        if self.examples:
            lines.append(
                f"{self.examples} {plural(self.examples, 'example')}, {self.tokens} tokens "
                f"({self.trained_tokens} trained on); the longest has {self.longest} tokens "
                f"(cutoff {self.cutoff}); {self.steps_per_epoch} {plural(self.steps_per_epoch, 'step')} per "
                f"epoch, {self.steps} in total"
            )
            known = ", ".join(f"{name} {token}" for name, token in self.tokens_known.items())
            padding = ", ".join(f"{100 * share:.0f}% {name}" for name, share in self.padding.items())
            parts = {
                "Stop tokens": self.stops.words() if self.stops else "",
                "Special tokens": known,
                "Padding": padding,
                "Expected memory": self.memory.words() if self.memory else "",
                "Disk": self.disk.words() if self.disk else "",
            }
            lines += [f"{name}: {words}" for name, words in parts.items() if words]
        return "\n".join([*lines, *(s.text() for s in self.shown)])


def report_run(
    context: PrepareContext,
    said: DatasetReport,
    examples: Examples,
    validation: Examples,
    plan: StepPlan,
    loaded_texts: Sequence[LoadedText],
    memory: MemoryModel | None,
) -> DatasetReport:
    """The report on the examples and the steps of a run, after what was `said` while they were made."""
    settings, tokenizer, lengths = context.settings, context.tokenizer, examples.lengths()
    trained_tokens, kept_aside = sum(examples.learned()), None
    if validation.sources:
        sections = [s.rows if isinstance(s, RowSource) else s.sections for s in validation.sources]
        parts, tokens = sum(len(np.unique(numbers)) for numbers in sections), sum(validation.lengths())
        kept_aside = ValidationSplit(parts, len(validation), tokens, sum(validation.learned()))
    ends = [count_learned_stops(source, tokenizer.stops) for source in examples.sources if len(source)]
    units = {"rows" if isinstance(source, RowSource) else "sections" for source in examples.sources}
    count, bos, eos = settings.aside.recall_passages, tokenizer.bos, tokenizer.eos
    lead = reply_lead(tokenizer) if "rows" in units else []
    passages = [] if examples.are_compared else pick_passages(examples.without_lead(lead), count, bos)
    passages += pick_passages(validation.without_lead(lead), count, bos) if passages else []
    folder = context.folders.output_folder(full_finetune=settings.lora.whole_model)
    disk = estimate_disk(memory, settings, plan, folder) if memory else None
    report = replace(
        said,
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=trained_tokens,
        longest=max(lengths),
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        lengths=LengthHistogram.of(lengths),
        kept_aside=kept_aside,
        padding=_padding_shares(lengths, settings.steps.batch_size, settings.what.order_seed),
        memory=memory.memory(settings) if memory else None,
        free_memory=memory.free if memory else 0,
        disk=disk,
        stops=StopTokenCount(sum(n for n, _ in ends), sum(n for _, n in ends), " or ".join(sorted(units))),
        evaluations=count_evaluations(settings, plan, validation),
        sample_rounds=count_sample_rounds(settings, plan),
        recall_tokens=sum(len(passage.example.ids) for passage in passages),
        tokens_known={
            "BOS": "not added" if bos is None else tokenizer.decode([bos]),
            "EOS": "none" if eos is None else tokenizer.decode([eos]),
            "padding": "masked",
        },
    )
    return report.with_findings(
        [
            *(disk.findings() if disk else ()),
            *check_settings(settings),
            *check_plan(settings, plan, examples, validation, context.card.context),
            *suggest_settings(settings, plan, memory, trained_tokens),
            *(check_memory(memory, settings) if memory else ()),
            *check_examples(context, examples, validation, loaded_texts),
            *check_exam(context),
            *show_recipes(context),
        ]
    )


def _padding_shares(lengths: Sequence[int], batch: int, seed: int) -> dict[str, float]:
    """Return the share of padding for each order of the examples, and with packing."""
    array, numbers = np.asarray(lengths), np.arange(len(lengths))
    orders = {
        "shuffled": batch_order.shuffle(numbers, seed, 0),
        "by_length": batch_order.order_by_length(numbers, lengths, batch, seed, 0),
        "sequential": numbers,
    }
    orders["not_known"] = orders["shuffled"]
    starts = np.arange(0, len(lengths), batch)
    counts = np.diff(np.append(starts, len(lengths)))  # of examples in each batch
    shares = {}
    for name, order in orders.items():
        computed = int((np.maximum.reduceat(array[order], starts) * counts).sum())
        shares[name] = round(1 - int(array.sum()) / computed, 4) if computed else 0.0
    return {**shares, "packed": 0.0}
