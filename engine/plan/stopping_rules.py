"""Rules that decide after every step whether a run ends early; independent of the Trainer."""

from __future__ import annotations

from dataclasses import dataclass

from ...settings.definitions import Stopping
from .saving_rules import Evaluation, Moment, is_better


@dataclass
class Patience:
    """Counts evaluations in a row without improvement; part of every checkpoint."""

    measure: str = ""
    best: float | None = None
    waited: int = 0
    loss: float | None = None
    """Loss along with the best accuracy."""

    def look(self, evaluation: Evaluation, keep_best: str) -> None:
        measure, value = evaluation.by(keep_best)
        if measure != self.measure:
            self.measure, self.best = measure, None
        if self.best is None or is_better(measure, (value, evaluation.loss), (self.best, self.loss)):
            self.best, self.waited, self.loss = value, 0, evaluation.loss
        else:
            self.waited += 1


def why_stop(stopping: Stopping, state: Moment, patience: Patience) -> str:
    """The rule that ends the run here, in words; empty if none does."""
    if stopping.stop_at_loss and state.smoothed <= stopping.stop_at_loss:
        return f"the smoothed loss {state.smoothed:.4f} is at or under {stopping.stop_at_loss:g}"
    if stopping.stop_at_epoch and state.step >= stopping.stop_at_epoch * state.steps_per_epoch:
        return f"epoch {stopping.stop_at_epoch:g} is done"
    if stopping.early_stopping and patience.waited >= stopping.early_stopping:
        times = f"{patience.waited} evaluations" if patience.waited > 1 else "an evaluation"
        return f"{times} brought no better {patience.measure} than {patience.best:.4f}"
    return ""
