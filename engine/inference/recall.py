"""Recall: how many tokens of the data a model reproduces word for word, in a run and for a saved LoRA.

Greedy generation follows the data as long as each next token of the data is the most likely one. One pass over the
prompt and the tokens after it shows where that ends, so nothing has to be generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from ...core.engine import RecallRequest
from ...core.errors import DataError, SavingError
from ...core.files import read_json, write_json
from ...core.host import Host, ModelCard, get_model_card
from ...core.jobs import (
    Advice,
    Job,
    JobEnded,
    PartRecall,
    RecallFigures,
    RecallMeasured,
    Request,
    Stage,
    Trigger,
    recall_text,
)
from ...data import general
from ...data.examples import MIN_PASSAGE_TOKENS, Example, Passage, Source, pick_passages
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
from ..lora import lora_folder
from ..tokenizer import make_working_tokenizer
from .eval_loop import EvalLoop, ProgressFn, measure_each

# Short passages would say less about forgetting: a model that was trained on prose expects prose sooner.
GENERAL_PASSAGES, GENERAL_PASSAGE_TOKENS = 8, 256
GENERAL_TOKENS = GENERAL_PASSAGES * GENERAL_PASSAGE_TOKENS
DATA_CHANGED = (
    "The data has changed since the LoRA was trained: a file, the tokenizer or the slicing is different. The "
    "measured passages may include some that the LoRA was not trained on."
)


class NoPassageError(DataError):
    """The training data have no passage that is long enough to continue."""


class PassageScore(NamedTuple):
    """How a model continued a passage: its tokens, those before the first wrong one, and the mean loss of all."""

    part: str
    tokens: int
    matched: int
    loss: float


class RecallPassages(NamedTuple):
    """Passages that are trained on, as many of the validation split, and some of general prose."""

    learned: Sequence[Passage]
    control: Sequence[Passage]
    general: Sequence[Passage]


def pick_recall_passages(data: TrainingData, count: int, card: ModelCard) -> RecallPassages | None:
    """Pick the passages to measure, the same ones every time; None if the data have none."""
    tokenizer = make_working_tokenizer(card.tokenizer)
    bos = tokenizer.bos  # some tokenizers have a start token that they never add
    learned = pick_passages(data.examples, count, bos)
    if not learned:
        return None
    ids = tokenizer.encode([general.PROSE.read_text(encoding="utf-8")])[0].ids
    start_ids = np.array([] if bos is None else [bos], ids.dtype)
    length = min(GENERAL_PASSAGE_TOKENS, (card.context or GENERAL_PASSAGE_TOKENS) - len(start_ids))
    prose: list[Passage] = []
    for start in np.linspace(0, max(len(ids) - length, 0), GENERAL_PASSAGES).round().astype(int).tolist():
        passage = np.concatenate([start_ids, ids[start : start + length]])
        example = Example(passage, np.arange(len(passage)) > 0, cast("Source", None), 0)
        # All tokens but the first count, which nothing precedes.
        prose.append(Passage(example, 1, general.PROSE.stem))
    return RecallPassages(learned, pick_passages(data.validation, count, bos), prose)


def score_passages(
    eval_loop: EvalLoop, passages: Sequence[Passage], report: ProgressFn = lambda share: None
) -> list[PassageScore] | None:
    """Score each passage, and restore the state of the model; None if the run was stopped."""
    # Each token is a group of its own, so that the first wrong one can be found.
    examples = [passage.example for passage in passages]
    ends = np.cumsum([0, *(len(example.ids) for example in examples)])
    groups = [np.arange(start, end) for start, end in pairwise(ends.tolist())]
    sums = eval_loop.sums(examples, groups, int(ends[-1]), report)
    if sums is None:
        return None
    scores: list[PassageScore] = []
    for passage, group in zip(passages, groups, strict=True):
        # Every token is predicted after the right tokens: the first miss is where greedy decoding would leave.
        target = group[passage.prompt_tokens :]
        wrong = np.flatnonzero(sums.hits[target] == 0)
        matched = int(wrong[0]) if len(wrong) else len(target)
        scores.append(PassageScore(passage.part, len(target), matched, float(sums.losses[target].mean())))
    return scores


def summarize(scores: Sequence[PassageScore]) -> RecallFigures:
    """Summarize the scores of several passages."""
    return RecallFigures(
        passages=len(scores),
        recall=float(np.mean([score.matched / score.tokens for score in scores])),
        verbatim=sum(score.matched == score.tokens for score in scores),
        longest=max(score.matched for score in scores),
        loss=float(np.mean([score.loss for score in scores])),
    )


def measure_passages(
    eval_loop: EvalLoop, passages: RecallPassages, step: int, epoch: float, why: Trigger, report: ProgressFn
) -> RecallMeasured | None:
    """Measure the recall of a model after so many steps, and restore its state; None if the user ended it."""
    scores = score_passages(eval_loop, list(chain(*passages)), report)
    if scores is None:
        return None
    # One pass over all kinds: batches of similar length mix them.
    remaining = iter(scores)
    learned, control, prose = (list(islice(remaining, len(kind))) for kind in passages)
    parts: list[PartRecall] = []  # by chapter or file, in the order of the data
    for part in dict.fromkeys(score.part for score in learned):
        figures = summarize([score for score in learned if score.part == part])
        parts.append(PartRecall(part, figures.passages, figures.recall, figures.loss))
    return RecallMeasured(
        step=step,
        epoch=epoch,
        why=why,
        learned=summarize(learned),
        control=summarize(control) if control else None,
        general_loss=float(np.mean([score.loss for score in prose])),
        strip=tuple(score.matched / score.tokens for score in learned),
        parts=tuple(parts) if len(parts) > 1 else (),
    )


def measure_recall(request: RecallRequest, host: Host, job: Job) -> JobEnded:
    """Measure the model without the LoRA and with it, write both into the LoRA's folder, and restore the model."""
    folder, card = lora_folder(request.lora, host), get_model_card(host)
    run_folder, settings, data = data_of_lora(folder, host, card, job)
    if read_json(run_folder / LOG, {}).get("data_fingerprint", "") not in ("", data.examples.digest()):
        job.log.append(Advice(text=DATA_CHANGED))
    passages = pick_recall_passages(data, request.passages, card)
    if passages is None:
        raise NoPassageError(
            f"Recall can't be measured, because no passage of the training data has at least {MIN_PASSAGE_TOKENS} "
            "tokens."
        )
    # The step and epoch of the LoRA or checkpoint, by the records of its run.
    log, graph = read_log(run_folder), read_state(folder).get("graph") or read_graph(run_folder)
    step = checkpoint_step(folder.name) or trained_steps(log)
    epochs = {entry["current_steps"]: entry.get("epoch") for entry in (log, *graph) if entry.get("current_steps")}

    def measure(name: str, eval_loop: EvalLoop, progress: ProgressFn) -> RecallMeasured | None:
        trained = (step, epochs.get(step) or 0.0) if name else (0, 0.0)
        event = measure_passages(eval_loop, passages, *trained, "asked", progress)
        if event is not None:
            job.log.append(event)
        return event

    loras = [("", None), (str(request.lora), folder)]
    measured = measure_each(loras, settings, host, job, "Measuring recall", measure)
    if len(measured) < 2:
        return JobEnded(outcome="stopped", text="Nothing was saved.")
    write_json(folder / RECALL, [event.as_log() for event in measured])
    without = f"{measured[0].learned.recall:.0%}"
    text = f"Recall: {recall_text(measured[-1])}. Without the LoRA, the model reproduces {without}."
    return JobEnded(outcome="finished", text=text)


def data_of_lora(
    folder: Path, host: Host, card: ModelCard, job: Job
) -> tuple[Path, TrainingSettings, TrainingData]:
    """The folder and settings of the run of a LoRA or checkpoint, and its training data, cached or prepared."""
    run_folder = folder if (folder / PARAMETERS).is_file() else run_folder_of(folder)
    parameters = run_folder / PARAMETERS
    if not parameters.is_file():
        raise SavingError(
            f"{folder.name} has no {PARAMETERS}, so its training data is unknown. Choose a LoRA that was "
            "trained with Training PRO."
        )
    settings = training_settings(files.load_settings(parameters, host.folders.datasets).values)
    data = prepare(
        settings,
        host.folders,
        card,
        make_working_tokenizer(card.tokenizer, host.chat_template()),
        lambda text, share: job.log.append(Stage(text=text, share=share)),
        keep=not host.read_only_reason,
        is_stopped=lambda: job.control.asked(Request.STOP),
    )
    return run_folder, settings, data
