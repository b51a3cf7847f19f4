"""Subtitles: what is spoken stays, and numbers and times go. Unsupported files are named with what to do."""

from __future__ import annotations

import pytest
from training_pro.core.errors import DataError
from training_pro.data import dataset_index, load
from training_pro.data.readers import unsupported
from training_pro.tests.data.readers.reading import one_process, read_text, refusal, write  # noqa: F401
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import family, prepare_rows

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Where is</i>
the boat?

2
00:00:03,000 --> 00:00:04,000
- Gone.
- When?

3
00:00:05,000 --> 00:00:06,000 X1:10
{\\an8}At nine
"""
VTT = """WEBVTT - harbour

STYLE
::cue {color: white}

NOTE made by hand

intro
00:01.000 --> 00:02.500 align:start
<v Anna>Where is <b>the boat</b> &amp; the crew?</v>

NOTE not this

00:03.000 --> 00:04.000
Gone<00:03.500><c> at nine</c>

00:04.000 --> 00:05.000
Gone at nine
and nobody said a word
"""
NUMBERS = "1\n00:00:01,0 --> 00:00:02,0\nIt rained.\n\n2\n00:00:03,0 --> 00:00:04,0\n42\n\n"
NUMBERS += "3\n00:00:05,0 --> 00:00:06,0\nHe left.\n\n"


def srt(*cues: str) -> str:
    return "".join(
        f"{number}\n00:00:{number:02d},000 --> 00:00:{number + 1:02d},500\n{cue}\n\n"
        for number, cue in enumerate(cues, start=1)
    )


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (SRT, "Where is the boat?\n- Gone.\n- When?\nAt nine"),
        (SRT.replace("\n", "\r\n"), "Where is the boat?\n- Gone.\n- When?\nAt nine"),
        (SRT.replace("\n\n", "\n"), "Where is the boat?\n- Gone.\n- When?\nAt nine"),
        (VTT, "Anna: Where is the boat & the crew?\nGone at nine and nobody said a word"),
        (NUMBERS, "It rained.\n42\nHe left."),
        (NUMBERS.replace("\n", "\r\r\n"), "It rained.\n42\nHe left."),
        (NUMBERS.replace("\n", "\n\n"), "It rained.\n42\nHe left."),
        (NUMBERS.replace("\n\n", "\n"), "It rained.\n42\nHe left."),
        (srt(f"a &#{'9' * 5000}; b"), "a \ufffd b"),
        # Lines are joined with a space unless their script has none.
        (srt("오늘은 날씨가 정말\n좋네요."), "오늘은 날씨가 정말 좋네요."),
        (srt("春の朝、彼は\n歩いていた。"), "春の朝、彼は歩いていた。"),
        (srt("他说：“好。”\n然后走了。"), "他说：“好。”然后走了。"),
        (srt("Hi \U0001f600\nthere."), "Hi \U0001f600 there."),
        # A line that is spoken again stays, but rolling subtitles show each line once.
        (srt("Run!", "Run!", "Where?\nThere.", "There.", "La la\nLa la"),
         "Run!\nRun!\nWhere? There.\nThere.\nLa la La la"),
        (srt("and we went", "and we went", "and we went\ndown to", "down to", "down to\nNo.", "No.", "No.\nnever"),
         "and we went down to\nNo.\nnever"),
        # Subtitles that share a sentence share a line.
        (srt("It was small,", "720p at that time."), "It was small, 720p at that time."),
        (srt("This is the part", "I can't explain."), "This is the part I can't explain."),
        (srt("Well,", "- Gone."), "Well,\n- Gone."),
        (srt("Popeye", "Olive"), "Popeye\nOlive"),
        (srt("I know.", "I can't."), "I know.\nI can't."),
    ],
)  # fmt: skip
def test_subtitles_are_read_as_speech(tmp_path, content, lines):
    name = "a.vtt" if content.startswith("WEBVTT") else "a.srt"
    assert read_text(tmp_path / name, content) == lines


def test_a_file_without_times_is_no_subtitles(tmp_path):
    message = refusal(tmp_path / "a.srt", "Only some words.")
    assert message.startswith("a.srt has no timestamps, ") and "rename it to end in .txt" in message


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    names = ("a.rtf", "b.AZW3", "log", "story.txt", "picture.png", ".hidden.doc", "book/two.doc")
    for name in (*names, "book/one.txt"):
        write(result.datasets / name, "Some words. And more of them.")
    return result


def test_unsupported_files_are_named_with_what_to_do(folders):
    described = unsupported.describe_unsupported(folders.datasets)
    word, remedy = "save it as .docx or .odt, or save its text as .txt", "convert it to .epub"
    assert f"a.rtf ({word}); b.AZW3 ({remedy}, for example with Calibre); book/two.doc ({word}); " in described
    assert described.endswith("log (if it is plain text, rename it to end in .txt).")
    assert "story" not in described and "picture" not in described and "hidden" not in described
    for number in range(9):
        write(folders.datasets / f"c{number}.zip", "")
    assert unsupported.describe_unsupported(folders.datasets).endswith("; and 9 more.")


@pytest.mark.parametrize("name", ["a.rtf", "b.AZW3", "book/two.doc", "dump.sql"])
def test_an_unsupported_dataset_is_refused_by_its_kind(folders, name):
    write(folders.datasets / "dump.sql", "INSERT INTO chats VALUES (1, 'Hi');")
    with pytest.raises(DataError, match=rf"{name}: \.\w+ files are not supported\. To train on this file, "):
        dataset_index.find_datasets([name], folders)
    with pytest.raises(DataError, match="files are not supported"):
        load.read_texts(folders.datasets / name)


def test_plain_text_with_another_suffix_is_read_when_asked_for(folders):
    assert [data.name for data in dataset_index.find_datasets(["log"], folders)] == ["log"]
    assert load.read_texts(folders.datasets / "log")


def test_the_unsupported_files_of_a_folder_are_named(folders, tmp_path):
    (folders.datasets / "book" / "one.txt").unlink()
    with pytest.raises(DataError, match=r"This file is not supported: two\.doc \(save it as \.docx"):
        load.read_texts(folders.datasets / "book")
    files = {"book/one.txt": "Some words. And more of them.", "book/two.doc": "x"}
    data = prepare_rows(tmp_path / "check", family("ChatML"), files, data=["book"])
    assert any(advice.startswith("In book/, this file is not supported: two.doc") for advice in data.report.advice)
