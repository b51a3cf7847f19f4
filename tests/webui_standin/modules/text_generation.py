"""Answers in the chat, under the lock that everybody takes who uses the model."""

from __future__ import annotations

from collections.abc import Iterator

from modules import shared

TOKENS = 8


def generate_reply(question: str) -> Iterator[str]:
    assert shared.generation_lock is not None
    with shared.generation_lock:
        if shared.model is None:
            yield "No model is loaded!"
            return
        ids = shared.tokenizer(question, return_tensors="pt").input_ids
        written = shared.model.generate(input_ids=ids, max_new_tokens=TOKENS, do_sample=False)
        yield shared.tokenizer.decode(written[0])
