"""What the model and the examples show: text that is learned and measured, stop tokens, and missing hard cuts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from ...chunking import Units, escape_hard_cut
from ...core.findings import Finding, Suggestion, advice, problem
from ...core.host import ModelCard
from ...dementor import CutoffFit, fit_cutoff, is_one_window_each, longest_section
from ...train_utils import plural
from ..examples import NGRAM_WORDS, RowSource, Source, TextSource, count_shared_rows, find_shared_passages
from ..readers import LoadedText
from .report import StopTokenCount

LONG_TEXT_BLOCKS = 20
MIN_REPEATS = 1.2  # times that a sentence is seen on average
ORNAMENT_LINE = re.compile(r"^[ \t]*((?:[*#=~_•-][ \t]?){3,}|⁂)[ \t]*$", re.MULTILINE)
HEADING_WORDS = (
    "chapter|kapitel|chapitre|cap[ií]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|act|scene"
)
HEADING_NUMBERS = r"\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
HEADING = re.compile(rf"^({HEADING_WORDS})[ \t]+(?:{HEADING_NUMBERS})\b.{{0,60}}$", re.MULTILINE | re.IGNORECASE)
ORNAMENT_SIGNS = "*#=~_•⁂"  # signs that are used nowhere else, so lines with them may be indented
BLANK_LINES = re.compile(r"\n(?=[ \t]*\n[ \t]+\n|[ \t]+\n[ \t]*\n)[ \t]*\n[ \t]*\n")  # one of them has spaces
HEADING_CHARS, HEADING_SHARE = 80, 0.25  # a section that is only a heading; of all sections
MIN_MATCHES, MAX_CHARS = 2, 10**7
MAX_TEXTS_NAMED = 3


def check_model(card: ModelCard) -> Iterator[Finding]:
    if not card.is_causal_lm:
        architectures = ", ".join(card.config.get("architectures") or ["an encoder"])
        yield problem(
            "",
            f"{card.name} ({architectures}) can't generate text. Choose a model for text generation.",
        )


def check_leaks(
    learned: Sequence[Source], validation: Sequence[Source], learned_texts: Sequence[str], texts: Sequence[str]
) -> Iterator[Finding]:
    """Yield text and rows that stand in both the training and the validation data."""
    if validation and (passages := find_shared_passages(texts, learned_texts)):
        verb = plural(len(passages), "passage is", "passages are")
        yield advice(
            "eval_data",
            f"Validation split: {len(passages)} {verb} in the training text too, {NGRAM_WORDS} words "
            f"or longer, because the text repeats itself; one starts with {passages[0][:60]!r}.",
        )
    if shared := count_shared_rows(validation, learned):
        yield advice(
            "eval_data",
            f"Validation split: {shared} of its rows are also in the training data. Remove them from "
            "one of the two.",
        )


def count_learned_stops(sources: Sequence[Source], ids: Collection[int]) -> StopTokenCount:
    """Count the ends of rows and sections that are learned with a stop token."""
    counts = [_count_rows(s, ids) if isinstance(s, RowSource) else _count_text(s) for s in sources if len(s)]
    return StopTokenCount(sum(s.stopping for s in counts), sum(s.of for s in counts))


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
                    f"{source.name}: only {count.stopping} of {count.of} examples end in a stop token "
                    "that is trained on, so the model may not learn to stop.",
                )
    texts = [source for source in sources if isinstance(source, TextSource) and source.sliced.rules.closing]
    blocks, parts = Counter[str](), Counter[str]()
    for text in texts:  # the validation split may divide one text into several
        blocks[text.name] += len(text)
        parts[text.name] += len(text.sliced.sections) - text.open_end
    for name in blocks:
        if blocks[name] >= LONG_TEXT_BLOCKS and parts[name] in _FEW_ENDS_ADVICE:
            yield advice("hard_cut", f"{name}: {_FEW_ENDS_ADVICE[parts[name]]}")


_GOES_ON = (
    "the model never learns to stop. Add hard cuts where a chapter or scene ends, or choose another hard cut."
)
_FEW_ENDS_ADVICE = {
    0: f"no hard cut was found, and its end is in the validation split, so no EOS token is trained on: {_GOES_ON}",
    1: f"no hard cut was found, so there is only one EOS token, at the end of the text: {_GOES_ON}",
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
        f"DEMENTOR repeats nothing: the longest section has {longest_section(texts)} tokens, so each one fits "
        f"into a window of {cutoff}."
    )
    if fit.repeats < MIN_REPEATS:
        return (
            f"{reason} No cutoff changes that, because the sections have too few sentences. Use fewer hard cuts."
        )
    effect = f"With a cutoff of {fit.cutoff}, each sentence is seen {fit.repeats:.1f} times on average"
    if round(fit.repeats) < repeats:
        return f"{reason} {effect}, which is the most for these sections; {repeats} times need longer sections."
    return f"{reason} {effect}."


def _sliced_by_windows(sources: Sequence[Source]) -> list[Units]:
    texts = (source.sliced.units for source in sources if isinstance(source, TextSource))
    return [units for units in texts if units.rules.chunking == "dementor" and len(units)]


def suggest_boilerplate(texts: Sequence[LoadedText]) -> Iterator[Suggestion]:
    """Suggest dropping what is not the book, where some was found."""
    found = [f"{text.name} has {text.boilerplate}" for text in texts if text.boilerplate]
    more = f"; so do {len(found) - MAX_TEXTS_NAMED} more texts" if len(found) > MAX_TEXTS_NAMED else ""
    if found:
        yield Suggestion("drop_boilerplate", True, "; ".join(found[:MAX_TEXTS_NAMED]) + more + ".")


def suggest_hard_cuts(sources: Sequence[Source]) -> Iterator[Suggestion]:
    """Suggest a hard cut for the first text that has none but has other marks, or whose headings stand alone."""
    for source in sources:
        if isinstance(source, TextSource) and (suggestion := _suggest_hard_cut(source)):
            yield suggestion
            return


def _suggest_hard_cut(source: TextSource) -> Suggestion | None:
    if len(source.sliced.sections) > 1:
        return _suggest_wider_cut(source)
    text = source.sliced.text[:MAX_CHARS]
    mark, count = _most_common_mark(text)
    if count >= MIN_MATCHES:
        reason = (
            f"{source.name}: {mark!r} appears {count} times at the start of a line, so it may separate sections."
        )
        return Suggestion("hard_cut", mark if mark[0] in ORNAMENT_SIGNS else f"\\n{mark}", reason)
    blank, count = _most_common(BLANK_LINES.findall(text))
    if count >= MIN_MATCHES:
        reason = f"{source.name}: {count} times there are two empty lines, but with spaces in them."
        return Suggestion("hard_cut", escape_hard_cut(blank), reason)
    return None


def _suggest_wider_cut(source: TextSource) -> Suggestion | None:
    """One more line break, where headings are cut off from what they head."""
    hard_cut, text = source.sliced.units.rules.hard_cut, source.sliced.text[:MAX_CHARS]
    headings = _count_headings(text, hard_cut)
    if not headings or hard_cut.strip("\n"):
        return None
    wider = hard_cut + "\n"
    if len(text.split(wider)) < MIN_MATCHES + 1 or _count_headings(text, wider):
        return None
    return Suggestion(
        "hard_cut",
        escape_hard_cut(wider),
        f"{source.name}: {headings} sections are only a heading, after which the model would learn to stop. "
        "One more line break keeps headings with their text.",
    )


def _count_headings(text: str, hard_cut: str) -> int:
    """Sections of a single short line, if they are a large part of all sections."""
    sections = [section for part in text.split(hard_cut) if (section := part.strip())] if hard_cut else []
    short = sum(len(section) <= HEADING_CHARS and "\n" not in section for section in sections)
    return short if short >= HEADING_SHARE * len(sections) else 0


def _most_common_mark(text: str) -> tuple[str, int]:
    """Return the most common mark and its count; of headings only the word, since their numbers differ."""
    return _most_common(
        match[1].rstrip() for pattern in (ORNAMENT_LINE, HEADING) for match in pattern.finditer(text)
    )


def _most_common(marks: Iterable[str]) -> tuple[str, int]:
    counts = Counter(marks)
    return counts.most_common(1)[0] if counts else ("", 0)
