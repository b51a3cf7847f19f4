"""One road for Check and for training: from the settings and a tokenizer to examples and their report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, cast

from ..chunking import Cutting, Encoder, unescaped
from ..core.errors import DataError, TrainingProError
from ..core.host import Folders, ModelCard
from ..settings import rules
from ..settings.declared import Text, TrainingSettings
from ..train_utils import StepPlan
from . import counting, fitting, library, reading, row_sets
from .encoding import RowTokenizer
from .examples import Examples, Source, TextSource
from .library import DataSet
from .reading import ReadText
from .report import DatasetReport, RowReport, SourceReport
from .row_sets import RowSet
from .slicing import slices

AUTO_CUTOFF = 256
MOST_DROPPED = 0.05
HOW_TOO_LONG = {
    "drop": "left out",
    "drop_any": "left out",
    "cut_end": "their ends cut",
    "cut_start": "their starts cut",
    "split": "split",
}
Say = Callable[[str, float], None]


class Tokenizer(RowTokenizer, Protocol):
    """What the data ask of a tokenizer."""

    @property
    def encode(self) -> Encoder: ...


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from, and what Check says of it."""

    examples: Examples
    report: DatasetReport
    plan: StepPlan


@dataclass(frozen=True)
class Work:
    """What every step on the road needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: Say


@dataclass(frozen=True)
class Opened:
    """A data set as it was read: texts that are still to be cut, and rows that are encoded already."""

    data: DataSet
    texts: tuple[ReadText, ...] = ()
    rows: tuple[RowSet, ...] = ()


@dataclass(frozen=True)
class Made:
    """A data set's examples and their report."""

    sources: list[Source]
    reports: list[SourceReport]
    problems: list[str] = field(default_factory=list)


def prepare(
    settings: TrainingSettings, folders: Folders, card: ModelCard, tokenizer: Tokenizer, say: Say
) -> TrainingData:
    """Read, cut and count; DataError or SettingsError where that is not possible."""
    work = Work(settings, folders, card, tokenizer, say)
    opened = _opened(work)
    cut = cutting(settings.text, card, tokenizer, _cutoff(work, opened))
    made = [_made(work, each, cut) for each in opened]
    problems = [*_problems(card, cut), *(p for m in made for p in m.problems)]
    examples = Examples([source for m in made for source in m.sources])
    plan = _plan(settings, len(examples), problems)
    reports = [report for m in made for report in m.reports]
    return TrainingData(examples, _report(work, cut, plan, examples, reports, problems), plan)


def checked(
    settings: TrainingSettings, folders: Folders, card: ModelCard, tokenizer: Tokenizer, say: Say
) -> DatasetReport:
    """The report, also where nothing could be prepared: then its problems say why."""
    try:
        return prepare(settings, folders, card, tokenizer, say).report
    except TrainingProError as error:
        return DatasetReport(0, 0, 0, 0, 0, 0, 0, problems=tuple(str(error).splitlines()))


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
    )


def _opened(work: Work) -> list[Opened]:
    """Every data set, read; a DataError names everything that could not be."""
    sets = library.found(work.settings.what.data, work.folders)
    opened, problems = [], []
    for number, data in enumerate(sets):
        work.say(f"Reading {data.name}", number / len(sets))
        try:
            opened.append(_open(work, data))
        except DataError as error:
            problems += str(error).splitlines()
    if problems:
        raise DataError("\n".join(problems))
    return opened


def _open(work: Work, data: DataSet) -> Opened:
    """A file or a folder, as texts or as rows."""
    rows = tuple(_open_rows(work, data, file) for file in library.files(data.path) if row_sets.is_rows(file))
    texts = not rows or (data.path.is_dir() and any(f.suffix in library.TEXTS for f in library.files(data.path)))
    return Opened(data, tuple(reading.read(data.path)) if texts else (), rows)


def _open_rows(work: Work, data: DataSet, file: Path) -> RowSet:
    name = data.name + file.relative_to(data.path).as_posix() if data.path.is_dir() else data.name

    def say(rows: int) -> None:
        work.say(f"Reading {name}: {rows:,} rows", 0.0)

    return row_sets.row_set(file, name, work.settings, work.folders, work.tokenizer, say)


def _cutoff(work: Work, opened: Sequence[Opened]) -> int:
    """The cutoff that these data get: as asked, or for rows by the longest of them."""
    asked = work.settings.text.cutoff
    if asked != "auto":
        return int(asked)
    longest = max((int(r.source.lengths.max(initial=0)) for o in opened for r in o.rows), default=0)
    if not longest:
        return AUTO_CUTOFF
    by_rows = fitting.auto_cutoff(longest, work.card.context)
    return max(by_rows, AUTO_CUTOFF) if any(o.texts for o in opened) else by_rows


def _made(work: Work, opened: Opened, cut: Cutting) -> Made:
    made = Made([], [])
    if opened.texts:
        work.say(f"Cutting {opened.data.name}", 0.5)
        _add_texts(made, opened, work.tokenizer.encode, cut)
    for rows in opened.rows:
        _add_rows(made, work, rows, cut)
    return made


def _add_texts(made: Made, opened: Opened, encode: Encoder, cut: Cutting) -> None:
    data = opened.data
    sources = [TextSource(_label(data, t.name), slices(t.text, encode, cut)) for t in opened.texts]
    made.sources.extend(sources)
    what = "raw text" + (" (an example of the project's)" if data.example else "")
    notes = [note for t in opened.texts for note in t.notes]
    made.reports.append(counting.of_texts(data.name, what, sources, notes))


def _label(data: DataSet, file: str) -> str:
    return f"{data.name}{file}" if data.name.endswith("/") else data.name


def _add_rows(made: Made, work: Work, rows: RowSet, cut: Cutting) -> None:
    settings, counts = work.settings.rows, rows.counts
    done = fitting.fitted(rows.source, cut.cutoff, settings.too_long, work.tokenizer.bos)
    made.sources.append(done.source)
    report = RowReport(
        rows=counts.rows,
        unreadable=len(counts.bad),
        without_marker=counts.without_marker,
        without_reply=counts.no_reply,
        too_long=done.too_long,
        too_long_how=HOW_TOO_LONG[settings.too_long],
        nothing_learned=done.nothing_learned,
    )
    made.reports.append(counting.of_rows(rows, done.source, report))
    made.problems.extend([*rows.problems, *_too_many_dropped(settings.too_long, rows, done.too_long, cut)])


def _too_many_dropped(way: str, rows: RowSet, long: int, cut: Cutting) -> Iterator[str]:
    whole = len(rows.source)
    if way == "drop" and long > MOST_DROPPED * whole:
        yield (
            f"{rows.source.name}: {long} of {whole} rows ({100 * long / whole:.0f} %) are longer than the cutoff "
            f"of {cut.cutoff} tokens, the longest has {int(rows.source.lengths.max())}. Raise the cutoff, or "
            "choose under 'Rows too long' what to do with them."
        )


def _plan(settings: TrainingSettings, examples: int, problems: Sequence[str]) -> StepPlan:
    steps = settings.steps
    if not examples:
        raise DataError("\n".join(problems) or "Data: nothing is left to learn from. " + _why_nothing(settings))
    return StepPlan(examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)


def _why_nothing(settings: TrainingSettings) -> str:
    if marker := settings.rows.train_only_after:
        return f"No row holds {marker!r} with something behind it ('Learn only after')."
    if settings.text.min_chars:
        return "Lower 'Leave out blocks up to', or choose another text."
    return "Raise the cutoff, or change what is learned from ('Learn from'), or choose other data."


def _report(
    work: Work,
    cut: Cutting,
    plan: StepPlan,
    examples: Examples,
    sources: Sequence[SourceReport],
    problems: Sequence[str],
) -> DatasetReport:
    lengths = examples.lengths()
    return DatasetReport(
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=sum(examples.learned()),
        longest=max(lengths),
        cutoff=cut.cutoff,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        sources=tuple(sources),
        problems=tuple(problems),
        advice=(*rules.advice(work.settings), *_advice(cut, plan, examples)),
        notes=(*rules.notes(work.settings), *_notes(work, cut, examples)),
        resolved={"cutoff": cut.cutoff, "accumulation": plan.accumulated},
        lengths=counting.lengths(lengths),
    )


def _problems(card: ModelCard, cut: Cutting) -> list[str]:
    if card.context and cut.cutoff > card.context:
        return [
            f"Maximum context length (Cutoff): {cut.cutoff} is more than {card.name} takes "
            f"({card.context} tokens). Use {card.context} or less."
        ]
    return []


def _advice(cut: Cutting, plan: StepPlan, examples: Examples) -> Iterator[str]:
    if plan.accumulated < plan.accumulation:
        yield (
            f"Gradient Accumulation {plan.accumulation} is more than the {plan.batches} batches of an epoch: "
            f"it is lowered to {plan.accumulated}."
        )
    if cut.eos is None and cut.add_eos != "never":
        yield "This tokenizer has no end token: the model will not learn where a text ends."


def _notes(work: Work, cut: Cutting, examples: Examples) -> Iterator[str]:
    rows = work.settings.rows
    if work.settings.text.cutoff == "auto":
        yield f"Maximum context length (Cutoff): auto = {cut.cutoff}."
    kinds = {type(source) for source in examples.sources}
    if TextSource in kinds and rows.train_only_after:
        yield "Learn only after: it is for rows; raw text is learned as a whole."
