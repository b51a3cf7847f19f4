"""The state of a run on a page, built from its events, so a page opened at any time shows the whole run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from ...core.jobs import EtaEstimator, Job, Request, event_text, events
from ...records.report import Mark, best_evaluation, draw_exam, judge_live, peak_name, run_speed
from ...settings import presets
from ...train_utils import duration, format_digits, plural, size, time_of_day
from ..base import markup
from .charts import loss_curve, run_charts

MAX_ADVICE, MAX_NOTES = 6, 100
LATEST_SAMPLES = 4  # steps besides the first one; samples.jsonl has all of them
HOUR = 3600  # seconds
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
NEXT_STEPS = (
    "To compare replies with and without this LoRA, open the Try it tab. To see its report and checkpoints, open "
    "the Runs tab."
)
MOODS = {"finished": "good", "stopped": "fair", "failed": "bad"}


class RunView:
    """Follows the log of one job from its first event."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.position = 0
        self.plan: events.RunPlanned | None = None
        self.samples_so_far: list[events.SampleGenerated] = []
        self._stage, self._stage_kind = "...", events.StageKind.WORKING
        self._steps: list[events.Step] = []
        self._marks: list[Mark] = []
        self._replanned = False
        self._notes: list[str] = []
        self._advice: list[str] = []
        self._last: events.Step | None = None
        self._last_checkpoint: events.CheckpointSaved | None = None
        self._end: events.JobEnded | None = None
        self._pace = EtaEstimator()
        self._evaluations: list[events.EvaluationDone] = []
        self._recalls: list[events.RecallMeasured] = []
        self._exams: list[events.ExamAsked] = []
        self._machine: events.MachineUse | None = None
        self._made: dict[str, tuple[tuple[Any, ...], str]] = {}

    def catch_up(self) -> None:
        latest = self.job.log.since(self.position)
        self.position += len(latest)
        for event in latest:
            self._pace.update(event)
            match event:
                case events.Step():
                    self._last = event
                    self._steps.append(event)
                case events.Stage():
                    self._stage, self._stage_kind = event_text(event), event.kind
                case events.RunPlanned():
                    self.plan, earlier = event, event.earlier
                    self._steps = [step for step in earlier if isinstance(step, events.Step)]
                    self._evaluations = [done for done in earlier if isinstance(done, events.EvaluationDone)]
                    self._recalls = [recall for recall in earlier if isinstance(recall, events.RecallMeasured)]
                    self._exams = [each for each in earlier if isinstance(each, events.ExamAsked)]
                    self.samples_so_far = [each for each in earlier if isinstance(each, events.SampleGenerated)]
                    saved = (each for each in earlier if isinstance(each, events.CheckpointSaved))
                    self._marks = [Mark(checkpoint.step, checkpoint.folder.name) for checkpoint in saved]
                case events.EvaluationDone():
                    self._evaluations.append(event)
                case events.RecallMeasured():
                    self._recalls.append(event)
                case events.ExamAsked():
                    self._exams.append(event)
                case events.SampleGenerated():
                    self.samples_so_far.append(event)
                case events.MachineUse():
                    self._machine = event
                case events.LiveSettingsChanged():
                    # With the labels of the settings. A new learning rate is reported by the PlanChanged event.
                    before = {key: old for key, (old, _) in event.changes.items()}
                    after = {key: new for key, (_, new) in event.changes.items()}
                    changes = presets.describe_changes(before, after)
                    if changes:
                        self._notes.append(f"After step {event.step}: {'; '.join(changes)}.")
                case events.CheckpointSaved():
                    self._last_checkpoint = event
                    self._notes.append(event_text(event))
                    self._marks.append(Mark(event.step, event.folder.name))
                case events.PlanChanged():
                    self._replanned = True
                    if self.plan is not None:
                        self.plan = replace(self.plan, steps=event.steps, rates=event.rates)
                    self._notes.append(event_text(event))
                    self._marks.append(Mark(event.step, event.why))
                case events.Note() | events.EvidenceMeasured():
                    self._notes.append(event_text(event))
                case events.Advice():
                    self._advice.append(event_text(event))
                case events.JobEnded():
                    self._end = event

    @property
    def running(self) -> bool:
        return self._end is None

    @property
    def has_charts(self) -> bool:
        return bool(self._steps or self._evaluations or self._recalls)

    def short_status(self) -> str:
        """Step and loss for the title of the browser; empty if no run is going on."""
        if not self.running or self._last is None:
            return ""
        return f"{self._last.step / self._last.steps:.0%}, loss {self._last.smoothed:.2f}"

    def html(self, *, following: str = "") -> str:
        """The run panel; `following` is the name of the run that starts automatically after this one."""
        return self._make_once("panel", lambda: self._panel(following), self.job.control.pending, following)

    def extra_charts(self) -> str:
        """The charts of the folded part 'More curves'."""
        return self._make_once("charts", lambda: run_charts(self._steps, self._evaluations, self._recalls))

    def samples(self) -> str:
        return self._make_once("samples", lambda: samples_table(self.samples_so_far, ended=not self.running))

    def _make_once(self, part: str, make: Callable[[], str], *more: Any) -> str:
        """What `make` returns, made anew only after a change."""
        # Every open page asks for it, twice a second, also while nothing happens.
        state = (self.position, *more)
        if self._made.get(part, ((), ""))[0] != state:
            self._made[part] = (state, make())
        return self._made[part][1]

    def _panel(self, following: str) -> str:
        end, curve = self._end, ""
        if self.plan is not None:
            mark = "checkpoint, or change in the planned learning rate" if self._replanned else "checkpoint"
            words = ("planned learning rate", mark)
            curve = loss_curve(self._steps, self.plan.rates, self._marks, self._evaluations, words)
        # Advice and the newest note; earlier notes are folded behind one line.
        *earlier, newest = self._notes[-MAX_NOTES:] or [""]
        visible = [*self._advice[-MAX_ADVICE:], *([newest] if newest else [])]
        folded = markup.bullets(map(markup.fold_long_list, reversed(earlier)), quiet=True)
        notes = Markup('<details data-tp-fold="notes"><summary>Earlier notes ({})</summary>{}</details>')
        told = [
            curve,
            markup.recall(self._recalls),
            Markup(draw_exam(self._exams)),
            markup.phases(events.measure_phases(self._steps, self._evaluations)),
            markup.bullets(map(markup.fold_long_list, visible), quiet=True),
            notes.format(len(earlier), folded) if folded else "",
        ]
        if end is None:
            steps = self._last.steps if self._last else 0
            use = event_text(self._machine) if self._machine else ""
            after = f" \u00b7 next: {following}" if following else ""
            return markup.card(
                f"{self.job.title}: {self._status()}{after}",
                markup.progress_bar(self._last.step / self._last.steps if self._last else 0.0),
                self._figures(),
                markup.paragraph(judge_live(self._steps, steps, self._evaluations), quiet=True),
                markup.paragraph(use[:1].upper() + use[1:], quiet=True),
                *told,
                markup.BELL_SWITCH,
                mood="live",
            )
        parts: list[str] = [
            *(markup.paragraph(line) for line in end.text.splitlines()),
            markup.bullets(markup.apply_button(remedy.words, remedy.values) for remedy in end.remedies),
            markup.details("Details", end.details),
        ]
        if end.folder and self.plan and self.plan.settings.get("method") == "lora":
            parts.append(markup.paragraph(NEXT_STEPS, quiet=True))
        if self._last is not None:
            figures = [(plural(self._last.step, "step"), f"{self._last.step:,}"), *run_speed(self._steps)]
            if self._machine:
                figures.append((peak_name(self._machine.cards), size(self._machine.peak)))
            parts += [markup.figures(figures), *told]
        return markup.card(f"{self.job.title}: {end.outcome}", *parts, mood=MOODS[end.outcome])

    def _status(self) -> str:
        """The confirmation of a pending request, or else the stage of the run."""
        pending, kind = self.job.control.pending, self._stage_kind
        stopping = bool(pending & {Request.STOP, Request.DISCARD})
        # After the last step of a run that stops, the stage says more than the confirmation of the request.
        if stopping and kind not in (events.StageKind.TRAINING, events.StageKind.PAUSED):
            if kind is events.StageKind.MEASURING and self._last is not None and Request.DISCARD not in pending:
                return "Stopping. First, recall is measured. Then the LoRA is saved."
            return f"Stopping. {self._stage}"
        if kind is events.StageKind.PAUSED and not stopping:
            waits = bool(pending - {Request.PAUSE, Request.CHECKPOINT})
            return f"{self._stage} Your other requests wait until you press Resume." if waits else self._stage
        return next((text for request, text in REQUEST_MESSAGES.items() if request in pending), self._stage)

    def _figures(self) -> str:
        last, plan = self._last, self.plan
        first_step = plan.first_step if plan else 0
        if last is None:
            if plan is None:
                return ""
            # Measurements and samples may come before the first step.
            step = f"Step {first_step + 1} of {plan.steps}" if first_step else "The first step"
            verb = "is not finished" if self._stage_kind is events.StageKind.TRAINING else "has not started"
            return markup.paragraph(f"{step} {verb} yet.", quiet=True)
        # The last step that is at least an hour old. Steps from before a resume have the time 0.
        old = next((step for step in reversed(self._steps) if 0 < step.at <= last.at - HOUR), None)
        hour_ago = f" (an hour ago: {old.smoothed:.3f})" if old else ""
        figures = [
            ("step", f"{last.step} / {plan.steps if plan else last.steps}"),
            ("epoch", f"{last.epoch:.2f}"),
            (f"smoothed loss{hour_ago}", f"{last.smoothed:.4f}"),
            ("loss", f"{last.loss:.4f}"),
        ]
        if self._evaluations:
            latest = self._evaluations[-1]
            # Losses on another validation split can't be compared.
            best = best_evaluation([e for e in self._evaluations if e.validation_key == latest.validation_key])
            earlier = f" (best: {best.loss:.4f} at step {best.step})" if best and best.step != latest.step else ""
            figures.append((f"validation loss at step {latest.step}{earlier}", f"{latest.loss:.4f}"))
            if latest.context_gain is not None:
                figures.append(("context gain", f"{latest.context_gain:.4f}"))
        if "preferred" in last.preferences:
            figures.append(("preferences followed", f"{last.preferences['preferred']:.0%}"))
        if self._recalls and self._recalls[-1].learned.passages:
            measured = self._recalls[-1]
            unseen = f" (on unseen text: {measured.control.recall:.0%})" if measured.control else ""
            figures.append((f"recall at step {measured.step}{unseen}", f"{measured.learned.recall:.0%}"))
        figures.append(("learning rate", format_digits(last.learning_rate)))
        figures.append(("tokens per second", f"{self._pace.tokens_per_second:,.0f}"))
        if not self.job.control.pending & {Request.STOP, Request.PAUSE}:
            left, now = self._pace.seconds_left, time.time()
            pace = f"time left ({duration(self._pace.seconds_per_step)} per step)"
            figures += [(pace, duration(round(left))), ("ends at about", time_of_day(now + left, now))]
        saved = self._last_checkpoint.step if self._last_checkpoint else first_step
        figures.append(("last checkpoint", f"step {saved}" if saved else "none yet"))
        return markup.figures(figures)


def samples_table(samples: Sequence[events.SampleGenerated], *, ended: bool) -> str:
    """One column per prompt; the answers without the LoRA first, then the steps, newest first."""
    if not samples:
        return ""
    prompts = list(dict.fromkeys(s.prompt for s in samples))
    steps = sorted({s.step for s in samples if s.step or not s.without}, reverse=True)
    shown = steps if len(steps) <= LATEST_SAMPLES + 1 else [*steps[:LATEST_SAMPLES], steps[-1]]
    without, no_text = "without the LoRA", "(no text: the model stopped at once)"
    without_lora = {(without, s.prompt): s.without for s in samples if s.without}
    answers = without_lora | {(f"step {s.step}", s.prompt): s.text or no_text for s in samples}
    labels = [*([without] if without_lora else []), *(f"step {step}" for step in shown)]
    rows = ([label, *(answers.get((label, prompt), "") for prompt in prompts)] for label in labels)
    missing = (
        "There are no samples with the LoRA, because the run ended before the first one was due. To get replies "
        "with the LoRA, open the Try it tab."
        if ended
        else "The samples with the LoRA are not ready yet."
    )
    title = f"Samples: what the model wrote for each prompt. {'' if shown else missing}"
    return markup.paragraph(title, quiet=True) + markup.table(("prompt", *prompts), rows)
