"""Answers of the model, with the LoRA and without, piece by piece as they are written."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextStreamer, set_seed

from ..core.engine import Question
from ..core.events import Answer, Ended, Stage
from ..core.host import Host
from ..core.session import Job
from ..records.talking import Talk, how_to_talk
from .adapter import loaded_onto, lora_folder, take_out, without_loras
from .precision import in_its_type

Side = Literal["with", "without"]


def answer(question: Question, host: Host, job: Job) -> Ended:
    """The same question to the model with the LoRA and without; everything as it was afterwards."""
    tokenizer = host.card().tokenizer
    talk = how_to_talk(lora_folder(question.lora, host)) if question.lora and question.as_chat else None
    ids = _as_trained(question, talk, tokenizer) if talk else _ids(question, tokenizer, host.chat_template())
    with without_loras(host) as (base, _):
        if question.both or not question.lora:
            job.log.append(Stage(text="Answering without a LoRA"))
            _write(base, ids, "without", question, tokenizer, job)
        if question.lora and not job.control.stopping:
            _with_lora(base, ids, question, host, job)
    return Ended(outcome="stopped" if job.control.stopping else "finished", text="")


def _with_lora(base: Any, ids: torch.Tensor, question: Question, host: Host, job: Job) -> None:
    job.log.append(Stage(text=f"Answering with {question.lora}"))
    model = loaded_onto(base, lora_folder(question.lora, host), question.lora, question.strength)
    try:
        _write(model, ids, "with", question, host.card().tokenizer, job)
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


def _ids(question: Question, tokenizer: Any, host_template: str) -> torch.Tensor:
    if not question.as_chat:
        text = question.prompt or (tokenizer.bos_token or tokenizer.eos_token or " ")
        return torch.as_tensor(tokenizer(text)["input_ids"], dtype=torch.long)[None]
    found = tokenizer.apply_chat_template(
        [{"role": "user", "content": question.prompt}],
        chat_template=None if tokenizer.chat_template else host_template or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    return torch.as_tensor(tokenizer(found, add_special_tokens=False)["input_ids"], dtype=torch.long)[None]


def _as_trained(question: Question, talk: Talk, tokenizer: Any) -> torch.Tensor:
    """The message as it stood in training, for both answers."""
    ids = list(tokenizer(talk.around(question.prompt), add_special_tokens=False)["input_ids"])
    bos = tokenizer.bos_token_id
    opens = talk.starts_with_bos and bos is not None and ids[:1] != [bos]
    return torch.as_tensor([bos, *ids] if opens else ids, dtype=torch.long)[None]


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
