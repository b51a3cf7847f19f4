"""Asking a model in training, with its LoRA and without; afterwards it is as if nothing had been asked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch

from ...core.engine import Question
from ...core.host import Host
from ...core.jobs import Job, Sampled
from ...data.rows import Prompt, Speaking, prompts, speaking
from ..compute import quiet
from ..lora import undisturbed
from ..plan import Blueprint
from ..tokenizer import WorkingTokenizer, working_tokenizer
from .generation import generated

BEGINNING = 9  # tokens of an answer whose time is taken


class Asking:
    """The prompts of a run, and what the model says to them without the LoRA: that is asked once."""

    def __init__(self, run: Blueprint, host: Host, job: Job, known: Iterable[Sampled]) -> None:
        self._run, self._host, self._job = run, host, job
        self._without = {one.prompt: one.without for one in known}

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The user's, or beginnings out of the data."""
        asked = self._run.settings.samples.sample_prompts
        return prompts(asked, self._way, self._tokenizer, self._run.data.examples)

    def how_to_talk(self) -> dict[str, Any]:
        """What stands in training_prompt.json."""
        example = self._tokenizer.decode(self._run.data.examples[0].ids.tolist())
        return self._way.as_json(self._run.settings, example)

    def ask(self, model: Any, prompt: Prompt, step: int) -> Sampled | None:
        """None where the run is to stop meanwhile, and the answer is cut short."""
        without = self._without.get(prompt.text)
        if without is None:
            without = self._alone(model, prompt, step)
        text = without if step == 0 and _is_fresh(model) else self._answer(model, prompt)
        if self._job.control.stopping:
            return None
        self._without[prompt.text] = without
        return Sampled(step=step, prompt=prompt.text, text=text, without=without)

    def _alone(self, model: Any, prompt: Prompt, step: int) -> str:
        """Without the LoRA; nothing where the model itself is in training and no longer what it was."""
        off = getattr(model, "disable_adapter", None)
        if off is None and step:
            return ""
        with off() if off else nullcontext():
            return self._answer(model, prompt)

    def expected_seconds(self, model: Any) -> float:
        """How long an answer takes at most, by the beginning of one; 0 where that cannot be told."""
        prompt = max(self.prompts, key=lambda prompt: len(prompt.ids))
        self._timed(model, prompt, 1)  # the very first one warms up
        (first, _), (some, count) = self._timed(model, prompt, 1), self._timed(model, prompt, BEGINNING)
        if count < 2 or some <= first:
            return 0.0
        return first + (self._room(prompt) - 1) * (some - first) / (count - 1)

    def _timed(self, model: Any, prompt: Prompt, most: int) -> tuple[float, int]:
        began = time.perf_counter()
        written = self._written(model, prompt, most)
        return time.perf_counter() - began, len(written)

    def _answer(self, model: Any, prompt: Prompt) -> str:
        written = self._written(model, prompt, self._room(prompt))
        return str(self._tokenizer.tokenizer.decode(written, skip_special_tokens=True))

    def _written(self, model: Any, prompt: Prompt, most: int) -> list[int]:
        wish = self._run.settings
        asked = Question(
            prompt.text, max_tokens=most, temperature=wish.samples.sample_temperature, seed=wish.what.seed
        )
        found = generated(model, torch.tensor([prompt.ids]), asked, self._tokenizer.tokenizer, self._job)
        return list(found[0][len(prompt.ids) :].tolist())

    def _room(self, prompt: Prompt) -> int:
        context, length = self._run.card.context, self._run.settings.samples.sample_length
        return max(1, min(length, context - len(prompt.ids)) if context else length)

    @cached_property
    def _tokenizer(self) -> WorkingTokenizer:
        return working_tokenizer(self._run.card.tokenizer, self._host.chat_template())

    @cached_property
    def _way(self) -> Speaking:
        return speaking(self._run.settings, self._host.folders, self._tokenizer, self._run.data.examples)


@contextmanager
def between_steps(model: Any) -> Iterator[None]:
    """Inside, a model in training may be asked."""
    with undisturbed(model), quiet(model):
        yield


def _is_fresh(model: Any) -> bool:
    """Whether the LoRA does nothing yet."""
    return not any(bool(p.any()) for name, p in model.named_parameters() if "lora_B" in name)
