"""Joiners, broken emoji and marks without a letter, with real tokenizers: what is lost has a reason."""

from __future__ import annotations

from functools import cache

import pytest
from training_pro.chunking import SlicingRules
from training_pro.data.text import slice_text
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes the texts")
from hypothesis import strategies as st  # noqa: E402

SIGNS = [
    *("\u200d", "\u200b", "\ufeff", "\ufe0f", "\u0301", "\u0327", "\ufffd", "\U0001f468", "\U0001f3fd"),
    *("\U0001f1e9", "\U000e0067", "\ufdfa", "\u0915\u094d", "e", " ", ". ", "\n", "\n\n\n"),
]
CUTOFF = 16
LOSSY = {"normalizing": "its normalizer removes marks", "slow and normalizing": "a sign becomes 18 letters"}
runs = st.lists(st.tuples(st.sampled_from(SIGNS), st.sampled_from([1, 1, 2, 20, 60])), max_size=30)
texts = runs.map(lambda parts: "".join(sign * count for sign, count in parts))


@cache
def encoder(kind):
    return make_working_tokenizer(real_tokenizers.TOKENIZERS[kind]()).encode


@pytest.mark.parametrize("kind", real_tokenizers.TOKENIZERS)
def test_only_what_has_no_tokens_or_fits_no_block_is_lost(kind):
    encode = encoder(kind)

    @hypothesis.settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @hypothesis.given(texts, st.sampled_from(["blocks", "dementor"]))
    def slice_signs(text: str, chunking: str) -> None:
        sliced = slice_text(text, encode, SlicingRules(cutoff=CUTOFF, chunking=chunking, hard_cut="\n\n\n", eos=2))
        for start, end in sliced.lost_places():
            for character in set("".join(text[start:end].split())):
                count = len(encode([character])[0].ids)
                assert count == 0 or count > CUTOFF - 1, (text[start:end], character, count)
                assert kind in LOSSY, f"{character!r} is lost"

    slice_signs()
