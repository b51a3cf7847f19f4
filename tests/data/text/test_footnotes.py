"""Footnotes between the halves of a sentence, and their marks in it."""

from __future__ import annotations

import time

import pytest
from training_pro.data.text.sentences import find_sentence_ends

LINE = "It was late, and he had already asked twice at the door whether"
NARROW = "It was late, and he had already asked twice\nat the door of the house whether"
CASES = {
    "a footnote between two halves": f"{LINE} Swann * had\n* A neighbor of my aunt! (See below.)\ncome home.¦ No.",
    "two footnotes of several lines": (
        f"He sang 'Ah' 1 and 'Oh' 2 and again; {LINE} anybody\n1 The first line,\nThe second line... (French.)\n"
        "2 Another one.\nwanted to hear it.¦ No."
    ),
    "a footnote as a paragraph": (
        f"{NARROW} M. Swann[1] had\n\n[1] A neighbor of my aunt. He\nwas often there.\n\ncome home.¦ No."
    ),
    "footnotes as paragraphs": (
        f"{NARROW} Swann[1] or Odette[2] had\n\n[1] A neighbor.\n\n[2] His wife. No?\n\ncome home.¦ No."
    ),
    "a mark behind the stop": "He left. 1¦ She stayed.¦\n1 By the back door.¦\n",
    "a mark before a lowercase word": "He said 'Adieu!' 1 again and left.¦\n1 Goodbye.¦\n",
    "a mark in brackets": "The man [1] Had left.¦ She (*) Stayed.¦ We *) Slept.[2]¦ They ate.[3]¦ All is well.",
    "a footnote between two sentences": f"{LINE} M. Swann 1 had come.¦\n1 A neighbor.¦\nNobody answered him.",
    "a list": f"{LINE} there was\n1 apple¦\n2 pears¦\nAnd nothing else.",
    "numbered verses": "1 In the beginning.¦ 2 And the earth was void.¦ 3 And God said.¦\n4 And God saw.¦",
    "a number that is no mark": "It was 1869.¦ 3 men came in.¦ They sat.¦\n2 Others left.¦",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_footnote_ends_no_sentence(case):
    case = case.replace("¦\n", "\n¦")  # an end is behind the line end
    parts = case.split("¦")
    text = "".join(parts)
    marked, place = "", 0
    for end in find_sentence_ends(text).tolist():
        marked, place = marked + text[place:end] + "¦", end
    assert marked.rstrip("¦") == case.rstrip("¦")


def test_finding_footnotes_takes_linear_time():
    def cpu_time(lines):
        text = "\n".join(f"{n % 900} of {n % 7} and so on with more and more words 4 5 6" for n in range(lines))
        start = time.process_time()
        find_sentence_ends(text)
        return time.process_time() - start

    assert cpu_time(40_000) < 20 * max(cpu_time(5_000), 0.05)
