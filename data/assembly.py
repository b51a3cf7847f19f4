"""One road for Check and for training: from the settings and a tokenizer to examples and their report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from ..chunking import Cutting, Encoder, unescaped
from ..core import processes
from ..core.errors import DataError, TrainingProError
from ..core.host import Folders, Memory, ModelCard
from ..settings import rules
from ..settings.declared import Text, TrainingSettings
from ..train_utils import StepPlan
from . import counting, fitting, keeping, library, mixing, prepared, reading, row_sets
from .aside import RUN_WORDS, Stretch, divided, divided_rows, shared_rows, shared_runs, whole
from .disk import disk_plan
from .encoding import RowTokenizer
from .examples import Examples, RowSource, Source, TextSource
from .expecting import Expecting
from .inspection import Inspector, refusals
from .library import DataSet
from .mixing import EVERYTHING, Share
from .prepared import Store
from .reading import ReadText
from .report import DatasetReport, RowReport, SourceReport
from .row_sets import RowSet
from .showing import shown
from .stopping import said, stops
from .suggestions import padding, suggestions

if TYPE_CHECKING:
    from ..chunking import Ints

AUTO_CUTOFF = 256
MOST_DROPPED = 0.05
HOW_TOO_LONG = {
    "drop": "left out",
    "drop_any": "left out",
    "cut_end": "their ends cut",
    "cut_start": "their starts cut",
    "split": "split",
}
Say = Callable[[str, float | None], None]


class Tokenizer(RowTokenizer, Protocol):
    """What the data ask of a tokenizer."""

    @property
    def encode(self) -> Encoder: ...


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from, what is kept aside for testing, and what Check says of both."""

    examples: Examples
    report: DatasetReport
    plan: StepPlan
    kept_aside: Examples


@dataclass(frozen=True)
class Work:
    """What every step on the road needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: Say
    machine: Memory | None = None
    store: Store = field(default_factory=Store)


@dataclass(frozen=True)
class Opened:
    """A data set as it was read: texts that are still to be cut, and rows that are encoded already."""

    data: DataSet
    texts: tuple[ReadText, ...] = ()
    rows: tuple[RowSet, ...] = ()


@dataclass(frozen=True)
class Side:
    """What is learned of some data sets, or what is kept aside of them."""

    sources: list[Source] = field(default_factory=list)
    picks: list[Ints | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, sources: Sequence[Source], share: Share, seed: int) -> Examples:
        """These sources, or so much of them; what is taken of them is the answer."""
        picks = mixing.picks(sources, share, seed)
        self.sources.extend(sources)
        self.picks.extend(picks)
        return Examples(sources, picks)

    @property
    def examples(self) -> Examples:
        return Examples(self.sources, self.picks)


@dataclass
class Made:
    """All data sets as they are trained on, and what is kept aside of them."""

    learned: Side = field(default_factory=Side)
    kept: Side = field(default_factory=Side)
    reports: list[SourceReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    longest_row: int = 0


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
    store = prepared.store(folders) if keep else Store()
    work = Work(settings, folders, card, tokenizer, say, machine, store)
    opened, tests = _opened(work, settings.what.data), _opened(work, settings.aside.eval_data)
    cut = cutting(settings.text, card, tokenizer, _cutoff(work, opened))
    made = Made()
    for each in opened:
        _make(made, work, each, cut)
    for each in tests:
        _make_test(made, work, each, cut)
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
    show: int = 0,
    machine: Memory | None = None,
    keep: bool = True,
) -> DatasetReport:
    """The report, also where nothing could be prepared: then its problems say why. `show` so many examples."""
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
    )


def _opened(work: Work, names: Sequence[str]) -> list[Opened]:
    """Every data set, read; a DataError names everything that could not be."""
    sets = library.found(names, work.folders)
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
    there = {file.suffix.lower() for file in library.files(data.path)} if data.path.is_dir() else set()
    texts = not rows or there & set(library.TEXTS)
    cut = unescaped(work.settings.text.hard_cut)
    documents = partial(keeping.document, work.store)
    return Opened(data, tuple(reading.read(data.path, cut, documents)) if texts else (), rows)


def _open_rows(work: Work, data: DataSet, file: Path) -> RowSet:
    name = data.name + file.relative_to(data.path).as_posix() if data.path.is_dir() else data.name

    def say(rows: int) -> None:
        work.say(f"Reading {name}: {rows:,} rows", 0.0)

    given = (file, name, work.settings, work.folders, work.tokenizer)
    made, before = keeping.rows(
        row_sets.key(*given), work.store, work.tokenizer, lambda: row_sets.row_set(*given, say)
    )
    if before:
        work.say(f"{name} was prepared before: nothing is done again", None)
    return made


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


def _make(made: Made, work: Work, opened: Opened, cut: Cutting) -> None:
    """A data set, of which a share may be kept aside, and of the rest so much as is asked for."""
    if opened.texts:
        work.say(f"Cutting {opened.data.name}", 0.5)
        _make_texts(made, work, opened, cut)
    for rows in opened.rows:
        _make_rows(made, work, opened.data, rows, cut)


def _make_texts(made: Made, work: Work, opened: Opened, cut: Cutting) -> None:
    data, seed, share = opened.data, work.settings.what.seed, work.settings.aside.eval_share
    learned, kept = whole(opened.texts), list[Stretch]()
    if share:
        learned, kept = divided(opened.texts, share, cut.hard_cut, seed=seed, name=data.name)
        made.problems.extend(_nothing_aside(data.name, kept))
    sources = _cut(data, learned, work, cut)
    taken = made.learned.add(sources, data.share, seed)
    made.kept.add(_cut(data, kept, work, cut), EVERYTHING, seed)
    for side, stretches in ((made.learned, learned), (made.kept, kept)):
        side.texts.extend(stretch.text for stretch in stretches)
    made.advice.extend(_inspected(work, data.name, opened.texts, cut))
    what = "raw text" + (" (an example of the project's)" if data.example else "")
    notes = [*(note for s in learned for note in s.notes), *_share_said(data.share, len(taken))]
    made.reports.append(counting.of_texts(data.name, what, len(opened.texts), sources, taken, notes))


def _inspected(work: Work, name: str, texts: Sequence[ReadText], cut: Cutting) -> list[str]:
    """What is to be said of the words of a text, part by part."""
    phrases = refusals(work.folders)

    def look() -> list[str]:
        inspector = Inspector(phrases)
        parts = [part for t in texts for part in (t.text.split(cut.hard_cut) if cut.hard_cut else [t.text])]
        for number, part in enumerate((p for p in parts if p.strip()), start=1):
            inspector.look(part, part, f"part {number}")
        return list(inspector.said(name, "part"))

    known = work.tokenizer.fingerprint  # what cannot be kept of the examples is not kept of this either
    own = known and prepared.key("words", name, cut.hard_cut, phrases, *(prepared.of_text(t.text) for t in texts))
    return keeping.sentences(own, work.store, look)


def _cut(data: DataSet, stretches: Sequence[Stretch], work: Work, cut: Cutting) -> list[TextSource]:
    texts = [stretch.text for stretch in stretches]
    tokenizer = work.tokenizer
    cut_texts, before = keeping.cut_texts(texts, tokenizer.encode, tokenizer.fingerprint, cut, work.store)
    if before:
        work.say(f"{data.name} was prepared before: nothing is done again", None)
    return [
        TextSource(_label(data, stretch.name), sliced, stretch.open_end)
        for stretch, sliced in zip(stretches, cut_texts, strict=True)
    ]


def _label(data: DataSet, file: str) -> str:
    return f"{data.name}{file}" if data.name.endswith("/") else data.name


def _nothing_aside(name: str, kept: Sized) -> Iterator[str]:
    if not len(kept):
        yield (
            f"{name} is too short to keep a part of it aside. Keep data sets of their own aside, or set the "
            "share to 0."
        )


def _share_said(share: Share, taken: int) -> Iterator[str]:
    if share.per_cent != 100:
        yield f"{share.per_cent:g} % of it is used: {taken:,} examples."


def _make_rows(made: Made, work: Work, data: DataSet, rows: RowSet, cut: Cutting) -> None:
    way, counts, seed = work.settings.rows.too_long, rows.counts, work.settings.what.seed
    source = rows.source
    if work.settings.aside.eval_share:
        source, kept = divided_rows(source, work.settings.aside.eval_share, seed=seed)
        made.problems.extend(_nothing_aside(source.name, kept))
        made.kept.add([fitting.fitted(kept, cut.cutoff, way, work.tokenizer.bos).source], EVERYTHING, seed)
    done = fitting.fitted(source, cut.cutoff, way, work.tokenizer.bos)
    taken = made.learned.add([done.source], data.share, seed)
    report = RowReport(
        rows=counts.rows,
        unreadable=len(counts.bad),
        without_marker=counts.without_marker,
        without_reply=counts.no_reply,
        too_long=done.too_long,
        too_long_how=HOW_TOO_LONG[way],
        nothing_learned=done.nothing_learned,
    )
    notes = [*rows.notes, *_share_said(data.share, len(taken))]
    made.reports.append(counting.of_rows(rows.what, done.source.name, taken, report, notes))
    made.longest_row = max(made.longest_row, int(source.lengths.max(initial=0)))
    made.advice.extend(rows.advice)
    made.problems.extend([*rows.problems, *_too_many_dropped(way, source, done.too_long, cut)])


def _make_test(made: Made, work: Work, opened: Opened, cut: Cutting) -> None:
    """A data set that is kept aside as a whole."""
    seed, share = work.settings.what.seed, opened.data.share
    stretches = whole(opened.texts)
    made.kept.add(_cut(opened.data, stretches, work, cut), share, seed)
    made.kept.texts.extend(stretch.text for stretch in stretches)
    for rows in opened.rows:
        done = fitting.fitted(rows.source, cut.cutoff, work.settings.rows.too_long, work.tokenizer.bos)
        made.kept.add([done.source], share, seed)
        made.problems.extend(rows.problems)


def _too_many_dropped(way: str, source: RowSource, long: int, cut: Cutting) -> Iterator[str]:
    count = len(source)
    if way == "drop" and long > MOST_DROPPED * count:
        yield (
            f"{source.name}: {long} of {count} rows ({100 * long / count:.0f} %) are longer than the cutoff "
            f"of {cut.cutoff} tokens, the longest has {int(source.lengths.max())}. Raise the cutoff, or "
            "choose under 'Rows too long' what to do with them."
        )


def _plan(settings: TrainingSettings, examples: int, problems: Sequence[str]) -> StepPlan:
    steps = settings.steps
    if not examples:
        raise DataError("\n".join(problems) or "Data: nothing is left to learn from. " + _why_nothing(settings))
    sizes = (steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    return StepPlan(examples, *sizes, processes.count())


def _why_nothing(settings: TrainingSettings) -> str:
    if marker := settings.rows.train_only_after:
        return f"No row holds {marker!r} with something behind it ('Learn only after')."
    if settings.text.min_chars:
        return "Lower 'Leave out blocks up to', or choose another text."
    return "Raise the cutoff, or change what is learned from ('Learn from'), or choose other data."


def _report(work: Work, cut: Cutting, plan: StepPlan, examples: Examples, made: Made) -> DatasetReport:
    lengths, sources, stopping = examples.lengths(), made.learned.sources, work.tokenizer.stops
    expected = Expecting.of(work.card, examples, work.machine)
    suggested = suggestions(
        work.settings, plan, longest_row=made.longest_row, cutoff=cut.cutoff, context=work.card.context
    )
    disk = disk_plan(work.settings, work.card, plan, work.folders.loras)
    return DatasetReport(
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=sum(examples.learned()),
        longest=max(lengths),
        cutoff=cut.cutoff,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        sources=tuple(made.reports),
        problems=(*made.problems, *(disk.problems() if disk else ())),
        advice=(
            *rules.advice(work.settings),
            *(disk.advice() if disk else ()),
            *_advice(cut, plan),
            *said(sources, stopping),
            *made.advice,
            *_leaks(made),
        ),
        notes=(*rules.notes(work.settings), *_notes(work, cut, examples), *_together(plan)),
        resolved={
            "cutoff": cut.cutoff,
            "accumulation": plan.accumulated,
            "gradient_checkpointing": "on" if expected and expected.checkpoints(work.settings) else "off",
        },
        lengths=counting.lengths(lengths),
        kept_aside=counting.kept(made.kept.examples),
        suggestions=tuple(suggested),
        padding=padding(lengths, work.settings.steps.batch_size, work.settings.what.seed),
        memory=expected.memory(work.settings) if expected else None,
        disk=disk,
        stops=stops(sources, stopping),
        tokens_known=_tokens_known(work.tokenizer),
    )


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
        yield (
            f"Kept aside: {len(runs)} passages of {RUN_WORDS} words and more stand in the training text too, "
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
            f"Gradient Accumulation {plan.accumulation} is more than the {plan.batches} batches of an epoch: "
            f"it is lowered to {plan.accumulated}."
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
