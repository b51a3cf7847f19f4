"""The sentence about each event, the same on the page, in the console and in the report."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from textwrap import shorten

from ...train_utils import duration, format_count, format_digits, plural, size
from . import events
from .events import Event
from .evidence_event import EvidenceMeasured, evidence_verdict
from .perplexity_event import PerplexityMeasured
from .phase_event import PhasesMeasured, phase_lines
from .recall_event import RecallMeasured, recall_text

MAX_TEXT_CHARS = 100  # characters of a prompt, and of its answer


@singledispatch
def event_text(event: Event) -> str:
    """The sentence about an event; empty for the kinds that have none."""
    return ""


@event_text.register(events.Note)
@event_text.register(events.Advice)
@event_text.register(events.JobEnded)
def _text(event: events.Note | events.Advice | events.JobEnded) -> str:
    return event.text


@event_text.register
def _stage(event: events.Stage) -> str:
    share = "" if event.share is None else f" {event.share:.0%}"
    return f"{event.text}{share} ..."


@event_text.register
def _download(event: events.DownloadProgress) -> str:
    """'12%: 180 MB of 1.5 GB, 5.1 MB/s, 4 min 20 s left'."""
    remaining, left = event.total - event.done, ""
    if remaining and event.speed >= 1:
        left = f", {size(event.speed)}/s, {duration(remaining / event.speed)} left"
    return f"{event.share:.0%}: {size(event.done)} of {size(event.total)}{left}"


@event_text.register
def _time_limited(event: events.TimeLimited) -> str:
    return f"Time limit: {duration(event.seconds)} from the first step."


@event_text.register
def _run_planned(event: events.RunPlanned) -> str:
    disk = f" Disk: {event.disk}." if event.disk else ""
    steps = f"{event.steps} {plural(event.steps, 'step')}, {event.steps_per_epoch} per epoch."
    return f"Training '{event.name}' on {event.model}: {steps}{disk}"


@event_text.register
def _plan_changed(event: events.PlanChanged) -> str:
    rest = event.rates[event.step :]
    now = (
        f", and the learning rate goes from {format_digits(rest[0])} to {format_digits(rest[-1])}" if rest else ""
    )
    return f"New plan after step {event.step} ({event.why}): the last step is {event.steps}{now}."


@event_text.register
def _live_settings_changed(event: events.LiveSettingsChanged) -> str:
    """With the keys of the settings; the page has their labels instead."""
    changes = ", ".join(f"{key} {new} (was {old})" for key, (old, new) in event.changes.items())
    return f"After step {event.step}: {changes}."


@event_text.register
def _checkpoint_saved(event: events.CheckpointSaved) -> str:
    return f"Checkpoint saved at step {event.step}: {event.folder.name}"


@event_text.register
def _machine_use(event: events.MachineUse) -> str:
    """'GPU: peak 12.3 GB of 24 GB so far, 98% busy, 71 \u00b0C, 285 W'."""
    device = plural(event.cards, "GPU") if event.cards else "program memory"
    total = f" of {size(event.total)}" if event.total else ""
    readings = ((event.busy, "% busy"), (event.celsius, " \u00b0C"), (event.watts, " W"))
    figures = "".join(f", {value}{unit}" for value, unit in readings if value is not None)
    return f"{device}: peak {size(event.peak)}{total} so far{figures}"


@event_text.register
def _evaluation(event: events.EvaluationDone) -> str:
    gain = "" if event.context_gain is None else f", context gain {event.context_gain:.4f}"
    parts = "".join(f", {name} {loss:.4f}" for name, loss in event.by_source.items())
    return (
        f"Validation, step {event.step}: loss {event.loss:.4f}, perplexity {event.perplexity:.4g}, "
        f"{event.accuracy:.1%} of tokens correct{parts}{gain}"
    )


@event_text.register
def _sample(event: events.SampleGenerated) -> str:
    return f"Step {event.step}, {_quote(event.prompt)} -> {_quote(event.text)}"


def _quote(text: str) -> str:
    """Beginning of a text, on one line."""
    return repr(shorten(text, MAX_TEXT_CHARS, placeholder=" ..."))


@event_text.register
def _perplexity(event: PerplexityMeasured) -> str:
    lora = "without a LoRA" if event.lora == "-" else f"with {event.lora}"
    return (
        f"{event.dataset} {lora}: perplexity {event.perplexity:.4f}, {event.right:.1%} of "
        f"{event.tokens:,} tokens correct ({duration(event.seconds)})"
    )


@event_text.register
def _phases(event: PhasesMeasured) -> str:
    return f"Phases of hybrid batching:\n{phase_lines(event.phases)}"


@event_text.register
def _recall(event: RecallMeasured) -> str:
    return f"Recall, step {event.step}: {recall_text(event)}"


@event_text.register
def _evidence(event: EvidenceMeasured) -> str:
    return f"The LoRA was tested. {evidence_verdict(event, None)}"


@event_text.register
def _probe(event: events.ProbeDone) -> str:
    return "; ".join(_probe_figures(event)) + "."


def _probe_figures(event: events.ProbeDone) -> Iterator[str]:
    yield f"batch with the longest examples: {format_count(event.batch_size, 'example')}, {event.tokens} tokens"
    if event.too_large:
        fitting = event.batch_size
        yield f"a batch of {event.too_large} examples does not fit, so a run splits it into batches of {fitting}"
    more = "".join(f", plus {time} for {task}" for task, time in probe_extra_times(event))
    yield f"{duration(event.seconds)} per step, about {duration(event.run_seconds)} for the run{more}"
    if event.peak:
        yield f"peak memory in addition to the model: {size(event.peak)} (estimate: {size(event.expected)})"
    if event.free:
        yield f"{size(event.free)} free"
    if event.largest_batch:
        yield f"largest batch that fits: {event.largest_batch}"
    changes = ", ".join(f"{key} = {value}" for key, value in event.fitting.items())
    if not event.fits:
        yield (
            f"the run does not fit: try {changes}"
            if changes
            else "the run does not fit: choose a smaller model or a lower cutoff"
        )


def probe_extra_times(event: events.ProbeDone) -> list[tuple[str, str]]:
    """Evaluations and samples of the probed run, each with its time, as far as known."""
    extras = (
        (event.evaluations, "evaluation", "about", event.evaluation_seconds),
        (event.answers, "sample", "up to", event.answer_seconds),
    )
    return [
        (format_count(count, noun), f"{bound} {duration(count * seconds)}")
        for count, noun, bound, seconds in extras
        if count and seconds
    ]
