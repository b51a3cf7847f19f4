"""Rules asked after every step: save a checkpoint, or end the run; independent of Trainer and disk."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...core.jobs import Request
from ...settings.definitions import SavingSettings, StoppingSettings
from ...settings.rules import DROP_FACTOR, HOLD_STEPS
from ...train_utils import format_count, interval_steps

CHECKS_PER_EPOCH = 10
"""How often per epoch the smoothed loss is compared with the best, without a validation split."""
BACKUP = "backup"


@dataclass(frozen=True)
class StepState:
    """State after a step; `clock` is in seconds."""

    step: int
    steps_per_epoch: int
    smoothed: float
    clock: float = 0.0
    last: bool = False
    """Whether the run ends here."""
    steps: int = 0
    """All steps of the run, for what is a share of them."""
    requests: frozenset[Request] = frozenset()
    """What the user asked for up to this step."""


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
    loss: float | None = None
    """Loss along with an accuracy; it decides between equal accuracies."""

    def look(self, measure: str, value: float, step: int, loss: float | None = None) -> bool:
        if measure != self.measure:
            self.measure, self.value = measure, None
        if not is_better(measure, (value, loss), (self.value, self.loss)):
            return False
        self.value, self.step, self.loss = value, step, loss
        return True


def is_better(
    measure: str, candidate: tuple[float, float | None], best: tuple[float | None, float | None]
) -> bool:
    """Whether a value is better than the best so far, or the first one; NaN and infinity never are.

    Between equal values the loss decides, and equal losses are no improvement.
    """
    (value, loss), (other, other_loss) = candidate, best
    if not _is_finite(value, loss):
        return False
    if other is None or not _is_finite(other, other_loss):  # of a checkpoint of an older version
        return True
    if value == other:
        return loss is not None and other_loss is not None and loss < other_loss
    return value > other if "accuracy" in measure else value < other


def _is_finite(value: float, loss: float | None) -> bool:
    return math.isfinite(value) and (loss is None or math.isfinite(loss))


@dataclass(frozen=True)
class Evaluation:
    """Result on the validation split; one that the user `asked` for does not count against the patience."""

    loss: float
    accuracy: float
    asked: bool = False

    def measure_for(self, keep_best: str) -> tuple[str, float]:
        """Name and value of the measure that counts."""
        if keep_best == "accuracy":
            return "validation accuracy", self.accuracy
        return "validation loss", self.loss


@dataclass(frozen=True)
class SaveRequest:
    """Reasons for a checkpoint besides the rules: the user, the end of the loop, an evaluation."""

    asked: bool = False
    ends: bool = False
    """Whether the run ends here. If not, only the loop of the HF Trainer is restarted, from this checkpoint."""
    found: Evaluation | None = None


@dataclass
class SavingRules:
    """Reasons for a checkpoint; their state is part of every checkpoint."""

    falls: LossDrop = field(default_factory=LossDrop)
    best: BestStep = field(default_factory=BestStep)
    evaluates: bool = False
    """Whether there is a validation split. If there is, it alone decides which step is best."""
    backed_up: float | None = None
    before: BestStep = field(default_factory=BestStep)
    """Best step before the current one."""

    @staticmethod
    def from_memory(state: dict[str, Any], *, evaluates: bool = False) -> SavingRules:
        return SavingRules(LossDrop(**state.get("falls", {})), BestStep(**state.get("best", {})), evaluates)

    def memory(self) -> dict[str, Any]:
        return {"falls": asdict(self.falls), "best": asdict(self.best)}

    def why(self, saving: SavingSettings, state: StepState, request: SaveRequest) -> str | None:
        """Reason that names the checkpoint, the first of user, best, epoch, loss; None for no checkpoint."""
        self.before = replace(self.best)
        every = interval_steps(saving.save_every, state.steps)
        on_interval = every and state.step % every == 0
        epoch, remainder = divmod(state.step, state.steps_per_epoch)
        reasons = {
            "user": request.asked,
            "best": self._is_best(saving, state, request.found),
            f"epoch-{epoch}": saving.save_each_epoch and not remainder,
            f"loss-{state.smoothed:.2f}".replace(".", "_"): self.falls.look(
                saving.save_on_loss_drop, state.smoothed
            ),
            "": bool(on_interval or request.ends)
            or self._ends_mid_epoch(saving, state)
            or self._ends_after_best(saving, state),
            BACKUP: self._is_backup_due(saving, state.clock),
        }
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason is not None:
            self.backed_up = state.clock  # a checkpoint for any reason also serves as a backup
        return reason

    def on_checkpoint_failed(self) -> None:
        """Forget the best step of a checkpoint that could not be written."""
        self.best = self.before

    def _is_best(self, saving: SavingSettings, state: StepState, evaluation: Evaluation | None) -> bool:
        """Whether the step is best by its evaluation, or by the smoothed loss some times per epoch."""
        if saving.keep_best == "no":
            return False
        if evaluation is not None:
            return self.best.look(*evaluation.measure_for(saving.keep_best), state.step, evaluation.loss)
        if self.evaluates or saving.keep_best == "accuracy":
            return False
        interval = max(1, state.steps_per_epoch // CHECKS_PER_EPOCH)
        if state.step % interval and not state.last:
            return False
        return self.best.look("smoothed loss", state.smoothed, state.step)

    def _ends_mid_epoch(self, saving: SavingSettings, state: StepState) -> bool:
        """Whether the run ends within an epoch; this counts as the epoch's end, as epochs may be added later."""
        return state.last and saving.save_each_epoch

    def _ends_after_best(self, saving: SavingSettings, state: StepState) -> bool:
        """Whether the last step is not the best one; then it is kept as a checkpoint too."""
        return state.last and saving.keep_best != "no" and self.best.step != state.step

    def _is_backup_due(self, saving: SavingSettings, clock: float) -> bool:
        if self.backed_up is None:
            self.backed_up = clock
        return bool(saving.backup_minutes) and clock - self.backed_up >= 60 * saving.backup_minutes


@dataclass
class Patience:
    """Counts evaluations in a row without improvement; part of every checkpoint."""

    measure: str = ""
    best: float | None = None
    waited: int = 0
    loss: float | None = None
    """Loss along with the best accuracy."""

    def look(self, evaluation: Evaluation, keep_best: str) -> None:
        measure, value = evaluation.measure_for(keep_best)
        if measure != self.measure:
            self.measure, self.best = measure, None
        if is_better(measure, (value, evaluation.loss), (self.best, self.loss)):
            self.best, self.waited, self.loss = value, 0, evaluation.loss
        else:
            self.waited += 1


def stop_reason(stopping: StoppingSettings, state: StepState, patience: Patience) -> str:
    """The rule that ends the run here, in words; empty if none does."""
    if stopping.stop_at_loss and state.smoothed <= stopping.stop_at_loss:
        return f"the smoothed loss {state.smoothed:.4f} is at or below {stopping.stop_at_loss:g}"
    if stopping.stop_at_epoch and state.step >= stopping.stop_at_epoch * state.steps_per_epoch:
        return f"epoch {stopping.stop_at_epoch:g} is done"
    if stopping.early_stopping and patience.waited >= stopping.early_stopping:
        times = format_count(patience.waited, "evaluation")
        if patience.best is None:
            return f"the validation loss was NaN or infinite in {times}"
        return f"the {patience.measure} did not improve on {patience.best:.4f} in {times}"
    return ""
