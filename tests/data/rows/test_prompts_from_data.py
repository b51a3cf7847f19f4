"""Sample prompts made from the data end where a word ends."""

from __future__ import annotations

import pytest
from training_pro.data.rows.prompts_from_data import HALF_CHARACTER, end_of_word
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers

TEXT = "A sagacious savage, it pained him that Queequeg's idol uncharacteristically disappeared."
CHINESE = "他在黑暗中慢慢地走着，心里想着那些永远不会再回来的日子，还有那个人。"


def tokens(text):
    tokenizer = make_working_tokenizer(real_tokenizers.small_byte_level())
    return tokenizer, tokenizer.encode([text])[0].ids.tolist()


def test_a_prompt_ends_where_a_word_ends():
    tokenizer, ids = tokens(TEXT)
    whole = [tokenizer.decode(ids[: end_of_word(ids, end, tokenizer)]) for end in range(16, len(ids))]
    assert len(set(whole)) > 3
    for text in whole:
        assert not (text[-1].isalnum() and TEXT[len(text) :][:1].isalnum()), text


@pytest.mark.parametrize("end", range(2, 30))
def test_a_text_without_spaces_ends_where_a_character_ends(end):
    tokenizer, ids = tokens(CHINESE)
    place = end_of_word(ids, end, tokenizer)
    assert 1 <= place <= end
    assert place == 1 or HALF_CHARACTER not in tokenizer.decode(ids[:place])
