"""The state of a run on a page, built from its events, so a page opened at any time shows the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from markupsafe import Markup

from ...core.jobs import (
    Advice,
    CheckpointSaved,
    EtaEstimator,
    EvaluationDone,
    Event,
    EvidenceMeasured,
    Job,
    JobEnded,
    LiveSettingsChanged,
    MachineUse,
    Note,
    PlanChanged,
    RecallMeasured,
    Request,
    RunPlanned,
    SampleGenerated,
    Stage,
    StageKind,
    Step,
    event_text,
    measure_phases,
)
from ...records.report import Mark, best_evaluation, draw_curve, judge_live, peak_name, run_speed
from ...settings import presets
from ...train_utils import duration, format_digits, plural, size
from ..base import apply_button, markup, table_row
from .charts import run_charts

MAX_ADVICE, MAX_NOTES = 6, 100
NOTES = Markup('<details data-tp-fold="notes"><summary>Earlier notes ({})</summary>{}</details>')
STOP_AFTER_MEASURING = "First, recall is measured. Then the LoRA is saved."
# How the panel confirms each request, the most important request first.
REQUEST_MESSAGES: Mapping[Request, str] = {
    Request.DISCARD: "Stopping after this step and discarding the run ...",
    Request.STOP: "Stopping after this step ...",
    Request.FREE_MEMORY: "Saving a checkpoint after this step, then unloading the model ...",
    Request.PAUSE: "Pausing after this step ...",
    Request.WIND_DOWN: "Winding down ...",
    Request.MORE_EPOCHS: "Adding epochs when this step ends ...",
    Request.CHECKPOINT: "Saving a checkpoint after this step ...",
    Request.EVALUATE: "Evaluating after this step ...",
    Request.SAMPLE: "Generating samples after this step ...",
}
LOSS_LEGEND = {"#2f74c0": "smoothed loss", "#7fa6d6": "loss"}
PLAN_LEGEND = {"#c98a10": "planned learning rate", "#2f9e5b": "checkpoint"}
CHANGED_LEGEND = {"#2f9e5b": "checkpoint, or change in the planned learning rate"}
VALIDATION_LEGEND = {"#8a3fb0": "validation loss"}
NEXT_STEPS = (
    "To compare replies with and without this LoRA, open the Try it tab. To see its report and checkpoints, open "
    "the Runs tab."
)
_MOODS = {"finished": "good", "stopped": "fair", "failed": "bad"}


class RunView:
    """Follows the log of one job from its first event."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.position = 0
        self._planned: RunPlanned | None = None
        self._stage, self._stage_kind = "...", StageKind.WORKING
        self._steps: list[Step] = []
        self._marks: list[Mark] = []
        self._replanned = False
        self._notes: list[str] = []
        self._advice: list[str] = []
        self._last: Step | None = None
        self._last_checkpoint: CheckpointSaved | None = None
        self._end: JobEnded | None = None
        self._pace = EtaEstimator()
        self._evaluations: list[EvaluationDone] = []
        self._recalls: list[RecallMeasured] = []
        self._samples: list[SampleGenerated] = []
        self._machine: MachineUse | None = None
        self._made: dict[str, tuple[tuple[Any, ...], str]] = {}

    def catch_up(self) -> None:
        """Process new events."""
        events = self.job.log.since(self.position)
        self.position += len(events)
        for event in events:
            self._handle(event)

    @property
    def running(self) -> bool:
        return self._end is None

    @property
    def step(self) -> int:
        """The last finished step."""
        return self._last.step if self._last else 0

    @property
    def sample_count(self) -> int:
        return len(self._samples)

    @property
    def has_charts(self) -> bool:
        return bool(self._steps or self._evaluations or self._recalls)

    @property
    def planned(self) -> bool:
        """Whether the run plan, and so its settings, is known."""
        return self._planned is not None

    def html(self, *, following: str = "") -> str:
        """The run panel; `following` is the name of the run that starts automatically after this one."""
        return self._make_once("panel", partial(self._panel_html, following), self.job.control.pending, following)

    def extra_charts(self) -> str:
        """The charts of the folded part 'More curves'."""
        return self._make_once("charts", self._charts_html)

    def samples(self) -> str:
        """The table of sample answers."""
        return self._make_once("samples", self._samples_html)

    def _make_once(self, part: str, make: Callable[[], str], *more: Any) -> str:
        """What `make` returns, made anew only after a change: every open page asks for it."""
        state = (self.position, *more)
        if self._made.get(part, ((), ""))[0] != state:
            self._made[part] = (state, make())
        return self._made[part][1]

    def _panel_html(self, following: str) -> str:
        if self._end is not None:
            return self._ended_html(self._end)
        share = self._last.step / self._last.steps if self._last else 0.0
        steps = self._last.steps if self._last else 0
        # How much of the machine the run uses.
        text = event_text(self._machine) if self._machine else ""
        parts = [
            markup.progress_bar(share),
            self._figures(),
            markup.paragraph(judge_live(self._steps, steps, self._evaluations), quiet=True),
            markup.paragraph(text[:1].upper() + text[1:], quiet=True),
            self._loss_curve(),
            markup.recall(self._recalls),
            markup.phases(measure_phases(self._steps, self._evaluations)),
            self._messages_html(),
            markup.BELL_SWITCH,
        ]
        after = f" \u00b7 next: {following}" if following else ""
        return markup.card(f"{self.job.title}: {self._status()}{after}", *parts, mood="live")

    def _charts_html(self) -> str:
        return run_charts(self._steps, self._evaluations, self._recalls)

    def _samples_html(self) -> str:
        return samples_table(self._samples, ended=not self.running)

    def _handle(self, event: Event) -> None:
        self._pace.update(event)
        match event:
            case Step():
                self._last = event
                self._steps.append(event)
            case Stage():
                self._stage, self._stage_kind = event_text(event), event.kind
            case RunPlanned():
                self._planned = event
                self._steps = [earlier for earlier in event.earlier if isinstance(earlier, Step)]
                self._evaluations = [done for done in event.earlier if isinstance(done, EvaluationDone)]
                self._recalls = [measured for measured in event.earlier if isinstance(measured, RecallMeasured)]
                self._samples = [sample for sample in event.earlier if isinstance(sample, SampleGenerated)]
                checkpoints = [saved for saved in event.earlier if isinstance(saved, CheckpointSaved)]
                self._marks = list(map(_checkpoint_mark, checkpoints))
            case EvaluationDone():
                self._evaluations.append(event)
            case RecallMeasured():
                self._recalls.append(event)
            case SampleGenerated():
                self._samples.append(event)
            case MachineUse():
                self._machine = event
            case LiveSettingsChanged():
                # The changed live settings as a message; a new learning rate is reported by the Replanned event.
                before = {key: old for key, (old, _) in event.changes.items()}
                changes = presets.describe_changes(before, {key: new for key, (_, new) in event.changes.items()})
                self._notes += [f"After step {event.step}: {'; '.join(changes)}."] if changes else []
            case CheckpointSaved():
                self._last_checkpoint = event
                self._add_marked_message(event, _checkpoint_mark(event))
            case PlanChanged():
                self._replanned = True
                if self._planned is not None:
                    self._planned = replace(self._planned, steps=event.steps, rates=event.rates)
                self._add_marked_message(event, Mark(event.step, event.why))
            case Note() | EvidenceMeasured():
                self._notes.append(event_text(event))
            case Advice():
                self._advice.append(event_text(event))
            case JobEnded():
                self._end = event

    def _add_marked_message(self, event: CheckpointSaved | PlanChanged, mark: Mark) -> None:
        self._notes.append(event_text(event))
        self._marks.append(mark)

    def _status(self) -> str:
        """The confirmation of a pending request, or else the stage of the run."""
        pending = self.job.control.pending
        messages = (message for request, message in REQUEST_MESSAGES.items() if request in pending)
        message = next(messages, "")
        if self._is_ending(pending):
            measures = self._stage_kind is StageKind.MEASURING and self._last is not None
            saves_next = measures and Request.DISCARD not in pending
            return f"Stopping. {STOP_AFTER_MEASURING if saves_next else self._stage}"
        return self._stage if not message or self._is_paused(pending) else message

    def _is_paused(self, pending: frozenset[Request]) -> bool:
        return self._stage_kind is StageKind.PAUSED and not pending & {Request.STOP, Request.DISCARD}

    def _is_ending(self, pending: frozenset[Request]) -> bool:
        """Whether the last step is done, so the stage says more than the confirmation of the request."""
        is_between_steps = self._stage_kind in (StageKind.TRAINING, StageKind.PAUSED)
        return bool(pending & {Request.STOP, Request.DISCARD}) and not is_between_steps

    def _figures(self) -> str:
        progress = self._last
        if progress is None:
            began = self._stage_kind is StageKind.TRAINING
            return markup.paragraph(_beginning(self._planned, began=began), quiet=True) if self._planned else ""
        # The step of the last checkpoint: a new one, or the one that the run resumed from.
        resumed_from = self._planned.first_step if self._planned else 0
        step = self._last_checkpoint.step if self._last_checkpoint else resumed_from
        return markup.figures(
            [
                ("step", f"{progress.step} / {self._planned.steps if self._planned else progress.steps}"),
                ("epoch", f"{progress.epoch:.2f}"),
                (f"smoothed loss{self._hour_ago_note(progress)}", f"{progress.smoothed:.4f}"),
                ("loss", f"{progress.loss:.4f}"),
                *self._validation_figures(),
                *self._recall_figures(),
                ("learning rate", format_digits(progress.learning_rate)),
                ("tokens per second", f"{self._pace.tokens_per_second:,.0f}"),
                *self._time_left(),
                ("last checkpoint", f"step {step}" if step else "none yet"),
            ]
        )

    def _time_left(self) -> list[tuple[str, str]]:
        """The remaining time; empty if the run is stopping or paused."""
        left = self._pace.seconds_left
        if self.job.control.pending & {Request.STOP, Request.PAUSE}:
            return []
        pace = f"time left ({duration(self._pace.seconds_per_step)} per step)"
        return [(pace, duration(round(left))), ("ends at about", markup.time_after(left))]

    def _validation_figures(self) -> list[tuple[str, str]]:
        """The latest evaluation, and the best one if that is an earlier one."""
        if not self._evaluations:
            return []
        last = self._evaluations[-1]
        best = best_evaluation([e for e in self._evaluations if e.validation_key == last.validation_key])
        earlier = f" (best: {best.loss:.4f} at step {best.step})" if best and best.step != last.step else ""
        figures = [(f"validation loss at step {last.step}{earlier}", f"{last.loss:.4f}")]
        return figures + ([] if last.context_gain is None else [("context gain", f"{last.context_gain:.4f}")])

    def _recall_figures(self) -> list[tuple[str, str]]:
        """The latest recall, with that of unseen text."""
        if not self._recalls:
            return []
        last = self._recalls[-1]
        unseen = f" (on unseen text: {last.control.recall:.0%})" if last.control else ""
        return [(f"recall at step {last.step}{unseen}", f"{last.learned.recall:.0%}")]

    def _hour_ago_note(self, last: Step) -> str:
        step = step_before(self._steps, 3600, last.at)
        return f" (an hour ago: {step.smoothed:.3f})" if step else ""

    def short_status(self) -> str:
        """Step and loss for the title of the browser; empty if no run is going on."""
        if not self.running or self._last is None:
            return ""
        return f"{self._last.step / self._last.steps:.0%}, loss {self._last.smoothed:.2f}"

    def _loss_curve(self) -> str:
        if self._planned is None:
            return ""
        curve = draw_curve(self._steps, self._planned.rates, self._marks, self._evaluations)
        legend = LOSS_LEGEND | PLAN_LEGEND | (CHANGED_LEGEND if self._replanned else {})
        legend |= VALIDATION_LEGEND if self._evaluations else {}
        return markup.curve(curve, legend)

    def _messages_html(self) -> str:
        """Advice and the newest note; earlier notes are folded behind one line."""
        *earlier, newest = self._notes[-MAX_NOTES:] or [""]
        visible = [*self._advice[-MAX_ADVICE:], *([newest] if newest else [])]
        html = markup.html_list(map(markup.fold_long_list, visible), quiet=True)
        folded = markup.html_list(map(markup.fold_long_list, reversed(earlier)), quiet=True)
        return html + NOTES.format(len(earlier), folded) if folded else html

    def _ended_html(self, end: JobEnded) -> str:
        title = f"{self.job.title}: {end.outcome}"
        parts: list[str] = [
            *(markup.paragraph(line) for line in end.text.splitlines()),
            markup.html_list(apply_button(remedy.words, remedy.values) for remedy in end.remedies),
            markup.details("Details", end.details),
        ]
        if end.folder and self._planned and self._planned.settings.get("method") == "lora":
            parts.append(markup.paragraph(NEXT_STEPS, quiet=True))
        if self._last is not None:
            recall = markup.recall(self._recalls)
            phases = markup.phases(measure_phases(self._steps, self._evaluations))
            parts += [
                (
                    markup.figures(
                        [
                            (plural(self._last.step, "step"), f"{self._last.step:,}"),
                            *run_speed(self._steps),
                            *(
                                [(peak_name(self._machine.cards), size(self._machine.peak))]
                                if self._machine
                                else []
                            ),
                        ]
                    )
                ),
                self._loss_curve(),
                recall,
                phases,
                self._messages_html(),
            ]
        return markup.card(title, *parts, mood=_MOODS[end.outcome])


def _beginning(plan: RunPlanned, *, began: bool) -> str:
    """What is shown before the first step is done: measurements and samples may come before it."""
    step = f"Step {plan.first_step + 1} of {plan.steps}" if plan.first_step else "The first step"
    return f"{step} {'is not finished' if began else 'has not started'} yet."


def _checkpoint_mark(saved: CheckpointSaved) -> Mark:
    return Mark(saved.step, saved.folder.name)


LATEST_STEPS = 4  # steps besides the first one; samples.jsonl has all of them
WITHOUT_LORA = "without the LoRA"
NO_TEXT = "(no text: the model stopped at once)"


def samples_table(samples: Sequence[SampleGenerated], *, ended: bool = False) -> str:
    """One column per prompt; the answers without the LoRA first, then the steps, newest first."""
    if not samples:
        return ""
    prompts = list(dict.fromkeys(s.prompt for s in samples))
    steps = sorted({s.step for s in samples if s.step or not s.without}, reverse=True)
    shown = steps if len(steps) <= LATEST_STEPS + 1 else [*steps[:LATEST_STEPS], steps[-1]]
    without_lora = {(WITHOUT_LORA, s.prompt): s.without for s in samples if s.without}
    answers = without_lora | {(f"step {s.step}", s.prompt): s.text or NO_TEXT for s in samples}
    labels = [*([WITHOUT_LORA] if without_lora else []), *(f"step {step}" for step in shown)]
    rows = (table_row("td", [label, *(answers.get((label, p), "") for p in prompts)]) for label in labels)
    table = "".join([table_row("th", ["prompt", *prompts]), *rows])
    missing = (
        "There are no samples with the LoRA, because the run ended before the first one was due. To get replies "
        "with the LoRA, open the Try it tab."
        if ended
        else "The samples with the LoRA are not ready yet."
    )
    title = markup.paragraph(
        f"Samples: what the model wrote for each prompt. {'' if shown else missing}", quiet=True
    )
    return f'{title}<div class="tp-wide"><table class="tp-table tp-samples">{table}</table></div>'


def step_before(steps: Sequence[Step], seconds: float, now: float) -> Step | None:
    """The last step at least `seconds` ago, or None if the run is younger."""
    earlier = (step for step in reversed(steps) if 0 < step.at <= now - seconds)  # 0: from before a resume
    return next(earlier, None)
