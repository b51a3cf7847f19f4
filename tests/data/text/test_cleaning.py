"""What stands in a book file beside the book is found, and wrapped lines are joined."""

from __future__ import annotations

import random
import textwrap

import pytest
from training_pro.data.text import (
    describe_boilerplate,
    find_boilerplate,
    find_wrap_width,
    join_wrapped_lines,
    remove_boilerplate,
)

BOOK = "\n\n".join(f"Chapter {n}\n\nIt was the {n}. day.\nNothing happened." for n in range(1, 40))
# The words of the marks are those of Project Gutenberg, whose books are in the public domain.
START = """The Project Gutenberg EBook of Pride and Prejudice, by Jane Austen

Title: Pride and Prejudice

*** START OF THIS PROJECT GUTENBERG EBOOK PRIDE AND PREJUDICE ***




Produced by Anonymous Volunteers"""
END = "End of the Project Gutenberg EBook of Pride and Prejudice, by Jane Austen\n\n***\nLicense."
LAST_WORDS = "how to subscribe to our email newsletter to hear about new eBooks."
PAGE = "of a book with a red house by the sea in it" * 25


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


@pytest.mark.parametrize(
    "entry", ["Chapter {}", "Chapter {}.\tThe {}. day", "Chapter {} \u2014 The day", "Chapter {}: X"]
)
def test_a_table_of_contents_ends_before_the_first_heading(entry):
    contents = "CONTENTS\n\n" + "\n".join(entry.format(n, n) for n in range(1, 40))
    assert without(f"{contents}\n\n\n{BOOK}") == BOOK


def test_page_headings_with_their_numbers():
    pages = [f"{n} THE RED HOUSE." if n % 2 else f"THE RED HOUSE. {n}" for n in range(12, 80)]
    pages[5:7] = ["51 THE RED HOUSE.", "THE RED HOUSE. 183"]  # numbers that a scan garbled
    rest = without("\n\n".join(f"{page}\n\nA page of the red house {PAGE} ends here and" for page in pages))
    assert "RED HOUSE" not in rest and rest.count("A page") == 68
    assert "[" not in without("\n\n".join(f"{'word ' * 300}\n\n[{n}]" for n in range(1, 60)))


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
    assert without("---\nAnn: Hi.\nBo: Hello.\n---\nAnn: Bye.").startswith("---\nAnn")  # a dialogue
    assert without("---\ndate: 2020\n---\n- an item\n---\nThe end.") == "- an item\n---\nThe end."
    assert without("---\ntags:\n  - a\ndate: 2020\n---\nWe came home.") == "We came home."
    text = "[Illustration: The house by the sea]\n\nWe came home. [Illustration]"
    assert without(text) == "We came home. [Illustration]"
    # The longer gap stays: a hard cut may be before the mark or behind it.
    for tail in ("home.\n\n[Illustration]\n\n\n\n\nII", "home.\n\n\n\n\n[Illustration]\n\nII"):
        assert without(f"We came {tail}") == "We came home.\n\n\n\n\nII"
    pictures = "We came home.\n\n[Illustration: A]\n\n[Illustration: B]\n\nThen we left."
    assert without(pictures) == "We came home.\n\nThen we left."
    titles = ["The River", "A Boat", "Night", "The Mill", "Home"]
    table = "Contents\n\n" + "\n".join(f"{title}\t{page}" for page, title in enumerate(titles, 3))
    assert kinds(table + "\n\n" + "\n\n".join(f"{title}\n\nSome words." for title in titles)) == [
        "table of contents"
    ]
    described = describe_boilerplate(find_boilerplate(f"{START}\n{BOOK}\n[Illustration]\n"))
    assert described == "1 publisher notice (208 characters), 1 illustration mark (14 characters)"


PROSE = (
    "The road went on past the mill and the old school until it met the sea. Nobody had walked it since the "
    "autumn storms, and the grass had grown over the stones that the masons laid. She stopped at the gate. Then, "
    "because it was getting late and the wind had turned, she went down to the boats without looking back at "
    "London, which lay behind the hills somewhere. Would they wait? They had never waited before."
)
VERSE = "\n".join(["Tyger Tyger, burning bright,", "In the forests of the night;", "What immortal hand or eye,"])


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


def test_headings_verse_and_lists_keep_their_lines():
    kept = ["CHAPTER ONE\nIn which nothing happens", VERSE, "- a lamp\n- a boat that nobody had\n- a rope"]
    assert joined("\n\n".join([*kept, *wrapped(), *kept])) == "\n\n".join([*kept, *paragraphs(), *kept])


def test_a_word_that_was_divided_at_a_line_end_is_written_as_elsewhere():
    lines = ["The mountains were well-known, and he walked over the moun-", "tains to a well-", "known inn at St-"]
    text = "\n".join([*lines, "Remy, where a lamp was lit and nobody asked him anything."])
    whole = "The mountains were well-known, and he walked over the mountains to a well-known inn at St-Remy, where"
    assert join_wrapped_lines(text, 20).startswith(whole)


def test_a_text_that_is_not_wrapped_has_no_width():
    assert find_wrap_width("\n\n".join(paragraphs())) == find_wrap_width("\n\n".join([VERSE] * 40)) == 0
