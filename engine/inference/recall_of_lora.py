"""Recall of the training data by a saved LoRA, beside that of the model without it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ...core.engine import RecallRequest
from ...core.errors import DataError, SavingError
from ...core.files import read_json, write_json
from ...core.host import Host, ModelCard, get_model_card
from ...core.jobs import Advice, Job, JobEnded, RecallMeasured, Request, Stage, recall_text
from ...data.examples import MIN_PASSAGE_TOKENS
from ...data.prepare import TrainingData, prepare
from ...records.folder import (
    LOG,
    PARAMETERS,
    RECALL,
    read_graph,
    read_log,
    read_state,
    run_folder_of,
    trained_steps,
)
from ...settings import files
from ...settings.definitions import TrainingSettings
from ...settings.parsing import training_settings
from ...train_utils import checkpoint_step
from ..compute import probe_model, use_packed_attention
from ..lora import loaded_lora, lora_folder, without_loras
from ..tokenizer import make_working_tokenizer
from .eval_loop import BatchLimit, EvalLoop, StageProgress
from .recall import RecallMeter, RecallScores, mean_loss, pick_recall_passages, summarize, summarize_by_part

BATCH_LIMIT = BatchLimit(tokens=2048)
DATA_CHANGED = (
    "The data has changed since the LoRA was trained: a file, the tokenizer or the slicing is different. The "
    "measured passages may include some that the LoRA was not trained on."
)


class NoPassageError(DataError):
    """The training data have no passage that is long enough to continue."""


def measure_recall(request: RecallRequest, host: Host, job: Job) -> JobEnded:
    """Measure the model without the LoRA and with it, write both into the LoRA's folder, and restore the model."""
    folder, card = lora_folder(request.lora, host), get_model_card(host)
    run_folder = training_folder(folder)
    settings, log = run_settings(run_folder, host), read_json(run_folder / LOG, {})
    data = prepare_of_run(settings, host, card, job)
    if log.get("data_fingerprint", "") not in ("", data.examples.digest()):
        job.log.append(Advice(text=DATA_CHANGED))
    passages = pick_recall_passages(data, request.passages, card)
    if passages is None:
        raise NoPassageError(
            f"Recall can't be measured, because no passage of the training data has at least {MIN_PASSAGE_TOKENS} "
            "tokens."
        )
    measured: list[RecallMeasured] = []
    with without_loras(host) as (base, _), use_packed_attention(base):
        for lora in (None, folder):
            progress = StageProgress(f"Measuring recall {'with' if lora else 'without'} the LoRA", job.log)
            with loaded_lora(base, lora, str(request.lora)) as model:
                meter = RecallMeter(partial(_eval_loop, model, settings, job), passages)
                scores = meter.measure(Request.STOP, progress)
            if scores is None:
                return JobEnded(outcome="stopped", text="Nothing was saved.")
            measured.append(_as_event(scores, *(_trained_until(folder, run_folder) if lora else (0, 0.0))))
            job.log.append(measured[-1])
    write_json(folder / RECALL, [event.as_log() for event in measured])
    without = f"{measured[0].learned.recall:.0%}"
    text = f"Recall: {recall_text(measured[-1])}. Without the LoRA, the model reproduces {without}."
    return JobEnded(outcome="finished", text=text)


def training_folder(folder: Path) -> Path:
    """The folder with the settings that a LoRA or checkpoint was trained with; its own if there are none."""
    folders = (each for each in (folder, run_folder_of(folder)) if (each / PARAMETERS).is_file())
    return next(folders, folder)


def run_settings(folder: Path, host: Host) -> TrainingSettings:
    """The settings that the LoRA was trained with, which say what its data were."""
    if not (folder / PARAMETERS).is_file():
        raise SavingError(
            f"{folder.name} has no {PARAMETERS}, so its training data is unknown. Choose a LoRA that was "
            "trained with Training PRO."
        )
    return training_settings(files.load_settings(folder / PARAMETERS, host.folders.datasets).values)


def prepare_of_run(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> TrainingData:
    """The training data of a run, from the cache if they are there."""
    tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())

    def say(text: str, share: float | None) -> None:
        job.log.append(Stage(text=text, share=share))

    return prepare(
        settings,
        host.folders,
        card,
        tokenizer,
        say,
        keep=not host.read_only_reason,
        is_stopped=lambda: job.control.asked(Request.STOP),
    )


def _eval_loop(model: Any, settings: TrainingSettings, job: Job, ended_by: Request) -> EvalLoop:
    return EvalLoop(model, probe_model(model, settings), BATCH_LIMIT, lambda: job.control.asked(ended_by))


def _trained_until(folder: Path, run_folder: Path) -> tuple[int, float]:
    """The step and epoch of a LoRA or checkpoint, by the records of its run."""
    log, graph = read_log(run_folder), read_state(folder).get("graph") or read_graph(run_folder)
    step = checkpoint_step(folder.name) or trained_steps(log)
    epochs = {entry["current_steps"]: entry.get("epoch") for entry in (log, *graph) if entry.get("current_steps")}
    return step, epochs.get(step) or 0.0


def _as_event(scores: RecallScores, step: int, epoch: float) -> RecallMeasured:
    return RecallMeasured(
        step=step,
        epoch=epoch,
        why="asked",
        learned=summarize(scores.learned),
        control=summarize(scores.control) if scores.control else None,
        general_loss=mean_loss(scores.general),
        strip=tuple(score.recall for score in scores.learned),
        parts=summarize_by_part(scores.learned),
    )
