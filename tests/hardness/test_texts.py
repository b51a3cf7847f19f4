"""Hostile texts and prompt formats: each is used, or refused with a sentence.

TRAINING_PRO_HARDNESS_CASES is the number of cases of each test.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache

import pytest
from training_pro.chunking import SlicingRules
from training_pro.core.errors import DataError, SettingsError
from training_pro.core.host import ModelCard
from training_pro.data.prepare import prepare
from training_pro.data.text import slice_text
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.settings.parsing import training_settings
from training_pro.tests import real_tokenizers
from training_pro.tests.fakes import make_folders
from training_pro.tests.hardness.conftest import MEASURED, resident_megabytes, run_cases
from training_pro.tests.rowing import family

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes the cases")
from hypothesis import strategies as st  # noqa: E402

CASES = int(os.environ.get("TRAINING_PRO_HARDNESS_CASES", "50"))
MAX_SECONDS, MAX_MEGABYTES, MAX_CHARACTERS, MAX_LINE_CHARS = 5, 500, 20_000, 3_000
pytestmark = pytest.mark.timeout(0)


@pytest.fixture
def bounded(proof):
    """A proof that also fails if its worst case took too much time of the processor, or too much memory."""
    proof.clock = time.process_time
    yield proof
    assert not MEASURED or (proof.worst_seconds < MAX_SECONDS and proof.worst_megabytes < MAX_MEGABYTES)


@cache
def encoder(kind: str):
    return make_working_tokenizer(real_tokenizers.TOKENIZERS[kind]()).encode


SIGNS = [
    *("\u200d", "\u200b", "\ufeff", "\ufe0f", "\u0301", "\ufffd", "\U0001f468", "\U0001f3fd", "\x00", "\x1b"),
    *("\U0001f1e9", "\ufdfa", "\u0915\u094d", "e", " ", ". ", "\n", "\n\n\n", "\r\n", "* * *", "Chapter 1\n"),
    *("A long word: " + "w" * 300, '"Well," she said, "no." ', "\u3002", "\u0430\u0431\u0432", "---", "1:1 "),
]
RUNS = st.lists(st.tuples(st.sampled_from(SIGNS), st.sampled_from([1, 1, 2, 20, 60, 2_000])), max_size=20)
RULES = st.builds(
    SlicingRules,
    cutoff=st.integers(3, 64),
    overlap=st.booleans(),
    chunking=st.sampled_from(["blocks", "dementor"]),
    hard_cut=st.sampled_from(["", "\n", "\n\n\n", " ", "e", "* * *"]),
    eos=st.sampled_from([None, 2]),
)


@pytest.mark.long
def test_slicing_of_any_text(bounded, record_property):
    """No block is longer than the cutoff, and every character is in a block or counted as lost."""
    record_property("what", "Slicing of hostile texts")
    kinds = sorted(real_tokenizers.TOKENIZERS)
    for kind in kinds:
        encoder(kind)
    bounded.started_at_megabytes = resident_megabytes()

    def slice_signs(case: tuple[list[tuple[str, int]], SlicingRules, str]) -> None:
        runs, rules, kind = case
        text = "".join(sign * count for sign, count in runs)[:MAX_CHARACTERS]
        with bounded.case(f"{kind}, {rules}: {runs}"):
            sliced = slice_text(text, encoder(kind), rules)
            assert int(sliced.lengths.max(initial=0)) <= rules.cutoff
            places = [(block.start, block.end) for block in sliced] + list(sliced.lost_places())
            seen = set[int]().union(*(range(start, end) for start, end in places))
            missing = "".join(text[number] for number in sorted(set(range(len(text))) - seen))
            assert not "".join(missing.split(rules.hard_cut or None)).strip(), missing[:100]

    run_cases(slice_signs, st.tuples(RUNS, RULES, st.sampled_from(kinds)), CASES)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
COLUMNS = ["instruction", "output", "input", "system", "%", "a b", "\u202e", "", "x" * 300]
PLACEHOLDERS = st.sampled_from([*(f"%{column}%" for column in COLUMNS), "%%", "%", "\n", "<s>", "</s>", "{{ 1 }}"])
PIECES = st.lists(PLACEHOLDERS | st.text(max_size=9), max_size=60).map("".join)
TEMPLATES = st.builds("{}%{}%{}".format, PIECES, st.sampled_from(COLUMNS), PIECES)
FORMATS = st.dictionaries(st.sampled_from(COLUMNS), TEMPLATES, min_size=1, max_size=4) | ANYTHING
BROKEN = st.sampled_from(["", "{", "[" * 100_000, "\ud800", '{"a": 1' + "0" * 5000 + "}"])
ROWS = st.fixed_dictionaries(dict.fromkeys(COLUMNS[:4], st.text(max_size=20) | ANYTHING))
USED_SHARE = 20  # at least one case in so many is used, or the proof shows nothing


def test_any_prompt_format(bounded, record_property, tmp_path):
    """A format fills a row, or is refused with its name; a row that it can't fill is refused as a row."""
    record_property("what", "Hostile prompt formats")
    folders, tokenizer = make_folders(tmp_path), family("ChatML")
    card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
    folders.formats.mkdir(parents=True)
    used = 0

    def use_format(case: tuple[str, dict[str, object], str]) -> None:
        nonlocal used
        content, columns, inline = case
        (folders.formats / "odd.json").write_bytes(content.encode("utf-8", "surrogatepass"))
        (folders.datasets / "a.jsonl").write_text(json.dumps(columns))
        for name in ("odd", inline):
            with bounded.case(f"{name!r}: {content[:300]!r}, {columns}"):
                try:
                    values = {"name": "a", "data": ["a.jsonl"], "cutoff": "auto", "format": name}
                    report = prepare(training_settings(values), folders, card, tokenizer, lambda *_: None).report
                    used += not report.problems
                    said = "\n".join(report.problems)
                except (DataError, SettingsError) as error:
                    said = str(error)
                assert all(len(line) <= MAX_LINE_CHARS + 1 for line in said.splitlines())

    run_cases(use_format, st.tuples(FORMATS.map(json.dumps) | BROKEN, ROWS, TEMPLATES), CASES)
    assert used >= CASES / USED_SHARE
