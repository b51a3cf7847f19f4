"""What the examples show: findings, and suggestions of hard cuts, a cutoff and cleaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import numpy as np

from ...chunking import escape_hard_cut
from ...core.errors import DataError
from ...core.findings import Finding, Suggestion, advice, note
from ...dementor import fit_cutoff, is_one_window_each, longest_section
from ...train_utils import format_count, plural
from ..dataset_index import dataset_files, find_datasets
from ..examples import Examples, RowSource, Source, TextSource, group_parts
from ..readers import LoadedText, unsupported
from ..rows import PrepareContext
from ..split import NGRAM_WORDS, count_shared_rows, find_shared_passages
from ..text import FRONT_MATTER, is_tagged

LONG_TEXT_BLOCKS = 20
MIN_REPEATS = 1.2  # times that a sentence is seen on average
MAX_TEXTS_NAMED = 3

# The rules on hard cuts look at this much of a text at most, so that Check stays quick.
MIN_MATCHES, MAX_CHARS = 2, 10**7
ORNAMENT_LINE = re.compile(r"^[ \t]*((?:[*#=~_•-][ \t]?){3,}|⁂)[ \t]*$", re.MULTILINE)
ORNAMENT_SIGNS = "*#=~_•⁂"  # signs that are used nowhere else, so lines with them may be indented
HEADING_WORDS = (
    "chapter|kapitel|chapitre|cap[ií]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|act|scene"
)
HEADING_NUMBERS = r"\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
CHINESE_HEADING = r"(第)[\d〇零一二三四五六七八九十百]{1,7}[回章卷節节話话部]"
HEADING = re.compile(
    rf"^(?:({HEADING_WORDS})[ \t]+(?:{HEADING_NUMBERS})\b|{CHINESE_HEADING}).{{0,60}}$",
    re.MULTILINE | re.IGNORECASE,
)
HEADING_CHARS, HEADING_SHARE = 80, 0.25  # a section that is only a heading; of all sections
MIN_HEADINGS, HEADINGS_PER_SECTION = 8, 2
BLANK_LINES = re.compile(r"\n(?=[ \t]*\n[ \t]+\n|[ \t]+\n[ \t]*\n)[ \t]*\n[ \t]*\n")  # one of them has spaces
BROKEN_SHARE = 0.1  # of the sections, which end in the middle of a sentence
HEADINGS_BETWEEN = 2  # lines of the heading of a page
CONVERSATION_CUT, MIN_CONVERSATIONS = "\n\n", 8
TAGGED_SHARE = 0.9  # of the lines, which begin with a speaker or a time
TALK_SHARE = 0.6  # of the conversations, which have several lines; of the lines, which have several words
TALK_WORDS = 4  # after the speaker, so that no table of keys and values is meant


def check_examples(
    context: PrepareContext, learned: Examples, validation: Examples, texts: Sequence[LoadedText]
) -> Iterator[Finding | Suggestion]:
    """Yield what the data say of stop tokens, hard cuts, the cutoff, cleaning and the validation data."""
    if context.settings.text.add_eos != "never":
        yield from _check_stops(learned.sources, context.tokenizer.stops)
    yield from _check_page_breaks(learned.sources)
    yield from _check_windows(learned.sources)
    for source in learned.sources:
        if not isinstance(source, TextSource) or source.part > 1:  # of a large file only the first part
            continue
        text, sections = source.sliced.text[:MAX_CHARS], len(source.sliced.sections)
        if found := _find_hard_cut(text, sections, source.sliced.rules.hard_cut):
            value, why = found
            yield Suggestion("hard_cut", value, f"{source.name}: {why}")
            break
    # What is not the book, and wrapped lines.
    found_texts = [f"{text.name} has {text.boilerplate}" for text in texts if text.boilerplate]
    if found_texts:
        named = "; ".join(found_texts[:MAX_TEXTS_NAMED])
        if (rest := len(found_texts) - MAX_TEXTS_NAMED) > 0:
            contain = plural(rest, "contains", "contain")
            named += f"; {format_count(rest, 'more text')} also {contain} boilerplate"
        yield Suggestion("drop_boilerplate", True, f"{named}. The model would learn this text, too.")
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
    # Text and rows that stand in both the training and the validation data.
    if validation.sources and (passages := find_shared_passages(validation.texts(), learned.texts())):
        count = len(passages)
        yield advice(
            "eval_data",
            f"Validation data: {format_count(count, 'passage')} of {NGRAM_WORDS} words or more also "
            f"{plural(count, 'appears', 'appear')} in the training text. {plural(count, 'It', 'One of them')} "
            f"starts with {passages[0][:60]!r}.",
        )
    if shared := count_shared_rows(validation.sources, learned.sources):
        yield advice(
            "eval_data",
            f"Validation data: {shared} of its rows {plural(shared, 'is', 'are')} also in the training data. "
            f"Remove {plural(shared, 'it', 'them')} from either the training data or the validation data.",
        )


def check_exam(context: PrepareContext) -> Iterator[Finding]:
    """Yield advice on questions of the exam that are trained on; a DataError names an exam that can't be read."""
    settings, folders, found = context.settings, context.folders, 0
    if not settings.aside.exam:
        return
    from ..workshop import Dataset, read_exam  # with half of the program: pages are drawn without

    exam = read_exam(dataset.path for dataset in find_datasets(settings.aside.exam, folders))
    for entry in find_datasets(settings.what.data, folders):
        dataset = Dataset(entry.path, settings)
        for record in () if dataset.is_text else dataset.records():
            found += exam.has(record.said_by("user"), record.said_by("assistant"))
    if found:
        yield advice(
            "exam",
            f"Exam: {format_count(found, 'row')} of the training data {plural(found, 'asks', 'ask')} one of its "
            "questions, or nearly the same one, so right answers show nothing. Remove "
            f"{plural(found, 'it', 'them')} from the training data.",
        )


def show_recipes(context: PrepareContext) -> Iterator[Finding]:
    """Yield a note with the recipe of each dataset that was cleaned; with Check's report, the run records it."""
    for entry in find_datasets(context.settings.what.data, context.folders):
        for file in dataset_files(entry.path):
            recipe = file.with_name(file.name + unsupported.RECIPE_SUFFIX)
            if recipe.is_file():
                from ..workshop import Recipe, read_recipe

                with suppress(DataError):  # its user may have edited it since
                    steps = vars(read_recipe(recipe)).items() - vars(Recipe()).items()
                    words = ", ".join(f"{name}={value}" for name, value in sorted(steps))
                    yield note("data", f"{file.name} was cleaned: {words}")


def count_learned_stops(source: Source, ids: Collection[int]) -> tuple[int, int]:
    """How many rows or sections of a source end with a stop token that is learned, and how many there are.

    A section that goes on in the validation split is none of them.
    """
    if isinstance(source, RowSource):
        return int(np.isin(source.last_learned_ids, np.array(sorted(ids), np.int64)).sum()), len(source)
    sliced, units, rules = source.sliced, source.sliced.units, source.sliced.rules
    closed = units.ends_section[sliced.spans.last - 1]  # not of sections whose last block is dropped as too small
    if source.open_end:
        closed = closed & (sliced.ends != units.end[-1:])
    closes = rules.eos is not None and rules.add_eos != "never"
    return len(np.unique(source.sections[closed])) if closes else 0, len(sliced.sections) - source.open_end


def _check_stops(sources: Sequence[Source], ids: Collection[int]) -> Iterator[Finding]:
    """Yield advice on sources with few learned stop tokens."""
    texts: dict[str, list[TextSource]] = {}
    for source in sources:
        if isinstance(source, TextSource):
            if source.sliced.rules.closing:  # the validation split may divide one text into several
                texts.setdefault(source.name, []).append(source)
            continue
        stopping, rows = count_learned_stops(source, ids)
        if stopping < rows:
            yield advice(
                "data",
                f"{source.name}: only {stopping} of {rows} examples end with a trained stop token, so the "
                "model may not learn to stop.",
            )
    for name, parts in texts.items():
        learned, ends = np.sum([count_learned_stops(part, ids) for part in parts], axis=0).tolist()
        if 2 * learned < ends:
            yield advice(
                "min_chars",
                f"{name}: only {learned} of {format_count(ends, 'section')} {plural(learned, 'ends', 'end')} with "
                "an EOS token, because Ignore small blocks drops the last blocks of the others. The model may not "
                "learn to stop. Lower it.",
            )
            continue
        if ends > 1 or sum(map(len, parts)) < LONG_TEXT_BLOCKS:
            continue
        few = "so there is only one EOS token, at the end of the text"
        if not ends:
            few = "and the end of the text is in the validation split, so no EOS token is trained on"
        yield advice(
            "hard_cut",
            f"{name}: no hard cut was found, {few}. The model may not learn to stop. Add the hard cut to the text "
            "wherever a chapter, scene or conversation ends, or enter another separator under Hard cut.",
        )


def _check_page_breaks(sources: Sequence[Source]) -> Iterator[Finding]:
    """Yield advice where the sections of a text end in the middle of a sentence, as at the pages of a scan.

    Such a section begins with a lowercase letter after one without a stop; headings may be between.
    """
    for group in group_parts(source for source in sources if isinstance(source, TextSource)):
        count = total = 0
        for source in group:
            text, sections = str(source.sliced.text), source.sliced.sections
            ends = [text[end - 1] for end in sections.content_end.tolist()]
            is_open = [last.isalpha() or last in ",;-" for last in ends]
            total += len(sections)
            for number, start in enumerate(sections.content_start.tolist()):
                before = is_open[max(0, number - HEADINGS_BETWEEN - 1) : number]
                count += text[start].islower() and any(before)
        if count >= max(MIN_HEADINGS, BROKEN_SHARE * total):
            yield advice(
                "hard_cut",
                f"{group[0].name}: {count:,} of {total:,} sections end in the middle of a sentence, so these hard "
                "cuts are probably page breaks. The model would learn to stop there. Remove the page breaks from "
                "the text, or enter another separator under Hard cut.",
            )


def _check_windows(sources: Sequence[Source]) -> Iterator[Finding | Suggestion]:
    """Yield a better cutoff where each section fits into one window, so that DEMENTOR repeats nothing."""
    sliced = [source.sliced.units for source in sources if isinstance(source, TextSource)]
    texts = [units for units in sliced if units.rules.chunking == "dementor" and len(units)]
    if not texts or texts[0].rules.dementor_repeats == 1 or not all(map(is_one_window_each, texts)):
        return
    repeats = texts[0].rules.dementor_repeats
    fit = fit_cutoff(texts, repeats)
    reason = (
        f"DEMENTOR has nothing to repeat: the longest section has {longest_section(texts)} tokens, so every "
        f"section fits into one window of {texts[0].rules.cutoff} tokens."
    )
    effect = f"With a cutoff of {fit.cutoff}, each sentence is seen {fit.repeats:.1f} times on average"
    if fit.repeats < MIN_REPEATS:
        effect = "No other cutoff helps, because the sections have too few sentences. Use fewer hard cuts."
    elif round(fit.repeats) < repeats:
        effect += f", the most possible here. To repeat each sentence {repeats} times, use longer sections."
    else:
        effect += "."
    yield advice("cutoff", f"{reason} {effect}")
    if fit.repeats >= MIN_REPEATS:
        yield Suggestion("cutoff", fit.cutoff, f"{reason} {effect}")


def _find_hard_cut(text: str, sections: int, hard_cut: str) -> tuple[str, str] | None:
    """A hard cut that fits a text better than its own, which gives so many sections, and the reason."""
    only_breaks = not hard_cut.strip("\n")
    # The empty line between the conversations of a chat log. A play has one between the speeches, too.
    parts = [part.splitlines() for part in text.split(CONVERSATION_CUT) if part.strip()]
    if only_breaks and hard_cut != CONVERSATION_CUT and len(parts) >= max(MIN_CONVERSATIONS, 2 * sections):
        lines = [line for part in parts for line in part]
        heads = [line.partition(":")[0] for line in lines]
        if (
            sum(len(part) > 1 for part in parts) >= TALK_SHARE * len(parts)
            and sum(len(line.split()) > TALK_WORDS for line in lines) >= TALK_SHARE * len(lines)
            and sum(map(str.isupper, heads)) < TAGGED_SHARE * len(heads)  # the characters of a play
            and sum(map(is_tagged, lines)) >= TAGGED_SHARE * len(lines)
        ):
            why = f"empty lines separate {len(parts):,} conversations."
            return escape_hard_cut(CONVERSATION_CUT), f"{why} No block should contain text from more than one."
    if sections > 1:
        # One more line break, where headings are cut off from what they head.
        wider, alone = hard_cut + "\n", _count_headings(text, hard_cut)
        if alone and only_breaks and text.count(wider) >= MIN_MATCHES and not _count_headings(text, wider):
            why = (
                f"{format_count(alone, 'section')} {plural(alone, 'has', 'have')} only a heading, so the model "
                "would learn to stop after it. One more line break in the hard cut keeps each heading with "
                "its text."
            )
            return escape_hard_cut(wider), why
        # The word of the headings, if most of them are inside sections. By the whole line, so that a heading and
        # its line in the table of contents count once.
        matches = [(match[0].strip(), match[match.lastindex or 0]) for match in HEADING.finditer(text)]
        for mark, count in Counter(dict(matches).values()).most_common(1):
            is_whole = f"\n{text}".count(f"\n{mark}") <= sum(
                each == mark for _, each in matches
            )  # in no other line
            if is_whole and count >= max(MIN_HEADINGS, HEADINGS_PER_SECTION * sections):
                why = f"{count:,} headings start with {mark!r}, but there are only {sections:,} sections, so"
                return f"\\n{mark}", f"{why} most chapters are not separated."
        return None
    # The most common ornament or heading (only its word, since the numbers differ), or lines that look blank.
    text = FRONT_MATTER.sub("", text)
    marks = Counter(
        match[match.lastindex or 0].rstrip()
        for pattern in (ORNAMENT_LINE, HEADING)
        for match in pattern.finditer(text)
        if not _is_underline(match)
    )
    for mark, count in marks.most_common(1):
        cut = mark if mark[0] in ORNAMENT_SIGNS else f"\n{mark}"
        if count >= MIN_MATCHES and f"\n{text}".count(cut) <= count:  # else it would cut inside other lines, too
            why = f"{mark!r} appears {count} times at the start of a line, so it may separate sections."
            return escape_hard_cut(cut), why
    for blank, count in Counter(BLANK_LINES.findall(text)).most_common(1):
        if count >= MIN_MATCHES:
            why = f"in {count} places, two blank lines contain spaces, so the hard cut does not match them."
            return escape_hard_cut(blank), why
    return None


def _is_underline(mark: re.Match[str]) -> bool:
    """Whether a line of marks is about as long as the line above it, which it makes a heading."""
    text, end = mark.string, max(mark.start() - 1, 0)
    above = text[text.rfind("\n", 0, end) + 1 : end]
    return above.strip() != "" and abs(len(above) - len(mark[0])) <= 1


def _count_headings(text: str, hard_cut: str) -> int:
    """Sections of a single short line, or of a heading and its title, if they are a large part of all sections."""
    sections = [section for part in text.split(hard_cut) if (section := part.strip())] if hard_cut else []
    short = sum(
        len(section) <= HEADING_CHARS
        and section.count("\n") <= (known := HEADING.match(section) is not None)
        and (known or not is_tagged(section))  # a conversation of one message
        for section in sections
    )
    return short if short >= HEADING_SHARE * len(sections) else 0
