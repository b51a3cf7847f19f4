"""What the model and the examples show: text that is learned and measured, stop tokens, and missing hard cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ...chunking import Text, Units
from ...core.findings import Finding, Suggestion, advice, problem
from ...core.host import ModelCard
from ...dementor import CutoffFit, fit_cutoff, is_one_window_each, longest_section
from ...train_utils import format_count, plural
from ..examples import NGRAM_WORDS, RowSource, Source, TextSource, count_shared_rows, find_shared_passages
from ..readers import LoadedText
from .hard_cuts import describe_verses
from .report import StopTokenCount

LONG_TEXT_BLOCKS = 20
MIN_REPEATS = 1.2  # times that a sentence is seen on average
MAX_TEXTS_NAMED = 3


def check_model(card: ModelCard) -> Iterator[Finding]:
    if not card.is_causal_lm:
        architectures = ", ".join(card.config.get("architectures") or ["an encoder"])
        yield problem(
            "",
            f"{card.name} ({architectures}) can't generate text. Choose a model for text generation.",
        )


def check_leaks(
    learned: Sequence[Source], validation: Sequence[Source], learned_texts: Sequence[Text], texts: Sequence[Text]
) -> Iterator[Finding]:
    """Yield text and rows that stand in both the training and the validation data."""
    if validation and (passages := find_shared_passages(texts, learned_texts)):
        count = len(passages)
        yield advice(
            "eval_data",
            f"Validation data: {format_count(count, 'passage')} of {NGRAM_WORDS} words or more also "
            f"{plural(count, 'appears', 'appear')} in the training text. {plural(count, 'It', 'One of them')} "
            f"starts with {passages[0][:60]!r}.",
        )
    if shared := count_shared_rows(validation, learned):
        yield advice(
            "eval_data",
            f"Validation data: {shared} of its rows {plural(shared, 'is', 'are')} also in the training data. "
            f"Remove {plural(shared, 'it', 'them')} from either the training data or the validation data.",
        )


def count_learned_stops(sources: Sequence[Source], ids: Collection[int]) -> StopTokenCount:
    """Count the ends of rows and sections that are learned with a stop token."""
    counts = [_count_rows(s, ids) if isinstance(s, RowSource) else _count_text(s) for s in sources if len(s)]
    units = {"rows" if isinstance(source, RowSource) else "sections" for source in sources}
    return StopTokenCount(sum(s.stopping for s in counts), sum(s.of for s in counts), " or ".join(sorted(units)))


def _count_rows(source: RowSource, ids: Collection[int]) -> StopTokenCount:
    """Count the rows whose last learned turn ends with a stop token."""
    is_stop = np.isin(source.last_learned_ids, np.array(sorted(ids), np.int64))
    return StopTokenCount(int(is_stop.sum()), len(source))


def _count_text(source: TextSource) -> StopTokenCount:
    parts = len(source.sliced.sections) - source.open_end
    learns_ends = source.sliced.rules.eos is not None and source.sliced.rules.add_eos != "never"
    return StopTokenCount(parts if learns_ends else 0, parts)


def check_stops(sources: Sequence[Source], ids: Collection[int]) -> Iterator[Finding]:
    """Yield advice on sources with few learned stop tokens."""
    for source in sources:
        if isinstance(source, RowSource) and len(source):
            count = _count_rows(source, ids)
            if count.stopping < count.of:
                yield advice(
                    "data",
                    f"{source.name}: only {count.stopping} of {count.of} examples end with a trained stop "
                    "token, so the model may not learn to stop.",
                )
    texts = [source for source in sources if isinstance(source, TextSource) and source.sliced.rules.closing]
    blocks, parts, verses = Counter[str](), Counter[str](), dict[str, str]()
    for text in texts:  # the validation split may divide one text into several
        blocks[text.name] += len(text)
        parts[text.name] += len(text.sliced.sections) - text.open_end
        verses[text.name] = verses.get(text.name) or ("" if text.part > 1 else describe_verses(text.sliced.text))
    for name in blocks:
        if blocks[name] >= LONG_TEXT_BLOCKS and parts[name] in _FEW_ENDS_ADVICE:
            yield advice("hard_cut", f"{name}: {_FEW_ENDS_ADVICE[parts[name]]} {verses[name] or _WHERE_TO_CUT}")


_GOES_ON = "The model may not learn to stop."
_WHERE_TO_CUT = (
    "Add the hard cut to the text wherever a chapter, scene or conversation ends, or enter another "
    "separator under Hard cut."
)
_FEW_ENDS_ADVICE = {
    0: "no hard cut was found, and the end of the text is in the validation split, so no EOS token is trained on. "
    + _GOES_ON,
    1: f"no hard cut was found, so there is only one EOS token, at the end of the text. {_GOES_ON}",
}


def check_windows(sources: Sequence[Source]) -> Iterator[Finding]:
    """Yield advice where DEMENTOR repeats nothing."""
    if fit := _fit_windows(sources):
        yield advice("cutoff", _describe_windows(sources, fit))


def suggest_windows(sources: Sequence[Source]) -> Iterator[Suggestion]:
    """Suggest the cutoff with which DEMENTOR repeats as often as it should, or as often as it can."""
    if (fit := _fit_windows(sources)) and fit.repeats >= MIN_REPEATS:
        yield Suggestion("cutoff", fit.cutoff, _describe_windows(sources, fit))


def _fit_windows(sources: Sequence[Source]) -> CutoffFit | None:
    """The cutoff to use instead of one with which every section fits into one window."""
    texts = _sliced_by_windows(sources)
    repeats = texts[0].rules.dementor_repeats if texts else 1
    if repeats == 1 or not all(map(is_one_window_each, texts)):
        return None
    return fit_cutoff(texts, repeats)


def _describe_windows(sources: Sequence[Source], fit: CutoffFit) -> str:
    texts = _sliced_by_windows(sources)
    repeats, cutoff = texts[0].rules.dementor_repeats, texts[0].rules.cutoff
    reason = (
        f"DEMENTOR has nothing to repeat: the longest section has {longest_section(texts)} tokens, so every "
        f"section fits into one window of {cutoff} tokens."
    )
    if fit.repeats < MIN_REPEATS:
        return (
            f"{reason} A different cutoff would not change that, because the sections have too few sentences. Use "
            "fewer hard cuts."
        )
    effect = f"With a cutoff of {fit.cutoff}, each sentence is seen {fit.repeats:.1f} times on average"
    if round(fit.repeats) < repeats:
        return (
            f"{reason} {effect}, the most that these sections allow. To repeat each sentence {repeats} times, use "
            "longer sections."
        )
    return f"{reason} {effect}."


def _sliced_by_windows(sources: Sequence[Source]) -> list[Units]:
    texts = (source.sliced.units for source in sources if isinstance(source, TextSource))
    return [units for units in texts if units.rules.chunking == "dementor" and len(units)]


def suggest_cleaning(texts: Sequence[LoadedText]) -> Iterator[Suggestion]:
    """Suggest dropping what is not the book, and joining wrapped lines, where some were found."""
    found = [f"{text.name} has {text.boilerplate}" for text in texts if text.boilerplate]
    rest = len(found) - MAX_TEXTS_NAMED
    contain = plural(rest, "contains", "contain")
    more = f"; {format_count(rest, 'more text')} also {contain} boilerplate" if rest > 0 else ""
    if found:
        named = "; ".join(found[:MAX_TEXTS_NAMED])
        yield Suggestion("drop_boilerplate", True, f"{named}{more}. The model would learn this text, too.")
    widths = {text.name: text.wrap_width for text in texts if text.wrap_width}
    if widths:
        name, width = next(iter(widths.items()))
        others = len(widths) - 1
        more = f", and those of {format_count(others, 'more text')} are wrapped, too" if others else ""
        yield Suggestion(
            "join_lines",
            True,
            f"{name}: the lines are wrapped at about {width} characters{more}. Without this setting, the model "
            "also learns to break lines there.",
        )
