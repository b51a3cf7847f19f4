"""One run: train a LoRA in one way, measure what it learned and forgot, and return the row of the results."""

from __future__ import annotations

import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ...core.engine import AnswerRequest
from ...core.jobs import Job, Step
from ...data.examples import Passage, pick_passages
from ...data.prepare import TrainingData, prepare
from ...data.rows import chat_prompt_style
from ...data.split import copied_shares
from ...engine.compute import failures, probe_model, use_packed_attention
from ...engine.inference import eval_loop, evidence, generation
from ...engine.lora import adapter, evaluation_context
from ...engine.peft_engine import PeftEngine
from ...engine.tokenizer import make_working_tokenizer
from ...hosts.standalone import StandaloneHost, standalone_folders
from ...settings.definitions import TrainingSettings
from ...settings.parsing import training_settings
from .questions import BASE, Key, Run
from .results import Result
from .texts import Question, RecipeText, is_exact, pick_inside_passages, pick_text_passages, read_text

NAME = "recipe"
PASSAGES = 48
ANSWER_TOKENS = 16
WRITTEN, WRITTEN_TOKENS, TEMPERATURE = 8, 64, 0.7
UNSEEN_CUTOFF = 256
CHAT_CUTOFF = 512
"""A chat is never cut."""
BATCH_TOKENS = 1024
QUIET = {
    "eval_share": 0, "recall_passages": 0, "sample_every": "never", "save_each_epoch": False, "backup_minutes": 0,
    "gradient_checkpointing": "off", "keep_awake": False, "if_exists": "replace",
}  # fmt: skip
"""Nothing is measured, saved or generated during a run: all is measured after it, the same way for every way."""


@dataclass(frozen=True)
class Figures:
    """What is measured after a run. A run that diverged has none of it."""

    recall: float | None = None
    control_recall: float | None = None
    inside_recall: float | None = None
    general_loss: float | None = None
    unseen_loss: float | None = None
    copied: float | None = None
    closed_book: float | None = None

    def rounded(self) -> dict[str, float | None]:
        return {name: None if value is None else round(value, 5) for name, value in vars(self).items()}


@dataclass
class Lab:
    """Where runs are made: the model, and a folder of its own."""

    host: StandaloneHost

    @staticmethod
    def open(model: Path, folder: Path, loading: str = "auto") -> Lab:
        host = StandaloneHost(standalone_folders(folder), model=str(model), loading=loading)
        host.folders.datasets.mkdir(parents=True, exist_ok=True)
        return Lab(host)

    @cached_property
    def tokenizer(self) -> Any:
        return make_working_tokenizer(self.host.card().tokenizer)

    def key(self, run: Run) -> Key:
        return run.key(self.host.card().name)

    def make(self, run: Run) -> Result:
        """Train, measure and return the row."""
        text, began = read_text(run.text, run.way.share, run.way.form), time.monotonic()
        self._write(text)
        steps: list[Step] | None = []
        examples, settings = 0, None
        if run.way.tokens:
            settings, examples = self.settings(run)
            steps = self._train(settings)
        seconds, trained = time.monotonic() - began, time.monotonic()
        figures = Figures() if steps is None else self._measure(text, is_trained=settings is not None)
        shutil.rmtree(self.host.folders.loras / NAME, ignore_errors=True)
        device = (
            torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
        )
        return Result(
            **self.key(run)._asdict(),
            outcome="diverged" if steps is None else "finished",
            examples=examples,
            trained_tokens=sum(step.tokens for step in steps or ()),
            passes=settings.steps.epochs if settings else 0.0,
            steps=len(steps or ()),
            rank=settings.lora.rank if settings else 0,
            seconds=round(seconds, 1),
            seconds_measured=round(time.monotonic() - trained, 1),
            train_loss=round(steps[-1].smoothed, 5) if steps else None,
            **figures.rounded(),
            machine=f"{platform.machine()}, {device}, {self.host.model_status().precision}",
            versions=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft")),
        )

    def settings(self, run: Run) -> tuple[TrainingSettings, int]:
        """The settings of a run, whose epochs make up the planned tokens, and the number of its examples."""
        text = read_text(run.text, run.way.share, run.way.form)
        self._write(text)
        values = {**BASE, **run.way.changes, **QUIET, "name": NAME, "data": list(text.trained)}
        values |= {"seed": run.seed, "learning_rate": run.rate}
        if text.is_rows:
            values["cutoff"] = CHAT_CUTOFF
        if run.way.equal_parameters:
            rank: Any = BASE["rank"]
            equal = round(rank * self._size_of(BASE["targets"]) / self._size_of(run.way.changes["targets"]))
            values |= {"rank": equal, "alpha": equal}
        examples = self._prepare(training_settings(values)).examples
        epochs = round(run.way.tokens / sum(examples.lengths()), 4)
        return training_settings({**values, "epochs": epochs}), len(examples)

    def sizes(self, text: RecipeText) -> dict[str, int]:
        """How large a text is, and how much is measured with it."""
        self._write(text)
        measured, (trained, unseen) = self._measured_data(text), self._passages(text)
        return {
            "characters trained on": sum(len(text.files[name]) for name in text.trained),
            "tokens trained on": sum(measured.examples.lengths()),
            "unseen tokens": sum(measured.validation.lengths()),
            "passages": len(trained),
            "unseen passages": len(unseen),
            "questions": len(text.questions),
        }

    def _write(self, text: RecipeText) -> None:
        for name, content in text.files.items():
            (self.host.folders.datasets / name).write_text(content, encoding="utf-8", newline="\n")

    def _size_of(self, names: Any) -> int:
        """Parameters of a LoRA of rank 1 on the linear layers with these names."""
        layers = self.host.loaded_model().model.named_modules()
        return sum(
            layer.in_features + layer.out_features for name, layer in layers if name.rsplit(".", 1)[-1] in names
        )

    def _prepare(self, settings: TrainingSettings) -> TrainingData:
        folders, card = self.host.folders, self.host.card()
        return prepare(settings, folders, card, self.tokenizer, lambda text, share: None, keep=False)

    def _train(self, settings: TrainingSettings) -> list[Step] | None:
        """Train, and return the steps; None if the run diverged."""
        job = Job("training", NAME)
        try:
            ended = PeftEngine().train(settings, self.host, job)
        except failures.DivergenceError:
            return None
        if ended.outcome == "failed":
            return None
        if ended.outcome != "finished":
            raise SystemExit(f"A run ended as '{ended.outcome}': {ended.text}")
        return [event for event in job.log.since(0) if isinstance(event, Step)]

    def _measured_settings(self, text: RecipeText) -> TrainingSettings:
        """Settings that do not depend on the way: all are measured on the same blocks."""
        cutoff = CHAT_CUTOFF if text.is_rows else UNSEEN_CUTOFF
        values = {"name": NAME, "data": list(text.trained), "eval_data": [text.unseen], "cutoff": cutoff}
        return training_settings({**BASE, **QUIET, **values})

    def _measured_data(self, text: RecipeText) -> TrainingData:
        return self._prepare(self._measured_settings(text))

    def _passages(self, text: RecipeText) -> tuple[list[Passage], list[Passage]]:
        """Passages of the whole text, however much of it was trained on; of chats, the beginnings of replies."""
        whole = read_text(text.name)
        if not text.is_rows:
            return pick_text_passages(whole, self.tokenizer, PASSAGES)
        measured, bos = self._measured_data(whole), self.tokenizer.bos
        return (
            pick_passages(measured.examples, PASSAGES, bos),
            pick_passages(measured.validation, PASSAGES // 2, bos),
        )

    def _measure(self, text: RecipeText, *, is_trained: bool) -> Figures:
        measured, (trained, unseen) = self._measured_data(text), self._passages(text)
        inside = None if text.is_rows else pick_inside_passages(read_text(text.name), self.tokenizer, PASSAGES)
        prose = evidence.pick_recall_passages(measured, 1, self.host.card())
        assert prose is not None
        folder = self.host.folders.loras / NAME if is_trained else None
        with adapter.without_loras(self.host) as (base, _), adapter.loaded_lora(base, folder, NAME) as model:
            closed_book = self._ask(model, text.questions)
            copied = None if text.is_rows else self._copied(model, text, unseen[:WRITTEN])
            with use_packed_attention(base):
                capabilities = probe_model(model, self._measured_settings(text))
                loop = eval_loop.EvalLoop(model, capabilities, lambda: False, max_tokens=BATCH_TOKENS)

                def score(passages: Sequence[Passage]) -> Any:
                    scores = evidence.score_passages(loop, passages)
                    assert scores
                    return evidence.summarize(scores)

                sums = loop.sums(measured.validation, [0] * len(measured.validation), 1)
                assert sums is not None
                return Figures(
                    recall=score(trained).recall,
                    control_recall=score(unseen).recall,
                    inside_recall=None if inside is None else score(inside).recall,
                    general_loss=score(prose.general).loss,
                    unseen_loss=sums.loss,
                    copied=copied,
                    closed_book=closed_book,
                )

    def _copied(self, model: Any, text: RecipeText, prompts: Sequence[Passage]) -> float | None:
        """The share of 8-word runs that the model copies from its text when it continues the unseen one."""
        ids = [passage.example.ids[: passage.prompt_tokens].tolist() for passage in prompts]
        written = self._reply(model, ids, WRITTEN_TOKENS, TEMPERATURE)
        return copied_shares(["\n".join(written)], [text.files[name] for name in text.trained])[0]

    def _ask(self, model: Any, questions: Sequence[Question]) -> float | None:
        """The share of questions that are answered word for word, without the notes in the prompt."""
        if not questions:
            return None
        right = 0
        for same_length in self._encode(questions).values():
            replies = self._reply(model, [ids for _, ids in same_length], ANSWER_TOKENS)
            right += sum(is_exact(r, q.answer) for r, (q, _) in zip(replies, same_length, strict=True))
        return right / len(questions)

    def _encode(self, questions: Sequence[Question]) -> Mapping[int, list[tuple[Question, list[int]]]]:
        """The questions as chat messages, by their length in tokens, so that a batch needs no padding."""
        style = chat_prompt_style(self.tokenizer, self.tokenizer.bos)
        if style is None:
            name = self.host.card().name
            raise SystemExit(f"{name} has no chat template, so it can't be asked. Use another model.")
        by_length: dict[int, list[tuple[Question, list[int]]]] = defaultdict(list)
        for question in questions:
            ids = list(style.prompt(question.text, self.tokenizer).ids)
            by_length[len(ids)].append((question, ids))
        return by_length

    def _reply(self, model: Any, prompts: list[list[int]], tokens: int, temperature: float = 0.0) -> list[str]:
        request = AnswerRequest("", max_tokens=tokens, temperature=temperature)
        tokenizer = self.tokenizer.tokenizer
        with evaluation_context(model):
            replies = generation.generate_ids(model, prompts, request, tokenizer, Job("answer", NAME))
        return [tokenizer.decode(ids, skip_special_tokens=True) for ids in replies]
