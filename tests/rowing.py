"""Helpers for tests of rows: tokenizers with chat templates, and datasets written to a folder."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from training_pro.core.host import ModelCard
from training_pro.data.examples import IGNORE_INDEX
from training_pro.data.prepare import TrainingData, prepare
from training_pro.engine.tokenizer import WorkingTokenizer, make_working_tokenizer
from training_pro.settings.parsing import training_settings
from training_pro.tests import real_tokenizers
from training_pro.tests.fakes import make_folders

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
THINKING = (  # as Qwen 3 does: thoughts are kept in the last reply only
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}"
    "{% if loop.last %}<think>{{ parts[0].split('<think>')[-1] if parts | length > 1 }}</think>\n\n{% endif %}"
    "{{ parts[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
LLAMA_3_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def with_template(
    tokenizer: Any, template: str | None, tokens: Sequence[str] = (), eos: str = ""
) -> WorkingTokenizer:
    copied = copy.deepcopy(tokenizer)
    copied.add_tokens(list(tokens), special_tokens=True)
    copied.chat_template = template
    if eos:
        copied.eos_token = eos
    return make_working_tokenizer(copied)


@cache
def family(name: str) -> WorkingTokenizer:
    """A tokenizer with its chat template: byte-level ones, and Metaspace with byte fallback for Mistral."""
    if name == "ChatML":
        return with_template(real_tokenizers.small_byte_level(), CHATML, CHATML_TOKENS, "<|im_end|>")
    if name == "Llama-3":
        return with_template(real_tokenizers.tekken(), LLAMA_3, LLAMA_3_TOKENS, "<|eot_id|>")
    return with_template(real_tokenizers.metaspace(), MISTRAL)


FAMILIES = ("ChatML", "Llama-3", "Mistral")


def prepare_rows(
    root: Path, tokenizer: WorkingTokenizer, files: dict[str, Any], *, config: Any = None, **values: Any
) -> TrainingData:
    """The training data of these files: texts as they are, lists as JSON (or JSONL, by their suffix)."""
    folders = make_folders(root)
    for name, content in files.items():
        path = folders.datasets / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else as_json(name, content), encoding="utf-8")
    settings = training_settings({"name": "a", "data": list(files), **values})
    card = ModelCard("toy", config or {}, tokenizer.tokenizer, "auto")
    return prepare(settings, folders, card, tokenizer, lambda text, share: None)


def as_json(name: str, rows: Any) -> str:
    if name.endswith(".jsonl"):
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return json.dumps(rows, ensure_ascii=False)


def chat(*contents: str, system: str = "", **columns: Any) -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *turns], **columns}


def token_strings(tokenizer: WorkingTokenizer, ids: Any) -> list[str]:
    """The token string of each id."""
    return [tokenizer.tokenizer.convert_ids_to_tokens(int(number)) for number in ids]


def learned_text(tokenizer: WorkingTokenizer, example: Any) -> str:
    """The learned text of an example, with a | between unbroken runs."""
    runs: list[list[int]] = [[]]
    for label in example.labels.tolist():
        if label == IGNORE_INDEX:
            runs.append([])
        else:
            runs[-1].append(label)
    return "|".join(tokenizer.decode(run) for run in runs if run)
