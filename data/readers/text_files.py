"""Files to text: any encoding, line ends normalized."""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ...core.errors import DataError
from ...train_utils import format_count, plural

if TYPE_CHECKING:
    from ...chunking import Text  # the reader process needs no NumPy for it

READ_BYTES = 1 << 22
SAMPLE_BYTES = 1 << 18  # for detecting an unknown encoding; more makes the guess slower, not better

BYTE_ORDER_MARKS = {
    "utf-8-sig": (codecs.BOM_UTF8,),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),  # before UTF-16, whose mark begins that of UTF-32
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
BINARY_SIGNATURES = {
    "a PDF document": (b"%PDF",),
    "a ZIP archive (or an Excel, Word or e-book file)": (b"PK\x03\x04",),
    "an RTF document": (b"{\\rtf",),
    "an old Word document": (b"\xd0\xcf\x11\xe0",),
    "a database": (b"SQLite format",),
    "an image": (b"\x89PNG", b"\xff\xd8\xff", b"GIF8"),
    "a compressed file": (b"\x1f\x8b", b"7z\xbc\xaf"),
    "a program": (b"\x7fELF", b"MZ\x90"),
}
LEGACY_ENCODINGS = [
    *("cp1252", "cp1250", "cp1254", "cp1257", "cp1251", "koi8_r", "cp866", "cp1253", "cp1255", "cp1256", "cp874"),
    *(
        "cp932",
        "euc_jp",
        "gb18030",
        "cp950",
        "cp949",
    ),  # of Windows, with more signs than Shift JIS, Big5 and EUC-KR
]
LATIN_ALPHABETS = {  # the letters of each language tell these four code pages apart
    "cp1252": ["äöüß", "éèàçêùâîôûëïœæ", "áéíóúñü¿¡", "ãõáéíóúâêôçà", "àèéìòù", "åäö", "æøå", "ëïé", "áéíóúýþðæö"],
    "cp1250": ["ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţ", "čćđšž"],
    "cp1254": ["çğıöşüâîû"],
    "cp1257": ["āčēģīķļņšūž", "ąčęėįšųūž", "äõöüšž"],
}
CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1a\x1b")
NON_ASCII_RUN = re.compile(rb"[\x80-\xff]+")
TELLING_RUNS = 100_000  # of bytes beyond ASCII that tell broken UTF-8 from other encodings
NON_ASCII = re.compile(rb"[\x80-\xff]")
LONE_NON_ASCII = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
LATIN_SHARE = 0.6  # only in Latin script do so many non-ASCII letters stand alone among ASCII
MAX_CONTROL_SHARE = 0.002  # no text in an 8-bit encoding has a larger share of control bytes


@dataclass(frozen=True)
class LoadedText:
    """The text of a file or a part of it, its name inside the dataset, and notes on the reading."""

    name: str
    text: Text
    notes: tuple[str, ...] = ()
    open_end: bool = False  # the text continues in the other part of the split
    boilerplate: str = ""  # what of it is not the book, where that is not dropped
    wrap_width: int = 0  # at which its lines are wrapped, where they are not joined
    menus: tuple[tuple[int, int], ...] = ()  # where its menus are, if it was a web page
    part: int = 0  # which part of a large file this is, from 1; 0 for the text of a whole file
    start: int = 0  # in the file, of a part or of one side of the split


def read_text(file: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """The text of a file with normalized line ends, and notes on its encoding."""
    with open_binary(file, name) as stream:
        text, notes = decode_bytes(stream.read(), name)
    return normalize_line_ends(text), notes


def normalize_line_ends(text: str) -> str:
    """A text with \\n for every line end; some programs write \\r\\r\\n."""
    return text.replace("\r\r\n", "\r\n").replace("\r\n", "\n").replace("\r", "\n")


def normalize_chunks(chunks: Iterable[str]) -> Iterator[str]:
    """The chunks of a text with \\n for every line end, also where a line end is divided."""
    held = ""
    for chunk in chunks:
        text = held + chunk
        # A \r at the end may be half of a line end: it waits for the next chunk.
        held = text[-2:] if text.endswith("\r\r") else text[-1:] if text.endswith("\r") else ""
        yield normalize_line_ends(text.removesuffix(held))
    yield normalize_line_ends(held)


@contextmanager
def open_binary(file: Path, name: str) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes; an OSError becomes a DataError."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        remedy = "Check that it exists and that you can open it."
        if isinstance(error, PermissionError):  # Word and Excel lock their files
            remedy = "Close the program that has it open, or check its permissions."
        raise DataError(f"{name} can't be read ({error.strerror}). {remedy}") from error


def file_digest(file: Path, name: str) -> str:
    """A digest of a file's bytes."""
    with open_binary(file, name) as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def decode_bytes(data: bytes, name: str) -> tuple[str, tuple[str, ...]]:
    """The text, and a note where its encoding is not plain UTF-8."""
    encoding, notes, _ = _detect_encoding(io.BytesIO(data), name)
    text = data.decode(encoding, errors="replace")
    if lost := text.count("\ufffd"):
        are = plural(lost, "is", "are")
        notes += (
            f"{name}: {format_count(lost, 'character')} could not be read and {are} shown as \ufffd. "
            "Save the file as UTF-8.",
        )
    return text, notes


def detect_file_encoding(file: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """The encoding of a file that is too large for memory, and a note where it is not plain UTF-8."""
    with open_binary(file, name) as stream:
        encoding, notes, is_broken = _detect_encoding(stream, name)
    broken = f"{name}: some bytes are not UTF-8 and are shown as \ufffd. Save the file as UTF-8."
    return encoding, (*notes, *[broken] * is_broken)


def _detect_encoding(stream: BinaryIO, name: str) -> tuple[str, tuple[str, ...], bool]:
    """The encoding, a note where it was guessed or marked, and whether it is UTF-8 with broken bytes."""
    head = stream.read(SAMPLE_BYTES)
    refuse_other_formats(head, name)
    marked = next((encoding for encoding, marks in BYTE_ORDER_MARKS.items() if head.startswith(marks)), None)
    encoding, is_broken = marked or "utf-8", False
    if not marked:
        controls = len(head) - len(head.translate(None, CONTROL_BYTES))
        if controls > MAX_CONTROL_SHARE * len(head):
            raise DataError(
                f"{name} is not text: {controls} of its first {len(head)} bytes are control characters. "
                "Save its text as a .txt file (UTF-8), and use that file instead."
            )
    if encoding.startswith("utf-8"):
        # Any byte may be the first that is not UTF-8, so all of a UTF-8 file is decoded once.
        decoder = codecs.getincrementaldecoder(encoding)()
        for chunk in _read_chunks(stream):
            try:
                decoder.decode(chunk, final=len(chunk) < READ_BYTES)
            except UnicodeDecodeError as error:
                if not marked:
                    # UTF-8 with a few broken bytes is told by all that is not ASCII, wherever it is.
                    runs = (run[0] for each in _read_chunks(stream) for run in NON_ASCII_RUN.finditer(each))
                    beyond_ascii = b"".join(run + b" " for run in islice(runs, TELLING_RUNS))
                    letters = beyond_ascii.decode("utf-8", errors="replace").replace(" ", "")
                    broken = letters.count("\ufffd")
                    if len(letters) - broken <= 4 * broken:
                        encoding = _guess_legacy(chunk[max(0, error.start - SAMPLE_BYTES // 2) :], name)
                is_broken = encoding.startswith("utf-8")
                break
    if encoding.startswith("utf-8"):
        return encoding, (), is_broken
    reason = "its byte order mark says so" if marked else "guessed; if characters look wrong, save it as UTF-8"
    return encoding, (f"{name} was read as {encoding.replace('_', '-')} ({reason}).",), False


def _read_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file from its beginning."""
    stream.seek(0)
    while chunk := stream.read(READ_BYTES):
        yield chunk


def refuse_other_formats(data: bytes, name: str) -> None:
    """A DataError where the first bytes are those of a document or an archive."""
    kind = next((kind for kind, beginnings in BINARY_SIGNATURES.items() if data.startswith(beginnings)), None)
    if kind:
        raise DataError(
            f"{name} is {kind}, not plain text. Save its text as a .txt file (UTF-8), and use that file instead."
        )


def _guess_legacy(data: bytes, name: str) -> str:
    """The legacy code page that fits best, by the bytes around the first that is not UTF-8."""
    from charset_normalizer import from_bytes

    sample = data[:SAMPLE_BYTES]
    if len(data) > SAMPLE_BYTES and NON_ASCII.search(sample, 0, sample.rfind(b"\n") + 1):
        sample = sample[: sample.rfind(b"\n") + 1]  # whole lines of a large file

    def latin_fit(page: str) -> float:
        """The share of the non-ASCII letters that the best fitting language of a code page has."""
        text = sample.decode(page, errors="replace").lower()
        letters = [letter for letter in text if letter > "\x7f" and letter.isalpha()]
        known = max(sum(letter in alphabet for letter in letters) for alphabet in LATIN_ALPHABETS[page])
        return known / max(len(letters), 1)

    # In Latin script most letters beyond ASCII stand alone, and the letters of each language tell its page.
    if len(LONE_NON_ASCII.findall(sample)) > LATIN_SHARE * len(NON_ASCII.findall(sample)):
        return max(LATIN_ALPHABETS, key=latin_fit)
    guesses = from_bytes(sample, cp_isolation=LEGACY_ENCODINGS)
    best = guesses.best()
    for guess in guesses:
        with suppress(UnicodeDecodeError):  # the sample may be too short to rule a page out
            data.decode(guess.encoding)
            best = guess
            break
    if best is None:
        raise DataError(f"{name} has an unknown encoding. Save it as UTF-8.")
    return max(LATIN_ALPHABETS, key=latin_fit) if best.encoding in LATIN_ALPHABETS else best.encoding
