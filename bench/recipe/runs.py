"""One run of the recipes: train a LoRA, measure what it knows, and return the row of the results."""

from __future__ import annotations

import json
import platform
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ...core.engine import AnswerRequest
from ...core.jobs import Job, Step
from ...data.examples import Example, Examples, Passage
from ...data.prepare import TrainingData, prepare
from ...data.rows import chat_prompt_style
from ...engine.compute import failures, probe_model, use_packed_attention
from ...engine.inference import eval_loop, evidence, generation
from ...engine.lora import adapter, evaluation_context
from ...engine.peft_engine import PeftEngine
from ...engine.tokenizer import make_working_tokenizer
from ...hosts.standalone import StandaloneHost, standalone_folders
from ...settings.definitions import TrainingSettings
from ...settings.parsing import training_settings
from .arms import ALL_LINEAR, BASE, CONTEXTS, Arm, DataName, Run
from .results import Key, Result
from .texts import Question, RecipeData, is_exact, read_data

NAME = "recipe"
PASSAGES, MEASURED_CUTOFF, ANSWER_TOKENS = 48, 64, 24
CHAT_CUTOFF = 512
"""A chat is never cut."""
BATCH_TOKENS = 1024
DATA_SEED = 1
QUIET = {
    "eval_share": 0, "recall_passages": 0, "sample_every": "never", "save_each_epoch": False, "backup_minutes": 0,
    "gradient_checkpointing": "off", "keep_awake": False, "if_exists": "replace",
}  # fmt: skip
"""Nothing is measured, saved or generated during a run: all is measured after it, the same way for every arm."""


@dataclass(frozen=True)
class Size:
    """How long the runs of a series are."""

    chars: int
    tokens: int
    passes: float


@dataclass
class Lab:
    """Where runs are made: the model, a folder of its own, and the size of the runs."""

    host: StandaloneHost
    size: Size
    text: Path | None

    @staticmethod
    def open(model: Path, folder: Path, size: Size, text: Path | None) -> Lab:
        host = StandaloneHost(standalone_folders(folder), model=str(model))
        host.folders.datasets.mkdir(parents=True, exist_ok=True)
        return Lab(host, size, text)

    @cached_property
    def tokenizer(self) -> Any:
        return make_working_tokenizer(self.host.card().tokenizer)

    def read(self, name: DataName) -> RecipeData:
        return read_data(name, self.size.chars, self.text)

    def data_of(self, run: Run) -> RecipeData:
        return self.read(run.arm.data)

    def key(self, run: Run) -> Key:
        data = self.data_of(run)
        model = self.host.card().name
        budget = self._budget(run)
        return Key(run.experiment, run.arm.name, data.name, data.digest, model, run.equal_by, budget, run.seed)

    def _budget(self, run: Run) -> float:
        if run.arm.passes is not None:
            return float(run.arm.passes)
        return float(self.size.tokens if run.equal_by == "tokens" else self.size.passes)

    def recipe(self, run: Run) -> str:
        """All that a result depends on. Arms of different experiments with the same recipe share their runs."""
        data = self.data_of(run)
        self._write(data)
        return f"{data.name} {data.digest} {_contexts(run)} {run.arm.passes == 0} {self._settings(run, data)}"

    def refusal(self, run: Run) -> str:
        """Why a run would not measure what its arm says; empty if it would."""
        batch: Any = run.arm.changes.get("batch_size", 0)
        if not batch:
            return ""
        count = len(self.examples(run))
        if batch <= count:
            return ""
        chars = self.size.chars
        return f"{run.arm.name} needs {batch} examples, and the data have {count}. Increase --chars ({chars})."

    def examples(self, run: Run) -> Examples:
        """The examples that a run trains on."""
        data = self.data_of(run)
        self._write(data)
        return self._prepare(self._settings(run, data)).examples

    def data_sizes(self, name: DataName) -> dict[str, int]:
        """How much data a setup trains on in one pass, and how much it is measured with."""
        run = Run("", Arm(name, data=name), "tokens", 1)
        data = self.data_of(run)
        examples, measured = self.examples(run), self._measured_data(data)
        passages = evidence.pick_recall_passages(measured, PASSAGES, self.host.card())
        assert passages is not None
        return {
            "training examples": len(examples),
            "training tokens": sum(examples.lengths()),
            "validation tokens": sum(measured.validation.lengths()),
            "passages": len(passages.learned),
            "control passages": len(passages.control),
            "questions": len(data.questions),
        }

    def make(self, run: Run) -> Result:
        """Train, measure and return the row."""
        data = self.data_of(run)
        self._write(data)
        settings = self._settings(run, data)
        is_trained = run.arm.passes != 0
        steps = self._train(settings) if is_trained else []
        seconds = sum(step.seconds for step in steps or ())
        figures = _Figures() if steps is None else self._measure(data, is_trained=is_trained, run=run)
        shutil.rmtree(self.host.folders.loras / NAME, ignore_errors=True)
        return Result(
            **self.key(run)._asdict(),
            outcome="diverged" if steps is None else "finished",
            trained_tokens=sum(step.tokens for step in steps or ()),
            passes=float(settings.steps.epochs) if is_trained else 0.0,
            steps=len(steps or ()),
            rank=settings.lora.rank if is_trained else 0,
            seconds=round(seconds, 2),
            train_loss=round(steps[-1].smoothed, 5) if steps else None,
            **figures.as_columns(),
            questions=len(data.questions),
            machine=_machine(),
            versions=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft")),
        )

    def _write(self, data: RecipeData) -> None:
        for name, content in data.files.items():
            (self.host.folders.datasets / name).write_text(content, encoding="utf-8", newline="\n")

    def _settings(self, run: Run, data: RecipeData) -> TrainingSettings:
        values = {**BASE, **run.arm.changes, **QUIET, "name": NAME, "data": list(data.train), "seed": run.seed}
        if data.name == "chats":
            values["cutoff"] = CHAT_CUTOFF
        if run.arm.equal_parameters:
            rank = self._equal_rank(run.arm)
            values |= {"rank": rank, "alpha": rank}
        if run.arm.passes is not None or run.equal_by == "passes":
            return training_settings({**values, "epochs": run.arm.passes or self.size.passes})
        examples = self._prepare(training_settings(values)).examples
        return training_settings({**values, "epochs": round(self.size.tokens / sum(examples.lengths()), 4)})

    def _equal_rank(self, arm: Arm) -> int:
        """The rank at which an arm has as many parameters as `BASE`."""
        targets: Any = arm.changes["targets"]
        rank: Any = BASE["rank"]
        return max(1, round(rank * self._size_of(ALL_LINEAR) / self._size_of(targets)))

    def _size_of(self, names: tuple[str, ...]) -> int:
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

    def _measured_data(self, data: RecipeData) -> TrainingData:
        """The passages and validation blocks that every arm is measured with."""
        return self._prepare(self._measured_settings(data))

    def _measured_settings(self, data: RecipeData) -> TrainingSettings:
        cutoff = CHAT_CUTOFF if data.name == "chats" else MEASURED_CUTOFF
        return training_settings(
            {
                **BASE, **QUIET, "name": NAME, "data": [data.measured], "eval_data": [data.control],
                "cutoff": cutoff, "data_seed": DATA_SEED,
            }
        )  # fmt: skip

    def _measure(self, data: RecipeData, *, is_trained: bool, run: Run) -> _Figures:
        """Measure with the same blocks and passages for every arm."""
        settings, measured = self._measured_settings(data), self._measured_data(data)
        passages = evidence.pick_recall_passages(measured, PASSAGES, self.host.card())
        assert passages is not None
        folder = self.host.folders.loras / NAME if is_trained else None
        with adapter.without_loras(self.host) as (base, _), adapter.loaded_lora(base, folder, NAME) as model:
            answered = self._ask(model, data.questions)
            with use_packed_attention(base):
                capabilities = probe_model(model, settings)
                loop = eval_loop.EvalLoop(model, capabilities, lambda: False, max_tokens=BATCH_TOKENS)
                return _Figures(
                    validation_loss=_mean_loss(loop, measured),
                    general_loss=_passage_loss(loop, passages.general),
                    recall=_recall(loop, passages.learned),
                    control_recall=_recall(loop, passages.control),
                    by_context={
                        n: _recall(loop, [cut_prompt(each, n) for each in passages.learned])
                        for n in _contexts(run)
                    },
                    closed_book=answered,
                )

    def _ask(self, model: Any, questions: Sequence[Question]) -> float | None:
        """The share of questions that are answered word for word."""
        if not questions:
            return None
        right = 0
        for same_length in self._encode(questions).values():
            replies = self._reply(model, [ids for _, ids in same_length])
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

    def _reply(self, model: Any, prompts: list[list[int]]) -> list[str]:
        request = AnswerRequest("", max_tokens=ANSWER_TOKENS, temperature=0)
        tokenizer = self.tokenizer.tokenizer
        with evaluation_context(model):
            replies = generation.generate_ids(model, prompts, request, tokenizer, Job("answer", NAME))
        return [tokenizer.decode(ids, skip_special_tokens=True) for ids in replies]


@dataclass(frozen=True)
class _Figures:
    validation_loss: float | None = None
    general_loss: float | None = None
    recall: float | None = None
    control_recall: float | None = None
    by_context: dict[int, float | None] | None = None
    closed_book: float | None = None

    def as_columns(self) -> dict[str, float | None]:
        contexts = self.by_context or {}
        columns = {f"recall_{n}": contexts.get(n) for n in CONTEXTS}
        columns |= {
            "validation_loss": self.validation_loss,
            "general_loss": self.general_loss,
            "recall": self.recall,
            "control_recall": self.control_recall,
            "closed_book": self.closed_book,
        }
        return {name: None if value is None else round(value, 5) for name, value in columns.items()}


def _contexts(run: Run) -> tuple[int, ...]:
    """Lengths of prompts, in tokens, for which recall is measured on top."""
    return CONTEXTS if run.experiment == "law" else ()


def _mean_loss(loop: eval_loop.EvalLoop, data: TrainingData) -> float:
    sums = loop.sums(data.validation, [0] * len(data.validation), 1)
    assert sums is not None
    return sums.loss


def _passage_loss(loop: eval_loop.EvalLoop, passages: Sequence[Passage]) -> float | None:
    scores = evidence.score_passages(loop, passages)
    return evidence.summarize(scores).loss if scores else None


def _recall(loop: eval_loop.EvalLoop, passages: Sequence[Passage]) -> float | None:
    scores = evidence.score_passages(loop, passages) if passages else None
    return evidence.summarize(scores).recall if scores else None


def cut_prompt(passage: Passage, tokens: int) -> Passage:
    """The same passage with at most so many tokens of its prompt."""
    start = max(0, passage.prompt_tokens - tokens)
    example: Example = passage.example
    mask = example.loss_mask
    cut = replace(example, ids=example.ids[start:], loss_mask=None if mask is None else mask[start:])
    return passage._replace(example=cut, prompt_tokens=passage.prompt_tokens - start)


def _machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    return f"{platform.machine()}, {device}"


def describe(result: Result) -> str:
    """One line for the console."""
    figures = {"recall": result.recall, "validation loss": result.validation_loss, "answers": result.closed_book}
    return json.dumps({name: value for name, value in figures.items() if value is not None})
