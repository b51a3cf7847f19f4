"""The laws of slicing, and the texts they are tested on."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from training_pro.chunking import (
    EncodedText,
    Encoder,
    Sections,
    SlicedText,
    SlicingRules,
    UnitBounds,
    split_section,
)

WORDS = {
    "latin": "the old house Mr. Smith said e.g. J. R. Tolkien 3.5 www.a.b/c?d naïve über Straße «oui» U.S.",
    "cyrillic": "дом г. Москва и т. д. сказал он А. С. Пушкин",
    "greek": "ο κ. Παπάς πού πας; σπίτι",
    "arabic": "بيت كبير د. أحمد قال نعم",
    "hebrew": "בית גדול אמר א. ב. יהושע",
    "hindi": "घर बड़ा है डॉ. शर्मा ने कहा",
    "thai": "บ้านหลังใหญ่ เขาไปครับ แต่ไม่มา",
    "chinese": "天黑了 他一个人走在回家的路上 “好” 「不」",
    "japanese": "吾輩は猫である と言った カタカナ",
    "korean": "하늘에는 별이 많다",
    "emoji": "👨‍👩‍👧 👍🏽 🇩🇪 é́̂ ﷽ 𝔘𝔫𝔦 ﬁ Ａ ½",
    "markers": "<s> </s> [INST] <|im_start|> <|endoftext|> <0x0A> ▁x Ġy <pad> ### ##",
}
ENDS = [".", "!", "?", "...", "…", "。", "！", "।", "؟", ";", '."', ".)", "?!", ",", ":", "", "", ""]
SPACES = [" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "", "\n\n\n", "\n\n\n\n"]


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 150))]


def random_text(seed: int, words: int = 120) -> str:
    """A text in one, two or all scripts, with every kind of space and ending between the words."""
    rng = random.Random(seed)
    scripts = rng.sample(sorted(WORDS), rng.choice([1, 1, 2, 3, len(WORDS)]))
    stock = [word for script in scripts for word in WORDS[script].split(" ")]
    without_spaces = rng.random() < 0.2
    parts = []
    for _ in range(rng.randrange(words)):
        parts.append(rng.choice(stock))
        parts.append(rng.choice(ENDS) if rng.random() < 0.25 else "")
        parts.append("" if without_spaces else rng.choice(SPACES) if rng.random() < 0.3 else " ")
    return "".join(parts)


ODD_TEXTS = {
    "empty": "",
    "only line ends": "\n" * 50,
    "only hard cuts and spaces": " \n\n\n \n\n\n ",
    "a line without a space": "x" * 60_000,
    "Chinese without a stop": "天黑了他走在路上" * 2_000,
    "combining marks": "e" + "\u0301" * 3_000,
    "a large ligature": "﷽" * 50,
    "quotes alone": '"' * 2_000 + "”" * 500,
    "one word a line": "word\n" * 2_000,
    "zeros and controls": "a\x00b\x1fc\u200bd\u2028e\ufeff" * 50,
}


def random_rules(seed: int, bos: int | None, eos: int | None) -> SlicingRules:
    rng = random.Random(seed)
    return SlicingRules(
        cutoff=rng.choice([16, 17, 24, 32, 64, 256]),
        chunking=rng.choice(["blocks", "dementor"]),
        overlap=rng.random() < 0.7,
        dementor_repeats=rng.choice([0, 0, 1, 2, 3, 7]),
        hard_cut=rng.choice(["\n\n\n", "\n\n\n", "", "###", "e"]),
        min_chars=rng.choice([0, 0, 0, 5, 40]),
        bos=bos if rng.random() < 0.5 else None,
        eos=eos if rng.random() < 0.8 else None,
        add_eos=rng.choice(["hard_cut", "every_block", "never"]),
    )


def assert_laws(sliced: SlicedText, encoder: Encoder) -> None:
    blocks = list(sliced)
    assert [sliced[number] for number in range(len(sliced))] == blocks
    assert list(zip(sliced.starts, sliced.ends, strict=True)) == [(block.start, block.end) for block in blocks]
    for block in blocks:
        ids = sliced.ids_of(block)
        assert len(ids) == block.tokens <= sliced.rules.cutoff
        assert 0 <= block.start < block.end <= len(sliced.text)
        assert sliced.text_of(block) == sliced.text[block.start : block.end]
        rest = sliced.text[block.end : int(sliced.sections.end[block.section])]
        assert block.ends_section == (not rest.strip())
    _assert_ids(sliced, encoder)
    _assert_nothing_lost(sliced)
    _assert_kinds(sliced)


def _assert_ids(sliced: SlicedText, encoder: Encoder) -> None:
    """Without BOS and EOS, a block is a slice of its section's ids, tokenized by itself in its pieces."""
    rules, sections, text = sliced.rules, sliced.sections, sliced.text
    places = [(int(s), int(e)) for s, e in zip(sections.start, sections.end, strict=True)]
    pieces = [[text[low:high] for low, high in split_section(text, *place)] for place in places]
    section_ids = [[n for encoded in encoder(piece) for n in encoded.ids.tolist()] for piece in pieces]
    offsets = np.cumsum([0, *map(len, section_ids)])
    for block in sliced:
        ids = sliced.ids_of(block).tolist()
        if rules.bos is not None:
            assert ids.pop(0) == rules.bos
        if rules.closes(block.ends_section):
            assert ids.pop() == rules.eos
        first = block.first - int(offsets[block.section])
        assert first >= 0 and section_ids[block.section][first : first + len(ids)] == ids
        start, end = places[block.section]
        assert start <= block.start and block.end <= end


def _assert_nothing_lost(sliced: SlicedText) -> None:
    covered = np.zeros(len(sliced.text) + 1, bool)
    for block in sliced:
        covered[block.start : block.end] = True
    hard_cut = sliced.rules.hard_cut
    for match in re.finditer(re.escape(hard_cut), sliced.text) if hard_cut else ():
        covered[match.start() : match.end()] = True
    missing = sum(not covered[position] for position, letter in enumerate(sliced.text) if not letter.isspace())
    assert missing == sliced.left_out_characters + sliced.lost
    assert sliced.rules.min_chars or missing == sliced.lost


def _assert_kinds(sliced: SlicedText) -> None:
    units = sliced.units
    sentence_starts = set(units.start[units.opens].tolist())
    sentence_ends = set(units.end[units.closes].tolist())
    blocks = [block for block in sliced if block.kind == "block"]
    assert all(left.end <= right.start for left, right in pairwise(blocks))
    spans = {(block.start, block.end) for block in blocks}
    for block in sliced:
        if block.kind == "overlap":
            assert block.start in sentence_starts and block.end in sentence_ends
            assert not any(start <= block.start and block.end <= end for start, end in spans)


def encode_words(texts: Sequence[str]) -> list[EncodedText]:
    """One id per word; a word includes the spaces before it."""
    return [_encoded(re.finditer(r"\s*\S+|\s+$", text)) for text in texts]


def _encoded(words: Iterable[re.Match[str]]) -> EncodedText:
    rows = [(10 + sum(map(ord, word[0].strip())) % 1000, *word.span()) for word in words]
    ids, starts, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return EncodedText(ids.astype(np.int32), starts, ends)


def encode_bytes(texts: Sequence[str]) -> list[EncodedText]:
    """One id per UTF-8 byte: many bounds between ids lie inside a character."""
    rows = [[(byte, place) for place, letter in enumerate(text) for byte in letter.encode()] for text in texts]
    columns = [np.array(row, np.int64).reshape(-1, 2).T for row in rows]
    return [EncodedText(ids.astype(np.int32), starts, starts + 1) for ids, starts in columns]


def find_lines(text: str, sections: Sections) -> UnitBounds:
    """A simple finder of lines, with the sentences inside them."""
    lines = np.array([match.end() for match in re.finditer(r"\n+", text)], np.int64)
    return UnitBounds(lines, find_stops(text, sections).ends, np.zeros(len(sections), bool))


def find_stops(text: str, sections: Sections) -> UnitBounds:
    """A simple finder of sentences: they end after . ! ? and at line ends."""
    ends = np.array([match.end() for match in re.finditer(r"[.!?](?=\s)|\n+", text)], np.int64)
    return UnitBounds(ends, ends[:0], np.zeros(len(sections), bool))
