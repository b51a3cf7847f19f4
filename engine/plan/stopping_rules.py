"""When a run ends before its last step, asked after every step; knows no Trainer."""

from __future__ import annotations

from dataclasses import dataclass

from ...settings.definitions import Stopping
from .saving_rules import Evaluation, Moment, is_better


@dataclass
class Patience:
    """How many evaluations in a row brought nothing better; part of every checkpoint."""

    measure: str = ""
    best: float | None = None
    waited: int = 0
    loss: float | None = None
    """Beside the best accuracy."""

    def look(self, found: Evaluation, keep_best: str) -> None:
        measure, value = found.by(keep_best)
        if measure != self.measure:
            self.measure, self.best = measure, None
        if self.best is None or is_better(measure, (value, found.loss), (self.best, self.loss)):
            self.best, self.waited, self.loss = value, 0, found.loss
        else:
            self.waited += 1


def why_stop(stopping: Stopping, at: Moment, patience: Patience) -> str:
    """The rule that ends the run here, in words; empty where none does."""
    if stopping.stop_at_loss and at.smoothed <= stopping.stop_at_loss:
        return f"the smoothed loss {at.smoothed:.4f} is at or under {stopping.stop_at_loss:g}"
    if stopping.stop_at_epoch and at.step >= stopping.stop_at_epoch * at.steps_per_epoch:
        return f"epoch {stopping.stop_at_epoch:g} is done"
    if stopping.early_stopping and patience.waited >= stopping.early_stopping:
        times = f"{patience.waited} evaluations" if patience.waited > 1 else "an evaluation"
        return f"{times} brought no better {patience.measure} than {patience.best:.4f}"
    return ""
