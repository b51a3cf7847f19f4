"""Joining the lines of wrapped prose: nothing but the line breaks inside paragraphs changes."""

from __future__ import annotations

import random
import textwrap

import pytest
from training_pro.data.text import find_wrap_width, join_wrapped_lines

PROSE = (
    "The road went on past the mill and the old school until it met the sea. Nobody had walked it since the "
    "autumn storms, and the grass had grown over the stones that the masons laid. She stopped at the gate. Then, "
    "because it was getting late and the wind had turned, she went down to the boats without looking back at "
    "London, which lay behind the hills somewhere. Would they wait? They had never waited before."
)
VERSE = "\n".join(["Tyger Tyger, burning bright,", "In the forests of the night;", "What immortal hand or eye,"])
KOREAN = "오늘은 날씨가 정말 좋아서 우리는 강가로 산책을 나갔다. 그때 멀리서 종소리가 들려왔다. " * 4
CHINESE = "春天的早晨，他沿着河边慢慢地走着，看见对岸的灯一盏一盏地熄灭了。于是他想起很多年以前等过的人。" * 4


def paragraphs(seed: int = 3, count: int = 40) -> list[str]:
    """Paragraphs of different lengths, the shortest of two lines."""
    rng, sentences = random.Random(seed), PROSE.split(". ")
    return [". ".join(rng.choices(sentences, k=rng.randint(2, 6))) + "." for _ in range(count)]


def wrapped(width: int = 72, seed: int = 3) -> list[str]:
    return [textwrap.fill(each, width) for each in paragraphs(seed)]


def joined(text: str) -> str:
    return join_wrapped_lines(text, find_wrap_width(text))


@pytest.mark.parametrize("width", [50, 60, 72, 100])
def test_wrapped_paragraphs_become_lines_again(width):
    assert joined("\n\n".join(wrapped(width, seed=width))) == "\n\n".join(paragraphs(width))


def test_indents_stay():
    for indent in ("    ", "\t"):
        text = "\n".join(textwrap.fill(each, 72, initial_indent=indent) for each in paragraphs())
        assert joined(text) == "\n".join(indent + each for each in paragraphs())
    letter = textwrap.fill(PROSE, 68, initial_indent="    ", subsequent_indent="    ")
    assert joined("\n\n".join([*wrapped(), letter])) == "\n\n".join([*paragraphs(), "    " + PROSE])


def test_headings_verse_and_lists_keep_their_lines():
    kept = ["CHAPTER ONE\nIn which nothing happens", VERSE, "- a lamp\n- a boat that nobody had\n- a rope"]
    assert joined("\n\n".join([*kept, *wrapped(), *kept])) == "\n\n".join([*kept, *paragraphs(), *kept])


def test_words_divided_at_a_hyphen_or_a_dash_get_no_space():
    begin = "Nobody in the whole of the long village street had ever seen such a "
    for divided, whole in (("-\n", "-"), ("--\n", "--"), ("\u2014\n", "\u2014"), (" \u2014\nor ", " \u2014 or ")):
        assert joined("\n\n".join([*wrapped(), f"{begin}sea{divided}road."])).endswith(f"{begin}sea{whole}road.")


@pytest.mark.parametrize("text", [KOREAN.strip(), CHINESE])
def test_korean_words_stay_apart_and_chinese_lines_get_no_space(text):
    assert joined("\n\n".join([textwrap.fill(text, 50)] * 20)) == "\n\n".join([text] * 20)


def test_a_text_that_is_not_wrapped_has_no_width():
    assert find_wrap_width("\n\n".join(paragraphs())) == find_wrap_width("\n\n".join([VERSE] * 40)) == 0


def test_only_line_breaks_and_the_spaces_around_them_change():
    rng = random.Random(9)
    for _ in range(50):
        lines = ["".join(rng.choices("ab -.\t\u2014\u4e00:<>*", k=rng.randint(0, 90))) for _ in range(60)]
        assert "".join(join_wrapped_lines("\n".join(lines), 70).split()) == "".join("".join(lines).split())
