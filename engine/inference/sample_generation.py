"""Answers to the sample prompts from a model in training, with its LoRA and without."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch

from ...core.engine import AnswerRequest
from ...core.host import Host
from ...core.jobs import Job, Request, SampleGenerated
from ...data.rows import Prompt, PromptStyle, detect_prompt_style, make_prompts
from ..compute import eval_mode
from ..lora import disable_lora, pause_training_mode
from ..plan import RunPlan
from ..tokenizer import WorkingTokenizer, make_working_tokenizer
from .generation import generate_ids

TIMED_TOKENS = 9  # tokens of the answer that is timed


class SampleGenerator:
    """Sample prompts of a run, with a cache of the model's answers without the LoRA."""

    def __init__(self, run: RunPlan, host: Host, job: Job, earlier: Iterable[SampleGenerated]) -> None:
        self._run, self._host, self._job = run, host, job
        self._base_answers = {sample.prompt: sample.without for sample in earlier}

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
            without = self._answer_without_lora(model, prompt, step)
        text = without if step == 0 and _is_untrained(model) else self._answer(model, prompt)
        if self._job.control.asked(Request.STOP):
            return None
        self._base_answers[prompt.text] = without
        return SampleGenerated(step=step, prompt=prompt.text, text=text, without=without)

    def _answer_without_lora(self, model: Any, prompt: Prompt, step: int) -> str:
        """Answer without the LoRA; empty once full fine-tuning has changed the model itself."""
        has_lora = hasattr(model, "disable_adapter")
        if not has_lora and step:
            return ""
        with disable_lora(model) if has_lora else nullcontext():
            return self._answer(model, prompt)

    def estimate_seconds(self, model: Any) -> float:
        """Estimate the seconds of the longest answer by timing a short one; 0 if that is not possible."""
        prompt = max(self.prompts, key=lambda prompt: len(prompt.ids))
        with sampling_mode(model):
            self._time_answer(model, prompt, 1)  # warm-up
            first_token, _ = self._time_answer(model, prompt, 1)
            answer, count = self._time_answer(model, prompt, TIMED_TOKENS)
        if count < 2 or answer <= first_token:
            return 0.0
        return first_token + (self._max_tokens(prompt) - 1) * (answer - first_token) / (count - 1)

    def _time_answer(self, model: Any, prompt: Prompt, max_tokens: int) -> tuple[float, int]:
        started = time.perf_counter()
        answer_ids = self._generate(model, prompt, max_tokens)
        return time.perf_counter() - started, len(answer_ids)

    def _answer(self, model: Any, prompt: Prompt) -> str:
        answer_ids = self._generate(model, prompt, self._max_tokens(prompt))
        return str(self._tokenizer.tokenizer.decode(answer_ids, skip_special_tokens=True))

    def _generate(self, model: Any, prompt: Prompt, max_tokens: int) -> list[int]:
        settings = self._run.settings
        question = AnswerRequest(
            prompt.text,
            max_tokens=max_tokens,
            temperature=settings.samples.sample_temperature,
            seed=settings.what.weights_seed,
        )
        output = generate_ids(model, torch.tensor([prompt.ids]), question, self._tokenizer.tokenizer, self._job)
        return list(output[0][len(prompt.ids) :].tolist())

    def _max_tokens(self, prompt: Prompt) -> int:
        context, length = self._run.card.context, self._run.settings.samples.sample_length
        return max(1, min(length, context - len(prompt.ids)) if context else length)

    @cached_property
    def _tokenizer(self) -> WorkingTokenizer:
        return make_working_tokenizer(self._run.card.tokenizer, self._host.chat_template())

    @cached_property
    def _style(self) -> PromptStyle:
        return detect_prompt_style(
            self._run.settings, self._host.folders, self._tokenizer, self._run.data.examples
        )


@contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Put a model in training into a state for generation within this context."""
    with pause_training_mode(model), eval_mode(model):
        yield


def _is_untrained(model: Any) -> bool:
    """Whether the LoRA is still untrained, with all lora_B weights zero."""
    return not any(bool(p.any()) for name, p in model.named_parameters() if "lora_B" in name)
