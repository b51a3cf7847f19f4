"""Evidence for a saved LoRA: what it learned, what it forgot, what it copies, and what it answers from memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core import dist_env
from ...core.engine import EvidenceRequest, RecallRequest
from ...core.errors import StoppedError, first_line
from ...core.files import write_json
from ...core.host import Host, ModelCard, get_model_card
from ...core.jobs import (
    Advice,
    Copying,
    Count,
    EvidenceMeasured,
    Habits,
    Job,
    JobEnded,
    Note,
    RecallMeasured,
    Request,
    Stage,
    TextLoss,
    evidence_verdict,
)
from ...data.arrow_store import Store
from ...data.examples import Examples, copied_shares, count_runs
from ...data.load import PrepareContext
from ...records.folder import EVIDENCE
from ...settings.definitions import TrainingSettings
from ..compute import probe_model, use_packed_attention
from ..lora import loaded_lora, lora_folder, preserve_rng, without_loras
from ..tokenizer import WorkingTokenizer, make_working_tokenizer
from .eval_loop import BatchLimit, EvalLoop, GroupSums
from .evidence_replies import (
    Question,
    Writer,
    count_right,
    pick_questions,
    reply_to_messages,
    write_freely,
)
from .general_loss import load_general_texts, measure_losses
from .habits import INSTRUCTIONS, MESSAGES, HabitScores, score_replies
from .perplexity_input import PerplexityInput
from .recall_of_lora import NoPassageError, measure_recall, prepare_of_run, run_settings, training_folder

BATCH_LIMIT = BatchLimit(tokens=2048)


@dataclass(frozen=True)
class Measures:
    """Everything that is measured, without the LoRA and with it."""

    general: Mapping[str, PerplexityInput]
    examples: Examples
    questions: Sequence[Question]


@dataclass(frozen=True)
class Side:
    """What was measured without the LoRA, or with it."""

    losses: Mapping[str, GroupSums]
    habits: HabitScores | None
    written: Sequence[str]
    right: int


def measure_evidence(request: EvidenceRequest, host: Host, job: Job) -> JobEnded:
    """Measure recall and all else, write both into the LoRA's folder, and say in a sentence what they show."""
    recall = _last_recall(request, host, job)
    event = _measure_and_save(request, host, job)
    text, folder = evidence_verdict(event, recall), lora_folder(request.lora, host)
    return JobEnded(outcome="finished", text=text, folder=folder)


def test_after_run(settings: TrainingSettings, host: Host, job: Job) -> None:
    """Test the LoRA of a finished run; an error is logged, because the run is saved already."""
    if settings.lora.whole_model or not dist_env.is_main_process():
        return
    try:
        _measure_and_save(EvidenceRequest(settings.what.name), host, job)  # the run has measured its recall
    except Exception as error:  # noqa: BLE001 - the run is saved, and its report must be written
        job.log.append(Advice(text=f"The LoRA could not be tested: {first_line(error)}"))


def _last_recall(request: EvidenceRequest, host: Host, job: Job) -> RecallMeasured | None:
    """Measure recall; None if the data have no passage long enough, such as rows with short replies."""
    try:
        ended = measure_recall(RecallRequest(request.lora), host, job)
    except NoPassageError as error:
        job.log.append(Note(text=str(error)))
        return None
    if ended.outcome == "stopped":
        raise StoppedError("Nothing was saved.")
    return next(event for event in reversed(job.log.since(0)) if isinstance(event, RecallMeasured))


def _measure_and_save(request: EvidenceRequest, host: Host, job: Job) -> EvidenceMeasured:
    """Measure without the LoRA and with it, restore the model, and write the result into the LoRA's folder."""
    started, folder, card = time.monotonic(), lora_folder(request.lora, host), get_model_card(host)
    tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())
    settings = run_settings(training_folder(folder), host)
    data = prepare_of_run(settings, host, card, job)
    measures = Measures(
        load_general_texts(_general_context(host, card, tokenizer, job)),
        data.examples,
        pick_questions(data.examples, partial(tokenizer.tokenizer.decode, skip_special_tokens=True)),
    )
    sides = list[Side]()
    with preserve_rng(), without_loras(host) as (base, _), use_packed_attention(base):
        for lora in (None, folder):
            progress = _Progress(f"Testing {'with' if lora else 'without'} the LoRA", len(sides), job)
            with loaded_lora(base, lora, str(request.lora)) as model:
                sides.append(_measure(model, settings, measures, tokenizer, progress))
    event = _as_event(sides[0], sides[1], measures, time.monotonic() - started)
    job.log.append(event)
    write_json(folder / EVIDENCE, [event.as_log()])
    return event


@dataclass(frozen=True)
class _Progress:
    """Progress of one of two sides: half of its time goes to losses, half to writing."""

    text: str
    side: int
    job: Job

    def report(self, share: float) -> None:
        self.job.log.append(Stage(text=self.text, share=(self.side + share) / 2))


def _general_context(host: Host, card: ModelCard, tokenizer: WorkingTokenizer, job: Job) -> PrepareContext:
    """The general texts are read with default settings, whatever the run's were."""

    def say(text: str, share: float | None) -> None:
        job.log.append(Stage(text=text, share=share))

    store = Store(host.folders.prepared_data)
    return PrepareContext(TrainingSettings(), host.folders, card, tokenizer, say, store=store)


def _measure(
    model: Any, settings: TrainingSettings, measures: Measures, tokenizer: WorkingTokenizer, progress: _Progress
) -> Side:
    model.eval()
    job, capabilities = progress.job, probe_model(model, settings)
    eval_loop = EvalLoop(model, capabilities, BATCH_LIMIT, lambda: job.control.asked(Request.STOP))
    losses = measure_losses(eval_loop, measures.general, lambda share: progress.report(share / 2))
    if losses is None:
        raise StoppedError("Nothing was saved.")
    progress.report(0.5)
    writer = Writer(model, tokenizer, job)
    replies = reply_to_messages(writer)
    return Side(
        losses,
        score_replies(replies) if replies else None,
        write_freely(writer, measures.examples),
        count_right(writer, measures.questions),
    )


def _as_event(base: Side, lora: Side, measures: Measures, seconds: float) -> EvidenceMeasured:
    general = (
        TextLoss(name, int(sums.tokens.sum()), sums.loss, lora.losses[name].loss)
        for name, sums in base.losses.items()
    )
    questions = len(measures.questions)
    return EvidenceMeasured(
        general=tuple(general),
        habits=_habits(base.habits, lora.habits) if base.habits and lora.habits else None,
        copying=_copying(base.written, lora.written, measures.examples),
        answers=Count(base.right, lora.right, questions) if questions else None,
        seconds=seconds,
    )


def _habits(base: HabitScores, lora: HabitScores) -> Habits:
    return Habits(
        Count(base.stops, lora.stops, len(MESSAGES)),
        Count(base.follows, lora.follows, len(INSTRUCTIONS)),
        base.name,
        lora.name,
    )


def _copying(base: Sequence[str], lora: Sequence[str], examples: Examples) -> Copying | None:
    """The shares of copied runs; None if the model wrote too little to tell."""
    texts = ["\n".join(base), "\n".join(lora)]
    shares = copied_shares(texts, (examples[number].text for number in range(len(examples))))
    if shares[0] is None or shares[1] is None:
        return None
    return Copying(shares[0], shares[1], count_runs(texts[1]))
