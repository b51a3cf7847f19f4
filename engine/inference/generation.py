"""Generated answers: with and without a saved LoRA, streamed into the log, and to the sample prompts of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import StoppingCriteriaList, TextStreamer, TrainerCallback, set_seed

from ...core.engine import AnswerRequest
from ...core.errors import ModelError
from ...core.files import write_json
from ...core.host import Host, get_model_card
from ...core.jobs import Advice, Answer, Job, JobEnded, Request, SampleGenerated, Stage, StageKind
from ...data.rows import Prompt, PromptStyle, chat_prompt_style, detect_prompt_style, make_prompts
from ...records.folder import run_files
from ..compute import unpacked_to_generate
from ..lora import adapter, autocast_model, pause_training_mode
from ..plan import RunPlan, StepLog
from ..tokenizer import WorkingTokenizer, make_working_tokenizer
from .eval_loop import log_failure

TIMED_TOKENS = 9  # tokens of the answer that is timed
MAX_LENGTHENING = 1.5  # by learning from preferences, before a warning


def answer(question: AnswerRequest, host: Host, job: Job) -> JobEnded:
    """Answer a question with the LoRA and without it, and restore the model."""
    tokenizer = make_working_tokenizer(get_model_card(host).tokenizer, host.chat_template())
    raw_tokenizer, text = tokenizer.tokenizer, question.prompt
    style: PromptStyle | None = PromptStyle("format", bos=tokenizer.bos)
    if question.as_chat:
        # The style of the LoRA is used for both answers, so that they compare; else that of the model for chats.
        style = chat_prompt_style(tokenizer, tokenizer.bos)
        if question.lora:
            style = lora_prompt_style(adapter.lora_folder(question.lora, host), tokenizer) or style
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

    with adapter.without_loras(host) as (base, _):
        job.log.append(Stage(text="Generating without a LoRA"))
        write(base, "without")
        if question.lora and not job.control.asked(Request.STOP):
            job.log.append(Stage(text=f"Generating with {question.lora}"))
            folder = adapter.lora_folder(question.lora, host)
            with adapter.loaded_lora(base, folder, question.lora, question.strength) as model:
                write(model, "with")
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="")


def lora_prompt_style(folder: Path, tokenizer: WorkingTokenizer) -> PromptStyle | None:
    """The style of the messages that a LoRA was trained on; None if there were none, or if it is unknown."""
    info = run_files.read_training_prompt(folder)
    bos = tokenizer.bos if info.starts_with_bos else None
    return PromptStyle("chat", before=info.before, after=info.after, bos=bos) if info.has_messages else None


def generate_ids(
    model: Any,
    prompts: Sequence[Sequence[int]],
    question: AnswerRequest,
    tokenizer: Any,
    job: Job,
    streamer: Any = None,
    until: Request = Request.STOP,
) -> list[list[int]]:
    """Continue prompts with the question's seed; the replies are cut short by this request."""
    # Of all libraries; whoever borrows the model restores their random states afterwards.
    set_seed(question.seed)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    longest = max(map(len, prompts))
    missing = [longest - len(prompt) for prompt in prompts]
    padded = [[padding] * gap + list(prompt) for gap, prompt in zip(missing, prompts, strict=True)]
    ids = torch.tensor(padded, device=model.device)
    # Without a mask, transformers would take a padding token inside a prompt for padding.
    mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in missing], device=model.device)
    do_sample = question.temperature > 0

    def stops(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), job.control.asked(until), device=input_ids.device)

    with torch.no_grad(), autocast_model(model), unpacked_to_generate(model):
        output: torch.Tensor = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=question.max_tokens,
            do_sample=do_sample,
            use_cache=True,
            pad_token_id=padding,
            streamer=streamer,
            stopping_criteria=StoppingCriteriaList([stops]),
            **({"temperature": question.temperature, "top_p": 0.9} if do_sample else {}),
        )
    return cast("list[list[int]]", output[:, ids.shape[1] :].tolist())


class SampleCallback(TrainerCallback):  # type: ignore[misc]
    """Samples before the first step, at the chosen steps, when the user asks for it, and at the end."""

    def __init__(self, run_plan: RunPlan, step_log: StepLog, host: Host, job: Job, first: int) -> None:
        """`first` is the number of steps already done."""
        self._run_plan, self._step_log, self._host, self._job = run_plan, step_log, host, job
        self._folder, self._has_folder = run_plan.folder.path, False
        earlier = run_files.read_samples(self._folder) if first else []
        self._samples = [sample for sample in earlier if sample.step <= first]

    @cached_property
    def _tokenizer(self) -> WorkingTokenizer:
        return make_working_tokenizer(self._run_plan.card.tokenizer, self._host.chat_template())

    @cached_property
    def _style(self) -> PromptStyle:
        run = self._run_plan
        return detect_prompt_style(run.settings, self._host.folders, self._tokenizer, run.data.examples)

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The user's prompts, or beginnings of training examples."""
        asked = self._run_plan.settings.samples.sample_prompts
        return make_prompts(asked, self._style, self._tokenizer, self._run_plan.data.examples)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Sample for the step before, whose checkpoint is on disk by now."""
        step = state.global_step
        if not state.is_world_process_zero:
            return
        interval = self._planned_interval(step)
        if self._job.control.take(Request.SAMPLE) or (interval > 0 and step % interval == 0):
            self._sample(model, step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the prompt info once the first step has created the folder."""
        if state.is_world_process_zero and not self._has_folder:
            self._has_folder = True
            started = time.monotonic()
            with log_failure("The LoRA's prompt format could not be saved", self._job.log):
                examples = self._run_plan.data.examples
                middle = examples[len(examples) // 2]  # a book begins with its title page
                prompts = make_prompts("auto", self._style, self._tokenizer, examples)
                message = prompts[len(prompts) // 2].text if prompts and self._style.kind != "text" else ""
                prompt_info = self._style.as_json(self._run_plan.settings, middle.text, message)
                write_json(self._folder / run_files.TRAINING_PROMPT, prompt_info)
                if self._samples:  # from before there was a folder
                    run_files.write_samples(self._folder, self._samples)
            self._step_log.exclude_time(time.monotonic() - started)

    def sample_at_end(self, model: Any, step: int, folder: Path) -> None:
        """Sample at the end of the run, after the LoRA was saved into this folder."""
        self._folder = folder
        wanted = self._job.control.take(Request.SAMPLE) or self._planned_interval(step)
        if wanted and self._has_folder and not self._job.control.asked(Request.STOP):
            self._sample(model, step, "Saving the records")

    def _planned_interval(self, step: int) -> int:
        """Return the steps from one sample to the next; 0 if none are planned or this step has its own already."""
        every = self._run_plan.settings.samples.sample_every
        if every == "never" or any(sample.step == step for sample in self._samples):
            return 0
        return self._run_plan.plan.steps_per_epoch if every == "epoch" else int(every)

    def _sample(self, model: Any, step: int, next_stage: str = "") -> None:
        started, when = time.monotonic(), f"after step {step}" if step else "before the first step"
        with log_failure(f"Samples could not be generated {when}", self._job.log):
            with pause_training_mode(model):
                count = len(self.prompts)
                for number, prompt in enumerate(self.prompts, start=1):
                    of = f" for prompt {number} of {count}" if count > 1 else ""
                    self._job.log.append(Stage(text=f"Generating a sample{of} {when}"))
                    with log_failure(f"The sample for {prompt.text[:40]!r} failed {when}", self._job.log):
                        if sampled := self._answer_both(model, prompt, step):
                            self._samples.append(sampled)
                            self._job.log.append(sampled)
            if self._run_plan.settings.preferences.compares:
                of_step = [sample for sample in self._samples if sample.step == step]
                now, before = (sum(len(getattr(s, side).split()) for s in of_step) for side in ("text", "without"))
                if now > MAX_LENGTHENING * before > 0:
                    text = f"With the LoRA, the samples have {now} words instead of {before}."
                    self._job.log.append(Advice(text=f"{text} Make sure that longer replies are what you prefer."))
            if self._has_folder:
                run_files.write_samples(self._folder, self._samples)
        training = Stage(text="Training", kind=StageKind.TRAINING)
        self._job.log.append(Stage(text=next_stage) if next_stage else training)
        self._step_log.exclude_time(time.monotonic() - started)

    def _answer_both(self, model: Any, prompt: Prompt, step: int) -> SampleGenerated | None:
        """Answer a prompt; None if the run was stopped, which cuts the answer short."""
        # Training does not change the answer without the LoRA.
        without = next((sample.without for sample in self._samples if sample.prompt == prompt.text), None)
        if without is None:
            has_lora = hasattr(model, "disable_adapter")
            without = ""  # once full fine-tuning has changed the model itself
            if has_lora or not step:
                with adapter.disable_lora(model) if has_lora else nullcontext():
                    without = self._answer(model, prompt)
        # Before the first step, all lora_B weights are zero, unless a finished LoRA is trained further.
        untrained = step == 0 and not any(p.any() for name, p in model.named_parameters() if "lora_B" in name)
        text = without if untrained else self._answer(model, prompt)
        if self._job.control.asked(Request.STOP):
            return None
        return SampleGenerated(step=step, prompt=prompt.text, text=text, without=without)

    def estimate_seconds(self, model: Any) -> float:
        """Estimate the seconds of the longest answer by timing a short one; 0 if that is not possible."""
        prompt, times = max(self.prompts, key=lambda prompt: len(prompt.ids)), []
        with pause_training_mode(model):
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
        settings = self._run_plan.settings
        temperature, seed = settings.samples.sample_temperature, settings.what.weights_seed
        question = AnswerRequest(prompt.text, max_tokens=max_tokens, temperature=temperature, seed=seed)
        return generate_ids(model, [prompt.ids], question, self._tokenizer.tokenizer, self._job)[0]

    def _max_tokens(self, prompt: Prompt) -> int:
        context, length = self._run_plan.card.context, self._run_plan.settings.samples.sample_length
        return max(1, min(length, context - len(prompt.ids)) if context else length)
