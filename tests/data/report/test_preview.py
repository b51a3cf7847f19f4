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


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_piece_has_a_part_of_a_character(tmp_path, name, text):
    tokenizer = family(name)
    data = prepare_rows(tmp_path, tokenizer, {"a.txt": text}, cutoff=128, add_bos=False, add_eos="never")
    (shown,) = preview_examples(data.examples, PreviewQuery(1), tokenizer.decode, tokenizer.stops)
    assert "\ufffd" not in "".join(piece.text for piece in shown.pieces)
    assert "".join(piece.text for piece in shown.pieces).strip() == text
    assert [piece.learned for piece in shown.pieces] == [False, True], "the first token is only read"
