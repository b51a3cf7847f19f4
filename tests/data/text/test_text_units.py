"""Texts made of lines: logs, scripts and verse end their blocks at lines, prose at sentences."""

from __future__ import annotations

import random
import textwrap
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from training_pro.chunking import SlicedText, SlicingRules, find_sections
from training_pro.data.examples import split_texts
from training_pro.data.prepare import check_datasets
from training_pro.data.readers import LoadedText
from training_pro.data.text import build_slice_map, describe_contents, find_bounds, slice_text
from training_pro.data.text.sentences import find_sentence_ends
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.slicing_laws import assert_laws, encode_bytes

CHAT_LINES = [
    *("hi there", "hey. how are you", "so the ferry is late again", "lol", "ok", "yes!", "who was that"),
    "is it? i thought it left at nine. ah well",
    "they said on the radio that the whole line is closed until the storm is through",
    "brb, somebody is at the door",
    "that is what i mean. nobody tells us anything. ever",
]
TURNS = [
    "*leans on the bar* You came back. I did not think that you would.",
    "I said so, did I not? Give me what he drank.",
    "He drank nothing. He never does. He only waits.",
]
VERSE = """the tide came in and took the stair
and no one spoke, there was no need. the lamp
went out, the second and the third

we counted what the water left,
a boot. a spoon. a letter with no name
and under it a smaller sea"""
SCENE = """INT. FERRY HALL - NIGHT

Rain on the glass. ANNA sits alone under the last lamp.

BOB
(from the door)
You missed it.

ANNA
I know. I watched it go. It was the last one, was it not

BOB
There is one at five. If the wind turns.

CUT TO:

EXT. PIER - DAWN

The boat is not there"""
PROSE = (
    "The road went on past the mill and the old school until it met the sea. Nobody had walked it since the "
    "autumn storms, and the grass had grown over the stones that the masons laid. She stopped at the gate. Then, "
    "because it was getting late and the wind had turned, she went down to the boats without looking back at "
    "London, which lay behind the hills somewhere. Would they wait? They had never waited before."
)


def irc_log(lines: int = 90, seed: int = 1) -> str:
    rng = random.Random(seed)
    return "\n".join(f"<{rng.choice(['Anna', 'bob', 'k_7'])}> {rng.choice(CHAT_LINES)}" for _ in range(lines))


def timed_log() -> str:
    return irc_log().replace("<Anna>", "[21.11.26, 22:03:11] Anna:").replace("<bob>", "[21.11.26, 22:04:00] Bob:")


def discord_log() -> str:
    rng = random.Random(2)
    return "\n\n".join(f"anna — Today at 5:0{n % 10} PM\n{rng.choice(CHAT_LINES)}" for n in range(40))


def role_play_log() -> str:
    return "\n".join(f"{('Mira', 'The Stranger')[n % 2]}: {TURNS[n % 3]}" for n in range(90))


def nameless_log() -> str:
    """A log without names, in lowercase."""
    rng = random.Random(3)
    return "\n".join(rng.choice(CHAT_LINES) for _ in range(90))


BY_LINES: dict[str, str] = {
    "irc": irc_log(),
    "with times": timed_log(),
    "discord": discord_log(),
    "role-play": role_play_log(),
    "no names": nameless_log(),
    "free verse": "\n\n".join([VERSE] * 6),
    "script": "\n\n".join([SCENE] * 4),
}
BY_SENTENCES: dict[str, str] = {
    **{f"wrapped at {width}": "\n\n".join([textwrap.fill(PROSE, width)] * 9) for width in (45, 60, 72, 100, 140)},
    "wrapped, indented, no blank lines": "\n".join([textwrap.fill(PROSE, 72, initial_indent="   ")] * 9),
    "wrapped, in small letters": "\n\n".join([textwrap.fill(PROSE, 72).lower()] * 9),
    "wrapped play": "\n\n".join([textwrap.fill(f"ANNA: {PROSE}", 72)] * 9),
    "a paragraph on each line": "\n".join([PROSE] * 20),
    "dialogue": "\n".join(['"Where?" he asked. "There."', "She said nothing.", '"Then go."'] * 20),
    "a title over paragraphs": f"The Sea Road\nby Nobody\n\n{PROSE}\n\n{PROSE}",
    "one line": "nothing ends here",
}
TOKENIZERS: dict[str, Callable[[], Any]] = {
    "letters": lambda: encode_bytes,
    "byte-level": lambda: make_working_tokenizer(real_tokenizers.small_byte_level()).encode,
    "metaspace": lambda: make_working_tokenizer(real_tokenizers.metaspace()).encode,
}


def line_ends(text: str) -> set[int]:
    """Places where a line and the blank lines after it end."""
    return {end for end in range(1, len(text) + 1) if text[end - 1] == "\n" or end == len(text)}


def ends_within_lines(sliced: SlicedText) -> list[int]:
    """Ends of blocks that lie within a line."""
    ends = line_ends(sliced.text) | {len(sliced.text.rstrip())}
    return [block.end for block in sliced if block.end not in ends]


@pytest.fixture(scope="module", params=TOKENIZERS)
def encoder(request):
    return TOKENIZERS[request.param]()


@pytest.mark.parametrize("name", BY_LINES)
def test_no_block_ends_within_a_line(name: str, encoder):
    cutoff = 160  # the small trained tokenizer needs many tokens for a line
    for chunking in ("blocks", "dementor"):
        sliced = slice_text(BY_LINES[name], encoder, SlicingRules(cutoff=cutoff, chunking=chunking, eos=2))
        assert len(sliced) > 3 and sliced.sections.by_lines.all()
        assert ends_within_lines(sliced) == []
        if chunking == "blocks":
            assert_laws(sliced, encoder)


@pytest.mark.parametrize("name", BY_SENTENCES)
def test_prose_is_cut_at_its_sentences(name: str):
    text = BY_SENTENCES[name]
    unit_bounds = find_bounds(text, find_sections(text, "\n\n\n"))
    assert unit_bounds.ends.tolist() == find_sentence_ends(text).tolist()
    assert not unit_bounds.by_lines.any() and not len(unit_bounds.inner)


def test_a_line_longer_than_a_block_is_divided_at_its_sentences(encoder):
    long_line = f"<anna> {PROSE} {PROSE}"
    text = f"{irc_log(20)}\n{long_line}\n{irc_log(20, seed=4)}"
    sliced = slice_text(text, encoder, SlicingRules(cutoff=160, overlap=False))
    cuts, line_start = ends_within_lines(sliced), text.index(long_line)
    assert cuts and all(line_start < cut < line_start + len(long_line) for cut in cuts)
    assert all(text[:cut].rstrip().endswith((".", "?")) for cut in cuts)
    assert_laws(sliced, encoder)


def by_lines(parts: list[str]) -> list[bool]:
    text = "\n\n\n".join(parts)
    return find_bounds(text, find_sections(text, "\n\n\n")).by_lines.tolist()


def test_each_part_is_judged_by_its_own_lines_and_a_short_one_by_all():
    prose = "\n\n".join([textwrap.fill(PROSE, 72)] * 4)
    assert by_lines([prose, irc_log(40), "A note\nfrom me", nameless_log()]) == [False, True, True, True]
    assert by_lines([prose, "Chapter Two\nThe Storm", prose]) == [False] * 3


def test_wrapped_paragraphs_among_lines_stay_whole():
    notes = "\n".join(f"- {line}" for line in CHAT_LINES)
    text = "\n\n".join([f"Notes\n\n{textwrap.fill(PROSE, 72)}\n\n{notes}"] * 5)
    unit_bounds = find_bounds(text, find_sections(text, ""))
    assert unit_bounds.by_lines.all()
    assert "The road went on past the mill and the old school until it met the\n" not in split_at(
        text, unit_bounds.ends
    )


def test_a_line_of_verse_that_goes_on_further_in_stays_whole():
    lines = [
        "  I exultant to be ready for them will now shake out carols stronger\n"
        "      and haughtier than have ever yet been heard upon earth,\n",
        "  I will make the songs of passion to give them their way,\n",
        "      And a line that only begins further in,\n",
        "  And a last one\n",
    ]
    text = "".join(lines * 6)
    unit_bounds = find_bounds(text, find_sections(text, ""))
    assert unit_bounds.by_lines.all()
    assert split_at(text, unit_bounds.ends) == lines * 6


def split_at(text: str, ends) -> list[str]:
    places = [0, *ends.tolist()]
    return [text[a:b] for a, b in pairwise(places)]


def test_the_setting_decides():
    log, prose = irc_log(), textwrap.fill(PROSE, 72)
    unit_bounds = find_bounds(log, find_sections(log, ""), "sentences")
    assert unit_bounds.ends.tolist() == find_sentence_ends(log).tolist() and not unit_bounds.by_lines.any()
    unit_bounds = find_bounds(prose, find_sections(prose, ""), "lines")
    assert split_at(prose, unit_bounds.ends) == prose.splitlines(keepends=True)


def test_validation_data_end_at_lines_too():
    training, validation = split_texts(
        [LoadedText("log.txt", irc_log(400))], 0.2, "\n\n\n", "auto", seed=1, name="log.txt"
    )
    assert all(part.text.startswith("<") for part in [*training, *validation])


def test_check_says_whether_lines_or_sentences_were_used(place):
    place.write("log.txt", irc_log())
    place.write("road.txt", BY_SENTENCES["wrapped at 72"])
    card = place.host().card()
    arguments = (place.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None)
    report = check_datasets(place.settings(data=["log.txt", "road.txt"], cutoff=64), *arguments).text()
    assert "90 lines -> " in report and "blocks consist of whole lines; the model sees each line" in report
    assert "1 of 1 section looks like a list, verse, a script or a chat log (the one that begins with '" in report
    assert "'), so its blocks end at the end of a line" in report
    assert "blocks consist of whole sentences; the model sees each sentence" in report
    report = check_datasets(place.settings(data=["log.txt"], cutoff=64, block_ends="sentences"), *arguments).text()
    assert "blocks consist of whole sentences" in report and "To change this" not in report


def test_the_map_counts_lines_and_sentences_separately():
    text = irc_log(40) + "\n\n\n" + "\n\n".join([PROSE] * 8)
    slice_map = build_slice_map(slice_text(text, encode_bytes, SlicingRules(cutoff=300)))
    assert (slice_map.lines, slice_map.sentences, slice_map.parts_by_lines) == (40, 48, 1)
    assert slice_map.contents == "whole sentences (whole lines in 1 of 2 sections)"


@pytest.mark.parametrize(
    "part", ["a: b\n", "<a> b. c\n", "x" * 90 + "\n", "word \n", " \n", "12:30 ", ": : ", "<\n"]
)
def test_time_grows_linearly_with_the_text(part: str):
    def seconds(size: int) -> float:
        text = part * (size // len(part))
        sections = find_sections(text, "")
        best = 9.0
        for _ in range(3):
            start = time.perf_counter()
            find_bounds(text, sections)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(400_000) < 40 * seconds(40_000) + 0.05


@pytest.mark.parametrize(
    ("by_lines", "sections", "words"),
    [
        (0, 5, "whole sentences"), (5, 5, "whole lines"),
        (1, 5, "whole sentences (whole lines in 1 of 5 sections)"),
        (1200, 1500, "whole lines (whole sentences in 300 of 1,500 sections)"),
    ],
)  # fmt: skip
def test_the_more_common_unit_comes_first(by_lines, sections, words):
    assert describe_contents(by_lines, sections) == words
