"""Blocks: exact small cases with one token per word, then the laws over random and odd texts."""

from __future__ import annotations

import hashlib
import json
from itertools import product

import numpy as np
import pytest
from training_pro import chunking
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


def slice_words(text: str, **rules: object) -> SlicedText:
    return slice_blocks(text, encode_words, SlicingRules(**{"cutoff": 6, "overlap": False, **rules}), find_stops)


def block_texts(result: SlicedText, kind: str | None = None) -> list[str]:
    return [result.text_of(block) for block in result if kind in (None, block.kind)]


def test_blocks_take_whole_sentences_up_to_the_cutoff():
    assert block_texts(slice_words(STORY)) == [
        "One two three. Four five six.",
        " Seven eight nine. Ten eleven twelve.",
    ]


def test_a_block_is_never_over_the_cutoff():
    assert block_texts(slice_words(STORY, cutoff=5)) == [
        "One two three.",
        " Four five six.",
        " Seven eight nine.",
        " Ten eleven twelve.",
    ]


def test_bos_and_eos_count():
    result = slice_words(STORY, bos=BOS, eos=EOS, cutoff=7)
    assert block_texts(result) == ["One two three. Four five six.", " Seven eight nine.", " Ten eleven twelve."]
    assert [block.tokens for block in result] == [7, 4, 5]


@pytest.mark.parametrize(
    ("add_eos", "ends"), [("hard_cut", [False, True, True]), ("every_block", [True] * 3), ("never", [False] * 3)]
)
def test_eos_stands_once_where_the_setting_puts_it(add_eos: str, ends: list[bool]):
    result = slice_words("One two three. Four five six.\n\n\nSeven eight.", cutoff=4, eos=EOS, add_eos=add_eos)
    ids = [result.ids_of(block).tolist() for block in result]
    assert [row[-1] == EOS for row in ids] == ends
    assert [row.count(EOS) for row in ids] == [int(end) for end in ends]


def test_only_the_last_block_before_a_hard_cut_ends_a_section():
    result = slice_words(STORY + "\n\n\n" + STORY)
    assert [(block.section, block.ends_section) for block in result] == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
    ]


def test_no_block_crosses_a_hard_cut():
    assert block_texts(slice_words("One.\n\n\nTwo.\n\n\n\n\n\nThree.")) == ["One.", "Two.", "Three."]


def test_an_empty_hard_cut_cuts_nothing():
    result = slice_words("One.\n\n\nTwo.", hard_cut="")
    assert block_texts(result) == ["One.\n\n\nTwo."]
    assert len(result.sections) == 1


def test_the_hard_cut_is_counted_and_never_tokenized():
    encoded_pieces: list[str] = []

    def recording_encoder(pieces):
        encoded_pieces.extend(pieces)
        return encode_words(pieces)

    result = slice_blocks("One.##Two.####", recording_encoder, SlicingRules(cutoff=16, hard_cut="##"), find_stops)
    assert encoded_pieces == ["One.", "Two."]
    assert result.sections.cuts.tolist() == [4, 10, 12]


@pytest.mark.parametrize(
    ("typed", "meant"), [(r"\n\n\n", "\n\n\n"), (r"\t--\n", "\t--\n"), ("***", "***"), ("", "")]
)
def test_escapes_of_the_hard_cut(typed: str, meant: str):
    assert unescape_hard_cut(typed) == meant
    assert unescape_hard_cut(escape_hard_cut(meant)) == meant
    assert "\n" not in escape_hard_cut(meant)


def test_blank_lines_at_the_edges_of_a_section_are_in_no_block():
    result = slice_blocks("\n \n One two.\n\n  ", encode_bytes, SlicingRules(cutoff=16), find_stops)
    assert block_texts(result) == [" One two."]


def test_a_long_sentence_is_divided_at_a_clause_and_kept_whole():
    long_sentence = "a b c d, e f g h i j k l m n."
    assert block_texts(slice_words(long_sentence, cutoff=6)) == ["a b c d,", " e f g h i j", " k l m n."]


def test_a_word_longer_than_a_block_is_divided_between_two_letters():
    result = slice_blocks("é" * 21, encode_bytes, SlicingRules(cutoff=16, overlap=False), find_stops)
    assert block_texts(result) == ["é" * 8, "é" * 8, "é" * 5]
    assert result.lost == 0


def test_a_cut_never_separates_a_letter_from_its_accent():
    result = slice_blocks("e\u0301" * 40, encode_bytes, SlicingRules(cutoff=16, overlap=False), find_stops)
    assert all(result.text_of(block).startswith("e") for block in result)


def test_a_character_that_no_block_can_hold_is_counted_as_lost():
    def heavy(pieces):
        return [EncodedText(np.arange(20), np.zeros(20, int), np.full(20, len(piece))) for piece in pieces]

    result = slice_blocks("x", heavy, SlicingRules(cutoff=16), find_stops)
    assert (len(result), result.lost) == (0, 1)
    assert (result.left_out, list(result.sentences())) == (0, [])


def test_the_place_of_a_token_takes_four_bytes_because_a_gigabyte_has_hundreds_of_millions():
    _, ends, *_ = chunking._encode_batch(STORY, [(0, len(STORY), 0)], encode_words)
    assert ends.dtype == np.int32


def test_a_section_that_the_tokenizer_drops_takes_nothing_from_its_neighbors():
    def without_snow(pieces):
        return encode_words([piece.replace("☃", "") for piece in pieces])

    result = slice_blocks("One.\n\n\n☃\n\n\nTwo.", without_snow, SlicingRules(cutoff=16), find_stops)
    assert block_texts(result) == ["One.", "Two."]
    assert result.lost == 1


def test_a_section_whose_last_character_no_block_can_hold_still_ends():
    def heavy_at_the_end(pieces):
        """One id per letter, and forty for the last one."""
        results = []
        for piece in pieces:
            places = np.array([*range(len(piece) - 1), *[len(piece) - 1] * 40])
            results.append(EncodedText(np.arange(len(places)), places, places + 1))
        return results

    results = slice_blocks("x" * 16 + "\n#", heavy_at_the_end, SlicingRules(cutoff=16, eos=EOS), find_stops)
    assert [block.tokens for block in results] == [16, 1]
    assert results.lost == 1 and not any(block.ends_section for block in results)


def test_overlaps_start_near_the_middle_and_cross_the_border():
    result = slice_words(STORY, overlap=True)
    assert block_texts(result, "overlap") == [" Four five six. Seven eight nine."]
    assert [block.kind for block in result] == ["block", "overlap", "block"]


def test_no_overlap_across_a_hard_cut_or_inside_a_single_sentence():
    assert not block_texts(
        slice_words("One two three. Four.\n\n\nFive six seven. Eight.", overlap=True), "overlap"
    )
    assert not block_texts(slice_words("a b c d e f g h i j k l m n o.", overlap=True), "overlap")


def test_min_chars_leaves_out_and_counts():
    result = slice_words("One two three.\n\n\nHi.\n\n\nFour five six.", min_chars=3)
    assert block_texts(result) == ["One two three.", "Four five six."]
    assert (result.left_out, result.left_out_characters, result.lost) == (1, 3, 0)


def test_a_bound_inside_a_token_moves_to_its_end():
    def pairs(pieces):
        """Tokens of six characters, wherever words end."""
        return [
            EncodedText(
                np.arange(len(p[::6])), np.arange(0, len(p), 6), np.minimum(np.arange(0, len(p), 6) + 6, len(p))
            )
            for p in pieces
        ]

    result = slice_blocks("Aa bb. Cc dd. Ee ff.", pairs, SlicingRules(cutoff=16), find_stops)
    assert [(s.start, s.end) for s in result.sentences()] == [(0, 6), (6, 18), (18, 20)]


def test_no_room_for_text_is_refused():
    with pytest.raises(ValueError, match="has room only for BOS and EOS, not for text"):
        SlicingRules(cutoff=2, bos=BOS, eos=EOS)


def test_long_sections_go_in_pieces_that_end_at_lines_or_before_spaces():
    encoded_pieces: list[str] = []

    def recording_encoder(pieces):
        encoded_pieces.extend(pieces)
        return encode_words(pieces)

    lines, spaces, solid = "line of words\n" * 6_000, "word " * 15_000, "x" * 70_000
    for text, piece_start in ((lines, "line"), (spaces, " word"), (solid, "x")):
        encoded_pieces.clear()
        slice_blocks(text, recording_encoder, SlicingRules(cutoff=64), find_stops)
        assert "".join(encoded_pieces) == text and max(map(len, encoded_pieces)) <= PIECE_CHARS
        assert all(piece.startswith(piece_start) for piece in encoded_pieces[1:])


@pytest.mark.parametrize("name", ODD_TEXTS)
@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
def test_laws_over_odd_texts(name: str, chunking: str):
    for encoder in (encode_words, encode_bytes):
        rules = SlicingRules(cutoff=16, chunking=chunking, bos=BOS, eos=EOS)
        assert_laws(slice_text(ODD_TEXTS[name], encoder, rules), encoder)


@pytest.mark.parametrize("seed", range(150))
def test_laws_over_random_texts(seed: int):
    text, rules = random_text(seed), random_rules(seed, BOS, EOS)
    for encoder in (encode_words, encode_bytes):
        assert_laws(slice_text(text, encoder, rules), encoder)


def test_laws_over_every_example():
    for file in sorted((ROOT / "examples").rglob("*.txt")):
        text = file.read_text(encoding="utf-8")
        for cutoff in (16, 64, 256):
            assert_laws(slice_text(text, encode_words, SlicingRules(cutoff=cutoff, eos=EOS)), encode_words)


def test_same_input_same_output():
    first, second = (slice_text(random_text(7), encode_bytes, random_rules(7, BOS, EOS)) for _ in range(2))
    assert list(first) == list(second)
    assert all((first.ids_of(block) == second.ids_of(block)).all() for block in first)


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


@pytest.mark.parametrize("letters", [PIECE_CHARS, PIECE_CHARS + 1])
def test_a_section_goes_to_the_tokenizer_in_one_piece_if_it_is_short_enough(letters: int):
    assert len(list(split_section("x" * letters, 0, letters))) == (1 if letters == PIECE_CHARS else 2)


def test_a_piece_never_begins_with_the_space_that_the_section_begins_with():
    text = " " + "x" * PIECE_CHARS
    assert list(split_section(text, 0, len(text))) == [(0, PIECE_CHARS), (PIECE_CHARS, len(text))]
    assert next(iter(split_section(f"x{text}", 0, len(text) + 1))) == (0, 1)


def test_at_most_half_a_piece_is_given_up_for_one_long_sign():
    text = "e" + "\u0301" * 2 * PIECE_CHARS
    assert next(iter(split_section(text, 0, len(text)))) == (0, PIECE_CHARS // 2)


def test_a_megabyte_in_one_line_without_a_space():
    result = slice_text("x" * 1_000_000, encode_bytes, SlicingRules(cutoff=256, eos=EOS))
    assert result.lost == 0 and max(block.tokens for block in result) == 256
    assert sum(block.end - block.start for block in result) == 1_000_000
