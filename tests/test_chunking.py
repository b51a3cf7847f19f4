"""Blocks: exact small cases with one token per word, then the laws over random and odd texts."""

from __future__ import annotations

import hashlib
import json
from itertools import product

import numpy as np
import pytest
from training_pro.chunking import (
    PIECE_CHARS,
    EncodedText,
    SlicedText,
    SlicingRules,
    escape_hard_cut,
    slice_blocks,
    split_section,
    unescape_hard_cut,
)
from training_pro.data.text import slice_text
from training_pro.dementor import slice_windows
from training_pro.tests.conftest import ROOT
from training_pro.tests.slicing_laws import (
    ODD_TEXTS,
    SEEDS,
    assert_laws,
    encode_bytes,
    encode_words,
    find_lines,
    find_stops,
    random_rules,
    random_text,
)

BOS, EOS = 1, 2
STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."
CLAUSES = "a b c d, e f g h i j k l m n."


def slice_words(text: str, encode=encode_words, **rules: object) -> SlicedText:
    return slice_blocks(text, encode, SlicingRules(**{"cutoff": 6, "overlap": False, **rules}), find_stops)


def block_texts(result: SlicedText, kind: str | None = None) -> list[str]:
    return [result.text_of(block) for block in result if kind in (None, block.kind)]


@pytest.mark.parametrize(
    ("text", "rules", "blocks"),
    [
        (STORY, {}, ["One two three. Four five six.", " Seven eight nine. Ten eleven twelve."]),
        (STORY, {"cutoff": 5}, ["One two three.", " Four five six.", " Seven eight nine.", " Ten eleven twelve."]),
        ("One.\n\n\nTwo.\n\n\n\n\n\nThree.", {}, ["One.", "Two.", "Three."]),
        ("One.\n\n\nTwo.", {"hard_cut": ""}, ["One.\n\n\nTwo."]),
        (CLAUSES, {}, ["a b c d,", " e f g h i j", " k l m n."]),
        ("\n \n One two.\n\n  ", {"encode": encode_bytes, "cutoff": 16}, [" One two."]),
        ("é" * 21, {"encode": encode_bytes, "cutoff": 16}, ["é" * 8, "é" * 8, "é" * 5]),
        ("e\u0301" * 7, {"encode": encode_bytes, "cutoff": 16}, ["e\u0301" * 5, "e\u0301" * 2]),
    ],
)
def test_blocks_take_whole_sentences_clauses_or_characters_up_to_the_cutoff(text, rules, blocks):
    result = slice_words(text, **rules)
    assert block_texts(result) == blocks and result.lost == 0


def test_bos_and_eos_count():
    result = slice_words(STORY, bos=BOS, eos=EOS, cutoff=7)
    assert block_texts(result) == ["One two three. Four five six.", " Seven eight nine.", " Ten eleven twelve."]
    assert [block.tokens for block in result] == [7, 4, 5]
    with pytest.raises(ValueError, match="has room only for BOS and EOS, not for text"):
        SlicingRules(cutoff=2, bos=BOS, eos=EOS)


@pytest.mark.parametrize(
    ("add_eos", "ends"), [("hard_cut", [False, True, True]), ("every_block", [True] * 3), ("never", [False] * 3)]
)
def test_eos_stands_once_where_the_setting_puts_it(add_eos: str, ends: list[bool]):
    result = slice_words("One two three. Four five six.\n\n\nSeven eight.", cutoff=4, eos=EOS, add_eos=add_eos)
    ids = [result.ids_of(block).tolist() for block in result]
    assert [row[-1] == EOS for row in ids] == [bool(row.count(EOS)) for row in ids] == ends
    assert [(block.section, block.ends_section) for block in result] == [(0, False), (0, True), (1, True)]


def recording(pieces_seen: list[str]):
    def encode(pieces):
        pieces_seen.extend(pieces)
        return encode_words(pieces)

    return encode


def test_the_hard_cut_is_counted_and_never_tokenized():
    pieces: list[str] = []
    result = slice_words("One.##Two.####", recording(pieces), cutoff=16, hard_cut="##")
    assert pieces == ["One.", "Two."] and result.sections.cuts.tolist() == [4, 10, 12]
    for typed, meant in ((r"\t--\n", "\t--\n"), ("***", "***")):
        assert unescape_hard_cut(typed) == meant and escape_hard_cut(meant) == typed


def heavy_at_the_end(pieces):
    """One id per letter, and forty for the last one."""
    places = [np.array([*range(len(piece) - 1), *[len(piece) - 1] * 40]) for piece in pieces]
    return [EncodedText(np.arange(len(place)), place, place + 1) for place in places]


def without_snow(pieces):
    return encode_words([piece.replace("☃", "") for piece in pieces])


def six_letters(pieces):
    """Tokens of six characters, wherever words end."""
    starts = [np.arange(0, len(piece), 6) for piece in pieces]
    ends = [np.minimum(start + 6, len(piece)) for start, piece in zip(starts, pieces, strict=True)]
    return [EncodedText(np.arange(len(s)), s, e) for s, e in zip(starts, ends, strict=True)]


def test_what_no_block_can_hold_or_the_tokenizer_drops_is_counted_as_lost():
    result = slice_words("x", heavy_at_the_end, cutoff=16)
    assert (len(result), result.lost, result.left_out, len(result.units)) == (0, 1, 0, 0)
    result = slice_words("x" * 16 + "\n#", heavy_at_the_end, cutoff=16, eos=EOS, overlap=True)
    assert [(block.tokens, block.ends_section) for block in result] == [(16, False), (1, False)]
    assert result.lost == 1
    result = slice_words("One.\n\n\n☃\n\n\nTwo.", without_snow, cutoff=16)
    assert (block_texts(result), result.lost) == (["One.", "Two."], 1)


def test_overlaps_start_near_the_middle_and_cross_the_border():
    result = slice_words(STORY, overlap=True)
    assert [block.kind for block in result] == ["block", "overlap", "block"]
    assert block_texts(result, "overlap") == [" Four five six. Seven eight nine."]
    for text in ("One two three. Four.\n\n\nFive six seven. Eight.", CLAUSES):  # a hard cut, a single sentence
        assert block_texts(slice_words(text, overlap=True), "overlap") == []


def test_min_chars_leaves_out_and_counts():
    result = slice_words("One two three.\n\n\nHi.\n\n\nFour five six.", min_chars=3)
    assert block_texts(result) == ["One two three.", "Four five six."]
    assert (result.left_out, result.left_out_characters, result.lost) == (1, 3, 0)


def test_a_bound_inside_a_token_moves_to_its_end():
    units = slice_words("Aa bb. Cc dd. Ee ff.", six_letters, cutoff=16).units
    assert (units.start.tolist(), units.end.tolist()) == ([0, 6, 18], [6, 18, 20])


def test_long_sections_go_in_pieces_that_end_at_lines_or_before_spaces():
    lines, spaces, solid = "line of words\n" * 6_000, "word " * 15_000, "x" * 70_000
    for text, piece_start in ((lines, "line"), (spaces, " word"), (solid, "x")):
        pieces: list[str] = []
        slice_words(text, recording(pieces), cutoff=64)
        assert "".join(pieces) == text and max(map(len, pieces)) <= PIECE_CHARS
        assert all(piece.startswith(piece_start) for piece in pieces[1:])


def test_where_sections_are_split():
    def split(text: str) -> list[tuple[int, int]]:
        return list(split_section(text, 0, len(text)))

    solid = "x" * 65_536
    assert split(solid) == [(0, PIECE_CHARS)] and len(split(f"{solid}x")) == 2
    # no piece begins with the space that the section begins with
    assert split(f" {solid}") == [(0, PIECE_CHARS), (PIECE_CHARS, PIECE_CHARS + 1)]
    assert split(f"x {solid}")[0] == (0, 1)
    # at most half a piece is given up for one long sign
    assert split("e" + "\u0301" * 2 * PIECE_CHARS)[0] == (0, PIECE_CHARS // 2)


@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
@pytest.mark.parametrize("name", ODD_TEXTS)
def test_laws_over_odd_texts(name: str, chunking: str):
    for encoder in (encode_words, encode_bytes):
        rules = SlicingRules(cutoff=16, chunking=chunking, bos=BOS, eos=EOS)
        assert_laws(slice_text(ODD_TEXTS[name], encoder, rules), encoder)


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_over_random_texts(seed: int):
    text, rules = random_text(seed), random_rules(seed, BOS, EOS)
    for encoder in (encode_words, encode_bytes):
        assert_laws(slice_text(text, encoder, rules), encoder)


def blocks_of_seed(seed: int) -> str:
    """The blocks of a random text by random rules, without the rules for sentences, as a short digest."""
    text, rules = random_text(seed, words=400), random_rules(seed, BOS, EOS)
    digest = hashlib.sha256()
    slicers = (slice_blocks, slice_windows)
    for encoder, find, slicer in product((encode_words, encode_bytes), (find_stops, find_lines), slicers):
        digest.update(repr(list(slicer(text, encoder, rules, find))).encode())
    return digest.hexdigest()[:12]


def test_the_blocks_are_those_of_earlier_versions():
    """A run resumes only with the same blocks, so a change here ends every unfinished run."""
    earlier = json.loads((ROOT / "tests" / "fixtures" / "blocks.json").read_text(encoding="utf-8"))
    assert {seed: blocks_of_seed(int(seed)) for seed in earlier} == earlier
