"""Reading texts: encodings, line ends, natural order, and one clear sentence for files that are not text."""

from __future__ import annotations

import codecs
import itertools

import pytest
from training_pro.core.errors import DataError
from training_pro.data import load
from training_pro.data.readers import normalize_line_ends, text_files
from training_pro.tests.data.readers.reading import refusal, write

LEGACY = {
    "cp1252": "Où étais-tu hier, à la fête ? Die Straße führte zum Schloß. El niño comió “una” manzana. ",
    "cp1250": "Zażółć gęślą jaźń. Święty Mikołaj przyszedł późno w nocy, żeby dać dzieciom prezenty. ",
    "cp1251": "Мой дядя самых честных правил, когда не в шутку занемог, он уважать себя заставил. ",
    "koi8_r": "Мой дядя самых честных правил, когда не в шутку занемог, он уважать себя заставил. ",
    "shift_jis": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "cp932": "第①章　髙橋は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "gb18030": "天黑了，他一个人走在回家的路上。风很大，雨也很大。",
    "euc_kr": "하늘에는 별이 많다. 나는 집에 간다. 그러나 오늘은 비가 온다. ",
}


def read(path, data: bytes):
    (loaded,) = load.read_texts(write(path, data))
    return loaded.text, loaded.notes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_with_and_without_a_byte_order_mark(tmp_path, encoding):
    text, notes = read(tmp_path / "story.txt", "Grüße, 世界 👋\n".encode(encoding))
    assert text == "Grüße, 世界 👋\n" and bool(notes) == (not encoding.startswith("utf-8"))


def test_utf_16_of_the_other_order(tmp_path):
    assert read(tmp_path / "a.txt", codecs.BOM_UTF16_BE + "Häuser".encode("utf-16-be"))[0] == "Häuser"


@pytest.mark.parametrize("encoding", LEGACY)
def test_a_legacy_code_page_is_guessed_with_a_note(tmp_path, encoding):
    for times in (1, 200):
        text, (note, *_) = read(tmp_path / "story.txt", (LEGACY[encoding] * times).encode(encoding))
        assert text == LEGACY[encoding] * times
        assert "story.txt was read as" in note and "guessed" in note


ASCII = "The bell of the old house rang over the water, and nobody came.\n" * 5000
LETTERS = "“It’s late,” he said — and the café was closed.\n"


@pytest.mark.parametrize(
    "data",
    [
        ASCII.encode() + (LETTERS * 3000).encode() + b"caf\xe9\n",
        b"caf\xe9\n" + (ASCII * 2).encode() + (LETTERS * 20).encode(),
        ASCII.encode() + ("Привет.\n" * 200).encode() + "Ende ü".encode()[:-1] + b"\n",
        codecs.BOM_UTF8 + b"The end.\nCaf\xe9\n",
    ],
)
def test_a_broken_byte_does_not_spoil_a_text_in_utf_8_wherever_its_letters_are(tmp_path, data):
    text, notes = read(tmp_path / "a.txt", data)
    assert text == data.decode("utf-8-sig", "replace") and text.count("\ufffd") == 1
    assert notes == ("a.txt: 1 character could not be read and is shown as \ufffd. Save the file as UTF-8.",)
    encoding, (note,) = text_files.detect_file_encoding(tmp_path / "a.txt", "a.txt")  # as for a text in parts
    assert encoding.startswith("utf-8") and "some bytes are not UTF-8" in note


def test_the_line_ends_of_chunks_are_those_of_the_whole_text():
    for text in map("".join, itertools.product("a\r\n", repeat=5)):
        for width in (1, 2, 3):
            chunks = [text[place : place + width] for place in range(0, len(text), width)]
            assert "".join(text_files.normalize_chunks(chunks)) == normalize_line_ends(text)
    assert normalize_line_ends("a\r\r\nb\r\r\n\r\r\nc\n\rd\r\re") == "a\nb\n\nc\n\nd\n\ne"


def test_a_folder_in_natural_order_and_only_its_texts(tmp_path):
    names = ("chapter 10.txt", "chapter 2.html", "Chapter 1.MD", "cover.png", ".hidden.txt", "part 2/a.txt")
    for name in names:
        write(tmp_path / name, "<p>text")
    write(tmp_path / "put-trainer-datasets-here.txt", "")
    loaded = [text.name for text in load.read_texts(tmp_path)]
    assert loaded == ["Chapter 1.MD", "chapter 2.html", "chapter 10.txt", "part 2/a.txt"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"%PDF-1.7 ...", "a PDF document"),
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"\x89PNG\r\n", "an image"),
        (bytes(range(256)) * 40, "control characters"),
        (b"", "story.txt is empty. Add text to it, or remove it from the dataset."),
        (codecs.BOM_UTF8 + b" \r\n\t", "story.txt is empty."),
        (None, "story.txt can't be read"),
    ],
)
def test_a_file_that_is_not_text_is_refused_by_name(tmp_path, data, expected):
    assert expected in refusal(tmp_path / "story.txt", data)


def test_all_bad_files_of_a_folder_are_named_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"this folder has no text files \(.txt, .md, .html"):
        load.read_texts(tmp_path / "empty")
    for name, data in (("1.txt", b""), ("2.txt", b"fine"), ("3.txt", b"%PDF")):
        write(tmp_path / name, data)
    with pytest.raises(DataError) as error:
        load.read_texts(tmp_path)
    assert [line.split()[0] for line in str(error.value).splitlines()] == ["1.txt", "3.txt"]
