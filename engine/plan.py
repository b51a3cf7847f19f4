"""Plan of a run, and what is decided after each of its steps; independent of Trainer and disk. No torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from ..core.errors import Remedy
from ..core.files import Count
from ..core.host import DeviceMemory, ModelCard
from ..core.jobs import EvaluationDone, Job, LiveSettingsChanged, Note, PlanChanged, Request, Step
from ..data.prepare import TrainingData
from ..data.report import MemoryModel, find_remedies
from ..records.folder import RunFolder, run_files
from ..records.report import GraphEvent, graph_events
from ..schedulers import Phase, lr_multipliers
from ..settings.definitions import SETTINGS, SavingSettings, StoppingSettings, TrainingSettings, section_keys
from ..settings.live_settings import LiveSettings, resumed_settings
from ..settings.rules import DROP_FACTOR, HOLD_STEPS
from ..train_utils import StepPlan, format_count, interval_steps, smooth_loss

DATA_KEY = "data and slicing"
WIND_DOWN_RATIO = 0.1  # of the steps so far
LR_SHARE_KEY = "share"  # key in an optimizer group: its share of the learning rate
BY_LENGTH, NEIGHBOR_PAIRS, IN_ORDER, NOT_KNOWN = "by length", "pairs of neighbors", "sequential", "not_known"
EpochPosition = tuple[int, int]  # an epoch, and the number of its examples that were already drawn
# The mean log probability of a token of the chosen replies may fall by this before a warning: a token is then 0.6
# times as likely. Means of several steps, because the log probabilities of single replies differ by as much.
CHOSEN_STEPS, MAX_CHOSEN_FALL = 10, 0.5
CHECKS_PER_EPOCH = 10  # how often the smoothed loss is compared with the best, without a validation split


@dataclass(frozen=True)
class RunPlan:
    """Settings, model, data, learning-rate schedule and folder of a run."""

    settings: TrainingSettings
    card: ModelCard
    data: TrainingData
    folder: RunFolder

    @cached_property
    def phases(self) -> list[Phase]:
        """The schedule, resolved for the number of steps."""
        return self.settings.learning.phases(self.plan)

    @cached_property
    def validation_key(self) -> str:
        """Fingerprint of the validation split, whose losses only compare with each other; empty without one."""
        return self.data.validation.digest() if len(self.data.validation) else ""

    @property
    def plan(self) -> StepPlan:
        return self.data.plan

    def rates(self, factor: float = 1.0) -> LrPlan:
        """Learning rates of the schedule."""
        multipliers = lr_multipliers(self.phases, self.plan.steps)
        return LrPlan(self.settings.learning.learning_rate, tuple(multipliers), factor)

    def remedies(self, machine: DeviceMemory) -> list[Remedy]:
        """Changes to the settings that would take less memory."""
        estimate = MemoryModel.of(self.card, self.data.examples, machine)
        return find_remedies(estimate, self.settings, self.data.resolved.cutoff) if estimate else []

    def unchangeable(self) -> dict[str, Any]:
        """Values that must be the same when a run resumes from its checkpoint."""
        values = self.settings.values()
        fixed = {key: values[key] for key, setting in SETTINGS.items() if setting.fixed}
        fixed["alpha"] = self.settings.lora.effective_alpha
        if self.settings.lora.whole_model:
            lora_keys = section_keys("lora")
            fixed = {key: value for key, value in fixed.items() if key not in lora_keys} | {"method": "full"}
        # With another number of processes, the steps are the same if their product with the accumulation is.
        accumulation = self.data.resolved.accumulation * self.plan.processes
        model = {DATA_KEY: self.data.examples.digest(), "model": self.card.name}
        return {**model, **fixed, "accumulation": accumulation}


@dataclass(frozen=True)
class LrPlan:
    """Learning rates of a run: the shares of its schedule, times a factor that counts from the next step on."""

    learning_rate: float
    shares: tuple[float, ...]
    factor: float = 1.0
    winds_down_after: int | None = None  # the step after which the rate falls to 0 early

    @property
    def steps(self) -> int:
        """Last step of the run."""
        return len(self.shares)

    def share(self, done: int) -> float:
        """Share of the learning rate after `done` steps."""
        # transformers asks once more after the last step.
        return self.shares[min(done, len(self.shares) - 1)] * self.factor

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        return self.learning_rate * self.share(step - 1)

    def all(self, used: Sequence[float] = ()) -> tuple[float, ...]:
        """Learning rates of all steps: those already used, then the current plan."""
        return (*used, *(self.rate(step) for step in range(len(used) + 1, self.steps + 1)))

    def winding_down(self, done: int) -> LrPlan:
        """Copy that winds down linearly to 0 after `done` steps, over a tenth as many steps."""
        length = max(1, min(max(2, math.ceil(done * WIND_DOWN_RATIO)), self.steps - done))
        share = self.shares[min(done, len(self.shares) - 1)]
        fall = (share * (1 - step / length) for step in range(1, length + 1))
        return replace(self, shares=(*self.shares[:done], *fall), winds_down_after=done)


def apply_to_scheduler(rates: LrPlan, scheduler: Any) -> None:
    """Apply the rates to a torch scheduler and its optimizer from the next step on."""
    # A scheduler sets the rates of the next step at the end of each step, so a change comes too late for that one.
    rate = rates.rate(scheduler.last_epoch + 1)
    for group in (groups := scheduler.optimizer.param_groups):
        share = group[LR_SHARE_KEY]
        group["initial_lr"], group["lr"] = rates.learning_rate * share, rate * share
    scheduler.base_lrs = [group["initial_lr"] for group in groups]
    scheduler._last_lr = [group["lr"] for group in groups]


class BatchingPhases:
    """Batching rule at each position of a run; `length_then_order` switches it once or twice."""

    def __init__(self, run_plan: RunPlan, changes: Sequence[Sequence[int]] = ()) -> None:
        """`changes` are the positions at which the loss has ended a phase so far."""
        self._plan, self._switching = run_plan.plan, run_plan.settings.switching
        self.changes: list[EpochPosition] = [(int(epoch), int(taken)) for epoch, taken in changes]
        self.position: EpochPosition = (0, 0)  # of the next example to be drawn
        self.names: tuple[str, ...] = (run_plan.settings.steps.batching,)  # in order
        if self.names == ("length_then_order",):
            self.names = (BY_LENGTH, *(NEIGHBOR_PAIRS,) * self._switching.switch_pairs, IN_ORDER)

    def at(self, position: EpochPosition) -> str:
        """Return the phase of the batch that begins at this position."""
        (epoch, taken), switching, plan = position, self._switching, self._plan
        if switching.switch_after == "loss":
            done = sum(change <= position for change in self.changes)
        else:
            reached = epoch
            if switching.switch_after != "epochs":
                reached = epoch * plan.steps_per_epoch + taken // plan.examples_per_step
            planned = (switching.switch_at, switching.second_switch_at)[: len(self.names) - 1]
            done = sum(reached >= after for after in planned)
        return self.names[min(done, len(self.names) - 1)]

    def phase_of_step(self, step: int) -> str:
        """Return the phase in which a step (counted from 1) begins."""
        epoch, within = divmod(step - 1, self._plan.steps_per_epoch)
        return self.at((epoch, within * self._plan.examples_per_step))

    def ends_with(self, step: int) -> bool:
        """Whether the step after this one begins in another phase."""
        return len(self.names) > 1 and self.phase_of_step(step + 1) != self.phase_of_step(step)

    def update(self, smoothed: float) -> str:
        """Switch to the next phase if the loss is low enough, from the next unfetched batch on; returns why."""
        done, switching = len(self.changes), self._switching
        if switching.switch_after != "loss" or done >= len(self.names) - 1:
            return ""
        low, high = (
            (switching.switch_loss_low, switching.switch_loss_high),
            (switching.second_switch_loss_low, switching.second_switch_loss_high),
        )[done]
        if smoothed > high:
            return ""
        self.changes.append(self.position)
        reason = f"{self.names[done + 1]}, because the smoothed loss {smoothed:.4f} is at or below {high:g}."
        if smoothed <= low:
            reason += (
                f" The loss fell quickly and is already at or below the lower bound ({low:g}), so the previous "
                "phase was short."
            )
        return reason


class StepLog:
    """Collects the steps of a run, with the smoothed loss and the time of each."""

    def __init__(self, graph: Sequence[Mapping[str, Any]], smoothed: float | None) -> None:
        self.graph: list[GraphEvent] = graph_events(graph)
        self.smoothed = smoothed
        self._chosen = [s.preferences["chosen"] for s in self.steps() if "chosen" in s.preferences]
        self._step_start = time.monotonic()
        self._step_end: float | None = None

    def steps(self) -> list[Step]:
        return [event for event in self.graph if isinstance(event, Step)]

    def evaluations(self, validation_key: str) -> list[EvaluationDone]:
        """The evaluations on this split, since others do not compare; all without one."""
        events = [event for event in self.graph if isinstance(event, EvaluationDone)]
        return [event for event in events if validation_key in ("", event.validation_key)]

    def begin_step(self) -> None:
        """Start the clock of a step; the time until now belongs to no step."""
        self._step_start = time.monotonic()

    def exclude_time(self, seconds: float, *, was_paused: bool = False) -> None:
        """Exclude seconds since the last step from the time of the next one; nothing ran in those of a pause."""
        self._step_start += seconds
        if was_paused and self._step_end is not None:
            self._step_end += seconds

    def end_step(self, loss: float) -> tuple[float, float, float]:
        """Return the smoothed loss, the seconds of the step, and those since the step before it."""
        self.smoothed = smooth_loss(self.smoothed, loss)
        now = time.monotonic()
        extra_seconds = 0.0 if self._step_end is None else max(0.0, self._step_start - self._step_end)
        seconds = now - self._step_start
        self._step_start = self._step_end = now
        return self.smoothed, seconds, extra_seconds

    def warn_of_fall(self, preferences: Mapping[str, float]) -> str:
        """Return a sentence at the step after which the chosen replies are much less likely; otherwise nothing."""
        if "chosen" not in preferences:
            return ""
        self._chosen.append(preferences["chosen"])
        first, now = fmean(self._chosen[:CHOSEN_STEPS]), fmean(self._chosen[-CHOSEN_STEPS:])
        before = fmean(self._chosen[-CHOSEN_STEPS - 1 : -1] or [first])
        if not first - before <= MAX_CHOSEN_FALL < first - now:  # also where it was said before
            return ""
        return (
            f"the log probability of a token of the chosen replies fell from {first:.2f} to {now:.2f}. The model "
            "makes both replies less likely. To prevent this, use a lower learning rate, a higher beta, or a "
            "Weight of the chosen reply such as 0.1."
        )

    def rates_used(self) -> list[float]:
        """Learning rates of all steps so far."""
        return [step.learning_rate for step in self.steps()]


@dataclass(frozen=True)
class StepState:
    """State after a step."""

    step: int
    steps_per_epoch: int
    smoothed: float
    clock: float = 0.0  # in seconds
    last: bool = False  # whether the run ends here
    steps: int = 0  # all steps of the run, for what is a share of them
    requests: frozenset[Request] = frozenset()  # what the user asked for up to this step


def measure_for(keep_best: str, evaluation: EvaluationDone) -> tuple[str, float]:
    """Name and value of the measure that counts."""
    if keep_best == "accuracy":
        return "validation accuracy", evaluation.accuracy
    return "validation loss", evaluation.loss


@dataclass
class LossDrop:
    """Detects each further drop of the smoothed loss by a tenth below a start value, once it holds."""

    saved: float | None = None
    held: int = 0

    def look(self, begin: float, smoothed: float) -> bool:
        if not begin:
            return False
        level = DROP_FACTOR * min(begin, self.saved if self.saved is not None else begin)
        self.held = self.held + 1 if smoothed <= level else 0
        if self.held < HOLD_STEPS:
            return False
        self.saved, self.held = smoothed, 0
        return True


@dataclass
class BestStep:
    """Best step so far by a loss or an accuracy; it starts over when the measure changes."""

    measure: str = ""
    value: float | None = None
    step: int = 0
    loss: float | None = None  # along with an accuracy; it decides between equal ones

    def look(self, measure: str, value: float, loss: float | None = None, step: int = 0) -> bool:
        """Whether this value is the best so far, or the first one; NaN and infinity never are."""
        best, best_loss = (self.value, self.loss) if measure == self.measure else (None, None)
        self.measure, self.value = measure, best
        is_better = math.isfinite(value) and (loss is None or math.isfinite(loss))
        if best is not None and value == best:  # equal losses are no improvement
            is_better = is_better and loss is not None and best_loss is not None and loss < best_loss
        elif best is not None:
            is_better = is_better and (value > best if "accuracy" in measure else value < best)
        if is_better:
            self.value, self.loss, self.step = value, loss, step
        return is_better


@dataclass
class Patience:
    """Counts evaluations in a row without improvement; part of every checkpoint."""

    measure: str = ""
    best: float | None = None
    waited: int = 0
    loss: float | None = None  # along with the best accuracy

    def count(self, evaluation: EvaluationDone, keep_best: str) -> None:
        best = BestStep(self.measure, self.best, loss=self.loss)
        is_better = best.look(*measure_for(keep_best, evaluation), evaluation.loss)
        self.measure, self.best, self.loss = best.measure, best.value, best.loss
        self.waited = 0 if is_better else self.waited + 1


@dataclass
class SavingRules:
    """Reasons for a checkpoint."""

    falls: LossDrop = field(default_factory=LossDrop)
    best: BestStep = field(default_factory=BestStep)
    evaluates: bool = False  # whether there is a validation split; it alone then decides which step is best
    backed_up: float | None = None
    before: BestStep = field(default_factory=BestStep)  # best step before the current one

    def why(
        self,
        saving: SavingSettings,
        state: StepState,
        evaluation: EvaluationDone | None = None,
        *,
        asked: bool = False,
        ends: bool = False,
    ) -> str | None:
        """Reason that names the checkpoint, the first of user, best, epoch, loss; None for no checkpoint.

        `ends`: the loop of transformers ends, and perhaps not the run, which then begins again from here.
        """
        self.before = replace(self.best)
        if self.backed_up is None:
            self.backed_up = state.clock
        every = interval_steps(saving.save_every, state.steps)
        epoch, remainder = divmod(state.step, state.steps_per_epoch)
        # Each is asked at each step, since some remember what they see; is_last after is_best, which moves the
        # best.
        is_best = False
        if saving.keep_best != "no" and evaluation is not None:
            measure = measure_for(saving.keep_best, evaluation)
            is_best = self.best.look(*measure, evaluation.loss, state.step)
        elif saving.keep_best == "loss" and not self.evaluates:
            interval = max(1, state.steps_per_epoch // CHECKS_PER_EPOCH)
            if state.step % interval == 0 or state.last:
                is_best = self.best.look("smoothed loss", state.smoothed, step=state.step)
        has_dropped = self.falls.look(saving.save_on_loss_drop, state.smoothed)
        # A run that ends within an epoch has ended it: epochs may be added later. If its last step is not the best
        # one, it is kept beside the best.
        is_last = state.last and (
            saving.save_each_epoch or (saving.keep_best != "no" and self.best.step != state.step)
        )
        needs_backup = saving.backup_minutes and state.clock - self.backed_up >= 60 * saving.backup_minutes
        reasons = {
            "user": asked,
            "best": is_best,
            f"epoch-{epoch}": saving.save_each_epoch and not remainder,
            f"loss-{state.smoothed:.2f}".replace(".", "_"): has_dropped,
            "": bool(every and state.step % every == 0) or ends or is_last,
            "backup": needs_backup,
        }
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason is not None:
            self.backed_up = state.clock  # a checkpoint for any reason also serves as a backup
        return reason


def stop_reason(stopping: StoppingSettings, state: StepState, patience: Patience) -> str:
    """The rule that ends the run here, in words; empty if none does."""
    if stopping.stop_at_loss and state.smoothed <= stopping.stop_at_loss:
        return f"the smoothed loss {state.smoothed:.4f} is at or below {stopping.stop_at_loss:g}"
    if stopping.stop_at_epoch and state.step >= stopping.stop_at_epoch * state.steps_per_epoch - 1e-9:  # 1.1 * 100
        return f"epoch {stopping.stop_at_epoch:g} is done"
    if stopping.early_stopping and patience.waited >= stopping.early_stopping:
        times = format_count(patience.waited, "evaluation")
        if patience.best is None:
            return f"the validation loss was NaN or infinite in {times}"
        return f"the {patience.measure} did not improve on {patience.best:.4f} in {times}"
    return ""


@dataclass(frozen=True)
class Restart:
    """Reason to end the loop but not the run: more epochs, or a pause that frees the GPU."""

    more_epochs: float = 0.0
    frees_gpu: bool = False


@dataclass(frozen=True)
class Steering:
    """The memory of a controller in a checkpoint."""

    asked: dict[str, Any]  # the live settings that the run began with
    live: dict[str, Any]  # those in force
    planned: int = 0  # steps
    winds_down_after: Count | None = None
    ending: str = ""  # why it winds down
    falls: LossDrop = field(default_factory=LossDrop)
    best: BestStep = field(default_factory=BestStep)
    patience: Patience = field(default_factory=Patience)
    kept_aside: str = ""  # the fingerprint of the validation split
    stopped_by: str = ""
    live_changes: list[run_files.LiveChange] = field(default_factory=list)


class RunController:
    """Called once after every step; its state is part of every checkpoint."""

    def __init__(self, run_plan: RunPlan, state: Steering | None, job: Job) -> None:
        """`state` is the memory of the controller of the checkpoint that the run resumes from."""
        self._settings, self._validation_key = run_plan.settings, run_plan.validation_key
        self._requested = LiveSettings(self._settings.saving, self._settings.stopping)
        self._control, self._log = job.control, job.log
        self.live = self._requested
        if state:
            self.live = resumed_settings(self._requested, then_asked=state.asked, then_in_force=state.live)
        self.rates = run_plan.rates(self.live.rate_factor)
        self._planned, then = self.rates.steps, state or Steering({}, {})
        same_plan = then.planned == self._planned
        same_split = then.kept_aside == self._validation_key
        same_rules = same_plan and same_split and self.live.values() == then.live
        # A rule that the user has lifted since does not end the run; a wind-down that was asked for does.
        rules = {key: self.live.values()[key] for key in section_keys("stopping")}
        still_ends = then.ending == "as requested" or rules.items() <= then.live.items()
        if same_plan and still_ends and then.winds_down_after is not None:
            self.rates = self.rates.winding_down(then.winds_down_after)
        self._told = self.rates  # in the log
        self._ending = then.ending if same_plan else ""
        # Losses on another validation split don't compare with those of now.
        best, self._patience = (then.best, then.patience) if same_split else (BestStep(), Patience())
        self._saving = SavingRules(then.falls, best, evaluates=bool(self._validation_key))
        if not same_plan:  # a longer run is wanted even if the last evaluations did not improve
            self._patience.waited = 0
        self.stopped_by = then.stopped_by if same_rules else ""
        self.live_changes: list[run_files.LiveChange] = [*then.live_changes]
        self.restart: Restart | None = None
        if self._control.live is None:  # otherwise the user may have changed them
            self._control.live = self.live

    @property
    def settings(self) -> TrainingSettings:
        """The settings of the run, with the live settings that are in force."""
        return replace(self._settings, saving=self.live.saving, stopping=self.live.stopping)

    def observe_initial(self, evaluation: EvaluationDone, step: int) -> None:
        """Take in an evaluation before the first step; the run has to beat it."""
        keep_best = self.live.saving.keep_best
        self._patience.count(evaluation, keep_best)
        if step and keep_best != "no":  # it has a checkpoint: the one that the run resumes from
            self._saving.best.look(*measure_for(keep_best, evaluation), evaluation.loss, step)

    def memory(self) -> Steering:
        return Steering(
            asked=self._requested.values(),
            live=self.live.values(),
            planned=self._planned,
            winds_down_after=self.rates.winds_down_after,
            ending=self._ending,
            falls=self._saving.falls,
            best=self._saving.best,
            patience=self._patience,
            kept_aside=self._validation_key,
            stopped_by=self.stopped_by,
            live_changes=self.live_changes,
        )

    @property
    def best(self) -> BestStep:
        """Best step so far; step 0 if best checkpoints are not kept."""
        return self._saving.best if self.live.saving.keep_best != "no" else BestStep()

    def cancel_checkpoint(self) -> bool:
        """Forget a checkpoint that could not be written, and return whether a restart is canceled with it."""
        self._saving.best = self._saving.before  # otherwise only the last step would be kept
        restart, self.restart = self.restart, None
        if restart is not None and restart.frees_gpu:
            self._control.resume()
        return restart is not None

    def is_last(self, step: int) -> bool:
        """Whether the run ends with this step, by plan or because it has wound down."""
        return step >= self.rates.steps

    def is_over(self, step: int) -> bool:
        """Whether no step follows this one, also because a rule has ended the run."""
        return bool(self.stopped_by) or self.is_last(step)

    def would_end(self, state: StepState) -> bool:
        """Whether no step follows this one if the run is resumed, also by the rules of now."""
        return self.is_over(state.step) or bool(stop_reason(self.live.stopping, state, self._patience))

    def take_live(self, step: int) -> None:
        """Put the live settings in force that the user has asked for up to this step."""
        self._saving.before = replace(self._saving.best)  # a save that fails in a pause forgets no best step
        requested: LiveSettings | None = self._control.live
        if requested is None or requested == self.live:
            return
        old, new = self.live.values(), requested.values()
        changes = {key: (old[key], new[key]) for key in new if new[key] != old[key]}
        if requested.rate_factor != self.live.rate_factor:
            self.rates = replace(self.rates, factor=requested.rate_factor)
        self.live = requested
        old, new = ({key: values[n] for key, values in changes.items()} for n in (0, 1))
        self.live_changes.append({"step": step, "before": old, "after": new})
        self._log.append(LiveSettingsChanged(step=step, changes=changes))

    def decide(
        self,
        state: StepState,
        rates_used: Callable[[], Sequence[float]],
        evaluation: EvaluationDone | None,
        evaluate_at_end: Callable[[int], EvaluationDone | None],
    ) -> tuple[bool, str | None]:
        """Decide after a step whether the loop ends, and why a checkpoint is saved (None: no checkpoint).

        `rates_used` returns the learning rates of the steps so far.
        """
        self.take_live(state.step)
        if evaluation is not None and evaluation.why != "asked":  # what the user asked for does not count
            self._patience.count(evaluation, self.live.saving.keep_best)
        if self._take(Request.WIND_DOWN, state):
            self._wind_down(state.step, "as requested")
        if Request.STOP not in state.requests and not self.stopped_by:
            self._apply_rules(state)
        if self.stopped_by and evaluation is None:
            evaluation = evaluate_at_end(state.step)
        if self.rates is not self._told:
            self._told, why = self.rates, f"learning rate multiplied by {self.rates.factor:g}"
            if self.rates.winds_down_after is not None:
                why = f"winding down {self._ending}"
            rates = self.rates.all(rates_used())
            self._log.append(PlanChanged(step=state.step, steps=self.rates.steps, rates=rates, why=why))
        stopping = Request.STOP in state.requests or bool(self.stopped_by)
        over = stopping or self.is_last(state.step)
        self.restart = None
        if Request.STOP not in state.requests:
            # Added epochs override a rule that would end the run here; a pause at the end of a run is ignored.
            epochs = self._control.take_epochs() if Request.MORE_EPOCHS in state.requests else 0.0
            frees = self._take(Request.FREE_MEMORY, state) and (epochs > 0 or not over)
            if epochs or frees:
                self.restart = Restart(epochs, frees)
        stop = stopping or self.restart is not None
        save = None
        if Request.DISCARD not in state.requests:
            asked = self._take(Request.CHECKPOINT, state)
            state = replace(state, last=over and self.restart is None)
            save = self._saving.why(self.live.saving, state, evaluation, asked=asked, ends=stop)
        return stop, save

    def _take(self, request: Request, state: StepState) -> bool:
        """Whether it is among the requests of this step; then it is cleared."""
        return request in state.requests and self._control.take(request)

    def _wind_down(self, step: int, reason: str) -> None:
        if self.rates.winds_down_after is not None or self.is_last(step):
            return
        self.rates, self._ending = self.rates.winding_down(step), reason
        self._log.append(
            Note(
                text=f"Winding down from step {step} on, {reason}: the learning rate falls to 0, and the run ends "
                f"at step {self.rates.steps}."
            )
        )

    def _apply_rules(self, state: StepState) -> None:
        if self.rates.winds_down_after is not None and self.is_last(state.step):
            self.stopped_by = f"the learning rate has fallen to 0 ({self._ending.removeprefix('because ')})"
        elif self.rates.winds_down_after is None and (
            rule := stop_reason(self.live.stopping, state, self._patience)
        ):
            if self.live.stopping.stop_how == "wind_down" and not self.is_last(state.step):
                self._wind_down(state.step, f"because {rule}")
                return
            self.stopped_by = rule
        if self.stopped_by:
            self._log.append(Note(text=f"Stopping after step {state.step}: {self.stopped_by}."))
