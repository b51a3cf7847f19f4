"""Context gain: which tokens are measured alone and behind what, written out; and what it comes to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from training_pro.engine.compute.capabilities import Ways
from training_pro.engine.compute.loss import WholeHead
from training_pro.engine.inference.context_gain import context_gain, laters
from training_pro.engine.inference.eval_loop import AtOnce, Pass, measuring
from training_pro.tests import rowing
from training_pro.tests.rowing import chat, family
from transformers import AutoModelForCausalLM

BOOK = "A b c d e f. G h i j k l. M n o p q r. S t u v w x.\n\n\nNew one here at last. And one more of it now."


def kept(root, files, **values):
    """Data sets of their own, kept aside as a whole."""
    tokenizer = family("ChatML")
    asked = {"data": ["t.txt"], "eval_data": list(files), **values}
    return tokenizer, rowing.made(root, tokenizer, {**files, "t.txt": "One."}, **asked).kept_aside


def learned(tokenizer, example):
    return tokenizer.decode([label for label in example.labels.tolist() if label != -100])


def test_later_turns_of_a_conversation(tmp_path):
    talk = chat("Hello there.", "Good day.", "And now?", "Now we wait.", "How long?", "An hour.")
    tokenizer, rows = kept(tmp_path, {"chat.jsonl": [talk, chat("One?", "Only one.")]})
    found = laters(rows, None, 0, rows_too=False)
    replies = ["Now we wait.<|im_end|>", "An hour.<|im_end|>"]
    assert [learned(tokenizer, later.alone) for later in found] == replies
    assert [learned(tokenizer, later.behind) for later in found] == replies
    alone, behind = (tokenizer.decode(side.ids.tolist()) for side in found[0])
    assert alone == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\nNow we wait.<|im_end|>"
    assert behind.endswith("Good day.<|im_end|>" + alone)
    (fits,) = laters(rows, None, len(found[0].behind.ids), rows_too=False)
    assert fits.behind.ids.tolist() == found[0].behind.ids.tolist()


def test_a_turn_alone_keeps_the_start_token(tmp_path):
    _, rows = kept(tmp_path, {"chat.jsonl": [chat("A", "B.", "C", "D.")]})
    first = int(rows[0].ids[0])
    (later,) = laters(rows, first, 0, rows_too=False)
    (bare,) = laters(rows, None, 0, rows_too=False)
    assert later.alone.ids.tolist() == [first, *bare.alone.ids.tolist()]
    assert later.behind.ids.tolist() == bare.behind.ids.tolist()


@pytest.mark.parametrize("overlap", [False, True])
def test_blocks_behind_the_one_that_ends_where_they_begin(tmp_path, overlap):
    tokenizer, text = kept(tmp_path, {"book.txt": BOOK}, cutoff=16, overlap=overlap)
    found = laters(text, None, 0, rows_too=False)
    for alone, behind in found:
        assert learned(tokenizer, alone) == learned(tokenizer, behind)
        assert behind.ids[-len(alone.ids) :].tolist() == alone.ids.tolist()
        assert alone.labels[0] == -100
    spans = [e.source.sliced[e.number] for e in text]
    pairs = [
        (a, b)
        for a, one in enumerate(spans)
        for b, other in enumerate(spans)
        if one.end == other.start and one.section == other.section
    ]
    blocks = [span.section for span in spans if span.kind == "block"]
    assert len(pairs) >= len(blocks) - len(set(blocks)) > 0
    wanted = [[*text[a].ids, *text[b].ids] for a, b in pairs]
    assert [later.behind.ids.tolist() for later in found] == wanted


def test_rows_that_follow_each_other_only_where_order_is_learned(tmp_path):
    _, rows = kept(tmp_path, {"rows.jsonl": [chat(f"Q{n}", f"A{n}.") for n in range(4)]})
    assert laters(rows, None, 0, rows_too=False) == []
    assert len(laters(rows, None, 0, rows_too=True)) == 3


def test_a_window_goes_on_from_the_one_that_ends_where_it_begins(tmp_path):
    book = " ".join(f"Word {n} stands here and there." for n in range(12))
    _, text = kept(tmp_path, {"book.txt": book}, cutoff=32, chunking="dementor", overlap=False)
    windows = [e.source.sliced[e.number] for e in text]
    wanted = [
        [*a.ids, *b.ids]
        for a, one in zip(text, windows, strict=True)
        for b, other in zip(text, windows, strict=True)
        if one.end == other.start
    ]
    assert any(a.end > b.start for a, b in pairwise(windows))
    assert [later.behind.ids.tolist() for later in laters(text, None, 0, rows_too=False)] == wanted
    assert wanted


def test_it_is_the_mean_loss_alone_less_that_behind(tmp_path, tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    chance = np.random.default_rng(1)
    _, text = kept(tmp_path, {"book.txt": BOOK}, cutoff=16, overlap=False)
    found = [_other_ids(later, chance) for later in laters(text, None, 0, rows_too=False)]
    passing = Pass(model, Ways(WholeHead(), packed=True), AtOnce(2), lambda: False)
    with measuring(model):
        gain = context_gain(passing, found)
    alone, behind = (_mean(model, [getattr(later, side) for later in found]) for side in ("alone", "behind"))
    assert gain == pytest.approx(alone - behind, abs=1e-5)
    assert abs(gain) > 1e-4
    assert context_gain(passing, []) is None


def _other_ids(later, chance):
    """Ids that the tiny model knows, in the same places."""
    ids = chance.integers(3, 200, len(later.behind.ids)).astype(np.int32)
    alone = replace(later.alone, ids=ids[-len(later.alone.ids) :])
    return later._replace(alone=alone, behind=replace(later.behind, ids=ids))


def _mean(model, examples):
    losses = []
    for example in examples:
        ids, labels = (torch.as_tensor(x, dtype=torch.long) for x in (example.ids, example.labels))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1]
        found = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="none")
        losses += found[labels[1:] != -100].tolist()
    return sum(losses) / len(losses)
