"""Texts made of lines: logs, scripts and verse end their blocks at lines, prose at sentences."""

from __future__ import annotations

import random
import textwrap
from itertools import pairwise

import pytest
from training_pro.chunking import SlicedText, SlicingRules, find_sections
from training_pro.data.examples import split_texts
from training_pro.data.prepare import check_datasets
from training_pro.data.readers import LoadedText
from training_pro.data.text import build_slice_map, describe_contents, find_bounds, slice_text
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


NAMELESS = "\n".join(random.Random(3).choices(CHAT_LINES, k=90))
WRAPPED = textwrap.fill(PROSE, 72)
BY_LINES: dict[str, str] = {
    "irc": irc_log(),
    "with times": irc_log().replace("<Anna>", "[21.11.26, 22:03:11] Anna:").replace("<bob>", "[22:04:00] Bob:"),
    "discord": "\n\n".join(f"anna — Today at 5:0{n % 10} PM\n{CHAT_LINES[n % 11]}" for n in range(40)),
    "role-play": "\n".join(f"{('Mira', 'The Stranger')[n % 2]}: {TURNS[n % 3]}" for n in range(90)),
    "no names": NAMELESS,
    "free verse": "\n\n".join([VERSE] * 6),
    "script": "\n\n".join([SCENE] * 6),
}
BY_SENTENCES: dict[str, str] = {
    **{f"wrapped at {width}": "\n\n".join([textwrap.fill(PROSE, width)] * 9) for width in (45, 72, 140)},
    "wrapped, indented, no blank lines": "\n".join([textwrap.fill(PROSE, 72, initial_indent="   ")] * 9),
    "wrapped, in small letters": "\n\n".join([WRAPPED.lower()] * 9),
    "wrapped play": "\n\n".join([textwrap.fill(f"ANNA: {PROSE}", 72)] * 9),
    "a paragraph on each line": "\n".join([PROSE] * 20),
    "dialogue": "\n".join(['"Where?" he asked. "There."', "She said nothing.", '"Then go."'] * 20),
    "a title over paragraphs": f"The Sea Road\nby Nobody\n\n{PROSE}\n\n{PROSE}",
    "one line": "nothing ends here",
}
ENCODERS = {
    "letters": encode_bytes,
    "byte-level": make_working_tokenizer(real_tokenizers.small_byte_level()).encode,
}


def bounds_of(text: str, hard_cut: str = "\n\n\n", block_ends: str = "auto"):
    return find_bounds(text, find_sections(text, hard_cut), block_ends)


def split_at(text: str, ends) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *ends.tolist()])]


def ends_within_lines(sliced: SlicedText) -> list[int]:
    """Ends of blocks that lie within a line."""
    text, last = sliced.text, len(sliced.text.rstrip())
    return [block.end for block in sliced if block.end < last and text[block.end - 1] != "\n"]


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize("text", BY_LINES.values(), ids=BY_LINES)
def test_no_block_ends_within_a_line(text: str, encode):
    for chunking in ("blocks", "dementor"):
        sliced = slice_text(text, encode, SlicingRules(cutoff=160, chunking=chunking, eos=2))
        assert len(sliced) > 3 and sliced.sections.by_lines.all()
        assert ends_within_lines(sliced) == []
        if chunking == "blocks":
            assert_laws(sliced, encode)


@pytest.mark.parametrize("text", BY_SENTENCES.values(), ids=BY_SENTENCES)
def test_prose_is_cut_at_its_sentences(text: str):
    bounds = bounds_of(text)
    assert bounds.ends.tolist() == bounds_of(text, block_ends="sentences").ends.tolist()
    assert not bounds.by_lines.any() and not len(bounds.inner)


def test_a_line_longer_than_a_block_is_divided_at_its_sentences():
    long_line = f"<anna> {PROSE} {PROSE}"
    text = f"{irc_log(20)}\n{long_line}\n{irc_log(20, seed=4)}"
    sliced = slice_text(text, encode_bytes, SlicingRules(cutoff=160, overlap=False))
    cuts, line_start = ends_within_lines(sliced), text.index(long_line)
    assert cuts and all(line_start < cut < line_start + len(long_line) for cut in cuts)
    assert all(text[:cut].rstrip().endswith((".", "?")) for cut in cuts)
    assert_laws(sliced, encode_bytes)


def test_each_part_is_judged_by_its_own_lines_and_a_short_one_by_all():
    prose = "\n\n".join([WRAPPED] * 4)
    for parts, by_lines in (
        ([prose, irc_log(40), "A note\nfrom me", NAMELESS], [False, True, True, True]),
        ([prose, "Chapter Two\nThe Storm", prose], [False] * 3),
    ):
        assert bounds_of("\n\n\n".join(parts)).by_lines.tolist() == by_lines


def test_wrapped_paragraphs_and_lines_of_verse_that_go_on_further_in_stay_whole():
    text = "\n\n".join([f"Notes\n\n{WRAPPED}\n\n" + "\n".join(f"- {line}" for line in CHAT_LINES)] * 5)
    bounds = bounds_of(text, "")
    assert bounds.by_lines.all()
    assert "The road went on past the mill and the old school until it met the\n" not in split_at(
        text, bounds.ends
    )
    lines = [
        "  I exultant to be ready for them will now shake out carols stronger\n"
        "      and haughtier than have ever yet been heard upon earth,\n",
        "  I will make the songs of passion to give them their way,\n",
        "      And a line that only begins further in,\n",
        "  And a last one\n",
    ]
    text = "".join(lines * 6)
    assert split_at(text, bounds_of(text, "").ends) == lines * 6


def test_the_setting_decides():
    assert not bounds_of(irc_log(), "", "sentences").by_lines.any()
    assert split_at(WRAPPED, bounds_of(WRAPPED, "", "lines").ends) == WRAPPED.splitlines(keepends=True)


def test_validation_data_end_at_lines_too():
    text = LoadedText("log.txt", irc_log(400))
    training, validation = split_texts([text], 0.2, "\n\n\n", "auto", seed=1, name="log.txt")
    assert all(part.text.startswith("<") for part in [*training, *validation])


def test_check_says_whether_lines_or_sentences_were_used(place):
    place.write("log.txt", irc_log())
    place.write("road.txt", BY_SENTENCES["wrapped at 72"])
    card = place.host().card()
    arguments = (place.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None)
    report = check_datasets(place.settings(data=["log.txt", "road.txt"], cutoff=64), *arguments).text()
    assert "90 lines -> " in report and "blocks consist of whole lines; the model sees each line" in report
    assert "1 of 1 section looks like a list, verse, a script or a chat log (the one that begins with '" in report
    assert "blocks consist of whole sentences; the model sees each sentence" in report
    report = check_datasets(place.settings(data=["log.txt"], cutoff=64, block_ends="sentences"), *arguments).text()
    assert "blocks consist of whole sentences" in report and "To change this" not in report


def test_the_map_counts_lines_and_sentences_separately():
    text = irc_log(40) + "\n\n\n" + "\n\n".join([PROSE] * 8)
    slice_map = build_slice_map(slice_text(text, encode_bytes, SlicingRules(cutoff=300)))
    assert (slice_map.lines, slice_map.sentences, slice_map.parts_by_lines) == (40, 48, 1)
    assert slice_map.contents == "whole sentences (whole lines in 1 of 2 sections)"
    assert (describe_contents(0, 5), describe_contents(5, 5)) == ("whole sentences", "whole lines")
    assert describe_contents(1200, 1500) == "whole lines (whole sentences in 300 of 1,500 sections)"
