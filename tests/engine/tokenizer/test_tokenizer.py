"""Working copy of a tokenizer: offsets, marker-like text, BOS and EOS, and the slicing laws with real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_pro.chunking import SlicingRules
from training_pro.data.text import slice_text
from training_pro.engine.tokenizer import WorkingTokenizer, make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.slicing_laws import ODD_TEXTS, WORDS, assert_laws, random_rules, random_text

ROOT = Path(__file__).resolve().parents[3]
LOSSLESS = ("byte-level", "small byte-level")
SAMPLES = [
    "",
    "a",
    " leading",
    "Hello, world.  Two  spaces.\n\nNew line",
    "日本語のテキスト。👨‍👩‍👧é",
    WORDS["markers"],
    WORDS["emoji"],
    "\n\nx",
]


@pytest.fixture(scope="module")
def tokenizer_cache() -> dict[str, WorkingTokenizer]:
    return {}


@pytest.fixture(params=real_tokenizers.TOKENIZERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def working(kind: str, tokenizer_cache: dict[str, WorkingTokenizer]) -> WorkingTokenizer:
    if kind not in tokenizer_cache:
        tokenizer_cache[kind] = make_working_tokenizer(real_tokenizers.TOKENIZERS[kind]())
    return tokenizer_cache[kind]


def test_offsets_are_in_order_and_within_the_text(working: WorkingTokenizer):
    for text, encoded in zip(SAMPLES, working.encode(SAMPLES), strict=True):
        assert len(encoded.ids) == len(encoded.starts) == len(encoded.ends)
        assert (np.diff(encoded.ends) >= 0).all() and (encoded.starts <= encoded.ends).all()
        assert not len(encoded.ids) or (encoded.starts[0] >= 0 and encoded.ends[-1] <= len(text))


def test_a_text_gets_the_same_ids_alone_and_in_a_batch(working: WorkingTokenizer):
    batched = working.encode(SAMPLES)
    alone = [working.encode([text])[0] for text in SAMPLES]
    for left, right in zip(batched, alone, strict=True):
        assert all((a == b).all() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", ["byte-level", "Metaspace with byte fallback", "small byte-level"])
def test_offsets_from_bytes_are_those_that_the_tokenizer_reports(name: str):
    working = make_working_tokenizer(real_tokenizers.TOKENIZERS[name]())
    backend = working.tokenizer.backend_tokenizer
    for text, encoded in zip(SAMPLES, working.encode(SAMPLES), strict=True):
        reported = backend.encode(text, add_special_tokens=False)
        assert encoded.ids.tolist() == reported.ids
        starts, ends = zip(*reported.offsets, strict=True) if reported.offsets else ((), ())
        trimmed = [text[a:b].strip() for a, b in zip(encoded.starts, encoded.ends, strict=True)]
        expected = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
        assert trimmed[1:] == expected[1:]


def test_marker_like_text_stays_text_after_any_other_call(kind: str, working: WorkingTokenizer):
    special = set(working.tokenizer.all_special_ids) - {working.tokenizer.unk_token_id}
    working.tokenizer("an ordinary call, which sets the copy's state anew")
    for marker in working.tokenizer.all_special_tokens:
        encoded = working.encode([f"a {marker} b"])[0]
        assert special.isdisjoint(encoded.ids.tolist()), (kind, marker)


def test_the_hosts_tokenizer_stays_unchanged():
    tokenizer = real_tokenizers.small_byte_level()
    backend = tokenizer.backend_tokenizer
    backend.enable_padding(length=5)
    backend.enable_truncation(3)
    try:
        encoded = make_working_tokenizer(tokenizer).encode(["one two three four five six"])[0]
        assert len(encoded.ids) > 3
        assert backend.encode_special_tokens is False
        assert backend.padding["length"] == 5 and backend.truncation["max_length"] == 3
    finally:
        backend.no_padding()
        backend.no_truncation()


def test_a_bos_that_is_never_added_is_none():
    assert make_working_tokenizer(real_tokenizers.small_byte_level()).bos is None


def test_a_bos_that_the_tokenizer_adds_is_found():
    import copy

    from tokenizers import processors

    tokenizer = copy.deepcopy(real_tokenizers.small_byte_level())
    start = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", start)]
    )
    working = make_working_tokenizer(tokenizer)
    assert (working.bos, working.eos) == (start, tokenizer.eos_token_id)
    assert start not in working.encode(["text"])[0].ids


@pytest.mark.parametrize("seed", range(30))
def test_laws_over_random_texts(seed: int, kind: str, working: WorkingTokenizer):
    text, rules = random_text(seed), random_rules(seed, working.bos, working.eos)
    _assert_laws(kind, working, text, rules)


@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
def test_laws_over_every_example(chunking, kind: str, working: WorkingTokenizer):
    kinds = (".txt", ".md", ".json", ".jsonl", ".csv", ".html")
    files = sorted(p for p in (ROOT / "examples").rglob("*") if p.suffix in kinds)
    assert len(files) >= len(kinds)
    for file in files:
        for cutoff in (32, 256):
            rules = SlicingRules(cutoff=cutoff, chunking=chunking, bos=working.bos, eos=working.eos)
            assert_laws(slice_text(file.read_text(encoding="utf-8"), working.encode, rules), working.encode)


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_laws_over_odd_texts(name: str, kind: str, working: WorkingTokenizer):
    rules = SlicingRules(cutoff=32, bos=working.bos, eos=working.eos)
    _assert_laws(kind, working, ODD_TEXTS[name], rules)


@pytest.mark.long
def test_laws_over_many_random_texts(kind: str, working: WorkingTokenizer):
    for seed in range(1000, 1300):
        text, rules = random_text(seed, words=600), random_rules(seed, working.bos, working.eos)
        _assert_laws(kind, working, text, rules)


def _assert_laws(kind: str, working: WorkingTokenizer, text: str, rules: SlicingRules) -> None:
    sliced = slice_text(text, working.encode, rules)
    assert_laws(sliced, working.encode)
    if kind not in LOSSLESS:
        return
    for block in sliced:
        ids = sliced.ids_of(block)[rules.opening : block.tokens - rules.closes(block.ends_section)]
        assert working.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == sliced.text_of(block)
