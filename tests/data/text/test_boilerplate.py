"""What stands in a book file beside the book is found, and nothing of the book."""

from __future__ import annotations

import random

import pytest
from training_pro.data.text import describe_boilerplate, find_boilerplate, remove_boilerplate

BOOK = "\n\n".join(f"Chapter {n}\n\nIt was the {n}. day.\nNothing happened." for n in range(1, 40))
# The words of the marks are those of Project Gutenberg, whose books are in the public domain.
START = """The Project Gutenberg EBook of Pride and Prejudice, by Jane Austen

Title: Pride and Prejudice

*** START OF THIS PROJECT GUTENBERG EBOOK PRIDE AND PREJUDICE ***




Produced by Anonymous Volunteers"""
END = "End of the Project Gutenberg EBook of Pride and Prejudice, by Jane Austen\n\n***\nLicense."
LAST_WORDS = "how to subscribe to our email newsletter to hear about new eBooks."
PAGE = "of a book with a red house by the sea in it" * 25
TITLES = {
    "I": "Introduction",
    "II": "The Machine",
    "III": "The Traveller",
    "IV": "Time Travelling",
    "V": "A Shock",
}
NUMBERED = "\n\n\n".join(f" {n}\n\n\n {title}\n\nIt was late. Nothing happened." for n, title in TITLES.items())


def without(text: str) -> str:
    return remove_boilerplate(text, find_boilerplate(text)).strip()


def kinds(text: str) -> list[str]:
    return [part.kind for part in find_boilerplate(text)]


def numbered_book(number: int) -> str:
    return BOOK.replace("Nothing", f"Nothing {number}")


def test_every_book_between_the_notices_of_project_gutenberg_stays():
    assert without(f"{START}\n\n\n{BOOK}\n\n\n{END}\n") == BOOK
    books = [numbered_book(n) for n in range(3)]
    joined = "\n\n".join(f"{START}\n\n\n{book}\n\n\n{END}" for book in books)
    assert [line for line in without(joined).split("\n") if line] == [
        line for book in books for line in book.split("\n") if line
    ]


def test_another_text_after_or_between_books_stays():
    other = "The diary of a fisherman. " * 4000
    book = f"{START}\n\n\n{BOOK}\n\n\n{END} {LAST_WORDS}\n\n"
    assert without(f"{book}A letter.") == f"{BOOK}\n\n\n\n\nA letter."
    rest = without(f"{book}{other}{book}")
    assert rest.count(BOOK) == 2 and rest.count(other.strip()) == 1
    assert "License" not in rest and "***" not in rest
    unmarked = without(f"{other}\n\n{book.replace(LAST_WORDS, '')}{other}")
    assert unmarked.count(other.strip()) == 2 and BOOK in unmarked


def test_a_text_that_begins_inside_a_book_keeps_its_beginning():
    for notices in (f"{END}\n\n{START}", START):
        text = f"The end of a book.\n\n{notices}\n\n{BOOK}"
        found = find_boilerplate(text, begins_file=False)
        assert remove_boilerplate(text, found).startswith("The end of a book.")


def test_every_book_of_a_joined_file_from_standard_ebooks_stays():
    imprint = "Imprint\n\nThis ebook is the product of many hours of hard work. See standardebooks.org.\n\n"
    colophon = "Colophon\n\nThis book was made by Standard Ebooks.\n\nUncopyright\n\nNo rights reserved.\n\n"
    rest = without("".join(f"{imprint}{numbered_book(n)}\n\n{colophon}" for n in range(3)))
    assert [numbered_book(n) in rest for n in range(3)] == [True] * 3
    assert "Imprint" not in rest and "Uncopyright" not in rest


@pytest.mark.parametrize(
    "entry", ["Chapter {}", "Chapter {}.\tThe {}. day", "Chapter {} \u2014 The day", "Chapter {}: X"]
)
def test_a_table_of_contents_ends_before_the_first_heading(entry):
    contents = "CONTENTS\n\n" + "\n".join(entry.format(n, n) for n in range(1, 40))
    assert without(f"{contents}\n\n\n{BOOK}") == BOOK


def test_tables_of_contents_with_pages_or_with_numbers_that_are_lines_in_the_text():
    pages = "Contents\n\n" + "\n".join(f"The part of {name} ..... {n}" for n, name in enumerate("abcdef", 5))
    assert without(f"{pages}\n\nOnce there was a king.") == "Once there was a king."
    contents = "\n".join(f" {number} {title}" for number, title in TITLES.items())
    assert without(f"CONTENTS\n\n\n{contents}\n Epilogue\n\n\n{NUMBERED}\n\n\n Epilogue\n\nEnd.").startswith("I\n")


def test_page_headings_with_their_numbers_also_where_a_scan_garbled_some():
    pages = [f"{n} THE RED HOUSE." if n % 2 else f"THE RED HOUSE. {n}" for n in range(12, 80)]
    pages[5:9] = ["5$ THE RED HOUSE.", "THE RED HOUSE. 183", "m THE RED HOUSE.", "THE RED HOUSE."]
    rest = without("\n\n".join(f"{page}\n\nA page of the red house {PAGE} ends here and" for page in pages))
    assert "RED HOUSE" not in rest and rest.count("A page") == 68
    assert "[" not in without("\n\n".join(f"{'word ' * 300}\n\n[{n}]" for n in range(1, 60)))


def test_a_page_heading_divides_neither_a_sentence_nor_sections():
    pages = [f"{n} THE RED HOUSE" for n in range(12, 30)]
    ends = [("The road was", "\n", "long."), ("They came.", "\n\n", "The next day it rained.")] * 9
    text = "".join(
        f"{PAGE} {end}\n\n{page}\n\n{begin}\n\n" for page, (end, _, begin) in zip(pages, ends, strict=True)
    )
    assert without(text) == "\n\n".join(f"{PAGE} {end}{gap}{begin}" for end, gap, begin in ends)


@pytest.mark.parametrize("chars", [60, 900, 12_000])
@pytest.mark.parametrize("label", ["{}", "May {}", "{}. Mai", "Frage {}", "- {} -"])
def test_the_numbers_of_chapters_days_and_questions_are_no_pages(label, chars):
    rng, entry = random.Random(3), "The bell of the old house rang over the water, and nobody came. "
    entries = [(entry * max(1, rng.randrange(chars // 2, chars) // len(entry))).strip() for _ in range(154)]
    for count in (12, 154):
        chapters = [f"{label.format(n)}\n\n{text}" for n, text in enumerate(entries[:count], start=1)]
        assert kinds("\n\n\n".join(chapters)) == []


POEM = "\n".join(["The bell rang over the water"] * 14)
VERSES = [f"{n}\n\nA short stanza." if n % 7 else f"{n}\n\n{'word ' * 300}" for n in [*range(1, 40)] * 2]


@pytest.mark.parametrize(
    "text",
    [
        *(BOOK, "", "\n\n", "CONTENTS", "\n\n".join(VERSES)),
        "CONTENTS\n\nI saw a man.\nI met a dog.\nI had a hat.\nI lost a shoe.\nI am here.\n\nA man came.",
        "Contents\n\nThe box held a ring.\nA letter lay under it.\nNobody spoke.\n" * 3,
        "\n\n".join(f"Psalm {n}\n\nThe Lord is my shepherd." for n in range(1, 40)),
        "\n\n".join(f"{n}\n\n{POEM}" for n in range(1, 155)),
    ],
)
def test_nothing_of_a_book_is_boilerplate(text):
    assert kinds(text) == []


def test_illustration_marks_and_the_description():
    text = "[Illustration: The house by the sea]\n\nWe came home. [Illustration]"
    assert without(text) == "We came home. [Illustration]"
    described = describe_boilerplate(find_boilerplate(f"{START}\n{BOOK}\n[Illustration]\n"))
    assert described == "1 publisher notice (208 characters), 1 illustration mark (14 characters)"
