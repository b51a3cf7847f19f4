"""What divides a text already, where the hard cut does not: lines of signs alone, and headings of chapters."""

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
ALONE = "*#=~_•⁂"  # signs that stand nowhere else, so that they may be indented
FEWEST, LONGEST = 2, 10**7


def cuts(sources: Sequence[Source]) -> Iterator[Suggestion]:
    """For the first text in which no hard cut was found, and something else was."""
    for source in sources:
        if isinstance(source, TextSource) and len(source.sliced.sections) == 1:
            mark, times = _commonest(source.sliced.text[:LONGEST])
            if times >= FEWEST:
                why = f"{source.name}: {mark!r} stands {times} times at the beginning of a line, and divides it."
                yield Suggestion("hard_cut", mark if mark[0] in ALONE else f"\\n{mark}", why)
                return


def _commonest(text: str) -> tuple[str, int]:
    """As it is written there; of headings the word alone, since their numbers differ."""
    found = Counter(match[1].rstrip() for kind in (SIGNS, HEADING) for match in kind.finditer(text))
    return found.most_common(1)[0] if found else ("", 0)
