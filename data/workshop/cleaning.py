"""Look at a dataset and clean it: steps that drop records or sentences, each with its count and its examples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import numpy as np

from ...core.errors import DataError
from ...core.files import check_record, new_files, parse_json, write_json
from ...train_utils import format_count
from ..likeness import LANGUAGES, Likeness, exact_key, find_language
from ..readers import unsupported
from ..rows import MOJIBAKE, lower
from ..text import find_stop_ends
from ..unspaced import count_words
from .records import Dataset, Record, check_ending, write_records

MAX_EXAMPLES, EXAMPLE_CHARS = 10, 160
MIN_REPEATED_WORDS = 12  # shorter paragraphs of a text, such as "Yes, he said.", may well be written twice


@dataclass(frozen=True)
class Recipe:
    """The steps of cleaning, in their order. In a file, a step that is not named is off."""

    boilerplate: bool = False  # of books and web pages: what Drop boilerplate finds
    empty_replies: bool = False
    broken_encoding: bool = False
    refusals: Literal["off", "drop", "sentence"] = "off"  # drop the record, or only the sentence
    phrases: tuple[str, ...] = ()  # of the user
    phrases_drop: Literal["record", "sentence"] = "record"
    min_words: int = 0
    max_words: int = 0
    languages: tuple[str, ...] = ()  # that are kept, such as "en"; texts of an unclear language are kept, too
    exact_duplicates: bool = False
    near_duplicates: float = 0.0  # from this similarity on; 0 is off


# Without a recipe, only what nobody wants to train on is dropped.
DEFAULT = Recipe(refusals="drop", exact_duplicates=True, near_duplicates=0.7)
EVERYTHING = replace(DEFAULT, empty_replies=True, broken_encoding=True)
REASONS = {
    "unreadable": "what can't be read",
    "empty_replies": "no reply",
    "broken_encoding": "characters from a wrong encoding",
    "refusals": "a refusal, or a mention of another assistant",
    "phrases": "one of your phrases",
    "min_words": "too few words",
    "max_words": "too many words",
    "languages": "another language",
    "exact_duplicates": "the same as an earlier one",
    "near_duplicates": "nearly the same as an earlier one",
}


@dataclass
class Cleaned:
    """How many records there were, and what each step dropped or shortened, with the first ones as examples."""

    rows: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    written: dict[str, int] = field(default_factory=dict)  # records in each file, where there are several
    examples: dict[str, list[str]] = field(default_factory=dict)

    def show(self, step: str, place: str, words: str) -> None:
        """Keep an example of what a step finds, unless it has enough."""
        examples = self.examples.setdefault(step, [])
        if len(examples) < MAX_EXAMPLES:
            words = shorten(words[: 10 * EXAMPLE_CHARS], EXAMPLE_CHARS, placeholder=" ...")
            examples.append(": ".join(filter(None, [place, words])))

    def lines(self) -> Iterator[str]:
        for step in dict.fromkeys([*REASONS, *self.dropped, *self.changed]):
            counts = ((self.dropped[step], "dropped"), (self.changed[step], "shortened"))
            if words := " and ".join(f"{count:,} {verb}" for count, verb in counts if count):
                yield f"{step}: {words}" + (f" ({REASONS[step]})" if step in REASONS else "")
            yield from (f"    {example}" for example in self.examples.get(step, ()))
        yield f"kept: {self.kept:,} of {self.rows:,}"
        yield from (f"{name}: {count:,}" for name, count in self.written.items())


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file; a DataError names what is wrong in it."""
    try:
        values = parse_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"The recipe {path} can't be read: {error}") from error
    if isinstance(values, dict):
        values.pop("applied", None)
    return check_recipe(values, path.name)


def check_recipe(values: Any, name: str) -> Recipe:
    """The recipe of these values; a DataError names all that are wrong."""
    damage: list[str] = []
    recipe = Recipe()
    try:
        recipe = check_record(values, Recipe, name, damage)
    except ValueError as error:
        damage.append(str(error))
    if not 0 <= recipe.near_duplicates <= 1:
        damage.append(f"{name}: near_duplicates is {recipe.near_duplicates}. It must be from 0 to 1.")
    if unknown := [language for language in recipe.languages if language not in LANGUAGES]:
        damage.append(f"{name}: {', '.join(unknown)} can't be told apart. Known: {', '.join(LANGUAGES)}.")
    if damage:
        steps = ", ".join(each.name for each in fields(Recipe))
        raise DataError("\n".join([*damage, f"A recipe is a JSON object with these keys: {steps}."]))
    return recipe


class Cleaner:
    """Cleans records one by one with a recipe, and counts what it does."""

    def __init__(self, recipe: Recipe, refusals: Sequence[str], records: Iterable[Record]) -> None:
        """`records` are those of the whole dataset, read once for what is common to many of them."""
        self.recipe, self.result = recipe, Cleaned()
        self._phrases = {
            "refusals": (list(refusals) if recipe.refusals != "off" else [], recipe.refusals == "sentence"),
            "phrases": ([lower(phrase) for phrase in recipe.phrases], recipe.phrases_drop == "sentence"),
        }
        self._seen: dict[int, str] = {}
        self._likeness: Likeness | None = None
        if recipe.near_duplicates:
            self._likeness = Likeness(recipe.near_duplicates, (record.words for record in records))

    def kept(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records that are kept, some of them shortened."""
        gap = ""  # the longest since the last paragraph: no hard cut is lost with a paragraph
        for record in records:
            self.result.rows += 1
            reason, detail, cleaned = self._clean(record)
            gap = max(gap, record.gap or "", key=lambda each: each.count("\n"))
            if reason:
                self.result.dropped[reason] += 1
                self._show(reason, record, detail)
                continue
            self.result.kept += 1
            yield cleaned._replace(gap=gap) if cleaned.gap is not None else cleaned
            gap = ""

    def _clean(self, record: Record) -> tuple[str, str, Record]:
        """Why a record is dropped, or nothing; what in it is the reason; and the record after all steps."""
        recipe = self.recipe
        if record.problem:
            return "unreadable", record.problem, record
        replies = [spot for spot in record.spots if spot.is_learned]
        if recipe.empty_replies and not any(spot.text.strip() for spot in replies):
            return "empty_replies", "", record
        if recipe.broken_encoding:
            for spot in record.spots:
                if broken := MOJIBAKE.search(spot.text):
                    return "broken_encoding", broken[0], record
        for step, (phrases, only_sentence) in self._phrases.items():
            shortened = record
            # What somebody says in a novel is no refusal.
            searched = [] if not phrases or (step == "refusals" and record.gap is not None) else replies
            for spot in searched:
                lowered = lower(spot.text)
                phrase = next((phrase for phrase in phrases if phrase in lowered), "")
                if phrase and not only_sentence:
                    return step, phrase, record
                if phrase:
                    text = drop_sentences(spot.text, phrases)
                    if not text.strip():
                        return step, phrase, record
                    shortened = shortened.with_text(spot, text)
                    self._show(step, record, phrase)
            if shortened is not record:
                self.result.changed[step] += 1
                record, replies = shortened, [spot for spot in shortened.spots if spot.is_learned]
        # Duplicates come last: what was shortened may only now be the same as another record.
        words = record.words
        count = count_words(words)
        if count < recipe.min_words:
            return "min_words", format_count(count, "word"), record
        if 0 < recipe.max_words < count:
            return "max_words", format_count(count, "word"), record
        if recipe.languages and (language := find_language(words)) and language not in recipe.languages:
            return "languages", language, record
        if record.gap is not None and count < MIN_REPEATED_WORDS:
            return "", "", record
        if recipe.exact_duplicates:
            key = exact_key([*(spot.text for spot in record.spots), record.rejected])
            earlier = self._seen.setdefault(key, record.place)
            if earlier != record.place:
                return "exact_duplicates", f"the same as {earlier}", record
        both = record.said_by("assistant"), record.rejected
        if self._likeness and (found := self._likeness.find(words, record.place, *both)):
            return "near_duplicates", f"like {found[0]}", record
        return "", "", record

    def _show(self, step: str, record: Record, detail: str) -> None:
        self.result.show(step, f"{record.place}{f' ({detail})' if detail else ''}", record.words)


def drop_sentences(text: str, phrases: Sequence[str]) -> str:
    """The text without the sentences in which one of the phrases is."""
    # A line is a sentence of its own, too: of a list, or of code.
    ends = {*find_stop_ends(text).tolist(), *(n + 1 for n, letter in enumerate(text) if letter == "\n"), len(text)}
    starts = [0, *sorted(ends)]
    sentences = [text[start:end] for start, end in pairwise(starts)]
    kept = [each for each in sentences if not any(phrase in lower(each) for phrase in phrases)]
    return "".join(kept).strip(" ")


def clean_dataset(dataset: Dataset, recipe: Recipe, refusals: Sequence[str], out: Path | None) -> Cleaned:
    """Clean a dataset and write it, with its recipe beside it; without `out`, only count."""
    if recipe.boilerplate:
        dataset = replace(dataset, drop_boilerplate=True)
    cleaner = Cleaner(recipe, refusals, dataset.records())
    if out is None:
        for _ in cleaner.kept(dataset.records()):
            pass
        return cleaner.result
    check_ending(out, is_text=dataset.is_text)
    dataset.refuse_mixture()
    with new_files(out, out.with_name(out.name + unsupported.RECIPE_SUFFIX)) as (data, recipe_file):
        write_records(data, out.name, cleaner.kept(dataset.records()))
        if not cleaner.result.kept:
            raise DataError(f"Nothing of {dataset.path.name} is left. Switch off some steps.")
        applied = {"input": dataset.path.name, **vars(cleaner.result)}
        write_json(recipe_file, {**asdict(recipe), "applied": applied})
    return cleaner.result


@dataclass
class Overview:
    """What is in a dataset."""

    notes: list[str]
    unit: str  # of the lengths
    kinds: Counter[str]  # of records, by the roles of their texts
    lengths: dict[str, dict[str, int]]  # of the texts of each role: the shortest, the median ...
    languages: Counter[str]
    found: Cleaned

    def lines(self) -> Iterator[str]:
        yield from self.notes
        for kind, count in self.kinds.most_common(MAX_EXAMPLES):
            yield f"{count:,} with {kind}"
        for role, figures in self.lengths.items():
            yield f"{self.unit} of {role}: " + ", ".join(f"{name} {value:,}" for name, value in figures.items())
        shares = [
            (name, count / self.languages.total()) for name, count in self.languages.most_common(MAX_EXAMPLES)
        ]
        yield "languages: " + ", ".join(f"{name} {share:.1%}" for name, share in shares)
        yield "what stands out, and what cleaning would make of it:"
        yield from self.found.lines()


def look_at(
    dataset: Dataset,
    recipe: Recipe,
    refusals: Sequence[str],
    measure: Callable[[str], int] = count_words,
    unit: str = "words",
) -> Overview:
    """Read a dataset, measure its texts, and find what a recipe would drop; nothing is written."""
    cleaner = Cleaner(recipe, refusals, dataset.records())
    kinds, languages, lengths = Counter[str](), Counter[str](), defaultdict[str, list[int]](list)

    def watched() -> Iterator[Record]:
        for record in dataset.records():
            spots = [spot for spot in record.spots if spot.is_learned or spot.text]  # without an empty input
            for spot in spots:
                lengths[spot.role].append(measure(spot.text))
            roles = Counter(spot.role for spot in spots)
            kind = ", ".join(f"{count} {role}" for role, count in roles.items())
            kinds[kind or "no text"] += 1
            languages[find_language(record.words) or "unclear"] += 1
            yield record

    for _ in cleaner.kept(watched()):
        pass
    at = {"shortest": 0, "10%": 10, "median": 50, "90%": 90, "longest": 100}
    figures = {
        role: {name: int(np.percentile(values, percent)) for name, percent in at.items()}
        for role, values in lengths.items()
    }
    return Overview(list(dataset.notes), unit, kinds, figures, languages, cleaner.result)
