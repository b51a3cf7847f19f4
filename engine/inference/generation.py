"""Generated answers: with and without a saved LoRA, streamed into the log, and to the sample prompts of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Literal, cast

import torch
from transformers import StoppingCriteriaList, TextStreamer, set_seed

from ...core.engine import AnswerRequest
from ...core.errors import ModelError
from ...core.host import Host
from ...core.jobs import Answer, Job, JobEnded, Request, SampleGenerated, Stage
from ...data.rows import Prompt, PromptStyle, chat_prompt_style, detect_prompt_style, make_prompts
from ...records.folder import run_files as records
from ..compute import eval_mode, unpacked_to_generate
from ..lora import autocast_model, disable_lora, loaded_lora, lora_folder, pause_training_mode, without_loras
from ..plan import RunPlan
from ..tokenizer import WorkingTokenizer, make_working_tokenizer

TIMED_TOKENS = 9  # tokens of the answer that is timed


def answer(question: AnswerRequest, host: Host, job: Job) -> JobEnded:
    """Answer a question with the LoRA and without it, and restore the model."""
    tokenizer = make_working_tokenizer(host.card().tokenizer, host.chat_template())
    raw_tokenizer, text = tokenizer.tokenizer, question.prompt
    style: PromptStyle | None = PromptStyle("format", bos=tokenizer.bos)
    if question.as_chat:
        # The style of the LoRA is used for both answers, so that they compare; else that of the model for chats.
        style = chat_prompt_style(tokenizer, tokenizer.bos)
        if question.lora and (info := records.read_training_prompt(lora_folder(question.lora, host))).has_messages:
            bos = tokenizer.bos if info.starts_with_bos else None
            style = PromptStyle("chat", before=info.before, after=info.after, bos=bos)
    else:
        text = text or raw_tokenizer.bos_token or raw_tokenizer.eos_token or " "
    if style is None:
        raise ModelError(
            f"Messages can't be formatted with {tokenizer.chat_template.origin}. Turn off 'As a chat message'."
        )
    # The prompt is encoded once, so that both answers continue the same tokens.
    ids = style.prompt(text, tokenizer).ids

    def write(model: Any, side: Literal["with", "without"]) -> None:
        def log_piece(text: str, stream_end: bool = False) -> None:
            if text:
                job.log.append(Answer(side=side, piece=text))

        streamer = TextStreamer(raw_tokenizer, skip_prompt=True, skip_special_tokens=True)
        streamer.on_finalized_text = log_piece  # which it calls with each finished piece of the answer
        generate_ids(model.eval(), [ids], question, raw_tokenizer, job, streamer)

    with without_loras(host) as (base, _):
        if question.include_base or not question.lora:
            job.log.append(Stage(text="Generating without a LoRA"))
            write(base, "without")
        if question.lora and not job.control.asked(Request.STOP):
            job.log.append(Stage(text=f"Generating with {question.lora}"))
            folder = lora_folder(question.lora, host)
            with loaded_lora(base, folder, question.lora, question.strength) as model:
                write(model, "with")
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="")


def generate_ids(
    model: Any,
    prompts: Sequence[Sequence[int]],
    question: AnswerRequest,
    tokenizer: Any,
    job: Job,
    streamer: Any = None,
) -> list[list[int]]:
    """Continue prompts of the same length with the question's seed; the replies are cut short if the job stops."""
    # Of all libraries; whoever borrows the model restores their random states afterwards.
    set_seed(question.seed)
    ids = torch.tensor(prompts, device=model.device)
    do_sample = question.temperature > 0

    def stops(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), job.control.asked(Request.STOP), device=input_ids.device)

    with torch.no_grad(), autocast_model(model), unpacked_to_generate(model):
        output: torch.Tensor = model.generate(
            input_ids=ids,
            # There is no padding; left to itself, transformers takes a padding token in it for padding.
            attention_mask=torch.ones_like(ids),
            max_new_tokens=question.max_tokens,
            do_sample=do_sample,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            streamer=streamer,
            stopping_criteria=StoppingCriteriaList([stops]),
            **({"temperature": question.temperature, "top_p": 0.9} if do_sample else {}),
        )
    return cast("list[list[int]]", output[:, ids.shape[1] :].tolist())


class SampleGenerator:
    """Sample prompts of a run, with a cache of the model's answers without the LoRA."""

    def __init__(self, run: RunPlan, host: Host, job: Job, earlier: Iterable[SampleGenerated]) -> None:
        self._run, self._host, self._job = run, host, job
        self._base_answers = {sample.prompt: sample.without for sample in earlier}

    @cached_property
    def _tokenizer(self) -> WorkingTokenizer:
        return make_working_tokenizer(self._run.card.tokenizer, self._host.chat_template())

    @cached_property
    def _style(self) -> PromptStyle:
        run = self._run
        return detect_prompt_style(run.settings, self._host.folders, self._tokenizer, run.data.examples)

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The user's prompts, or beginnings of training examples."""
        asked = self._run.settings.samples.sample_prompts
        return make_prompts(asked, self._style, self._tokenizer, self._run.data.examples)

    def prompt_info(self) -> dict[str, Any]:
        """Return the content of training_prompt.json."""
        examples = self._run.data.examples
        middle = examples[len(examples) // 2]  # a book begins with its title page
        return self._style.as_json(self._run.settings, middle.text)

    def sample(self, model: Any, prompt: Prompt, step: int) -> SampleGenerated | None:
        """Answer a prompt; None if the run was stopped, which cuts the answer short."""
        without = self._base_answers.get(prompt.text)
        if without is None:
            has_lora = hasattr(model, "disable_adapter")
            without = ""  # once full fine-tuning has changed the model itself
            if has_lora or not step:
                with disable_lora(model) if has_lora else nullcontext():
                    without = self._answer(model, prompt)
        # Before the first step, all lora_B weights are zero, unless a finished LoRA is trained further.
        untrained = step == 0 and not any(p.any() for name, p in model.named_parameters() if "lora_B" in name)
        text = without if untrained else self._answer(model, prompt)
        if self._job.control.asked(Request.STOP):
            return None
        self._base_answers[prompt.text] = without
        return SampleGenerated(step=step, prompt=prompt.text, text=text, without=without)

    def estimate_seconds(self, model: Any) -> float:
        """Estimate the seconds of the longest answer by timing a short one; 0 if that is not possible."""
        prompt, times = max(self.prompts, key=lambda prompt: len(prompt.ids)), []
        with pause_training_mode(model), eval_mode(model):
            for tokens in (1, 1, TIMED_TOKENS):  # the first is a warm-up
                started = time.perf_counter()
                count = len(self._generate(model, prompt, tokens))
                times.append(time.perf_counter() - started)
        _, first_token, answer = times
        if count < 2 or answer <= first_token:
            return 0.0
        # The first token takes longer than the others, because the whole prompt is read for it.
        return first_token + (self._max_tokens(prompt) - 1) * (answer - first_token) / (count - 1)

    def _answer(self, model: Any, prompt: Prompt) -> str:
        answer_ids = self._generate(model, prompt, self._max_tokens(prompt))
        return str(self._tokenizer.tokenizer.decode(answer_ids, skip_special_tokens=True))

    def _generate(self, model: Any, prompt: Prompt, max_tokens: int) -> list[int]:
        settings = self._run.settings
        temperature, seed = settings.samples.sample_temperature, settings.what.weights_seed
        question = AnswerRequest(prompt.text, max_tokens=max_tokens, temperature=temperature, seed=seed)
        return generate_ids(model, [prompt.ids], question, self._tokenizer.tokenizer, self._job)[0]

    def _max_tokens(self, prompt: Prompt) -> int:
        context, length = self._run.card.context, self._run.settings.samples.sample_length
        return max(1, min(length, context - len(prompt.ids)) if context else length)
