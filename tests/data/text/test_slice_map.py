"""The figures of the slice map, on texts small enough to count by hand; and what is lost has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_pro.chunking import EncodedText, SlicingRules
from training_pro.data.text import SliceMap, build_slice_map, combine_coverage, slice_text
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.slicing_laws import ODD_TEXTS, encode_words

WHOLE = "No characters are lost in slicing"
STORY = "One two three. Four five six. Seven eight nine. Ten eleven twelve."


def map_of(text: str, columns: int = 4, **rules: object) -> SliceMap:
    slicing_rules = SlicingRules(**{"cutoff": 6, "overlap": False, "hard_cut": "##", **rules})
    return build_slice_map(slice_text(text, encode_words, slicing_rules), columns)


def seen(coverage) -> tuple[float, ...]:
    return coverage.least, coverage.mean, coverage.most


@pytest.mark.parametrize(
    ("rules", "counts", "coverage"),
    [
        ({}, (2, 0, 0), (1, 1.0, 1)),
        ({"overlap": True}, (2, 1, 0), (1, 1.5, 2)),
        ({"chunking": "dementor"}, (0, 0, 3), (1, 1.5, 2)),
    ],
)
def test_how_often_sentences_are_seen(rules, counts, coverage):
    slice_map = map_of(STORY, **rules)
    assert (slice_map.sections, slice_map.sentences, slice_map.proof) == (
        1,
        4,
        "No characters are lost in slicing",
    )
    assert (slice_map.blocks, slice_map.overlaps, slice_map.windows) == counts
    assert (seen(slice_map.seen), slice_map.growth) == (coverage, coverage[1])
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
    assert slice_map.seen.least == 0

    def heavy(pieces):
        return [EncodedText(list(range(20)), [0] * 20, [len(piece)] * 20) for piece in pieces]

    proof = build_slice_map(slice_text("x", heavy, SlicingRules(cutoff=16))).proof
    assert proof.startswith("1 character is lost ('x': the tokenizer drops them, or a single character becomes")


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_odd_texts_have_maps(name: str):
    slice_map = map_of(ODD_TEXTS[name], columns=7)
    assert len(slice_map.seen_along) == 7 and slice_map.lost_characters == 0


def test_the_coverage_of_several_texts():
    assert seen(combine_coverage([map_of(STORY), map_of(STORY, chunking="dementor")])) == (1, 1.25, 2)
    assert seen(combine_coverage([])) == (0, 0.0, 0)


SIGNS = [
    *("\u200d", "\u200b", "\ufeff", "\ufe0f", "\u0301", "\u0327", "\ufffd", "\U0001f468", "\U0001f3fd"),
    *("\U0001f1e9", "\U000e0067", "\ufdfa", "\u0915\u094d", "e", " ", ". ", "\n", "\n\n\n"),
]
LOSSY = {"normalizing": "its normalizer removes marks", "slow and normalizing": "a sign becomes 18 letters"}
runs = st.lists(st.tuples(st.sampled_from(SIGNS), st.sampled_from([1, 1, 2, 20, 60])), max_size=30)


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
