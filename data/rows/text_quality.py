"""Text quality: refusals, mojibake, HTML, markers of prompt templates, and duplicates."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from textwrap import shorten

from ...core.errors import DataError
from ...core.findings import Finding, advice
from ...core.host import Folders
from ...train_utils import format_count, plural
from .. import arrow_store
from ..arrow_store import Store, StoreEntry
from ..likeness import SIMILARITY, Likeness, exact_key
from ..readers import LoadedText

SHIPPED_REFUSALS = Path(__file__).with_name("refusals.txt")
# UTF-8 that was read as Windows-1252, and the character that stands for what can't be decoded.
MOJIBAKE = re.compile(
    "Ã[\u0080-\u00bf\u2018-\u203a]|â€[\u0080-\u009f™œ˜¦“”\u009d]|Â[\u00a0-\u00bf]|ï¿½|ðŸ[\u0080-\u00bf]|\ufffd"
)
# What web pages leave behind; not everything in angle brackets, which texts about code have, too.
HTML = re.compile(
    r"</?(?:p|br|div|span|a|td|tr|table|ul|ol|li|script|style|font|img|h[1-6])\b[^<>\n]*/?>|&(?:nbsp|amp|lt|gt|quot|#\d+);"
)
# Of ChatML, Llama 2 and 3, Zephyr, Alpaca and Gemma.
TEMPLATE_WORDS = re.compile(
    r"<\|(?:im_start|im_end|eot_id|endoftext|start_header_id|begin_of_text|user|assistant)\|>|\[/?INST\]|<</?SYS>>"
    r"|### (?:Instruction|Response|Input):|</?s>|<(?:start|end)_of_turn>"
)
DESCRIPTIONS = {
    "refusals": ("contains a refusal or mentions", "contain a refusal or mention", "another assistant"),
    "mojibake": ("contains", "contain", "broken characters from a wrong encoding"),
    "html": ("contains", "contain", "leftover HTML"),
    "template": ("contains", "contain", "prompt template markers"),
}
TEMPLATE_REASONS = {"row": "although the template adds its own", "section": "which the model would learn to write"}
COMMON_SAMPLE = 2000  # texts that are looked through for what most of them have
MAX_COMPARED = 20_000  # texts that are kept in memory, to compare them at the end
BEGINNING_CHARS, LONGEST_BEGINNING = 40, 1000


@dataclass
class TextIssue:
    """How often an issue was found, the first place, and the words found there."""

    count: int = 0
    place: str = ""
    what: str = ""

    def add(self, place: str, what: str) -> None:
        self.count += 1
        if self.count == 1:
            self.place, self.what = place, what


@dataclass
class TextInspector:
    """Inspects texts one by one and collects their issues."""

    phrases: Sequence[str]
    text_count: int = 0
    found: dict[str, TextIssue] = field(default_factory=lambda: defaultdict(TextIssue))
    duplicates: TextIssue = field(default_factory=TextIssue)
    _seen: dict[int, str] = field(default_factory=dict)
    _compared: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def look(self, text: str, learned: str, place: str, rejected: str = "") -> None:
        """Inspect a row or section; refusals count only where they would be learned."""
        self.text_count += 1
        lowered = lower(learned)
        if refusal := next((phrase for phrase in self.phrases if phrase in lowered), ""):
            self.found["refusals"].add(place, refusal)
        for kind, pattern in (("mojibake", MOJIBAKE), ("html", HTML), ("template", TEMPLATE_WORDS)):
            if match := pattern.search(text):
                self.found[kind].add(place, match[0])
        key = exact_key([text])
        if key in self._seen:
            self.duplicates.add(place, self._seen[key])
            return
        self._seen[key] = place
        if len(self._compared) < MAX_COMPARED:
            replies = (learned,) if learned != text else ()
            self._compared.append((text, place, (*replies, rejected) if rejected else replies))

    def findings(self, name: str, unit: str) -> Iterator[Finding]:
        """Yield one finding for each kind of issue."""
        for kind, (one, many, what) in DESCRIPTIONS.items():
            found = self.found.get(kind)
            if found:
                verb = plural(found.count, one, many)
                reason = f", {TEMPLATE_REASONS[unit]}" if kind == "template" else ""
                yield advice(
                    "data",
                    f"{name}: {found.count:,} of {format_count(self.text_count, unit)} {verb} {what}{reason}; the "
                    f"first is {found.place} ({found.what!r}).",
                )
        same, near = self.duplicates, self._find_near_duplicates()
        if same.count:
            yield advice(
                "data",
                f"{name}: {same.count:,} of {self.text_count:,} {unit}s "
                f"{plural(same.count, 'is a duplicate', 'are duplicates')}; {same.place} is the same as "
                f"{same.what}.",
            )
        if near.count:
            yield advice(
                "data",
                f"{name}: {near.count:,} {plural(near.count, f'{unit} is', f'{unit}s are')} nearly the same as an "
                f"earlier one; {near.place} is similar to {near.what}.",
            )

    def _find_near_duplicates(self) -> TextIssue:
        sample = self._compared[:: len(self._compared) // COMMON_SAMPLE or 1]
        likeness, near = Likeness(SIMILARITY, (text for text, _, _ in sample)), TextIssue()
        for text, place, replies in self._compared:
            if like := likeness.find(text, place, *replies):
                near.add(place, like[0])
        return near


def inspect_texts(
    name: str, texts: Sequence[LoadedText], hard_cut: str, folders: Folders, store: Store
) -> list[Finding]:
    """Findings on the words of a dataset of texts, section by section; stored or worked out now."""
    phrases = load_refusal_phrases(folders)
    contents = [str(text.text) for text in texts]
    digests = map(arrow_store.text_digest, contents)
    key = arrow_store.cache_key("words and lines", name, hard_cut, phrases, *digests)
    if entry := store.load(key):
        return [Finding(*values) for values in entry.metadata]
    inspector = TextInspector(phrases)
    sections = [s for content in contents for s in (content.split(hard_cut) if hard_cut else [content])]
    for number, section in enumerate((s for s in sections if s.strip()), start=1):
        # By its first words, a section can be found in the text.
        beginning = shorten(section[:LONGEST_BEGINNING].strip(), BEGINNING_CHARS, placeholder=" ...")
        inspector.look(section, section, f"section {number} ({beginning!r})")
    findings = list(inspector.findings(name, "section"))
    store.save(key, StoreEntry({}, list(map(astuple, findings))))
    return findings


def lower(text: str) -> str:
    """A text as phrases are looked for in it: in lower case, with straight apostrophes."""
    return text.lower().replace("’", "'")


def load_refusal_phrases(folders: Folders) -> tuple[str, ...]:
    """Load the phrases to look for: the user's list, otherwise the shipped one."""
    path = folders.refusal_phrases if folders.refusal_phrases.is_file() else SHIPPED_REFUSALS
    try:
        lines = lower(path.read_text(encoding="utf-8-sig")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read ({error}). Save it as UTF-8, or remove it.") from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
