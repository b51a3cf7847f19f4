"""Decide what happens after each step, from the user's requests and the rules; independent of the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from ...core.jobs import Job, LiveSettingsChanged, Note, PlanChanged, Request
from ...records.folder import LiveChange
from ...settings.definitions import TrainingSettings
from ...settings.live_settings import LiveSettings, resumed_settings
from .lr_plan import WindDown, load_wind_down
from .run_plan import RunPlan
from .step_rules import (
    BestStep,
    Evaluation,
    LossDrop,
    Patience,
    SaveRequest,
    SavingRules,
    StepState,
    stop_reason,
)


@dataclass(frozen=True)
class Decision:
    """Whether the loop ends, the reason for a checkpoint (None: no checkpoint), whether the lr plan changed."""

    stop: bool = False
    save: str | None = None
    replanned: bool = False


@dataclass(frozen=True)
class Restart:
    """Reason to end the loop but not the run: more epochs, or a pause that frees the GPU."""

    more_epochs: float = 0.0
    frees_gpu: bool = False


class _SavingRecord(TypedDict, total=False):
    falls: LossDrop
    best: BestStep


class _LiveRecords(TypedDict):
    asked: dict[str, Any]
    live: dict[str, Any]


class SteeringRecord(_LiveRecords, total=False):
    """The memory of a controller in a checkpoint."""

    planned: int
    fall: WindDown | None
    ending: str
    saving: _SavingRecord
    patience: Patience
    kept_aside: str
    stopped_by: str
    live_changes: list[LiveChange]


class RunController:
    """Called once after every step; its state is part of every checkpoint."""

    def __init__(self, run_plan: RunPlan, state: Mapping[str, Any], job: Job) -> None:
        """`state` is the memory of the controller of the checkpoint that the run resumes from."""
        self._requested, self._control, self._log = LiveSettings.of(run_plan.settings), job.control, job.log
        self._validation_key, self._settings = run_plan.validation_key, run_plan.settings
        self.live_changes: list[LiveChange] = [*state.get("live_changes", ())]
        self.live = _effective_live(self._requested, state)
        self.rates = run_plan.rates(self.live.rate_factor)
        same_plan = state.get("planned") == len(self.rates.planned)
        if same_plan and (fall := load_wind_down(state.get("fall"))):
            self.rates = replace(self.rates, wind_down=fall)
        self._ending: str = state.get("ending", "") if same_plan else ""
        same_split = state.get("kept_aside", self._validation_key) == self._validation_key  # else nothing compares
        rules = state.get("saving", {}) if same_split else {**state.get("saving", {}), "best": {}}
        self._saving = SavingRules.from_memory(rules, evaluates=bool(self._validation_key))
        patience = state.get("patience", {}) if same_split else {}
        if not same_plan:  # a longer run is wanted even if the last evaluations did not improve
            patience = {**patience, "waited": 0}
        self._patience = Patience(**patience)
        same_rules = same_plan and same_split and self.live.values() == state.get("live")
        self.stopped_by: str = state.get("stopped_by", "") if same_rules else ""
        self.time_over = False
        self.restart: Restart | None = None
        if self._control.live is None:  # otherwise the user may have changed them
            self._control.live = self.live

    @property
    def settings(self) -> TrainingSettings:
        """The settings of the run, with the live settings that are in force."""
        return self.live.applied_to(self._settings)

    def observe_initial(self, evaluation: Evaluation, step: int) -> None:
        """Take in an evaluation before the first step; the run has to beat it."""
        keep_best = self.live.saving.keep_best
        self._patience.look(evaluation, keep_best)
        if step and keep_best != "no":  # it has a checkpoint: the one that the run resumes from
            self._saving.best.look(*evaluation.measure_for(keep_best), step, evaluation.loss)

    def memory(self) -> dict[str, Any]:
        return {
            "asked": self._requested.values(),
            "live": self.live.values(),
            "planned": len(self.rates.planned),
            "fall": asdict(self.rates.wind_down) if self.rates.wind_down else None,
            "ending": self._ending,
            "saving": self._saving.memory(),
            "patience": asdict(self._patience),
            "kept_aside": self._validation_key,
            "live_changes": self.live_changes,
            "stopped_by": "" if self.time_over else self.stopped_by,  # a resume has its own time limit
        }

    @property
    def best(self) -> BestStep:
        """Best step so far; step 0 if best checkpoints are not kept."""
        return self._saving.best if self.live.saving.keep_best != "no" else BestStep()

    def cancel_checkpoint(self) -> bool:
        """Forget a checkpoint that could not be written, and return whether a restart is canceled with it."""
        self._saving.on_checkpoint_failed()
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

    def decide(
        self,
        state: StepState,
        rates_used: Callable[[], Sequence[float]],
        evaluation: Evaluation | None,
        evaluate_at_end: Callable[[int], Evaluation | None],
    ) -> Decision:
        """Decide what happens after a step; `rates_used` returns the learning rates of the steps so far."""
        before = self.rates
        self._apply_live(state.step)
        if evaluation is not None and not evaluation.asked:
            self._patience.look(evaluation, self.live.saving.keep_best)
        self._apply_wind_down(state)
        self._apply_rules(state)
        if self.stopped_by and evaluation is None:
            evaluation = evaluate_at_end(state.step)
        if self.rates is not before:
            rates, why = self.rates.all(rates_used()), self._replan_reason()
            self._log.append(PlanChanged(step=state.step, steps=self.rates.steps, rates=rates, why=why))
        stopping = Request.STOP in state.requests or bool(self.stopped_by)
        self.restart = self._next_restart(state, over=stopping or self.is_last(state.step))
        stop = stopping or self.restart is not None
        state = replace(state, last=(stopping or self.is_last(state.step)) and self.restart is None)
        return Decision(stop, self._save_reason(state, evaluation, stopping=stop), self.rates is not before)

    def _apply_live(self, step: int) -> None:
        requested: LiveSettings | None = self._control.live
        if requested is None or requested == self.live:
            return
        before, after = self.live.values(), requested.values()
        changes = {key: (before[key], after[key]) for key in after if after[key] != before[key]}
        if requested.rate_factor != self.live.rate_factor:
            self.rates = self.rates.scaled(requested.rate_factor)
        self.live = requested
        before, after = ({key: values[n] for key, values in changes.items()} for n in (0, 1))
        self.live_changes.append({"step": step, "before": before, "after": after})
        self._log.append(LiveSettingsChanged(step=step, changes=changes))

    def _take(self, request: Request, state: StepState) -> bool:
        """Whether it is among the requests of this step; then it is cleared."""
        return request in state.requests and self._control.take(request)

    def _apply_wind_down(self, state: StepState) -> None:
        if self._take(Request.WIND_DOWN, state):
            self._wind_down(state.step, "as requested")

    def _wind_down(self, step: int, reason: str) -> None:
        if self.rates.wind_down or self.is_last(step):
            return
        self.rates, self._ending = self.rates.winding_down(step), reason
        self._log.append(
            Note(
                text=f"Winding down from step {step} on, {reason}: the learning rate falls to 0, and the run ends "
                f"at step {self.rates.steps}."
            )
        )

    def _apply_rules(self, state: StepState) -> None:
        if Request.STOP in state.requests or self.stopped_by:
            return
        if time_reason := self._control.time_over_reason(state.clock):
            self.stopped_by, self.time_over = time_reason, True
        elif self.rates.wind_down and self.is_last(state.step):
            self.stopped_by = f"the learning rate has fallen to 0 ({self._ending.removeprefix('because ')})"
        elif not self.rates.wind_down and (rule := stop_reason(self.live.stopping, state, self._patience)):
            if self.live.stopping.stop_how == "wind_down" and not self.is_last(state.step):
                self._wind_down(state.step, f"because {rule}")
                return
            self.stopped_by = rule
        if self.stopped_by:
            self._log.append(Note(text=f"Stopping after step {state.step}: {self.stopped_by}."))

    def _replan_reason(self) -> str:
        if self.rates.wind_down:
            return f"winding down {self._ending}"
        return f"learning rate multiplied by {self.rates.factor:g}"

    def _next_restart(self, state: StepState, *, over: bool) -> Restart | None:
        """Added epochs override a rule that would end the run here; a pause at the end of a run is ignored."""
        if Request.STOP in state.requests:
            return None
        epochs = self._control.take_epochs() if Request.MORE_EPOCHS in state.requests else 0.0
        frees = self._take(Request.FREE_MEMORY, state)
        frees = frees and (epochs > 0 or not over)
        return Restart(epochs, frees) if epochs or frees else None

    def _save_reason(self, state: StepState, evaluation: Evaluation | None, *, stopping: bool) -> str | None:
        if Request.DISCARD in state.requests:
            return None
        requested = self._take(Request.CHECKPOINT, state)
        return self._saving.why(self.live.saving, state, SaveRequest(requested, stopping, evaluation))


def _effective_live(requested: LiveSettings, state: Mapping[str, Any]) -> LiveSettings:
    if not state:
        return requested
    return resumed_settings(requested, then_asked=state["asked"], then_in_force=state["live"])
