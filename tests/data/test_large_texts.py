"""Large texts are prepared in parts, which have the blocks of the whole text."""

from __future__ import annotations

import random
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from training_pro.chunking import SlicedText
from training_pro.core.errors import DataError, StoppedError
from training_pro.core.host import ModelCard
from training_pro.data import arrow_store, large_texts
from training_pro.data.prepare import prepare
from training_pro.data.text import read_stretches, sentences, slice_parts, slice_text
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import BOS, EOS, WordTokenizer, make_folders
from training_pro.tests.slicing_laws import encode_bytes, encode_words, random_rules, random_text

pytest.importorskip("pyarrow", reason="the parts of large texts are Arrow files")

VERSE = "And the river ran\n    softly by the mill,\nO the long way home\n"
CHAT = "Anna: hi there\nBob: hey. how are you\nAnna: fine, and you\n"
PROSE = "The keeper slept. The lamp went out, and nobody came. It rained all night. "


@pytest.fixture(autouse=True)
def limit_parts(monkeypatch):
    """A function that sets the limits; with about a thousand characters, short texts have many parts."""

    def limit(stretch: int = 400, part: int = 1000, divided: int = 1000, longest: int = 2000) -> None:
        limits = {"DIVIDED_BYTES": divided, "PART_CHARS": part, "MAX_PART_CHARS": longest}
        for module, name, value in (
            (sentences, "STRETCH_CHARS", stretch),
            *((large_texts, name, value) for name, value in limits.items()),
        ):
            monkeypatch.setattr(module, name, value)

    limit()
    return limit


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 240))]


def mixed_text(seed: int) -> str:
    """Prose, verse, chats and random text with hard cuts and line ends between them."""
    rng = random.Random(seed)
    kinds = [PROSE, VERSE, CHAT, "CHAPTER IV.\n\n", "1. a\n2. b\n", "See p.\n\n\n5 of it. Then more.\n"]
    pieces = []
    for _ in range(rng.randrange(10, 80)):
        known = rng.choice(kinds) * rng.randrange(1, 4)
        pieces.append(known if rng.random() < 0.7 else random_text(rng.random(), 30) + "\n")
        pieces.append(rng.choice(["\n", "\n\n", "\n\n\n", "\n\n\n\n", " ###\n", "###", "\n\n\n \n\n\n"]))
    return "".join(pieces)


def parts_of(text: str, hard_cut: str, store: arrow_store.Store):
    for part in large_texts.divide(read_stretches(text[at : at + 77] for at in range(0, len(text), 77)), hard_cut):
        ends = tuple(np.cumsum([*map(len, part.stretches)]).tolist())
        yield arrow_store.StoredText.save(store, "".join(part.stretches), part.start, part.end, ends)


def slice_in_parts(texts, rules, encoder=encode_words):
    return slice_parts("a.txt", texts, encoder, "a", rules, lambda *_: None, lambda: None)


def blocks_of(sliced: SlicedText, start: int = 0):
    return [
        (b.start + start, b.end + start, b.kind, b.ends_section, sliced.text_of(b), sliced.ids_of(b).tolist())
        for b in sliced
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_blocks_of_the_parts_are_those_of_the_whole_text(tmp_path, limit_parts, seed):
    limit_parts(longest=10**9)
    text, hard_cut = mixed_text(seed), ("\n\n\n", "###")[seed // 2 % 2]
    block_ends = ("auto", "sentences", "lines")[seed % 3]
    rules = replace(random_rules(seed, BOS, EOS), hard_cut=hard_cut, block_ends=block_ends)
    encoder = encode_words if seed % 2 else encode_bytes
    whole, texts = slice_text(text, encoder, rules), list(parts_of(text, hard_cut, arrow_store.Store(tmp_path)))
    if not texts:
        return
    parts, _ = slice_in_parts(texts, rules, encoder)
    starts = np.cumsum([0, *map(len, texts)]).tolist()
    assert "".join(map(str, texts)).strip() == text.strip()
    blocks = [block for part, start in zip(parts, starts, strict=False) for block in blocks_of(part, start)]
    assert blocks == blocks_of(whole)
    for figure in (
        lambda sliced: sliced.lost,
        lambda sliced: sliced.left_out_characters,
        lambda sliced: len(sliced.sections),
        lambda sliced: int(sliced.sections.by_lines.sum()),
    ):
        assert sum(map(figure, parts)) == figure(whole)


@pytest.fixture
def folders(tmp_path):
    return write(make_folders(tmp_path), *(f"Section {n} begins. {PROSE * 4}It ends with {n}." for n in range(60)))


def write(folders, *sections: str, encoding="utf-8"):
    (folders.datasets / "large.txt").write_bytes("\r\n\r\n\r\n".join(sections).encode(encoding))
    return folders


class Tokenizer(WordTokenizer):
    """Each word has the same id in each run."""

    def encode(self, texts):
        return encode_words(texts)


def prepare_large(folders, *, keep=True, say=lambda *_: None, stopped=lambda: False, **values):
    settings = training_settings({"name": "a", "data": ["large.txt"], "cutoff": 32, "batch_size": 1, **values})
    card, tokenizer = ModelCard("toy", {}, None, "auto"), Tokenizer(fingerprint="words")
    return prepare(settings, folders, card, tokenizer, say, keep=keep, is_stopped=stopped)


def undivided(folders, limit_parts, **values):
    limit_parts(divided=10**9)
    data = prepare_large(folders, keep=False, **values)
    limit_parts()
    return data


def rows_of(data):
    return [(e.source.name, e.place, e.text, e.ids.tolist()) for e in data.examples]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
def test_examples_and_report_are_those_of_the_undivided_file(folders, limit_parts, keep):
    whole = undivided(folders, limit_parts)
    data = prepare_large(folders, keep=keep)
    assert len(data.examples.sources) > 10 and len(whole.examples.sources) == 1
    assert rows_of(data) == rows_of(whole)
    assert data.examples.digest() == whole.examples.digest()
    assert data.examples.successors() == whole.examples.successors()
    of_parts, of_whole = (
        replace(each.report.sources[0], text=replace(each.report.sources[0].text, maps=()))
        for each in (data, whole)
    )
    assert of_parts == of_whole
    assert [name for name, _ in data.report.sources[0].text.maps] == ["large.txt"]


@pytest.mark.long
def test_stored_parts_are_used_again_and_a_part_that_was_removed_is_read_again(folders):
    said, first = [], rows_of(prepare_large(folders))
    assert rows_of(prepare_large(folders, say=lambda text, _: said.append(text))) == first
    assert said == ["Reading large.txt", "Slicing large.txt", "Using the cached version of large.txt"]
    for file in list(folders.prepared_data.iterdir())[::3]:
        file.unlink()
    assert rows_of(prepare_large(folders)) == first


@pytest.mark.long
def test_where_nothing_is_kept_nothing_stays(folders):
    data = prepare_large(folders, keep=False)
    assert len(list(folders.prepared_data.iterdir())) == 1
    del data
    assert list(folders.prepared_data.iterdir()) == []
    with pytest.raises(DataError, match="nothing left to train on"):
        prepare_large(folders, keep=False, min_chars=100_000)
    assert list(folders.prepared_data.iterdir()) == []


def test_a_section_longer_than_a_part_ends_at_a_paragraph(folders):
    (folders.datasets / "large.txt").write_text("\n\n".join([PROSE * 2] * 30), encoding="utf-8")
    data = prepare_large(folders)
    (source,) = data.report.sources
    assert "They are split at paragraph breaks in " in source.notes[0] and source.text.characters_lost == 0
    ends = [example.ids[-1] for example in data.examples]
    assert ends.count(EOS) == 1 and ends[-1] == EOS
    assert all(len(part.sliced.text) <= 2800 for part in data.examples.sources)


@pytest.mark.long
def test_every_part_is_cleaned(folders, limit_parts):
    write(folders, *[f"{PROSE * 2}\n\n[Illustration: a lamp]\n\n"] * 30)
    suggestions = prepare_large(folders).report.suggestions
    assert any("illustration mark" in s.why and "in its first" in s.why for s in suggestions)
    data = prepare_large(folders, drop_boilerplate=True)
    assert not any("Illustration" in example.text for example in data.examples)
    assert "Dropped from large.txt: 30 illustration marks" in data.report.sources[0].notes[0]
    limit_parts(stretch=4000, part=8000, divided=8000, longest=16_000)
    page = "\n\n".join(textwrap.fill(f"{number} {PROSE}", 60) for number in range(30))
    write(folders, *[page] * 10)
    assert any(s.key == "join_lines" for s in prepare_large(folders).report.suggestions)
    data = prepare_large(folders, join_lines=True)
    joined = "\n\n\n".join(str(source.sliced.text) for source in data.examples.sources)
    assert joined.split() == "\n\n\n".join([page] * 10).split() and len(data.examples.sources) > 1
    assert "\n" not in joined.replace("\n\n\n", "").replace("\n\n", "")


def test_the_user_stops_the_slicing_of_a_part(folders):
    said, looks = [], []

    def stopped() -> bool:
        looks.append(bool(said) and said[-1].startswith("Slicing large.txt: 0 of "))
        return sum(looks) > 1  # not where the part is announced, but while it is sliced

    with pytest.raises(StoppedError):
        prepare_large(folders, say=lambda text, _: said.append(text), stopped=stopped)
    assert said[-1].startswith("Slicing large.txt: 0 of ")
