"""Texts made of lines end their blocks at lines, prose at sentences; the map of the blocks."""

from __future__ import annotations

import random
import textwrap
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_pro.chunking import EncodedText, SlicedText, SlicingRules, find_sections
from training_pro.data.prepare import check_datasets
from training_pro.data.text import SliceMap, build_slice_map, find_bounds, slice_text
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.slicing_laws import assert_laws, encode_bytes, encode_words

CHAT_LINES = [
    *("hi there", "hey. how are you", "so the ferry is late again", "lol", "ok", "yes!", "who was that"),
    "is it? i thought it left at nine. ah well",
    "they said on the radio that the whole line is closed until the storm is through",
    "brb, somebody is at the door",
    "that is what i mean. nobody tells us anything. ever",
]
VERSE = """the tide came in and took the stair
and no one spoke, there was no need. the lamp
went out, the second and the third

we counted what the water left,
a boot. a spoon. a letter with no name
and under it a smaller sea"""
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
    "no names": NAMELESS,
    "free verse": "\n\n".join([VERSE] * 6),
}
BY_SENTENCES: dict[str, str] = {
    **{f"wrapped at {width}": "\n\n".join([textwrap.fill(PROSE, width)] * 9) for width in (45, 72, 140)},
    "wrapped, indented, no blank lines": "\n".join([textwrap.fill(PROSE, 72, initial_indent="   ")] * 9),
    "wrapped play": "\n\n".join([textwrap.fill(f"ANNA: {PROSE}", 72)] * 9),
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


def test_each_part_is_judged_by_its_own_lines_and_a_short_one_by_all():
    prose = "\n\n".join([WRAPPED] * 4)
    for parts, by_lines in (
        ([prose, irc_log(40), "A note\nfrom me", NAMELESS], [False, True, True, True]),
        ([prose, "Chapter Two\nThe Storm", prose], [False] * 3),
    ):
        assert bounds_of("\n\n\n".join(parts)).by_lines.tolist() == by_lines


def test_the_setting_decides():
    assert not bounds_of(irc_log(), "", "sentences").by_lines.any()
    assert split_at(WRAPPED, bounds_of(WRAPPED, "", "lines").ends) == WRAPPED.splitlines(keepends=True)


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


WHOLE = "No characters are lost in slicing"
STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."


def map_of(text: str, **rules: object) -> SliceMap:
    slicing_rules = SlicingRules(**{"cutoff": 6, "overlap": False, "hard_cut": "##", **rules})
    return build_slice_map(slice_text(text, encode_words, slicing_rules))


@pytest.mark.parametrize(
    ("rules", "counts", "coverage"),
    [
        ({}, (2, 0, 0), (1, 1.0, 1)),
        ({"overlap": True}, (2, 1, 0), (1, 1.5, 2)),
        ({"chunking": "dementor"}, (3, 0, 3), (1, 1.5, 2)),
    ],
)
def test_how_often_sentences_are_seen(rules, counts, coverage):
    slice_map = map_of(STORY, **rules)
    assert (slice_map.parts, slice_map.sentences, slice_map.proof) == (1, 4, WHOLE)
    assert (slice_map.blocks, slice_map.overlaps, slice_map.windows) == counts
    assert (slice_map.seen_least, slice_map.seen_mean, slice_map.seen_most) == coverage
    assert slice_map.trained_tokens == coverage[1] * slice_map.text_tokens
    least, most = min(slice_map.seen_along), max(slice_map.seen_along)
    assert (least, most) == (1.0, 1.0) if coverage[1] == 1 else least < 1.3 and most > 1.7


def test_hard_cuts_and_bars_are_shares_of_the_text():
    slice_map = map_of("One.##Two.")
    assert slice_map.hard_cuts == (0.4,)
    assert [(bar.start, bar.end, bar.kind) for bar in slice_map.bars] == [(0.0, 0.4, "block"), (0.6, 1.0, "block")]
    assert map_of(STORY, bos=1, eos=2, cutoff=16).trained_tokens == 12 + 2


def test_what_is_left_out_or_lost_is_counted():
    slice_map = map_of("One two three.##Hi.", min_chars=3)
    assert slice_map.proof.endswith("lost in slicing; 1 block (3 characters) was dropped as too small")
    assert slice_map.seen_least == 0

    def heavy(pieces):
        return [EncodedText(list(range(20)), [0] * 20, [len(piece)] * 20) for piece in pieces]

    proof = build_slice_map(slice_text("x", heavy, SlicingRules(cutoff=16))).proof
    assert proof.startswith("1 character is lost ('x': the tokenizer drops them, or a single character becomes")


SIGNS = [
    *("\u200d", "\u200b", "\ufeff", "\ufe0f", "\u0301", "\u0327", "\ufffd", "\U0001f468", "\U0001f3fd"),
    *("\U0001f1e9", "\U000e0067", "\ufdfa", "\u0915\u094d", "e", " ", ". ", "\n", "\n\n\n"),
]
LOSSY = {"normalizing": "its normalizer removes marks"}
runs = st.lists(st.tuples(st.sampled_from(SIGNS), st.sampled_from([1, 1, 2, 20, 60])), max_size=30)


@pytest.mark.long
@pytest.mark.parametrize("kind", real_tokenizers.TOKENIZERS)
def test_only_what_has_no_tokens_or_fits_no_block_is_lost(kind):
    encode = make_working_tokenizer(real_tokenizers.TOKENIZERS[kind]()).encode

    @given(runs, st.sampled_from(["blocks", "dementor"]))
    def slice_signs(parts, chunking: str) -> None:
        text = "".join(sign * count for sign, count in parts)
        sliced = slice_text(text, encode, SlicingRules(cutoff=16, chunking=chunking, hard_cut="\n\n\n", eos=2))
        for start, end in sliced.lost_places():
            for character in set("".join(text[start:end].split())):
                count = len(encode([character])[0].ids)
                assert (count == 0 or count > 15) and kind in LOSSY, f"{character!r} is lost"

    slice_signs()
