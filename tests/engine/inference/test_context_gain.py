"""Context gain: which tokens are measured alone and after which context, and the result."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from training_pro.engine.compute import ModelCapabilities
from training_pro.engine.compute.loss import FullLogitsLoss
from training_pro.engine.inference.context_gain import continuation_pairs, measure_context_gain
from training_pro.engine.inference.eval_loop import BatchLimit, EvalLoop, evaluation_context
from training_pro.tests import rowing
from training_pro.tests.rowing import chat, family
from transformers import AutoModelForCausalLM

BOOK = "A b c d e f. G h i j k l. M n o p q r. S t u v w x.\n\n\nNew one here at last. And one more of it now."


def validation_split(root, files, **values):
    """Datasets that are the validation split as a whole."""
    tokenizer = family("ChatML")
    settings = {"data": ["t.txt"], "eval_data": list(files), **values}
    return tokenizer, rowing.prepare_rows(root, tokenizer, {**files, "t.txt": "One."}, **settings).validation


def learned_text(tokenizer, example):
    return tokenizer.decode([label for label in example.labels.tolist() if label != -100])


def test_later_turns_of_a_conversation(tmp_path):
    conversation = chat("Hello there.", "Good day.", "And now?", "Now we wait.", "How long?", "An hour.")
    tokenizer, rows = validation_split(tmp_path, {"chat.jsonl": [conversation, chat("One?", "Only one.")]})
    pairs = continuation_pairs(rows, None, 0, rows_too=False)
    replies = ["Now we wait.<|im_end|>", "An hour.<|im_end|>"]
    assert [learned_text(tokenizer, pair.alone) for pair in pairs] == replies
    assert [learned_text(tokenizer, pair.with_context) for pair in pairs] == replies
    alone, with_context = (tokenizer.decode(example.ids.tolist()) for example in pairs[0])
    assert alone == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\nNow we wait.<|im_end|>"
    assert with_context.endswith("Good day.<|im_end|>" + alone)
    (fits,) = continuation_pairs(rows, None, len(pairs[0].with_context.ids), rows_too=False)
    assert fits.with_context.ids.tolist() == pairs[0].with_context.ids.tolist()


def test_a_turn_alone_keeps_the_start_token(tmp_path):
    _, rows = validation_split(tmp_path, {"chat.jsonl": [chat("A", "B.", "C", "D.")]})
    first = int(rows[0].ids[0])
    (pair,) = continuation_pairs(rows, first, 0, rows_too=False)
    (without_bos,) = continuation_pairs(rows, None, 0, rows_too=False)
    assert pair.alone.ids.tolist() == [first, *without_bos.alone.ids.tolist()]
    assert pair.with_context.ids.tolist() == without_bos.with_context.ids.tolist()


@pytest.mark.parametrize("overlap", [False, True])
def test_blocks_after_the_block_that_ends_where_they_begin(tmp_path, overlap):
    tokenizer, text = validation_split(tmp_path, {"book.txt": BOOK}, cutoff=16, overlap=overlap)
    continuations = continuation_pairs(text, None, 0, rows_too=False)
    for alone, with_context in continuations:
        assert learned_text(tokenizer, alone) == learned_text(tokenizer, with_context)
        assert with_context.ids[-len(alone.ids) :].tolist() == alone.ids.tolist()
        assert alone.labels[0] == -100
    spans = [e.source.sliced[e.number] for e in text]
    pairs = [
        (a, b)
        for a, first in enumerate(spans)
        for b, second in enumerate(spans)
        if first.end == second.start and first.section == second.section
    ]
    blocks = [span.section for span in spans if span.kind == "block"]
    assert len(pairs) >= len(blocks) - len(set(blocks)) > 0
    expected = [[*text[a].ids, *text[b].ids] for a, b in pairs]
    assert [pair.with_context.ids.tolist() for pair in continuations] == expected


def test_consecutive_rows_only_where_order_is_learned(tmp_path):
    _, rows = validation_split(tmp_path, {"rows.jsonl": [chat(f"Q{n}", f"A{n}.") for n in range(4)]})
    assert continuation_pairs(rows, None, 0, rows_too=False) == []
    assert len(continuation_pairs(rows, None, 0, rows_too=True)) == 3


def test_windows_after_the_window_that_ends_where_they_begin(tmp_path):
    book = " ".join(f"Word {n} stands here and there." for n in range(12))
    _, text = validation_split(tmp_path, {"book.txt": book}, cutoff=32, chunking="dementor", overlap=False)
    windows = [e.source.sliced[e.number] for e in text]
    expected = [
        [*a.ids, *b.ids]
        for a, first in zip(text, windows, strict=True)
        for b, second in zip(text, windows, strict=True)
        if first.end == second.start
    ]
    assert any(a.end > b.start for a, b in pairwise(windows))
    assert [
        pair.with_context.ids.tolist() for pair in continuation_pairs(text, None, 0, rows_too=False)
    ] == expected
    assert expected


def test_it_is_the_mean_loss_alone_minus_that_with_context(tmp_path, tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    rng = np.random.default_rng(1)
    _, text = validation_split(tmp_path, {"book.txt": BOOK}, cutoff=16, overlap=False)
    pairs = [_with_random_ids(pair, rng) for pair in continuation_pairs(text, None, 0, rows_too=False)]
    eval_loop = EvalLoop(model, ModelCapabilities(FullLogitsLoss(), packed=True), BatchLimit(2), lambda: False)
    with evaluation_context(model):
        gain = measure_context_gain(eval_loop, pairs)
    alone, with_context = (
        _mean_loss(model, [getattr(pair, side) for pair in pairs]) for side in ("alone", "with_context")
    )
    assert gain == pytest.approx(alone - with_context, abs=1e-5)
    assert abs(gain) > 1e-4
    assert measure_context_gain(eval_loop, []) is None


def _with_random_ids(pair, rng):
    """Replace the ids by random ones from the vocabulary of the tiny model."""
    ids = rng.integers(3, 200, len(pair.with_context.ids)).astype(np.int32)
    alone = replace(pair.alone, ids=ids[-len(pair.alone.ids) :])
    return pair._replace(alone=alone, with_context=replace(pair.with_context, ids=ids))


def _mean_loss(model, examples):
    losses = []
    for example in examples:
        ids, labels = (torch.as_tensor(x, dtype=torch.long) for x in (example.ids, example.labels))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1]
        token_losses = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="none")
        losses += token_losses[labels[1:] != -100].tolist()
    return sum(losses) / len(losses)
