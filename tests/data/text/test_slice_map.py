"""The figures of the slice map, on texts small enough to count by hand."""

from __future__ import annotations

import pytest
from training_pro.chunking import EncodedText, SlicingRules
from training_pro.data.text import slice_text
from training_pro.data.text.slice_map import Coverage, SliceMap, build_slice_map, combine_coverage
from training_pro.tests.slicing_laws import ODD_TEXTS, encode_words

STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."


def map_of(text: str, columns: int = 4, **rules: object) -> SliceMap:
    slicing_rules = SlicingRules(**{"cutoff": 6, "overlap": False, "hard_cut": "##", **rules})
    return build_slice_map(slice_text(text, encode_words, slicing_rules), columns)


def test_adjacent_blocks_are_seen_once():
    slice_map = map_of(STORY)
    assert (slice_map.sections, slice_map.sentences, slice_map.blocks, slice_map.overlaps) == (1, 4, 2, 0)
    assert slice_map.seen == Coverage(1, 1.0, 1) and slice_map.growth == 1.0
    assert slice_map.seen_along == (1.0,) * 4
    assert slice_map.proof == "No characters are lost in slicing"


def test_overlaps_are_seen_twice():
    slice_map = map_of(STORY, overlap=True)
    assert (slice_map.blocks, slice_map.overlaps) == (2, 1)
    assert slice_map.seen == Coverage(1, 1.5, 2) and slice_map.growth == 1.5
    assert slice_map.seen_along[0] < 1.3 and slice_map.seen_along[1] > 1.7


def test_dementor_gives_least_mean_most_and_growth():
    slice_map = map_of(STORY, chunking="dementor")
    assert (slice_map.blocks, slice_map.windows) == (0, 3)
    assert slice_map.seen == Coverage(1, 1.5, 2) and slice_map.growth == 1.5


def test_hard_cuts_and_bars_are_shares_of_the_text():
    slice_map = map_of("One.##Two.")
    assert slice_map.hard_cuts == (0.4,)
    assert [(bar.start, bar.end, bar.kind) for bar in slice_map.bars] == [(0.0, 0.4, "block"), (0.6, 1.0, "block")]


def test_bos_and_eos_count_as_trained():
    assert map_of(STORY, bos=1, eos=2, cutoff=16).trained_tokens == 12 + 2


def test_blocks_left_out_by_min_chars_are_counted_and_not_lost():
    slice_map = map_of("One two three.##Hi.", min_chars=3)
    assert slice_map.proof == "No characters are lost in slicing; 1 block (3 characters) was dropped as too small"
    assert slice_map.seen.least == 0


def test_lost_characters_are_shown():
    def heavy(pieces):
        return [EncodedText(list(range(20)), [0] * 20, [len(piece)] * 20) for piece in pieces]

    slice_map = build_slice_map(slice_text("x", heavy, SlicingRules(cutoff=16)))
    reason = "the tokenizer drops them, or a single character becomes more tokens than fit in a block"
    assert slice_map.proof == f"1 character is lost ('x': {reason})"


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_odd_texts_have_maps(name: str):
    slice_map = map_of(ODD_TEXTS[name], columns=7)
    assert len(slice_map.seen_along) == 7 and slice_map.lost_characters == 0


def test_the_coverage_of_several_texts():
    assert combine_coverage([map_of(STORY), map_of(STORY, chunking="dementor")]) == Coverage(1, 1.25, 2)
    assert combine_coverage([]) == Coverage(0, 0.0, 0)
