"""DEMENTOR: the windows, how often sentences are seen, and the laws."""

from __future__ import annotations

import pytest
from training_pro.chunking import SlicedText, SlicingRules
from training_pro.data.text import build_slice_map
from training_pro.dementor import fit_cutoff, is_one_window_each, slice_windows
from training_pro.tests.slicing_laws import SEEDS, assert_laws, encode_words, find_stops, random_text

EOS = 2


def slice_words(text: str, **rules: object) -> SlicedText:
    rules = {"cutoff": 9, "chunking": "dementor", **rules}
    return slice_windows(text, encode_words, SlicingRules(**rules), find_stops)


def sentences(letters: str) -> str:
    return " ".join(f"{letter}1 {letter}2 {letter}3." for letter in letters)


def window_letters(sliced_text: SlicedText) -> str:
    """Each window as the letters of its sentences."""
    return " ".join("".join(sorted({w[0] for w in sliced_text.text_of(b).split()})) for b in sliced_text)


LONG = " ".join(sentences("abcdefghij") for _ in range(40))
TWO = sentences("abcd") + "\n\n\n" + sentences("xy")
LONGER = sentences("abcdefghijkl") + "\n\n\n" + sentences("xyz")
UNEQUAL = "a1 a2 a3. b1. c1 c2 c3 c4 c5. d1. e1 e2."


@pytest.mark.parametrize(
    ("text", "cutoff", "repeats", "windows"),
    [
        (sentences("abc"), 9, 0, "abc"),
        (sentences("abcdef"), 9, 0, "abc bcd cde def"),
        (sentences("abcdefgh"), 9, 50, "abc bcd cde def efg fgh"),
        (TWO, 9, 0, "abc bcd xy"),
        (sentences("abc") + " z1 z2 z3 z4 z5 z6 z7 z8. " + sentences("de"), 9, 0, "abc bc z de"),
        (LONGER, 9, 1, "abc def ghi jkl xyz"),
        (LONGER, 9, 2, "abc cde def fgh ghi ijk jkl xyz"),
        (LONGER, 12, 2, "abcd cdef efgh ghij ijkl xyz"),
        (LONGER, 20, 3, "abcdef cdefgh efghij ghijkl xyz"),
        (UNEQUAL, 6, 0, "ab bc cd de"),
        (f"{UNEQUAL} f1 f2 f3 f4 f5 f6 f7 f8.", 7, 0, "ab bcd cd de f f"),
    ],
)
def test_the_windows(text, cutoff, repeats, windows):
    more = {"dementor_repeats": repeats} if repeats else {}  # 0 is the default
    assert window_letters(slice_words(text, cutoff=cutoff, **more)) == windows


def test_it_is_known_whether_each_section_is_one_window():
    text = sentences("abc") + "\n\n\n" + sentences("xy")
    assert is_one_window_each(slice_words(text).units) and is_one_window_each(slice_words("").units)
    assert not is_one_window_each(slice_words(text, cutoff=8).units)
    assert not is_one_window_each(slice_words(TWO).units)


@pytest.mark.parametrize("repeats", [0, 2, 3, 4])
def test_the_cutoff_that_fits_repeats_as_often(repeats: int):
    text = "\n\n\n".join([" ".join([sentences("abcdefghij")] * 20)] * 3)
    fit = fit_cutoff([slice_words(text, cutoff=4096, dementor_repeats=repeats).units], repeats)
    seen, longer = (
        build_slice_map(slice_words(text, cutoff=cutoff, dementor_repeats=repeats)).seen_mean
        for cutoff in (fit.cutoff, fit.cutoff + 48)
    )
    assert seen == pytest.approx(fit.repeats, rel=0.02) and fit.cutoff < 600 and fit.cutoff % 16 == 0
    if repeats:
        assert repeats - 0.5 < fit.repeats <= repeats and longer < repeats - 0.4
    else:
        assert fit.repeats > 40


@pytest.mark.parametrize(
    ("repeats", "cutoff", "seen"),
    [(0, 288, 36.2857), (2, 288, 1.5143), (3, 64, 2.65), (4, 32, 3.6786), (90, 256, 35.5)],
)
def test_the_cutoff_that_fits_sections_of_different_lengths(repeats, cutoff, seen):
    text = "\n\n\n".join(" ".join([sentences("abcdefghij")] * n) for n in (20, 7, 1))
    fit = fit_cutoff([slice_words(text, cutoff=4096, dementor_repeats=repeats).units], repeats)
    assert (fit.cutoff, round(fit.repeats, 4)) == (cutoff, seen)
    shortest = fit_cutoff([slice_words(sentences("abcdefghij"), cutoff=100, dementor_repeats=90).units], 90)
    assert shortest.cutoff == 16 and 2 < shortest.repeats < 10


@pytest.mark.parametrize("seed", SEEDS)
def test_laws(seed: int):
    for repeats in (0, 2):
        result = slice_words(random_text(1000 + seed), cutoff=16 + seed % 30, dementor_repeats=repeats, eos=EOS)
        assert_laws(result, encode_words)
        assert len({(block.start, block.end) for block in result}) == len(result)
