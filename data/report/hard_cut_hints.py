"""Suggestions for the hard cut: lines of ornaments and chapter headings that divide a text already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ..examples import Source, TextSource
from .suggestions import Suggestion

SIGNS = re.compile(r"^[ \t]*((?:[*#=~_•-][ \t]?){3,}|⁂)[ \t]*$", re.MULTILINE)
WORDS = "chapter|kapitel|chapitre|cap[ií]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|act|scene"
NUMBERS = r"\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
HEADING = re.compile(rf"^({WORDS})[ \t]+(?:{NUMBERS})\b.{{0,60}}$", re.MULTILINE | re.IGNORECASE)
ALONE = "*#=~_•⁂"  # signs that are used nowhere else, so lines with them may be indented
FEWEST, LONGEST = 2, 10**7


def cuts(sources: Sequence[Source]) -> Iterator[Suggestion]:
    """Suggest a hard cut for the first text that has none but has other marks."""
    for source in sources:
        if isinstance(source, TextSource) and len(source.sliced.sections) == 1:
            mark, count = _most_common_mark(source.sliced.text[:LONGEST])
            if count >= FEWEST:
                reason = (
                    f"{source.name}: {mark!r} stands {count} times at the beginning of a line, and divides it."
                )
                yield Suggestion("hard_cut", mark if mark[0] in ALONE else f"\\n{mark}", reason)
                return


def _most_common_mark(text: str) -> tuple[str, int]:
    """Return the most common mark and its count; of headings only the word, since their numbers differ."""
    marks = Counter(match[1].rstrip() for pattern in (SIGNS, HEADING) for match in pattern.finditer(text))
    return marks.most_common(1)[0] if marks else ("", 0)
