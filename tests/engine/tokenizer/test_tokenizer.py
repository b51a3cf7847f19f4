"""Working copy of a tokenizer: offsets, marker-like text, BOS and EOS, and the slicing laws with real ones."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors
from training_pro.chunking import SlicingRules
from training_pro.core.errors import ModelError
from training_pro.data.text import slice_text
from training_pro.engine import tokenizer as tokenizer_module
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.slicing_laws import ODD_TEXTS, WORDS, assert_laws, random_rules, random_text
from transformers import AutoTokenizer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LOSSLESS = ("byte-level", "small byte-level")
SAMPLES = ["", "a", " leading", "Hello, world.  Two  spaces.\n\nNew line", "日本語のテキスト。👨‍👩‍👧é", "\n\nx"]
SAMPLES += [WORDS["markers"], WORDS["emoji"]]


@pytest.fixture(scope="module", params=real_tokenizers.TOKENIZERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def working(kind):
    return make_working_tokenizer(real_tokenizers.TOKENIZERS[kind]())


def test_offsets_are_in_order_and_within_the_text_and_ids_the_same_alone_and_in_a_batch(working):
    for text, encoded in zip(SAMPLES, working.encode(SAMPLES), strict=True):
        assert len(encoded.ids) == len(encoded.starts) == len(encoded.ends)
        assert (np.diff(encoded.ends) >= 0).all() and (encoded.starts <= encoded.ends).all()
        assert not len(encoded.ids) or (encoded.starts[0] >= 0 and encoded.ends[-1] <= len(text))
        alone = working.encode([text])[0]
        assert all((a == b).all() for a, b in zip(alone, encoded, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", ["byte-level", "Metaspace with byte fallback", "small byte-level"])
def test_offsets_from_bytes_are_those_that_the_tokenizer_reports(name):
    working = make_working_tokenizer(real_tokenizers.TOKENIZERS[name]())
    backend = working.tokenizer.backend_tokenizer
    for text, encoded in zip(SAMPLES, working.encode(SAMPLES), strict=True):
        reported = backend.encode(text, add_special_tokens=False)
        assert encoded.ids.tolist() == reported.ids
        ours = [text[start:end].strip() for start, end in zip(encoded.starts, encoded.ends, strict=True)]
        assert ours[1:] == [text[start:end].strip() for start, end in reported.offsets[1:]]


def test_marker_like_text_stays_text_after_any_other_call(working):
    special = set(working.tokenizer.all_special_ids) - {working.tokenizer.unk_token_id}
    working.tokenizer("an ordinary call, which sets the copy's state anew")
    for marker in working.tokenizer.all_special_tokens:
        assert special.isdisjoint(working.encode([f"a {marker} b"])[0].ids.tolist()), marker


def test_the_hosts_tokenizer_stays_unchanged():
    tokenizer = copy.deepcopy(real_tokenizers.small_byte_level())
    backend = tokenizer.backend_tokenizer
    backend.enable_padding(length=5)
    backend.enable_truncation(3)
    assert len(make_working_tokenizer(tokenizer).encode(["one two three four five six"])[0].ids) > 3
    assert backend.encode_special_tokens is False
    assert backend.padding["length"] == 5 and backend.truncation["max_length"] == 3


def test_a_tokenizer_whose_tokens_cant_be_found_in_the_text_is_refused():
    with pytest.raises(ModelError, match=r"tokenizer \(NoOffsets\) doesn't tell .* has a tokenizer.json file"):
        make_working_tokenizer(real_tokenizers.NoOffsets()).encode(["Words"])


def test_a_bos_is_known_only_if_the_tokenizer_adds_it():
    tokenizer = copy.deepcopy(real_tokenizers.small_byte_level())
    assert make_working_tokenizer(tokenizer).bos is None
    start = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", start)]
    )
    working = make_working_tokenizer(tokenizer)
    assert (working.bos, working.eos) == (start, tokenizer.eos_token_id)
    assert start not in working.encode(["text"])[0].ids


def assert_all_laws(kind, working, text, rules):
    sliced = slice_text(text, working.encode, rules)
    assert_laws(sliced, working.encode)
    for block in sliced if kind in LOSSLESS else ():
        ids = sliced.ids_of(block)[rules.opening : block.tokens - rules.closes(block.ends_section)]
        assert working.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == sliced.text_of(block)


@pytest.mark.parametrize(
    ("seeds", "words"), [(range(10), 120), pytest.param(range(1000, 1300), 600, marks=pytest.mark.long)]
)
def test_laws_over_random_texts(kind, working, seeds, words):
    for seed in seeds:
        rules = random_rules(seed, working.bos, working.eos)
        assert_all_laws(kind, working, random_text(seed, words=words), rules)


@pytest.mark.long
def test_laws_over_odd_texts_and_examples(kind, working):
    rules = SlicingRules(cutoff=32, bos=working.bos, eos=working.eos)
    for text in ODD_TEXTS.values():
        assert_all_laws(kind, working, text, rules)
    files = sorted(
        p for p in EXAMPLES.rglob("*") if p.suffix in (".txt", ".md", ".json", ".jsonl", ".csv", ".html")
    )
    assert len(files) >= 6
    for number, file in enumerate(files):
        chunking = ("blocks", "dementor")[number % 2]
        rules = SlicingRules(cutoff=32, chunking=chunking, bos=working.bos, eos=working.eos)
        assert_laws(slice_text(file.read_text(encoding="utf-8"), working.encode, rules), working.encode)


def test_a_template_of_a_model_that_does_not_end_is_stopped(tiny, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "TEMPLATE_SECONDS", 0.2)
    own = AutoTokenizer.from_pretrained(tiny)
    own.chat_template = 2 * "{% for n in range(99999) %}" + 2 * "{% endfor %}"
    template = make_working_tokenizer(own).chat_template
    for _ in range(2):  # an earlier limit is over
        with pytest.raises(ValueError, match=r"more than 0\.2 seconds"):
            template.render([{"role": "user", "content": "Hello."}], (), opening=True)
