"""DEMENTOR: the windows, how often sentences are seen, and the laws."""

from __future__ import annotations

from itertools import pairwise

import pytest
from training_pro.chunking import SlicedText, SlicingRules
from training_pro.data.text import build_slice_map
from training_pro.dementor import fit_cutoff, is_one_window_each, slice_windows
from training_pro.tests.slicing_laws import assert_laws, encode_words, find_stops, random_text

EOS = 2


def slice_words(text: str, **rules: object) -> SlicedText:
    return slice_windows(
        text, encode_words, SlicingRules(**{"cutoff": 9, "chunking": "dementor", **rules}), find_stops
    )


def sentences(letters: str) -> str:
    return " ".join(f"{letter}1 {letter}2 {letter}3." for letter in letters)


def window_letters(sliced_text: SlicedText) -> list[str]:
    """Each window as the letters of its sentences."""
    return ["".join(sorted({word[0] for word in sliced_text.text_of(block).split()})) for block in sliced_text]


def test_a_window_starts_at_every_sentence_and_the_first_to_reach_the_end_is_the_last():
    assert window_letters(slice_words(sentences("abcdef"))) == ["abc", "bcd", "cde", "def"]


def test_at_a_hard_cut_a_window_ends_and_the_next_starts_beyond():
    result = slice_words(sentences("abcd") + "\n\n\n" + sentences("xy"))
    assert window_letters(result) == ["abc", "bcd", "xy"]
    assert [block.ends_section for block in result] == [False, True, True]


def test_a_section_that_fits_is_one_window():
    assert window_letters(slice_words(sentences("abc"))) == ["abc"]


def test_no_run_of_ever_shorter_windows_before_a_long_sentence():
    long_sentence = "z1 z2 z3 z4 z5 z6 z7 z8."
    assert window_letters(slice_words(sentences("abc") + " " + long_sentence + " " + sentences("de"))) == [
        "abc",
        "bc",
        "z",
        "de",
    ]


def test_eos_only_where_a_section_ends():
    result = slice_words(sentences("abcdef"), eos=EOS, cutoff=10)
    assert [result.ids_of(block)[-1] == EOS for block in result] == [False, False, False, True]


@pytest.mark.parametrize(("repeats", "mean"), [(1, 1.0), (2, 2.0), (3, 3.0), (6, 6.0)])
def test_repeats_say_how_often_a_sentence_is_seen(repeats: int, mean: float):
    text = " ".join(sentences("abcdefghij") for _ in range(40))
    coverage = build_slice_map(slice_words(text, cutoff=60, dementor_repeats=repeats)).seen
    assert coverage.least >= 1 and coverage.most <= repeats + 1
    assert coverage.mean == pytest.approx(mean, rel=0.1)


def test_more_repeats_than_sentences_in_a_window_are_a_window_at_every_sentence():
    text = sentences("abcdefghijklmnop")
    assert list(slice_words(text, dementor_repeats=50)) == list(slice_words(text))


def test_a_longer_cutoff_trains_more_tokens_of_a_long_section():
    text = " ".join(sentences("abcdefghij") for _ in range(40))
    trained = [int(slice_words(text, cutoff=cutoff).lengths.sum()) for cutoff in (30, 60, 120, 240, 480)]
    assert trained == sorted(trained) and trained[-1] > 5 * trained[0]


def test_it_is_known_whether_each_section_is_one_window():
    text = sentences("abc") + "\n\n\n" + sentences("xy")
    assert is_one_window_each(slice_words(text).units)
    assert not is_one_window_each(slice_words(text, cutoff=8).units)
    assert not is_one_window_each(slice_words(sentences("abcd") + "\n\n\n" + sentences("xy")).units)
    assert is_one_window_each(slice_words("").units)


@pytest.mark.parametrize("repeats", [0, 2, 3, 4])
def test_the_cutoff_that_fits_repeats_as_often(repeats: int):
    text = "\n\n\n".join(" ".join(sentences("abcdefghij") for _ in range(20)) for _ in range(3))
    sliced = slice_words(text, cutoff=4096, dementor_repeats=repeats)
    assert is_one_window_each(sliced.units)
    fit = fit_cutoff([sliced.units], repeats)
    result = slice_words(text, cutoff=fit.cutoff, dementor_repeats=repeats)
    assert build_slice_map(result).seen.mean == pytest.approx(fit.repeats, rel=0.02)
    assert fit.cutoff < 600 and fit.cutoff % 16 == 0
    if repeats:
        assert repeats - 0.5 < fit.repeats <= repeats
        longer = slice_words(text, cutoff=fit.cutoff + 48, dementor_repeats=repeats)
        assert build_slice_map(longer).seen.mean < repeats - 0.4
    else:
        assert fit.repeats > 40


def test_where_too_many_repeats_are_asked_for_it_is_the_most():
    sliced = slice_words(sentences("abcdefghij"), cutoff=100, dementor_repeats=90)
    fit = fit_cutoff([sliced.units], 90)
    assert fit.cutoff == 16 and 2 < fit.repeats < 10


@pytest.mark.parametrize(
    ("repeats", "cutoff", "repeats_seen"),
    [(0, 288, 36.2857), (2, 288, 1.5143), (3, 64, 2.65), (4, 32, 3.6786)],
)
def test_the_cutoff_that_fits_sections_of_different_lengths(repeats, cutoff, repeats_seen):
    text = "\n\n\n".join(" ".join(sentences("abcdefghij") for _ in range(n)) for n in (20, 7, 1))
    fit = fit_cutoff([slice_words(text, cutoff=4096, dementor_repeats=repeats).units], repeats)
    assert (fit.cutoff, round(fit.repeats, 4)) == (cutoff, repeats_seen)


@pytest.mark.parametrize(
    ("repeats", "cutoff", "windows"),
    [
        (1, 9, "abc def ghi jkl xyz"),
        (2, 9, "abc cde def fgh ghi ijk jkl xyz"),
        (2, 12, "abcd cdef efgh ghij ijkl xyz"),
        (3, 20, "abcdef cdefgh efghij ghijkl xyz"),
    ],
)
def test_the_windows_of_a_number_of_repeats(repeats, cutoff, windows):
    text = sentences("abcdefghijkl") + "\n\n\n" + sentences("xyz")
    assert window_letters(slice_words(text, cutoff=cutoff, dementor_repeats=repeats)) == windows.split()


def test_windows_of_sentences_of_different_lengths():
    text = "a1 a2 a3. b1. c1 c2 c3 c4 c5. d1. e1 e2."
    assert window_letters(slice_words(text, cutoff=6)) == ["ab", "bc", "cd", "de"]
    text += " f1 f2 f3 f4 f5 f6 f7 f8."
    assert window_letters(slice_words(text, cutoff=7)) == ["ab", "bcd", "cd", "de", "f", "f"]


def test_windows_advance_evenly():
    text = " ".join(sentences("abcdefghij") for _ in range(20))
    starts = [block.first for block in slice_words(text, cutoff=60, dementor_repeats=4)]
    steps = {right - left for left, right in pairwise(starts)}
    assert steps <= {12, 15, 18}


@pytest.mark.parametrize("seed", range(60))
def test_laws(seed: int):
    for repeats in (0, 2):
        result = slice_words(random_text(1000 + seed), cutoff=16 + seed % 30, dementor_repeats=repeats, eos=EOS)
        assert_laws(result, encode_words)
        assert len({(block.start, block.end) for block in result}) == len(result)
