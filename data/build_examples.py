"""Opened data sets to examples: texts cut, rows fitted, a share kept aside, and so much taken as is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..chunking import Cutting
from ..train_utils import plural, several
from . import arrow_store, example_cache
from .dataset_index import DataSet
from .examples import (
    EVERYTHING,
    Examples,
    RowSource,
    Share,
    Source,
    Stretch,
    TextSource,
    dataset_share,
    divided,
    divided_rows,
    truncation,
    whole,
)
from .load import Opened, Work
from .readers import ReadText, unsupported
from .report import RowReport, SourceReport, report_stats
from .rows import Inspector, RowSet, refusals

if TYPE_CHECKING:
    from ..chunking import Ints

MOST_DROPPED = 0.05
HOW_TOO_LONG = {
    "drop": "left out",
    "drop_any": "left out",
    "cut_end": "their ends cut",
    "cut_start": "their starts cut",
    "split": "split",
}


@dataclass(frozen=True)
class Side:
    """What is learned of some data sets, or what is kept aside of them."""

    sources: list[Source] = field(default_factory=list)
    picks: list[Ints | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, sources: Sequence[Source], share: Share, seed: int) -> Examples:
        """These sources, or so much of them; what is taken of them is the answer."""
        picks = dataset_share.picks(sources, share, seed)
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


def make(made: Made, work: Work, opened: Opened, cut: Cutting) -> None:
    """A data set, of which a share may be kept aside, and of the rest so much as is asked for."""
    if opened.texts:
        work.say(f"Cutting {opened.data.name}", 0.5)
        _make_texts(made, work, opened, cut)
    if skipped := unsupported.said(opened.data.path):
        made.advice.append(f"{opened.data.name}: {skipped[0].lower()}{skipped[1:]}")
    for rows in opened.rows:
        _make_rows(made, work, opened.data, rows, cut)


def _make_texts(made: Made, work: Work, opened: Opened, cut: Cutting) -> None:
    data, seed, share = opened.data, work.settings.what.seed, work.settings.aside.eval_share
    learned, kept = whole(opened.texts), list[Stretch]()
    if share:
        learned, kept = divided(opened.texts, share, cut, seed=seed, name=data.name)
        made.problems.extend(_nothing_aside(data.name, kept))
    sources = _cut(data, learned, work, cut)
    taken = made.learned.add(sources, data.share, seed)
    made.kept.add(_cut(data, kept, work, cut), EVERYTHING, seed)
    for side, stretches in ((made.learned, learned), (made.kept, kept)):
        side.texts.extend(stretch.text for stretch in stretches)
    made.advice.extend(_inspected(work, data.name, opened.texts, cut))
    what = "raw text" + (" (an example of the project's)" if data.example else "")
    notes = [
        *(n for s in learned for n in s.notes),
        *_lines_said(sources, cut),
        *_marks_said(learned, cut),
        *_share_said(data.share, len(taken)),
    ]
    made.reports.append(report_stats.of_texts(data.name, what, len(opened.texts), sources, taken, notes))


def _lines_said(sources: Sequence[TextSource], cut: Cutting) -> Iterator[str]:
    """Where it was found out that a text's lines are its units."""
    if cut.block_ends == "auto" and any(source.sliced.sections.by_lines.any() for source in sources):
        yield (
            "Its blocks end at lines, not at sentences, where many lines end without a full stop or begin with "
            "who speaks ('Blocks end at' changes that)."
        )


def _marks_said(learned: Sequence[Stretch], cut: Cutting) -> Iterator[str]:
    """A hard cut made of words is no part of what is learned: with CHAPTER the model never meets that."""
    if any(letter.isalnum() for letter in cut.hard_cut):
        times = sum(stretch.text.count(cut.hard_cut) for stretch in learned)
        yield (
            f"The hard cut {cut.hard_cut!r} stands there {times} {plural(times, 'time')} and is left out of what "
            "is learned, as every hard cut is."
        )


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
    own = known and arrow_store.key(
        "words", name, cut.hard_cut, phrases, *(arrow_store.of_text(t.text) for t in texts)
    )
    return example_cache.sentences(own, work.store, look)


def _cut(data: DataSet, stretches: Sequence[Stretch], work: Work, cut: Cutting) -> list[TextSource]:
    texts = [stretch.text for stretch in stretches]
    tokenizer = work.tokenizer
    cut_texts, before = example_cache.cut_texts(texts, tokenizer.encode, tokenizer.fingerprint, cut, work.store)
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
        yield f"{share.per_cent:g} % of it is used: {several(taken, 'example')}."


def _make_rows(made: Made, work: Work, data: DataSet, rows: RowSet, cut: Cutting) -> None:
    way, counts, seed = work.settings.rows.too_long, rows.counts, work.settings.what.seed
    source = rows.source
    if work.settings.aside.eval_share:
        source, kept = divided_rows(source, work.settings.aside.eval_share, seed=seed)
        made.problems.extend(_nothing_aside(source.name, kept))
        made.kept.add([truncation.fitted(kept, cut.cutoff, way, work.tokenizer.bos).source], EVERYTHING, seed)
    done = truncation.fitted(source, cut.cutoff, way, work.tokenizer.bos)
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
    made.reports.append(report_stats.of_rows(rows.what, done.source.name, taken, report, notes))
    made.longest_row = max(made.longest_row, int(source.lengths.max(initial=0)))
    made.advice.extend(rows.advice)
    made.problems.extend([*rows.problems, *_too_many_dropped(way, source, done.too_long, cut)])


def make_test(made: Made, work: Work, opened: Opened, cut: Cutting) -> None:
    """A data set that is kept aside as a whole."""
    seed, share = work.settings.what.seed, opened.data.share
    stretches = whole(opened.texts)
    made.kept.add(_cut(opened.data, stretches, work, cut), share, seed)
    made.kept.texts.extend(stretch.text for stretch in stretches)
    for rows in opened.rows:
        done = truncation.fitted(rows.source, cut.cutoff, work.settings.rows.too_long, work.tokenizer.bos)
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
