"""The numbers of the slice map, on texts small enough to count by hand."""

from __future__ import annotations

import pytest
from training_pro.chunking import Cutting, Encoded
from training_pro.data.text.slice_map import Seen, SliceMap, build_slice_map, together
from training_pro.data.text.slicing import slices
from training_pro.tests.slicing_laws import ODD_TEXTS, words

STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."


def made(text: str, columns: int = 4, **rules: object) -> SliceMap:
    cutting = Cutting(**{"cutoff": 6, "overlap": False, "hard_cut": "##", **rules})
    return build_slice_map(slices(text, words, cutting), columns)


def test_blocks_side_by_side_are_seen_once():
    found = made(STORY)
    assert (found.sections, found.sentences, found.blocks, found.overlaps) == (1, 4, 2, 0)
    assert found.seen == Seen(1, 1.0, 1) and found.growth == 1.0
    assert found.seen_along == (1.0,) * 4
    assert found.proof == "characters lost: 0"


def test_overlaps_are_seen_twice():
    found = made(STORY, overlap=True)
    assert (found.blocks, found.overlaps) == (2, 1)
    assert found.seen == Seen(1, 1.5, 2) and found.growth == 1.5
    assert found.seen_along[0] < 1.3 and found.seen_along[1] > 1.7


def test_dementor_says_least_mean_most_and_growth():
    found = made(STORY, chunking="dementor")
    assert (found.blocks, found.windows) == (0, 3)
    assert found.seen == Seen(1, 1.5, 2) and found.growth == 1.5


def test_hard_cuts_and_bars_are_shares_of_the_text():
    found = made("One.##Two.")
    assert found.hard_cuts == (0.4,)
    assert [(bar.start, bar.end, bar.kind) for bar in found.bars] == [(0.0, 0.4, "block"), (0.6, 1.0, "block")]


def test_bos_and_eos_count_as_trained():
    assert made(STORY, bos=1, eos=2, cutoff=16).trained_tokens == 12 + 2


def test_what_min_chars_left_out_is_said_and_is_not_lost():
    found = made("One two three.##Hi.", min_chars=3)
    assert found.proof == "characters lost: 0; left out for being short: 1 block, 3 characters"
    assert found.seen.least == 0


def test_what_is_lost_is_shown():
    def heavy(pieces):
        return [Encoded(list(range(20)), [0] * 20, [len(piece)] * 20) for piece in pieces]

    found = build_slice_map(slices("x", heavy, Cutting(cutoff=16)))
    assert found.proof == "characters lost: 1 ('x': no ids, or more than a block holds)"


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_odd_texts_have_maps(name: str):
    found = made(ODD_TEXTS[name], columns=7)
    assert len(found.seen_along) == 7 and found.lost_characters == 0


def test_several_texts_together():
    assert together([made(STORY), made(STORY, chunking="dementor")]) == Seen(1, 1.25, 2)
    assert together([]) == Seen(0, 0.0, 0)
