"""Large texts are prepared in parts, which have the blocks of the whole text, in any number of processes."""

from __future__ import annotations

import random
import textwrap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training_pro.chunking import SlicedText, SlicingRules
from training_pro.core.errors import DataError, StoppedError
from training_pro.core.host import ModelCard
from training_pro.data import arrow_store, large_texts
from training_pro.data.arrow_store import Store
from training_pro.data.cleaning import Cleaning
from training_pro.data.examples import find_shared_passages
from training_pro.data.prepare import prepare
from training_pro.data.report import TextReport
from training_pro.data.rows import PortableEncoder
from training_pro.data.stored_text import StoredText
from training_pro.data.text import (
    build_slice_map,
    join_maps,
    read_stretches,
    sentences,
    slice_part,
    slice_parts,
    slice_text,
)
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import BOS, EOS, WordTokenizer, make_folders
from training_pro.tests.slicing_laws import encode_bytes, encode_words, random_rules, random_text

pytest.importorskip("pyarrow", reason="the parts of large texts are Arrow files")

PORTABLE = PortableEncoder("tests.slicing_laws.make_word_encoder", "")
VERSE = "And the river ran\n    softly by the mill,\nO the long way home\n"
CHAT = "Anna: hi there\nBob: hey. how are you\nAnna: fine, and you\n"
PROSE = "The keeper slept. The lamp went out, and nobody came. It rained all night. "


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Stretches and parts of about a thousand characters, so that short texts have many."""
    limit_parts(monkeypatch, stretch=400, part=1000)


def limit_parts(monkeypatch, stretch: int, part: int, longest: int = 0) -> None:
    monkeypatch.setattr(sentences, "STRETCH_CHARS", stretch)
    monkeypatch.setattr(large_texts, "DIVIDED_BYTES", part)
    monkeypatch.setattr(large_texts, "PART_CHARS", part)
    monkeypatch.setattr(large_texts, "MAX_PART_CHARS", longest or 2 * part)


def mixed_text(seed: int) -> str:
    """Prose, verse, chats and random text with hard cuts and line ends between them."""
    rng = random.Random(seed)
    kinds = [PROSE, VERSE, CHAT, "CHAPTER IV.\n\n", "1. a\n2. b\n", "See p.\n\n\n5 of it. Then more.\n"]
    pieces = []
    for _ in range(rng.randrange(10, 80)):
        pieces.append(
            rng.choice(kinds) * rng.randrange(1, 4) if rng.random() < 0.7 else random_text(rng.random(), 30) + "\n"
        )
        pieces.append(rng.choice(["\n", "\n\n", "\n\n\n", "\n\n\n\n", " ###\n", "###", "\n\n\n \n\n\n"]))
    return "".join(pieces)


def parts_of(text: str, hard_cut: str, store: Store) -> list[StoredText]:
    stretches = read_stretches(text[place : place + 77] for place in range(0, len(text), 77))
    return [
        StoredText.save(
            store,
            "".join(part.stretches),
            part.start,
            part.end,
            tuple(np.cumsum([*map(len, part.stretches)]).tolist()),
        )
        for part in large_texts.divide(stretches, hard_cut)
    ]


def blocks_of(sliced: SlicedText, start: int = 0) -> list[tuple[Any, ...]]:
    return [
        (
            block.start + start,
            block.end + start,
            block.kind,
            block.ends_section,
            sliced.text_of(block),
            sliced.ids_of(block).tolist(),
        )
        for block in sliced
    ]


@pytest.mark.parametrize("block_ends", ["auto", "sentences", "lines"])
@pytest.mark.parametrize("seed", range(80))
def test_the_blocks_of_the_parts_are_those_of_the_whole_text(tmp_path, monkeypatch, seed, block_ends):
    limit_parts(monkeypatch, 400, 1000, longest=10**9)
    text = mixed_text(seed)
    assert [text[a:b] for a, b in sentences.split_stretches(text)] == list(read_stretches([text]))
    rules = replace(
        random_rules(seed, BOS, EOS), hard_cut=random.Random(seed).choice(["\n\n\n", "###"]), block_ends=block_ends
    )
    encoder = encode_words if seed % 2 else encode_bytes
    whole = slice_text(text, encoder, rules)
    texts = parts_of(text, rules.hard_cut, Store(tmp_path))
    if not texts:
        return
    parts, _ = slice_parts(texts, rules, "a", lambda jobs: [slice_part(job, encoder) for job in jobs])
    starts = np.cumsum([0, *map(len, texts)]).tolist()
    assert "".join(map(str, texts)).strip() == text.strip()
    assert [
        block for part, start in zip(parts, starts, strict=False) for block in blocks_of(part, start)
    ] == blocks_of(whole)
    assert sum(part.lost for part in parts) == whole.lost
    assert sum(part.left_out_characters for part in parts) == whole.left_out_characters
    assert sum(len(part.sections) for part in parts) == len(whole.sections)
    assert sum(int(part.sections.by_lines.sum()) for part in parts) == int(whole.sections.by_lines.sum())


def test_short_sections_are_judged_by_the_whole_text(tmp_path):
    """The beginning is a chat, but most of the text is prose, so parts with short sections are sliced twice."""
    text = CHAT * 10 + "\n\n\n" + "\n\n\n".join(["Tom: one\nand two\n", PROSE * 2] * 60)
    sliced = []

    def slice_all(jobs):
        sliced.append(len(jobs))
        for job in jobs:
            slice_part(job, encode_words)

    rules, texts = SlicingRules(cutoff=32), parts_of(text, "\n\n\n", Store(tmp_path))
    parts, stored = slice_parts(texts, rules, "a", slice_all)
    assert len(texts) > 10 and sliced == [len(texts)] * 2 and not stored
    by_lines = [flag for part in parts for flag in part.sections.by_lines.tolist()]
    assert by_lines == slice_text(text, encode_words, rules).sections.by_lines.tolist() == [True] + [False] * 120
    assert slice_parts(texts, rules, "a", slice_all)[1]
    assert len(sliced) == 2


def test_a_stored_part_reads_as_the_text_it_is_of(tmp_path):
    text = "".join(random_text(seed) for seed in range(40))
    stored = StoredText.save(Store(tmp_path), text, 7, len(text) - 9, (len(text),))
    part = text[7:-9]
    assert (str(stored), len(stored), stored.with_stretches()) == (part, len(part), text)
    for start in (0, 1, 4088, 4089, 4090, 5000, len(part) - 3, len(part)):
        for length in (0, 1, 50, 5000):
            assert stored[start : start + length] == part[start : start + length]
    assert stored[-3:] == part[-3:]


def test_the_map_of_a_text_by_its_parts(tmp_path, monkeypatch):
    text = PROSE * 5 + "\n\n\n" + "\n\n\n".join([PROSE * 3] * 20)
    rules, texts = SlicingRules(cutoff=16), parts_of(text, "\n\n\n", Store(tmp_path))
    parts, _ = slice_parts(texts, rules, "a", lambda jobs: [slice_part(job, encode_words) for job in jobs])
    joined, whole = (
        join_maps([build_slice_map(part) for part in parts]),
        build_slice_map(slice_text(text, encode_words, rules)),
    )
    assert np.allclose(joined.hard_cuts, whole.hard_cuts)
    assert np.allclose(joined.seen_along, whole.seen_along, atol=1.0) and len(joined.seen_along) == len(
        whole.seen_along
    )
    assert np.isclose(np.mean(joined.seen_along), np.mean(whole.seen_along), atol=0.01)
    assert np.isclose(joined.seen.mean, whole.seen.mean, atol=0.02)
    exact = {"hard_cuts": (), "seen_along": (), "bars": (), "seen": None}
    assert replace(joined, **exact) == replace(whole, **exact)


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    lines = [f"Section {number} begins. {PROSE * 4}It ends with {number}." for number in range(60)]
    (result.datasets / "large.txt").write_bytes("\r\n\r\n\r\n".join(lines).encode())
    return result


class Tokenizer(WordTokenizer):
    """Ids that other processes give, too."""

    def encode(self, texts):
        return encode_words(texts)


def prepare_large(
    folders, *, keep=True, processes=1, portable=PORTABLE, say=lambda *_: None, stopped=lambda: False, **values
):
    settings = training_settings({"name": "a", "data": ["large.txt"], "cutoff": 32, "batch_size": 1, **values})
    tokenizer = Tokenizer(fingerprint="words", portable=portable)
    card = ModelCard("toy", {}, None, "auto")
    return prepare(settings, folders, card, tokenizer, say, keep=keep, processes=processes, is_stopped=stopped)


def rows_of(data) -> list[tuple[Any, ...]]:
    return [(e.source.name, e.place, e.text, e.ids.tolist()) for e in data.examples]


def undivided(folders, monkeypatch, **values):
    with monkeypatch.context() as patch:
        patch.setattr(large_texts, "DIVIDED_BYTES", 10**9)
        return prepare_large(folders, keep=False, **values)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("portable", [PORTABLE, None], ids=["workers", "here"])
def test_examples_and_report_are_those_of_the_undivided_file(folders, monkeypatch, processes, keep, portable):
    whole = undivided(folders, monkeypatch)
    data = prepare_large(folders, keep=keep, processes=processes, portable=portable)
    assert len(data.examples.sources) > 10 and len(whole.examples.sources) == 1
    assert rows_of(data) == rows_of(whole)
    assert data.examples.digest() == whole.examples.digest()
    assert data.examples.successors() == whole.examples.successors()
    (source,), (expected,) = data.report.sources, whole.report.sources
    assert replace(source, text=without_means(source.text)) == replace(expected, text=without_means(expected.text))
    assert [name for name, _ in source.text.maps] == ["large.txt"]


def without_means(text: TextReport) -> TextReport:
    """The figures of a text that are not rounded."""
    return replace(text, maps=(), seen_mean=0.0)


def test_stored_parts_are_used_again(folders):
    said = []
    first = rows_of(prepare_large(folders))
    again = rows_of(prepare_large(folders, say=lambda text, _: said.append(text)))
    assert again == first
    assert said == ["Reading large.txt", "Slicing large.txt", "Using the cached version of large.txt"]


def test_a_part_that_was_removed_is_read_again(folders):
    first = rows_of(prepare_large(folders))
    for file in list(folders.prepared_data.iterdir())[::3]:
        file.unlink()
    assert rows_of(prepare_large(folders)) == first


def test_where_nothing_is_kept_nothing_stays(folders):
    data = prepare_large(folders, keep=False)
    assert len(list(folders.prepared_data.iterdir())) == 1
    assert data.examples[0].text.startswith("Section 0 begins.")
    del data
    assert list(folders.prepared_data.iterdir()) == []


def test_a_file_too_large_for_the_store_is_not_kept(folders, monkeypatch):
    monkeypatch.setattr(large_texts, "STORED_BYTES_PER_BYTE", 10**9)
    data = prepare_large(folders)
    assert sum(path.name.startswith(".run-") for path in folders.prepared_data.iterdir()) == 1
    assert len(data.examples) > 100


def test_a_temporary_store_where_the_folder_is_read_only(tmp_path):
    (tmp_path / "file").write_text("no folder can be made in it")
    folder = Store.temporary(tmp_path / "file").folder
    assert tmp_path not in folder.parents and not folder.exists()


def test_folders_that_a_crash_left_behind_are_removed(tmp_path, monkeypatch):
    (tmp_path / ".run-a").mkdir()
    store = Store.temporary(tmp_path)
    assert (tmp_path / ".run-a").exists()
    monkeypatch.setattr(arrow_store, "STALE_PART_SECONDS", -1)
    other = Store.temporary(tmp_path / "other")
    assert store.folder.exists() and other.folder.exists()
    assert Store.temporary(tmp_path).folder != store.folder
    assert not (tmp_path / ".run-a").exists()


def test_a_validation_split_has_the_sections_of_the_undivided_file(folders, monkeypatch):
    def sides(data):
        return [sorted((e.text, tuple(e.ids.tolist())) for e in side) for side in (data.examples, data.validation)]

    data = prepare_large(folders, eval_share=0.2)
    assert sides(data) == sides(undivided(folders, monkeypatch, eval_share=0.2))
    assert all(len(side) for side in sides(data))
    assert len(data.validation.sources) <= len(data.examples.sources) < 60


def test_a_section_longer_than_a_part_ends_at_a_paragraph(folders):
    (folders.datasets / "large.txt").write_text("\n\n".join([PROSE * 2] * 30), encoding="utf-8")
    data = prepare_large(folders)
    (source,) = data.report.sources
    assert "They are split at paragraph breaks in " in source.notes[0]
    assert source.text.characters_lost == 0
    ends = [example.ids[-1] for example in data.examples if example.text.endswith("night. ") or 1]
    assert ends.count(EOS) == 1 and ends[-1] == EOS
    assert all(len(part.sliced.text) <= 2800 for part in data.examples.sources)


def test_boilerplate_is_dropped_from_every_part(folders):
    pages = [f"{PROSE * 2}\n\n[Illustration: a lamp]\n\n"] * 30
    (folders.datasets / "large.txt").write_text("\n\n\n".join(pages), encoding="utf-8")
    found = prepare_large(folders).report
    assert any("illustration mark" in s.why and "in its first" in s.why for s in found.suggestions)
    data = prepare_large(folders, drop_boilerplate=True)
    assert not any("Illustration" in example.text for example in data.examples)
    assert "Dropped from large.txt: 30 illustration marks" in data.report.sources[0].notes[0]


def test_wrapped_lines_are_joined_in_every_part(folders, monkeypatch):
    limit_parts(monkeypatch, stretch=4000, part=8000)
    page = "\n\n".join(textwrap.fill(f"{number} {PROSE}", 60) for number in range(30))
    (folders.datasets / "large.txt").write_text("\n\n\n".join([page] * 10), encoding="utf-8")
    assert any(s.key == "join_lines" for s in prepare_large(folders).report.suggestions)
    data = prepare_large(folders, join_lines=True)
    assert len(data.examples.sources) > 1
    joined = "\n\n\n".join(str(source.sliced.text) for source in data.examples.sources)
    assert joined.split() == "\n\n\n".join([page] * 10).split()
    assert f"0 {PROSE.strip()}" in joined and "\n" not in joined.replace("\n\n\n", "").replace("\n\n", "")
    assert "Joined the lines of large.txt" in data.report.sources[0].notes[-1]


def test_other_encodings_and_line_ends(folders, monkeypatch):
    text = "\r\n\r\n\r\n".join(f"Überall {number} blüht's. {PROSE * 3}" for number in range(30))
    for encoding in ("utf-8-sig", "utf-16", "cp1252"):
        (folders.datasets / "large.txt").write_bytes(text.encode(encoding))
        assert rows_of(prepare_large(folders)) == rows_of(undivided(folders, monkeypatch))


def test_text_in_both_sides_is_found(tmp_path):
    store, text = Store(tmp_path), " ".join(f"word{number}" for number in range(40))
    stored = StoredText.save(store, text, 0, len(text), (len(text),))
    assert find_shared_passages([stored], [text]) == find_shared_passages([text], [text]) != []


def test_the_user_stops_the_processes(folders):
    psutil = pytest.importorskip("psutil")
    said = []
    with pytest.raises(StoppedError):
        prepare_large(folders, processes=2, say=lambda text, _: said.append(text), stopped=lambda: len(said) > 2)
    assert said[-1].startswith("Slicing large.txt: 0 of ")
    assert [
        child for child in psutil.Process().children() if "data.workers.child" in " ".join(child.cmdline())
    ] == []


def test_after_an_error_nothing_of_a_run_stays(folders):
    with pytest.raises(DataError, match="nothing left to train on"):
        prepare_large(folders, keep=False, min_chars=100_000)
    assert list(folders.prepared_data.iterdir()) == []


def test_parts_of_a_process_that_ends_are_sliced_here(folders, monkeypatch, caplog):
    whole = rows_of(undivided(folders, monkeypatch))
    broken = PortableEncoder("tests.slicing_laws.no_such_function", "")
    assert rows_of(prepare_large(folders, portable=broken, processes=2)) == whole
    assert "no_such_function" in caplog.text


def test_where_no_process_starts_parts_are_sliced_here(folders, monkeypatch):
    monkeypatch.setattr("sys.executable", str(folders.datasets / "no-python"))
    assert rows_of(prepare_large(folders)) == rows_of(undivided(folders, monkeypatch))


def test_a_full_disk_is_said(folders, monkeypatch):
    monkeypatch.setattr(Store, "save", lambda *_: None)
    with pytest.raises(DataError, match="Free some disk space"):
        prepare_large(folders)


def test_an_encoder_of_a_real_tokenizer_in_another_process():
    tokenizers = pytest.importorskip("tokenizers")
    from training_pro.engine.tokenizer import load_encoder

    model = tokenizers.models.WordLevel({"the": 0, "[UNK]": 1}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    [encoded] = load_encoder(backend.to_str())(["the keeper"])
    assert encoded.ids.tolist() == [0, 1] and encoded.ends.tolist() == [3, 10]


def test_no_part_loses_a_book_as_a_notice(tmp_path):
    start, end = (f"*** {word} THE PROJECT GUTENBERG EBOOK A ***" for word in ("START OF", "END OF"))
    books = [f"Book {number}. {PROSE * 30}".strip() for number in range(12)]
    file = tmp_path / "books.txt"
    file.write_text("\n\n\n".join(f"{start}\n\n\n{book}\n\n\n{end}\nLicense." for book in books))
    parts = large_texts.load_parts(file, "books.txt", "\n\n\n", Store(tmp_path), Cleaning(drop_boilerplate=True))
    kept = "\n".join(str(part.text) for part in parts)
    assert len(parts) > 5 and [book in kept for book in books] == [True] * 12
    assert "PROJECT" not in kept
