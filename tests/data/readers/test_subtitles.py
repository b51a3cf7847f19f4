"""Subtitles as people have them: what is spoken stays, and numbers and times go."""

from __future__ import annotations

import pytest
from training_pro.data.readers import subtitles


def read(tmp_path, content: str) -> list[str]:
    file = tmp_path / "a.srt"
    file.write_bytes(content.encode())
    paragraphs, _ = subtitles.read_paragraphs(file, "a.srt")
    return [paragraph.text for paragraph in paragraphs]


def srt(*cues: str) -> str:
    return "".join(
        f"{number}\n00:00:{number:02d},000 --> 00:00:{number + 1:02d},500\n{cue}\n\n"
        for number, cue in enumerate(cues, start=1)
    )


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        ("오늘은 날씨가 정말\n좋네요.", "오늘은 날씨가 정말 좋네요."),
        ("春の朝、彼は\n歩いていた。", "春の朝、彼は歩いていた。"),
        ("他说：“好。”\n然后走了。", "他说：“好。”然后走了。"),
        ("Hi \U0001f600\nthere.", "Hi \U0001f600 there."),
        ("She came\nhome.", "She came home."),
    ],
)
def test_lines_are_joined_with_a_space_unless_their_script_has_none(tmp_path, lines, joined):
    assert read(tmp_path, srt(lines)) == [joined]


def test_a_line_that_is_spoken_again_stays(tmp_path):
    cues = ["Run!", "Run!", "Run!", "Where?\nThere.", "There.", "La la\nLa la", "He said\nit twice."]
    assert read(tmp_path, srt(*cues)) == [
        *("Run!", "Run!", "Run!", "Where? There.", "There.", "La la La la", "He said it twice."),
    ]


def test_rolling_subtitles_show_each_line_once(tmp_path):
    cues = [
        "and we went",
        "and we went",
        "and we went\ndown to the sea",
        "down to the sea",
        "down to the sea\nNo.",
    ]
    assert read(tmp_path, srt(*cues, "No.", "No.\nnever")) == ["and we went down to the sea", "No.", "never"]


@pytest.mark.parametrize(
    "content",
    [
        srt("It rained.", "42", "He left.").replace("\n", "\r\r\n"),
        srt("It rained.", "42", "He left.").replace("\n", "\n\n"),
        srt("It rained.", "42", "He left.").replace("\n\n", "\n"),
        srt("It rained.", "42", "He left."),
        "WEBVTT\n\n00:01.000 --> 00:02.000\nIt rained.\n\n00:03.000 --> 00:04.000\n42\n\n"
        "name\n00:05.000 --> 00:06.000\nHe left.\n",
    ],
)
def test_the_numbers_of_subtitles_are_no_speech(tmp_path, content):
    assert read(tmp_path, content) == ["It rained.", "42", "He left."]
