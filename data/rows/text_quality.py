"""Text quality: refusals, mojibake, HTML, words of prompt templates, and duplicates."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import DataError
from ...core.host import Folders
from ...train_utils import plural

if TYPE_CHECKING:
    from ...chunking import Ints

SHIPPED = Path(__file__).with_name("refusals.txt")
MOJIBAKE = re.compile(
    "Ã[\u0080-\u00bf\u2018-\u203a]|â€[\u0080-\u009f™œ˜¦“”\u009d]|Â[\u00a0-\u00bf]|ï¿½|ðŸ[\u0080-\u00bf]|\ufffd"
)
HTML = re.compile(
    r"</?(?:p|br|div|span|a|td|tr|table|ul|ol|li|script|style|font|img|h[1-6])\b[^<>]*/?>|&(?:nbsp|amp|lt|gt|quot|#\d+);"
)
TEMPLATE_WORDS = re.compile(
    r"<\|(?:im_start|im_end|eot_id|endoftext|start_header_id|begin_of_text|user|assistant)\|>|\[/?INST\]|<</?SYS>>"
    r"|### (?:Instruction|Response|Input):|</?s>|<(?:start|end)_of_turn>"
)
SAID = {
    "refusals": "hold a refusal or talk of another assistant",
    "mojibake": "hold broken letters, read in a wrong encoding before",
    "html": "hold remains of HTML",
    "template": "hold words of prompt templates in their text, which the template puts there itself",
}
SIMILAR = 0.8
SHINGLE = 5  # words per shingle
BANDS, ROWS_OF_A_BAND = 5, 4
MOST_COMPARED = 20_000
FEWEST_WORDS = 12  # shorter texts are not compared
WORDS = re.compile(r"\w+")


@dataclass
class Finding:
    """How often an issue was found, the first place, and the words found there."""

    count: int = 0
    place: str = ""
    what: str = ""

    def add(self, place: str, what: str) -> None:
        self.count += 1
        if self.count == 1:
            self.place, self.what = place, what


@dataclass
class Inspector:
    """Inspects texts one by one and collects their issues."""

    phrases: Sequence[str]
    looked_at: int = 0
    found: dict[str, Finding] = field(default_factory=lambda: defaultdict(Finding))
    again: Finding = field(default_factory=Finding)
    _seen: dict[int, str] = field(default_factory=dict)
    _compared: list[tuple[str, str]] = field(default_factory=list)

    def look(self, text: str, learned: str, place: str) -> None:
        """Inspect a row or section; refusals count only where they would be learned."""
        self.looked_at += 1
        lowered = learned.lower()
        for phrase in self.phrases:
            if phrase in lowered:
                self.found["refusals"].add(place, phrase)
                break
        for kind, pattern in (("mojibake", MOJIBAKE), ("html", HTML), ("template", TEMPLATE_WORDS)):
            if match := pattern.search(text):
                self.found[kind].add(place, match[0])
        self._compare(text, place)

    def _compare(self, text: str, place: str) -> None:
        key = hash(" ".join(text.split()).casefold())
        if key in self._seen:
            self.again.add(place, self._seen[key])
            return
        self._seen[key] = place
        if len(self._compared) < MOST_COMPARED:
            self._compared.append((place, text))

    @cached_property
    def alike(self) -> Finding:
        """The texts that are nearly the same as an earlier one."""
        return _find_near_duplicates(self._compared)

    def said(self, name: str, unit: str) -> Iterator[str]:
        """Yield one sentence for each kind of issue."""
        for kind, description in SAID.items():
            finding = self.found.get(kind)
            if finding:
                yield (
                    f"{name}: {finding.count} of {self.looked_at} {unit}s {description}; the first is "
                    f"{finding.place} ({finding.what!r})."
                )
        if self.again.count:
            yield (
                f"{name}: {self.again.count} of {self.looked_at} {unit}s are there already; "
                f"{self.again.place} is the same as {self.again.what}."
            )
        if self.alike.count:
            yield (
                f"{name}: {self.alike.count} "
                f"{plural(self.alike.count, f'{unit} is', f'{unit}s are')} nearly the same "
                f"as earlier ones; {self.alike.place} is like {self.alike.what}."
            )


def refusals(folders: Folders) -> tuple[str, ...]:
    """Load the phrases to look for: the user's list, otherwise the shipped one."""
    path = folders.refusals if folders.refusals.is_file() else SHIPPED
    try:
        lines = path.read_text(encoding="utf-8-sig").lower().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}). Save it as UTF-8, or take it away.") from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _find_near_duplicates(texts: Iterable[tuple[str, str]]) -> Finding:
    """Find near duplicates by MinHash; texts that agree in a band are compared by their shingles."""
    import numpy as np

    rng = np.random.default_rng(7)
    factors = rng.integers(1, 2**61, (BANDS * ROWS_OF_A_BAND, 1), dtype=np.uint64) | np.uint64(1)
    buckets: dict[bytes, tuple[str, Ints]] = {}
    word_hashes: dict[str, int] = {}
    duplicates = Finding()
    for place, text in texts:
        shingles = _shingles(text, word_hashes)
        if len(shingles):
            _compare(place, shingles, (shingles * factors).min(axis=1), buckets, duplicates)
    return duplicates


def _compare(
    place: str, shingles: Ints, least: Ints, buckets: dict[bytes, tuple[str, Ints]], finding: Finding
) -> None:
    """Compare a text with the first text of each band that agrees."""
    import numpy as np

    like = ""
    for band in range(BANDS):
        key = bytes([band]) + least[band * ROWS_OF_A_BAND : (band + 1) * ROWS_OF_A_BAND].tobytes()
        other, theirs = buckets.setdefault(key, (place, shingles))
        if not like and other != place:
            both = len(np.intersect1d(shingles, theirs, assume_unique=True))
            like = other if both >= SIMILAR * (len(shingles) + len(theirs) - both) else ""
    if like:
        finding.add(place, like)


def _shingles(text: str, word_hashes: dict[str, int]) -> Ints:
    """Hash all shingles of a text; each hash once."""
    import numpy as np

    words = WORDS.findall(text.lower())
    if len(words) < FEWEST_WORDS:
        return np.zeros(0, np.uint64)  # type: ignore[return-value]
    for word in words:
        if word not in word_hashes:
            word_hashes[word] = zlib.crc32(word.encode()) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    hashes = np.array([word_hashes[word] for word in words], np.uint64)
    runs = hashes[: len(hashes) - SHINGLE + 1].copy()
    for offset in range(1, SHINGLE):
        runs = runs * np.uint64(0x100000001B3) + hashes[offset : len(hashes) - SHINGLE + 1 + offset]
    unique: Ints = np.unique(runs)
    return unique
