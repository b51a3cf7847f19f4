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
