"""When a checkpoint is worth its place, asked after every step; knows neither Trainer nor disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...settings.definitions import Saving

FALL = 0.9
HOLD = 3
"""So many steps in a row a smoothed loss has to hold before its fall is believed."""
LOOKS = 10
"""How often an epoch is looked at for the best smoothed loss, where nothing is kept aside."""
BACKUP = "backup"


@dataclass(frozen=True)
class Moment:
    """A step that is done, and what is known after it; `clock` is in seconds."""

    step: int
    steps_per_epoch: int
    smoothed: float
    clock: float = 0.0
    last: bool = False
    """Whether the run ends here."""


@dataclass
class Falls:
    """Every tenth by which the smoothed loss falls under a value, once it holds."""

    saved: float | None = None
    held: int = 0

    def look(self, begin: float, smoothed: float) -> bool:
        if not begin:
            return False
        level = FALL * min(begin, self.saved if self.saved is not None else begin)
        self.held = self.held + 1 if smoothed <= level else 0
        if self.held < HOLD:
            return False
        self.saved, self.held = smoothed, 0
        return True


@dataclass
class Best:
    """The best step so far, by a loss or an accuracy; asked for by another measure it begins anew."""

    measure: str = ""
    value: float | None = None
    step: int = 0
    loss: float | None = None
    """Beside an accuracy; of two equal ones it decides."""

    def look(self, measure: str, value: float, step: int, loss: float | None = None) -> bool:
        if measure != self.measure:
            self.measure, self.value = measure, None
        if self.value is not None and not is_better(measure, (value, loss), (self.value, self.loss)):
            return False
        self.value, self.step, self.loss = value, step, loss
        return True


def is_better(measure: str, one: tuple[float, float | None], than: tuple[float, float | None]) -> bool:
    """A value and the loss beside it, which decides between equal values; the first of equals stays."""
    (value, loss), (other, other_loss) = one, than
    if value == other:
        return loss is not None and other_loss is not None and loss < other_loss
    return value > other if "accuracy" in measure else value < other


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation of the part kept aside found; one that was `asked` for tries no patience."""

    loss: float
    accuracy: float
    asked: bool = False

    def by(self, keep_best: str) -> tuple[str, float]:
        """The measure that counts, and its value."""
        if keep_best == "accuracy":
            return "accuracy of the part kept aside", self.accuracy
        return "loss of the part kept aside", self.loss


@dataclass(frozen=True)
class Wanted:
    """What asks for a checkpoint beside the rules: the user, the end of the loop; and what an evaluation found."""

    asked: bool = False
    ends: bool = False
    """Of the run, or only of HF's loop, which then goes on from it."""
    found: Evaluation | None = None


@dataclass
class SavingRules:
    """The reasons for a checkpoint; what they remember is part of every checkpoint."""

    falls: Falls = field(default_factory=Falls)
    best: Best = field(default_factory=Best)
    evaluates: bool = False
    """Whether a part is kept aside: then the best is told by that alone."""
    backed_up: float | None = None
    before: Best = field(default_factory=Best)
    """The best step before this one."""

    @staticmethod
    def from_memory(known: dict[str, Any], *, evaluates: bool = False) -> SavingRules:
        return SavingRules(Falls(**known.get("falls", {})), Best(**known.get("best", {})), evaluates)

    def memory(self) -> dict[str, Any]:
        return {"falls": asdict(self.falls), "best": asdict(self.best)}

    def why(self, saving: Saving, at: Moment, also: Wanted) -> str | None:
        """The first reason of user, best, epoch, loss names the checkpoint; None for no checkpoint here."""
        self.before = replace(self.best)
        every = saving.save_every and at.step % saving.save_every == 0
        epoch, within = divmod(at.step, at.steps_per_epoch)
        reasons = {
            "user": also.asked,
            "best": self._is_best(saving, at, also.found),
            f"epoch-{epoch}": saving.save_each_epoch and not within,
            f"loss-{at.smoothed:.2f}".replace(".", "_"): self.falls.look(saving.save_on_loss_drop, at.smoothed),
            "": bool(every or also.ends) or self._ends_within(saving, at) or self._is_overtaken(saving, at),
            BACKUP: self._is_due(saving, at.clock),
        }
        why = next((reason for reason, holds in reasons.items() if holds), None)
        if why is not None:
            self.backed_up = at.clock  # whatever it is for, it is a copy to go on from
        return why

    def without_checkpoint(self) -> None:
        """The checkpoint was not written: what is not on disk is not the best that can be kept."""
        self.best = self.before

    def _is_best(self, saving: Saving, at: Moment, found: Evaluation | None) -> bool:
        """A part kept aside is looked at when it is evaluated; else the smoothed loss, some times an epoch."""
        if saving.keep_best == "no":
            return False
        if found is not None:
            return self.best.look(*found.by(saving.keep_best), at.step, found.loss)
        if self.evaluates or saving.keep_best == "accuracy":
            return False
        looks_every = max(1, at.steps_per_epoch // LOOKS)
        if at.step % looks_every and not at.last:
            return False
        return self.best.look("smoothed loss", at.smoothed, at.step)

    def _ends_within(self, saving: Saving, at: Moment) -> bool:
        """The end of a run that ends within an epoch counts as that epoch's: more can be asked for later."""
        return at.last and saving.save_each_epoch

    def _is_overtaken(self, saving: Saving, at: Moment) -> bool:
        """The last step of a run that ends as its best one: it stays as a checkpoint."""
        return at.last and saving.keep_best != "no" and self.best.step != at.step

    def _is_due(self, saving: Saving, clock: float) -> bool:
        if self.backed_up is None:
            self.backed_up = clock
        return bool(saving.backup_minutes) and clock - self.backed_up >= 60 * saving.backup_minutes
