"""Generated answers with and without a LoRA, streamed into the log of the job."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextStreamer, set_seed

from ...core.engine import AnswerRequest
from ...core.errors import ModelError
from ...core.host import Host
from ...core.jobs import Answer, Job, JobEnded, Request, Stage
from ...data.rows import Prompt, PromptStyle, chat_prompt_style
from ...records.folder import read_training_prompt
from ..lora import autocast_model, load_lora, lora_folder, remove_peft_layers, without_loras
from ..tokenizer import WorkingTokenizer, make_working_tokenizer

AnswerSide = Literal["with", "without"]


def answer(question: AnswerRequest, host: Host, job: Job) -> JobEnded:
    """Answer a question with the LoRA and without it, and restore the model."""
    tokenizer = make_working_tokenizer(host.card().tokenizer, host.chat_template())
    ids, raw_tokenizer = torch.tensor([_encode_prompt(question, host, tokenizer).ids]), tokenizer.tokenizer
    with without_loras(host) as (base, _):
        if question.include_base or not question.lora:
            job.log.append(Stage(text="Generating without a LoRA"))
            _write(base, ids, "without", question, raw_tokenizer, job)
        if question.lora and not job.control.asked(Request.STOP):
            _answer_with_lora(base, ids, question, raw_tokenizer, host, job)
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="")


def _encode_prompt(question: AnswerRequest, host: Host, tokenizer: WorkingTokenizer) -> Prompt:
    """Encode a chat message as in training; in a plain text, special tokens that the user types are recognized."""
    if question.as_chat:
        return _prompt_style(question, host, tokenizer).prompt(question.prompt, tokenizer)
    raw_tokenizer = tokenizer.tokenizer
    text = question.prompt or raw_tokenizer.bos_token or raw_tokenizer.eos_token or " "
    return PromptStyle("format", bos=tokenizer.bos).prompt(text, tokenizer)


def _prompt_style(question: AnswerRequest, host: Host, tokenizer: WorkingTokenizer) -> PromptStyle:
    """Return the prompt style of the LoRA, used for both answers, or else that of the model for chats."""
    prompt_info = read_training_prompt(lora_folder(question.lora, host)) if question.lora else None
    if prompt_info is not None:
        bos = tokenizer.bos if prompt_info.starts_with_bos else None
        return PromptStyle("chat", before=prompt_info.before, after=prompt_info.after, bos=bos)
    style = chat_prompt_style(tokenizer, tokenizer.bos)
    if style is None:
        raise ModelError(
            f"Messages can't be formatted with {tokenizer.chat_template.origin}. Turn off 'As a chat message'."
        )
    return style


def _answer_with_lora(
    base: Any, ids: torch.Tensor, question: AnswerRequest, tokenizer: Any, host: Host, job: Job
) -> None:
    job.log.append(Stage(text=f"Generating with {question.lora}"))
    model = load_lora(base, lora_folder(question.lora, host), question.lora, question.strength)
    try:
        _write(model, ids, "with", question, tokenizer, job)
    finally:
        remove_peft_layers(base)


def _write(
    model: Any, ids: torch.Tensor, side: AnswerSide, question: AnswerRequest, tokenizer: Any, job: Job
) -> None:
    model.eval()
    generate_ids(model, ids, question, tokenizer, job, _LogStreamer(tokenizer, side, job))


def generate_ids(
    model: Any, ids: torch.Tensor, question: AnswerRequest, tokenizer: Any, job: Job, streamer: Any = None
) -> torch.Tensor:
    """Generate with the question's seed; returns the ids and their continuation, cut short if the job stops."""
    set_seed(question.seed)
    ids = ids.to(model.device)
    do_sample = question.temperature > 0
    with torch.no_grad(), autocast_model(model):
        output: torch.Tensor = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=question.max_tokens,
            do_sample=do_sample,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            streamer=streamer,
            stopping_criteria=StoppingCriteriaList([_StopWithJob(job)]),
            **({"temperature": question.temperature, "top_p": 0.9} if do_sample else {}),
        )
    return output


class _LogStreamer(TextStreamer):  # type: ignore[misc]
    """Streamer that logs each finished piece of the answer as an event."""

    def __init__(self, tokenizer: Any, side: AnswerSide, job: Job) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._side, self._job = side, job

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self._job.log.append(Answer(side=self._side, piece=text))


class _StopWithJob(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        return torch.full((len(input_ids),), self._job.control.asked(Request.STOP), device=input_ids.device)
