"""The words about each event, the same on the page, in the console and in the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from textwrap import shorten

from ...train_utils import align_columns, duration, format_count, format_digits, known_columns, plural, size
from . import events
from .events import Count, EvaluationDone, Event, EvidenceMeasured, PhaseFigures, RecallMeasured

MAX_TEXT_CHARS = 100  # characters of a prompt, and of its answer
UNKNOWN = "-"
# Rises of the loss on general text, in nats per token: up to the first, next to nothing was forgotten.
FORGOT_LITTLE, FORGOT_MUCH = 0.02, 0.2


def event_text(event: Event) -> str:
    """The sentence about an event; empty for the kinds that have none."""
    match event:
        case events.Note() | events.Advice() | events.JobEnded():
            return event.text
        case events.Stage():
            share = "" if event.share is None else f" {event.share:.0%}"
            return f"{event.text}{share} ..."
        case events.DownloadProgress():  # '12%: 180 MB of 1.5 GB, 5.1 MB/s, 4 min 20 s left'
            remaining, left = event.total - event.done, ""
            if remaining and event.speed >= 1:
                left = f", {size(event.speed)}/s, {duration(remaining / event.speed)} left"
            return f"{event.share:.0%}: {size(event.done)} of {size(event.total)}{left}"
        case events.RunPlanned():
            disk = f" Disk: {event.disk}." if event.disk else ""
            steps = f"{event.steps} {plural(event.steps, 'step')}, {event.steps_per_epoch} per epoch."
            return f"Training '{event.name}' on {event.model}: {steps}{disk}"
        case events.PlanChanged():
            now, rest = "", event.rates[event.step :]
            if rest:
                now = f", and the learning rate goes from {format_digits(rest[0])} to {format_digits(rest[-1])}"
            return f"New plan after step {event.step} ({event.why}): the last step is {event.steps}{now}."
        case events.LiveSettingsChanged():  # with the keys of the settings; the page has their labels instead
            changes = ", ".join(f"{key} {new} (was {old})" for key, (old, new) in event.changes.items())
            return f"After step {event.step}: {changes}."
        case events.CheckpointSaved():
            return f"Checkpoint saved at step {event.step}: {event.folder.name}"
        case events.MachineUse():  # 'GPU: peak 12.3 GB of 24 GB so far, 98% busy, 71 °C, 285 W'
            device = plural(event.cards, "GPU") if event.cards else "program memory"
            total = f" of {size(event.total)}" if event.total else ""
            readings = ((event.busy, "% busy"), (event.celsius, " \u00b0C"), (event.watts, " W"))
            figures = "".join(f", {value}{unit}" for value, unit in readings if value is not None)
            return f"{device}: peak {size(event.peak)}{total} so far{figures}"
        case events.EvaluationDone():
            gain = "" if event.context_gain is None else f", context gain {event.context_gain:.4f}"
            parts = "".join(f", {name} {loss:.4f}" for name, loss in event.by_source.items())
            right = f"perplexity {event.perplexity:.4g}, {event.accuracy:.1%} of tokens correct"
            if event.pairs:
                right = f"{event.accuracy:.1%} of {format_count(event.pairs, 'preference')} followed"
            return f"Validation, step {event.step}: loss {event.loss:.4f}, {right}{parts}{gain}"
        case events.SampleGenerated():  # the beginnings of both texts, each on one line
            prompt, text = (shorten(t, MAX_TEXT_CHARS, placeholder=" ...") for t in (event.prompt, event.text))
            return f"Step {event.step}, {prompt!r} -> {text!r}"
        case events.PerplexityMeasured():
            lora = "without a LoRA" if event.lora == "-" else f"with {event.lora}"
            return (
                f"{event.dataset} {lora}: perplexity {event.perplexity:.4f}, {event.right:.1%} of "
                f"{event.tokens:,} tokens correct ({duration(event.seconds)})"
            )
        case events.PhasesMeasured():
            return "\n".join(["Phases of hybrid batching:", *align_columns(phase_table(event.phases))])
        case RecallMeasured():
            what = "Recall" if event.learned.passages else "Forgetting"
            return f"{what}, step {event.step}: {recall_text(event)}"
        case EvidenceMeasured():
            return f"The LoRA was tested. {evidence_verdict(event, None)}"
        case events.ExamAsked():
            right = f"{event.right} of {format_count(event.asked, 'question')}"
            return f"Exam, step {event.step}: {right} answered correctly"
        case events.ProbeDone():
            figures = "; ".join(f"{name}: {value}" for name, value in probe_figures(event))
            changes = ", ".join(f"{key} = {value}" for key, value in event.fitting.items())
            advice = f" Try {changes}." if changes else " Choose a smaller model or a lower cutoff."
            return f"{figures}.{'' if event.fits else f' The run does not fit.{advice}'}"
    return ""


def probe_figures(event: events.ProbeDone) -> list[tuple[str, str]]:
    """What a test of one step measured, as names and values, as far as it is known."""
    batch = f"{format_count(event.batch_size, 'example')}, {format_count(event.tokens, 'token')}"
    run = f"whole run, {event.steps:,} {plural(event.steps, 'step')}"
    evaluations = f"additional time for {format_count(event.evaluations, 'evaluation')}"
    answers = f"additional time for {format_count(event.answers, 'sample')}"
    evaluating, sampling = event.evaluations * event.evaluation_seconds, event.answers * event.answer_seconds
    figures = [
        ("batch with the longest examples", batch, True),
        ("batch size that does not fit", str(event.too_large), event.too_large),
        ("time per step", duration(event.seconds), True),
        (run, f"about {duration(event.run_seconds)}", True),
        (evaluations, f"about {duration(evaluating)}", evaluating),
        (answers, f"up to {duration(sampling)}", sampling),
        ("peak memory in addition to the model", size(event.peak), event.peak),
        ("estimated by Check", size(event.expected), event.expected),
        ("free memory", size(event.free), event.free),
        ("largest batch that fits", str(event.largest_batch), event.largest_batch),
    ]
    return [(name, value) for name, value, known in figures if known]


def phase_table(phases: Sequence[PhaseFigures]) -> list[tuple[str, ...]]:
    """The phases as a table of texts, the header first; columns without a value are omitted."""
    header = ("Phase", "Steps", "Examples", "Mean loss", "Smoothed loss")
    rows = [(*header, "Validation loss", "Perplexity", "Context gain")]
    for phase in phases:
        steps = f"{phase.steps:,} ({phase.first_step} to {phase.last_step})"
        examples = f"{phase.examples:,}" if phase.examples else UNKNOWN
        losses = (_number(phase.mean_loss, ".4f"), _number(phase.smoothed, ".4f"))
        loss = _change(phase, lambda evaluation: evaluation.loss, ".4f")
        perplexity = _change(phase, lambda evaluation: evaluation.perplexity, ".4g")
        gain = _change(phase, lambda evaluation: evaluation.context_gain, ".4f")
        rows.append((phase.name, steps, examples, *losses, loss, perplexity, gain))
    return known_columns(rows)


def _change(phase: PhaseFigures, figure: Callable[[EvaluationDone], float | None], number_format: str) -> str:
    """A figure of the evaluations before and after a phase: '4.2583 to 3.8645'."""
    before, after = (
        _number(figure(done) if done else None, number_format) for done in (phase.before, phase.after)
    )
    return after if UNKNOWN in (before, after) else f"{before} to {after}"


def _number(value: float | None, number_format: str) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else format(value, number_format)


def recall_text(event: RecallMeasured) -> str:
    """'on average, the model reproduces 81% of a training passage word for word (9 of 16 passages to the end)'."""
    figures, control = event.learned, event.control
    if not figures.passages:
        return f"the loss on general text is {_number(event.general_loss, '.4f')}"
    unseen = f"; for passages that it has not seen, {control.recall:.0%}" if control else ""
    return (
        f"on average, the model reproduces {figures.recall:.0%} of a training passage word for word "
        f"({figures.verbatim} of {format_count(figures.passages, 'passage')} to the end){unseen}"
    )


def recall_table(measured: Sequence[RecallMeasured]) -> list[tuple[str, ...]]:
    """Measurements as a table of texts, the header first; columns without a value are omitted."""
    if not measured:
        return []
    header = ("Step", "Recall", "Whole passages", "Longest match (tokens)", "Loss")
    rows = [(*header, "Recall of unseen text", "Loss on unseen text", "Loss on general text")]
    for event in measured:
        learned, control = event.learned, event.control
        unseen = (f"{control.recall:.1%}", f"{control.loss:.4f}") if control else ("", "")
        general = "" if event.general_loss is None else f"{event.general_loss:.4f}"
        whole, longest = f"{learned.verbatim} of {learned.passages}", str(learned.longest)
        figures = (f"{learned.recall:.1%}", whole, longest, f"{learned.loss:.4f}")
        figures = figures if learned.passages else ("", "", "", "")
        rows.append((str(event.step), *figures, *unseen, general))
    return known_columns(rows)


def part_table(event: RecallMeasured) -> list[tuple[str, ...]]:
    """Recall by chapter or file as a table of texts, the header first; empty if the data have only one."""
    rows = [(part.name, str(part.passages), f"{part.recall:.1%}", f"{part.loss:.4f}") for part in event.parts]
    return [("Part", "Passages", "Recall", "Loss"), *rows] if rows else []


def evidence_verdict(event: EvidenceMeasured, recall: RecallMeasured | None) -> str:
    """One sentence: what the model learned with the LoRA, kept and copies, with the figures."""
    parts = []
    if recall is not None and recall.learned.passages:
        unseen = f" ({recall.control.recall:.0%} of unseen text)" if recall.control else ""
        parts.append(f"recalls {recall.learned.recall:.0%} of the training data word for word{unseen}")
    if event.answers is not None:
        parts.append(f"correctly answers {event.answers.lora} of {event.answers.of} questions about the data")
    rise = max((text.lora - text.base for text in event.general), default=0.0)
    how_much = "almost nothing" if rise <= FORGOT_LITTLE else "a little" if rise <= FORGOT_MUCH else "a lot"
    parts.append(f"has forgotten {how_much} (loss on general text changed by {rise:+.2f})")
    if event.copying is not None:
        parts.append(f"copies {event.copying.lora:.0%} of its text from the training data")
    if event.habits is not None and event.habits.stops.lora < event.habits.stops.base:
        stops = event.habits.stops
        parts.append(f"ends {stops.lora} of {stops.of} replies by itself ({stops.base} without the LoRA)")
    words = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"With the LoRA, the model {words}."


def evidence_table(event: EvidenceMeasured) -> list[tuple[str, str, str]]:
    """The figures as a table of texts, the header first."""
    rows = [("", "Without the LoRA", "With the LoRA")]
    for text in event.general:
        loss = f"Loss on general {text.text} ({text.tokens:,} tokens)"
        rows.append((loss, f"{text.base:.4f}", f"{text.lora:.4f}"))
    if event.habits is not None:
        rows.append(_count_row("Replies that end by themselves", event.habits.stops))
        rows.append(_count_row("Short instructions followed", event.habits.follows))
        rows.append(("Reply to 'What is your name?'", event.habits.name_base, event.habits.name_lora))
    if event.copying is not None:
        copied = "8-word sequences copied from the training data"
        rows.append((copied, f"{event.copying.base:.1%}", f"{event.copying.lora:.1%}"))
    for phrase in event.overused:
        what = f"- '{phrase.text}'" if phrase.text else "Overused phrases per 1,000 words"
        row = (f"{what} (in the training data: {phrase.author:.1f})", f"{phrase.base:.1f}", f"{phrase.lora:.1f}")
        rows.append(row)
    if event.answers is not None:
        rows.append(_count_row("Questions about the training data answered correctly", event.answers))
    return rows


def _count_row(what: str, count: Count) -> tuple[str, str, str]:
    return what, f"{count.base} of {count.of}", f"{count.lora} of {count.of}"
