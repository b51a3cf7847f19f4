"""The working copy of a tokenizer: places, marker-like text, BOS and EOS, and the laws with real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_pro.chunking import Cutting
from training_pro.data.text.slicing import slices
from training_pro.engine.tokenizer.tokenizer import WorkingTokenizer, working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.slicing_laws import ODD_TEXTS, WORDS, assert_laws, random_rules, random_text

ROOT = Path(__file__).resolve().parents[3]
LETTER_FOR_LETTER = ("byte-level", "small byte-level")
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
def made() -> dict[str, WorkingTokenizer]:
    return {}


@pytest.fixture(params=real_tokenizers.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def working(kind: str, made: dict[str, WorkingTokenizer]) -> WorkingTokenizer:
    if kind not in made:
        made[kind] = working_tokenizer(real_tokenizers.KINDS[kind]())
    return made[kind]


def test_places_are_in_order_and_within_the_text(working: WorkingTokenizer):
    for text, found in zip(SAMPLES, working.encode(SAMPLES), strict=True):
        assert len(found.ids) == len(found.starts) == len(found.ends)
        assert (np.diff(found.ends) >= 0).all() and (found.starts <= found.ends).all()
        assert not len(found.ids) or (found.starts[0] >= 0 and found.ends[-1] <= len(text))


def test_a_text_gets_the_same_ids_alone_and_in_a_batch(working: WorkingTokenizer):
    together = working.encode(SAMPLES)
    alone = [working.encode([text])[0] for text in SAMPLES]
    for left, right in zip(together, alone, strict=True):
        assert all((a == b).all() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", ["byte-level", "Metaspace with byte fallback", "small byte-level"])
def test_places_from_bytes_are_those_the_tokenizer_itself_reports(name: str):
    working = working_tokenizer(real_tokenizers.KINDS[name]())
    backend = working.tokenizer.backend_tokenizer
    for text, found in zip(SAMPLES, working.encode(SAMPLES), strict=True):
        reported = backend.encode(text, add_special_tokens=False)
        assert found.ids.tolist() == reported.ids
        starts, ends = zip(*reported.offsets, strict=True) if reported.offsets else ((), ())
        trimmed = [text[a:b].strip() for a, b in zip(found.starts, found.ends, strict=True)]
        said = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
        assert trimmed[1:] == said[1:]


def test_marker_like_text_stays_text_whatever_was_asked_before(kind: str, working: WorkingTokenizer):
    special = set(working.tokenizer.all_special_ids) - {working.tokenizer.unk_token_id}
    working.tokenizer("an ordinary call, which sets the copy's state anew")
    for marker in working.tokenizer.all_special_tokens:
        found = working.encode([f"a {marker} b"])[0]
        assert special.isdisjoint(found.ids.tolist()), (kind, marker)


def test_the_host_s_own_tokenizer_stays_as_it_is():
    own = real_tokenizers.small_byte_level()
    backend = own.backend_tokenizer
    backend.enable_padding(length=5)
    backend.enable_truncation(3)
    try:
        found = working_tokenizer(own).encode(["one two three four five six"])[0]
        assert len(found.ids) > 3
        assert backend.encode_special_tokens is False
        assert backend.padding["length"] == 5 and backend.truncation["max_length"] == 3
    finally:
        backend.no_padding()
        backend.no_truncation()


def test_a_bos_that_is_never_put_is_none():
    assert working_tokenizer(real_tokenizers.small_byte_level()).bos is None


def test_a_bos_that_the_tokenizer_puts_is_it():
    import copy

    from tokenizers import processors

    own = copy.deepcopy(real_tokenizers.small_byte_level())
    start = own.bos_token_id
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", start)]
    )
    working = working_tokenizer(own)
    assert (working.bos, working.eos) == (start, own.eos_token_id)
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
            rules = Cutting(cutoff=cutoff, chunking=chunking, bos=working.bos, eos=working.eos)
            assert_laws(slices(file.read_text(encoding="utf-8"), working.encode, rules), working.encode)


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_laws_over_odd_texts(name: str, kind: str, working: WorkingTokenizer):
    rules = Cutting(cutoff=32, bos=working.bos, eos=working.eos)
    _assert_laws(kind, working, ODD_TEXTS[name], rules)


@pytest.mark.long
def test_laws_over_many_random_texts(kind: str, working: WorkingTokenizer):
    for seed in range(1000, 1300):
        text, rules = random_text(seed, words=600), random_rules(seed, working.bos, working.eos)
        _assert_laws(kind, working, text, rules)


def _assert_laws(kind: str, working: WorkingTokenizer, text: str, rules: Cutting) -> None:
    sliced = slices(text, working.encode, rules)
    assert_laws(sliced, working.encode)
    if kind not in LETTER_FOR_LETTER:
        return
    for block in sliced:
        ids = sliced.ids_of(block)[rules.opening : block.tokens - rules.closes(block.ends_section)]
        assert working.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == sliced.text_of(block)
