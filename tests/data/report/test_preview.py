"""The preview shows each example as its text, whole characters in every piece."""

from __future__ import annotations

import pytest
from training_pro.core.engine import PreviewQuery
from training_pro.data.report import preview_examples
from training_pro.tests.rowing import FAMILIES, family, prepare_rows

TEXTS = {
    "zh": "红楼梦第一回。甄士隐梦幻识通灵。",
    "ru": "Каморка его была под самою кровлей. Он шёл.",
    "emoji": "🙂🙃 yes. 🙂",
}


def test_examples_are_taken_from_the_whole_text(tmp_path):
    """A book begins with its title, its author and its contents."""
    tokenizer = family(next(iter(FAMILIES)))
    text = "\n\n\n".join(f"This is number {n} of thirty." for n in range(30))
    data = prepare_rows(tmp_path, tokenizer, {"a.txt": text}, cutoff=128, overlap=False)
    shown = preview_examples(data.examples, PreviewQuery(3), tokenizer.decode, tokenizer.stops)
    assert [example.number for example in shown] == [1, 11, 21]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_piece_has_a_part_of_a_character(tmp_path, name, text):
    tokenizer = family(name)
    data = prepare_rows(tmp_path, tokenizer, {"a.txt": text}, cutoff=128, add_bos=False, add_eos="never")
    (shown,) = preview_examples(data.examples, PreviewQuery(1), tokenizer.decode, tokenizer.stops)
    assert "\ufffd" not in "".join(piece.text for piece in shown.pieces)
    assert "".join(piece.text for piece in shown.pieces).strip() == text
    assert [piece.learned for piece in shown.pieces] == [False, True], "the first token is only read"
