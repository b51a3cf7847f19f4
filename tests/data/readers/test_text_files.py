"""Reading texts: encodings, line ends, natural order, and one clear sentence for files that are not text."""

from __future__ import annotations

import codecs
import itertools
from pathlib import Path

import pytest
from training_pro.core.errors import DataError
from training_pro.data.load import read_texts
from training_pro.data.readers.text_files import (
    detect_file_encoding,
    normalize_chunks,
    normalize_line_ends,
    read_text,
)

LEGACY = {
    "cp1252": "Où étais-tu hier, à la fête ? Die Straße führte zum Schloß. El niño comió “una” manzana. ",
    "cp1250": "Zażółć gęślą jaźń. Święty Mikołaj przyszedł późno w nocy, żeby dać dzieciom prezenty. ",
    "cp1254": "Çocuk ağaçtan düştü, şimdi evde yatıyor. İyi günler. ",
    "cp1251": "Мой дядя самых честных правил, когда не в шутку занемог, он уважать себя заставил. ",
    "koi8_r": "Мой дядя самых честных правил, когда не в шутку занемог, он уважать себя заставил. ",
    "cp1253": "Η γρήγορη καφέ αλεπού πηδά πάνω από το τεμπέλικο σκυλί. ",
    "shift_jis": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "gb18030": "天黑了，他一个人走在回家的路上。风很大，雨也很大。",
    "euc_kr": "하늘에는 별이 많다. 나는 집에 간다. 그러나 오늘은 비가 온다. ",
}


def write_file(folder: Path, data: bytes, name: str = "story.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        read_texts(path)
    return str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_with_and_without_a_byte_order_mark(tmp_path: Path, encoding: str):
    text = "Grüße, 世界 👋\n"
    [loaded] = read_texts(write_file(tmp_path, text.encode(encoding)))
    assert loaded.text == text
    assert bool(loaded.notes) == (not encoding.startswith("utf-8"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark_is_guessed_with_a_note(tmp_path: Path, encoding: str):
    [loaded] = read_texts(write_file(tmp_path, "A plain story.\n".encode(encoding)))
    assert loaded.text == "A plain story.\n"
    assert encoding in loaded.notes[0] and "guessed" in loaded.notes[0]


def test_big_endian_with_a_byte_order_mark(tmp_path: Path):
    [loaded] = read_texts(write_file(tmp_path, codecs.BOM_UTF16_BE + "Häuser".encode("utf-16-be")))
    assert loaded.text == "Häuser"


@pytest.mark.parametrize("encoding", LEGACY)
@pytest.mark.parametrize("times", [1, 200])
def test_a_legacy_code_page_is_guessed_with_a_note(tmp_path: Path, encoding: str, times: int):
    text = LEGACY[encoding] * times
    [loaded] = read_texts(write_file(tmp_path, text.encode(encoding)))
    assert loaded.text == text
    assert "story.txt was read as" in loaded.notes[0] and "guessed" in loaded.notes[0]


def test_a_few_broken_bytes_do_not_spoil_a_text_in_utf_8(tmp_path: Path):
    [loaded] = read_texts(write_file(tmp_path, ("Grüße aus Köln, schöne Straße. " * 20).encode() + b"\xff\xfe oh"))
    assert loaded.text.startswith("Grüße aus Köln")
    assert any("2 characters could not be read" in note for note in loaded.notes)


ASCII = "The bell of the old house rang over the water, and nobody came.\n" * 5000
LETTERS = "“It’s late,” he said — and the café was closed.\n"


@pytest.mark.parametrize(
    "data",
    [
        ASCII.encode() + (LETTERS * 3000).encode() + b"caf\xe9\n",
        b"caf\xe9\n" + (ASCII * 2).encode() + (LETTERS * 20).encode(),
        (LETTERS * 20).encode() + (ASCII * 40).encode() + b"caf\xe9\n",
        ASCII.encode() + ("Привет.\n" * 200).encode() + "Ende ü".encode()[:-1] + b"\n",
        codecs.BOM_UTF8 + b"The end.\nCaf\xe9\n",
    ],
)
def test_a_broken_byte_does_not_spoil_a_text_in_utf_8_wherever_its_letters_are(tmp_path: Path, data: bytes):
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    text, notes = read_text(file, "a.txt")
    assert text == data.decode("utf-8-sig", "replace") and text.count("\ufffd") == 1
    assert notes == ("a.txt: 1 character could not be read and is shown as \ufffd. Save the file as UTF-8.",)
    encoding, (note,) = detect_file_encoding(file, "a.txt")
    assert encoding.startswith("utf-8") and "some bytes are not UTF-8" in note


def test_the_line_ends_of_chunks_are_those_of_the_whole_text():
    for text in map("".join, itertools.product("a\r\n", repeat=6)):
        for width in (1, 2, 3, 5):
            chunks = [text[place : place + width] for place in range(0, len(text), width)]
            assert "".join(normalize_chunks(chunks)) == normalize_line_ends(text)
    assert normalize_line_ends("a\r\r\nb\r\r\n\r\r\nc\n\rd\r\re") == "a\nb\n\nc\n\nd\n\ne"


def test_line_ends_become_one_kind(tmp_path: Path):
    [loaded] = read_texts(write_file(tmp_path, b"one\r\ntwo\rthree\nfour\r\n\r\n"))
    assert loaded.text == "one\ntwo\nthree\nfour\n\n"


def test_a_folder_in_natural_order_and_only_its_texts(tmp_path: Path):
    for name in ("chapter 10.txt", "chapter 2.md", "Chapter 1.txt", "cover.png", ".hidden.txt", "part 2/a.txt"):
        write_file(tmp_path, b"text", name)
    assert [loaded.name for loaded in read_texts(tmp_path)] == [
        "Chapter 1.txt",
        "chapter 2.md",
        "chapter 10.txt",
        "part 2/a.txt",
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"%PDF-1.7 ...", "a PDF document"),
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"\x89PNG\r\n", "an image"),
        (bytes(range(256)) * 40, "control characters"),
        (b"\x10\x00\x07\x00\x1f\x02" * 100, "control characters"),
    ],
)
def test_a_file_that_is_not_text_is_refused_by_name(tmp_path: Path, data: bytes, expected: str):
    message = refusal(write_file(tmp_path, data))
    assert "story.txt" in message and expected in message and ".txt file (UTF-8)" in message
    assert "\n" not in message


@pytest.mark.parametrize("data", [b"", b" \r\n\t", codecs.BOM_UTF8])
def test_an_empty_file_is_refused(tmp_path: Path, data: bytes):
    assert (
        refusal(write_file(tmp_path, data)) == "story.txt is empty. Add text to it, or remove it from the dataset."
    )


def test_a_folder_without_texts_is_refused(tmp_path: Path):
    assert "this folder has no text files (.txt, .md, .html" in refusal(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path):
    assert "gone.txt can't be read" in refusal(tmp_path / "gone.txt")


def test_all_bad_files_of_a_folder_are_named_at_once(tmp_path: Path):
    write_file(tmp_path, b"", "1.txt")
    write_file(tmp_path, b"fine", "2.txt")
    write_file(tmp_path, b"%PDF", "3.txt")
    problems = refusal(tmp_path).splitlines()
    assert [line.split()[0] for line in problems] == ["1.txt", "3.txt"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (
            "Am Fluss\n\n" + "Der alte Fährmann saß am Ufer und fror. Die Möwen schrien über dem Wasser. " * 20,
            "cp1252",
        ),
        ("Milk\nBread\nCafé crème", "cp1252"),
        ("He waited a long while at the gate.\n“Don’t go,” she said.", "cp1252"),
        ("name;ort\nAnna;Bonn\nJörg;Köln", "cp1252"),
        ("Plain words.\n" * 40_000 + "Die Straße führte über die Brücke.", "cp1252"),
        ("Plain words.\n" * 40_000 + "Der Müller schläft. " * 20_000, "cp1252"),
    ],
    ids=["title", "list", "quotes", "table", "far down", "far down and long"],
)
def test_letters_after_the_last_line_end_count_too(tmp_path: Path, text: str, encoding: str):
    text = text.strip()
    (loaded,) = read_texts(write_file(tmp_path, text.encode(encoding)))
    assert loaded.text == text
    assert not any("could not be read" in note for note in loaded.notes)


def test_a_file_locked_by_another_program_is_reported(tmp_path, monkeypatch):
    """Word and Excel lock files like this on Windows."""

    def deny(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(
        DataError,
        match=(
            r"^a\.docx can't be read \(Permission denied\)\. Close the "
            r"program"
        ),
    ):
        read_text(tmp_path / "a.docx", "a.docx")
