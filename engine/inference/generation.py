"""Answers of the model, with the LoRA and without, piece by piece as they are written."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextStreamer, set_seed

from ...core.engine import Question
from ...core.errors import ModelError
from ...core.host import Host
from ...core.jobs import Answer, Ended, Job, Stage
from ...data.rows import Prompt, Speaking, in_a_chat
from ...records.folder import how_to_talk
from ..lora import in_its_type, loaded_onto, lora_folder, take_out, without_loras
from ..tokenizer import WorkingTokenizer, working_tokenizer

Side = Literal["with", "without"]


def answer(question: Question, host: Host, job: Job) -> Ended:
    """The same question to the model with the LoRA and without; everything as it was afterwards."""
    working = working_tokenizer(host.card().tokenizer, host.chat_template())
    ids, tokenizer = torch.tensor([_asked(question, host, working).ids]), working.tokenizer
    with without_loras(host) as (base, _):
        if question.both or not question.lora:
            job.log.append(Stage(text="Answering without a LoRA"))
            _write(base, ids, "without", question, tokenizer, job)
        if question.lora and not job.control.stopping:
            _with_lora(base, ids, question, tokenizer, host, job)
    return Ended(outcome="stopped" if job.control.stopping else "finished", text="")


def _asked(question: Question, host: Host, tokenizer: WorkingTokenizer) -> Prompt:
    """A message as it would have stood in training; of a text, markers that somebody types are understood."""
    if question.as_chat:
        return _way_to_talk(question, host, tokenizer).prompt(question.prompt, tokenizer)
    own = tokenizer.tokenizer
    text = question.prompt or own.bos_token or own.eos_token or " "
    return Speaking("format", bos=tokenizer.bos).prompt(text, tokenizer)


def _way_to_talk(question: Question, host: Host, tokenizer: WorkingTokenizer) -> Speaking:
    """The LoRA's, for both answers; else the model's, as it would be trained on chats."""
    talk = how_to_talk(lora_folder(question.lora, host)) if question.lora else None
    if talk is not None:
        bos = tokenizer.bos if talk.starts_with_bos else None
        return Speaking("chat", before=talk.before, after=talk.after, bos=bos)
    way = in_a_chat(tokenizer, tokenizer.bos)
    if way is None:
        raise ModelError(
            f"No message can be written with {tokenizer.chat_template.origin}. Ask without 'As a chat message'."
        )
    return way


def _with_lora(base: Any, ids: torch.Tensor, question: Question, tokenizer: Any, host: Host, job: Job) -> None:
    job.log.append(Stage(text=f"Answering with {question.lora}"))
    model = loaded_onto(base, lora_folder(question.lora, host), question.lora, question.strength)
    try:
        _write(model, ids, "with", question, tokenizer, job)
    finally:
        take_out(base)


def _write(model: Any, ids: torch.Tensor, side: Side, question: Question, tokenizer: Any, job: Job) -> None:
    model.eval()
    generated(model, ids, question, tokenizer, job, _IntoLog(tokenizer, side, job))


def generated(
    model: Any, ids: torch.Tensor, question: Question, tokenizer: Any, job: Job, streamer: Any = None
) -> torch.Tensor:
    """The ids with what the model adds to them, by the question's seed; shorter where the job is to stop."""
    set_seed(question.seed)
    ids = ids.to(model.device)
    warm = question.temperature > 0
    with torch.no_grad(), in_its_type(model):
        found: torch.Tensor = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=question.max_tokens,
            do_sample=warm,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            streamer=streamer,
            stopping_criteria=StoppingCriteriaList([_Stopped(job)]),
            **({"temperature": question.temperature, "top_p": 0.9} if warm else {}),
        )
    return found


class _IntoLog(TextStreamer):  # type: ignore[misc]
    """Each finished piece of the answer becomes an event."""

    def __init__(self, tokenizer: Any, side: Side, job: Job) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._side, self._job = side, job

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self._job.log.append(Answer(side=self._side, piece=text))


class _Stopped(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        return torch.full((len(input_ids),), self._job.control.stopping, device=input_ids.device)
