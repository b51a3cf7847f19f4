"""What stands in a book file beside the book is found, and nothing of the book."""

from __future__ import annotations

import time

import pytest
from training_pro.data.text.boilerplate import describe_boilerplate, find_boilerplate, remove_boilerplate

BOOK = "\n\n".join(f"Chapter {n}\n\nIt was the {n}. day.\nNothing happened." for n in range(1, 40))
# The words of the marks are those of Project Gutenberg, whose books are in the public domain.
START = """The Project Gutenberg EBook of Pride and Prejudice, by Jane Austen

Title: Pride and Prejudice

*** START OF THIS PROJECT GUTENBERG EBOOK PRIDE AND PREJUDICE ***




Produced by Anonymous Volunteers"""
END = "End of the Project Gutenberg EBook of Pride and Prejudice, by Jane Austen\n\n***\nLicense."


def without(text: str) -> str:
    return remove_boilerplate(text, find_boilerplate(text)).strip()


def kinds(text: str) -> list[str]:
    return [part.kind for part in find_boilerplate(text)]


def test_the_notices_of_project_gutenberg():
    assert without(f"{START}\n\n\n{BOOK}\n\n\n{END}\n") == BOOK


def test_a_book_without_boilerplate_stays_as_it_is():
    assert kinds(BOOK) == []
    assert kinds("") == kinds("\n\n") == kinds("CONTENTS") == []


def test_a_table_of_contents():
    contents = "CONTENTS\n\n" + "\n".join(f"Chapter {n}" for n in range(1, 40))
    assert without(f"{contents}\n\n\n{BOOK}") == BOOK
    pages = "Contents\n\n" + "\n".join(f"The part of {name} ..... {n}" for n, name in enumerate("abcdef", 5))
    assert without(f"{pages}\n\nOnce there was a king.") == "Once there was a king."


@pytest.mark.parametrize(
    "entry", ["Chapter {}.\tThe {}. day", "Chapter {} \u2014 The {}. day", "Chapter {}: Day {}"]
)
def test_the_first_heading_after_a_table_with_titles_stays(entry):
    contents = "CONTENTS\n\n" + "\n".join(entry.format(n, n) for n in range(1, 40))
    assert without(f"{contents}\n\n\n{BOOK}") == BOOK


def test_a_table_of_contents_whose_numbers_are_lines_of_their_own_in_the_text():
    titles = ("Introduction", "The Machine", "The Traveller Returns", "Time Travelling", "A Sudden Shock")
    numbers = ("I", "II", "III", "IV", "V")
    contents = "\n".join(f" {number} {title}" for number, title in zip(numbers, titles, strict=True))
    book = "\n\n\n".join(
        f" {number}\n\n\n {title}\n\nIt was late. Nothing happened that night."
        for number, title in zip(numbers, titles, strict=True)
    )
    assert without(f"CONTENTS\n\n\n{contents}\n Epilogue\n\n\n{book}\n\n\n Epilogue\n\nThe end.").startswith("I\n")
    prose = "CONTENTS\n\nI saw a man.\nI met a dog.\nI had a hat.\nI lost a shoe.\nI am here.\n\nA man came."
    assert kinds(prose) == []


def test_a_chapter_named_contents_is_no_table():
    assert kinds("Contents\n\nThe box held a ring.\nA letter lay under it.\nNobody spoke.\n" * 3) == []


def test_page_headings_with_their_numbers():
    pages = [f"{n} THE RED HOUSE" if n % 2 else f"THE RED HOUSE {n}" for n in range(12, 30)]
    text = "\n\n".join(f"{page}\n\nA page of the book ends here and" for page in pages)
    assert "RED HOUSE" not in without(text) and without(text).count("A page") == 18


def test_page_headings_whose_numbers_a_scan_garbled():
    pages = [f"{n} THE RED HOUSE." if n % 2 else f"THE RED HOUSE. {n}" for n in range(12, 80)]
    pages[5:9] = ["5$ THE RED HOUSE.", "THE RED HOUSE. 183", "m THE RED HOUSE.", "THE RED HOUSE."]
    text = "\n\n".join(f"{page}\n\nA page of the red house ends here and" for page in pages)
    assert "RED HOUSE" not in without(text) and without(text).count("A page") == 68


def test_numbered_psalms_are_no_pages():
    assert kinds("\n\n".join(f"Psalm {n}\n\nThe Lord is my shepherd." for n in range(1, 40))) == []


def test_a_page_heading_divides_neither_a_sentence_nor_sections():
    pages = [f"{n} THE RED HOUSE" for n in range(12, 30)]
    divided = "".join(f"The road to the sea was\n\n{page}\n\nlong and dusty.\n\n" for page in pages)
    assert without(divided) == ("The road to the sea was\nlong and dusty.\n\n" * 18).strip()
    whole = "".join(f"They came home.\n\n{page}\n\nThe next day it rained.\n\n" for page in pages)
    assert without(whole) == ("They came home.\n\nThe next day it rained.\n\n" * 18).strip()


def test_page_numbers_but_no_numbers_of_verses():
    page = "word " * 300
    text = "\n\n".join(f"{page}\n\n[{n}]" for n in range(1, 60))
    assert "[" not in without(text)
    poems = "\n\n".join(f"{n}\n\nA short stanza." if n % 7 else f"{n}\n\n{page}" for n in [*range(1, 40)] * 2)
    assert kinds(poems) == []


def test_illustration_marks():
    assert without("[Illustration: The house by the sea]\n\nWe came home. [Illustration]") == (
        "We came home. [Illustration]"
    )


def test_the_description_names_numbers_and_sizes():
    assert describe_boilerplate(find_boilerplate(f"{START}\n{BOOK}\n[Illustration]\n")) == (
        "1 publisher notice (208 characters), 1 illustration mark (14 characters)"
    )


@pytest.mark.parametrize(
    "part",
    [
        "[Illustration",
        "*** START OF THIS PROJECT GUTENBERG ",
        "[Transcriber's Note: [",
        "Imprint\n",
        "1 a 2\n",
        "…" * 50,
        "Contents\n",
        "Contents\nabc\n",
    ],
)
def test_time_grows_linearly(part: str):
    def seconds(count: int) -> float:
        text = part * count
        started = time.process_time()
        find_boilerplate(text)
        return time.process_time() - started

    small, large = max(seconds(2_000), 0.01), seconds(20_000)
    assert large < 40 * small
