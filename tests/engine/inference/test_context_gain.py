"""Context gain: which tokens are measured alone and after which context, and the result."""

from __future__ import annotations

import pytest
from training_pro.core.jobs import EvaluationDone, Job
from training_pro.engine.inference import continuation_pairs
from training_pro.tests import rowing
from training_pro.tests.engine.inference.references import losses_and_hits, mean, prepared
from training_pro.tests.rowing import chat, family

BOOK = "A b c d e f. G h i j k l. M n o p q r. S t u v w x.\n\n\nNew one here at last. And one more of it now."


def validation_split(root, files, **values):
    """Datasets that are the validation split as a whole."""
    settings = {"data": ["t.txt"], "eval_data": list(files), **values}
    return rowing.prepare_rows(root, family("ChatML"), {**files, "t.txt": "One."}, **settings).validation


def learned_text(example):
    return family("ChatML").decode([label for label in example.labels.tolist() if label != -100])


def test_later_turns_of_a_conversation(tmp_path):
    conversation = chat("Hello there.", "Good day.", "And now?", "Now we wait.", "How long?", "An hour.")
    rows = validation_split(tmp_path, {"chat.jsonl": [conversation, chat("One?", "Only one.")]})
    pairs = continuation_pairs(rows, None, 0, rows_too=False)
    assert len(continuation_pairs(rows, None, 0, rows_too=True)) == 3  # with the second row after the first
    replies = ["Now we wait.<|im_end|>", "An hour.<|im_end|>"]
    assert [learned_text(pair.alone) for pair in pairs] == replies
    assert [learned_text(pair.with_context) for pair in pairs] == replies
    alone, with_context = (family("ChatML").decode(example.ids.tolist()) for example in pairs[0])
    assert alone == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\nNow we wait.<|im_end|>"
    assert with_context.endswith("Good day.<|im_end|>" + alone)
    assert len(continuation_pairs(rows, None, len(pairs[0].with_context.ids), rows_too=False)) == 1  # that fit


@pytest.mark.parametrize(
    ("book", "more"),
    [
        (BOOK, {"cutoff": 16, "overlap": True}),
        (BOOK, {"cutoff": 16, "overlap": False}),
        (" ".join(f"Word {n} stands here and there." for n in range(12)), {"cutoff": 32, "chunking": "dementor"}),
    ],
)
def test_blocks_and_windows_after_the_one_that_ends_where_they_begin(tmp_path, book, more):
    text = validation_split(tmp_path, {"book.txt": book}, **{"overlap": False, **more})
    spans = [e.source.sliced[e.number] for e in text]
    expected = [
        [*a.ids, *b.ids]
        for a, first in zip(text, spans, strict=True)
        for b, second in zip(text, spans, strict=True)
        if first.end == second.start and first.section == second.section
    ]
    pairs = continuation_pairs(text, None, 0, rows_too=False)
    assert [pair.with_context.ids.tolist() for pair in pairs] == expected != []
    assert all(learned_text(pair.alone) == learned_text(pair.with_context) for pair in pairs)


def test_an_evaluation_has_the_mean_loss_alone_minus_that_with_context(place):
    place.write("book.txt", BOOK)
    more = {"eval_data": ["book.txt"], "cutoff": 16, "max_steps": 1}
    job = Job("training", "a test")
    place.train(job=job, **more)
    before = next(event for event in job.log.since(0) if isinstance(event, EvaluationDone))
    model = place.host().loaded_model().model.eval()
    pairs = continuation_pairs(prepared(place, **more).validation, None, 0, rows_too=False)
    alone, with_context = (mean(losses_and_hits(model, side)[0]) for side in zip(*pairs, strict=True))
    assert before.context_gain == pytest.approx(alone - with_context, abs=1e-5)
    assert abs(before.context_gain) > 1e-4
