"""What is to happen after a step: wishes and rules come together here, and nothing of the Trainer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...core.jobs import EventLog, LiveChanged, Note, Replanned, RunControl
from ...settings.live_settings import Live, going_on
from .lr_plan import Rates, fall_of
from .saving_rules import Best, Evaluation, Moment, SavingRules, Wanted
from .stopping_rules import Patience, why_stop


@dataclass(frozen=True)
class Decision:
    """Whether the loop ends here, why a checkpoint is saved (None: it is not), whether the rates are new."""

    stop: bool = False
    save: str | None = None
    replanned: bool = False


@dataclass(frozen=True)
class Interlude:
    """Why the loop ends although the run does not: more epochs, or the card is wanted for something else."""

    more_epochs: float = 0.0
    frees: bool = False


class Steering:
    """Asked once after every step; what it remembers is part of every checkpoint."""

    def __init__(
        self,
        asked: Live,
        rates: Rates,
        known: Mapping[str, Any],
        control: RunControl[Any],
        log: EventLog,
        *,
        kept_aside: str = "",
    ) -> None:
        self._asked, self._control, self._log = asked, control, log
        self._kept_aside = kept_aside
        self.live = _in_force(asked, known)
        same_plan = known.get("planned") == len(rates.planned)
        self.rates = rates.times(self.live.rate_factor)
        if same_plan and (fall := fall_of(known.get("fall"))):
            self.rates = Rates(rates.learning_rate, rates.planned, self.live.rate_factor, fall)
        self._ending: str = known.get("ending", "") if same_plan else ""
        self._saving = SavingRules.from_memory(known.get("saving", {}), evaluates=bool(kept_aside))
        self._patience = Patience(**known.get("patience", {}))
        if known.get("kept_aside", kept_aside) != kept_aside:  # how well another part was known says nothing here
            self._saving.best, self._patience = Best(), Patience()
        if not same_plan:  # who asks for more wants it tried, also where the last rounds brought nothing
            self._patience.waited = 0
        self.stopped_by = ""
        self.time_over = False
        self._first_clock: float | None = None
        self.interlude: Interlude | None = None
        self.last_look: Callable[[int], Evaluation | None] = lambda step: None
        control.begin(self.live)

    def look_before(self, found: Evaluation, step: int) -> None:
        """What was found before the first step of now: the run has to become better than that."""
        keep_best = self.live.saving.keep_best
        self._patience.look(found, keep_best)
        if step and keep_best != "no":  # there is a checkpoint of it, the one that is gone on from
            self._saving.best.look(*found.by(keep_best), step, found.loss)

    def memory(self) -> dict[str, Any]:
        return {
            "asked": self._asked.values(),
            "live": self.live.values(),
            "planned": len(self.rates.planned),
            "fall": asdict(self.rates.fall) if self.rates.fall else None,
            "ending": self._ending,
            "saving": self._saving.memory(),
            "patience": asdict(self._patience),
            "kept_aside": self._kept_aside,
        }

    @property
    def best(self) -> Best:
        """The best step so far; step 0 where none is looked for."""
        return self._saving.best if self.live.saving.keep_best != "no" else Best()

    def without_checkpoint(self) -> None:
        """The one that was decided on could not be written."""
        self._saving.without_checkpoint()

    def is_last(self, step: int) -> bool:
        """Whether the run is at its end after this step, by its plan or because it has wound down."""
        return step >= self.rates.steps

    def after(self, at: Moment, used: Sequence[float], found: Evaluation | None = None) -> Decision:
        """What is to happen now; `used` are the rates of the steps that are done."""
        before = self.rates
        self._take_live(at.step)
        if found is not None and not found.asked:
            self._patience.look(found, self.live.saving.keep_best)
        self._take_wind_down(at.step)
        self._obey_rules(at)
        if self.stopped_by and found is None:
            found = self.last_look(at.step)
        if self.rates is not before:
            self._log.append(
                Replanned(step=at.step, steps=self.rates.steps, rates=self.rates.all(used), why=self._why_rates())
            )
        ends = self._control.stopping or bool(self.stopped_by)
        self.interlude = self._interlude(over=ends or self.is_last(at.step))
        stop = ends or self.interlude is not None
        at = replace(at, last=(ends or self.is_last(at.step)) and self.interlude is None)
        return Decision(stop, self._why_save(at, found, ends=stop), self.rates is not before)

    def _take_live(self, step: int) -> None:
        asked: Live | None = self._control.live
        if asked is None or asked == self.live:
            return
        before, now = self.live.values(), asked.values()
        changes = {key: (before[key], now[key]) for key in now if now[key] != before[key]}
        if asked.rate_factor != self.live.rate_factor:
            self.rates = self.rates.times(asked.rate_factor)
        self.live = asked
        self._log.append(LiveChanged(step=step, changes=changes))

    def _take_wind_down(self, step: int) -> None:
        if self._control.take_wind_down():
            self._wind_down(step, "as wished")

    def _wind_down(self, step: int, why: str) -> None:
        if self.rates.fall or self.is_last(step):
            return
        self.rates, self._ending = self.rates.winding_down(step), why
        self._log.append(Note(text=f"Winding down after step {step}, {why}: step {self.rates.steps} is the last."))

    def _obey_rules(self, at: Moment) -> None:
        if self._control.stopping or self.stopped_by:
            return
        if over := self._over_time(at.clock):
            self.stopped_by, self.time_over = over, True
        elif self.rates.fall and self.is_last(at.step):
            self.stopped_by = f"it has wound down ({self._ending})"
        elif not self.rates.fall and (rule := why_stop(self.live.stopping, at, self._patience)):
            if self.live.stopping.stop_how == "wind_down" and not self.is_last(at.step):
                self._wind_down(at.step, f"since {rule}")
                return
            self.stopped_by = rule
        if self.stopped_by:
            self._log.append(Note(text=f"Stopping after step {at.step}: {self.stopped_by}."))

    def _over_time(self, clock: float) -> str:
        """Why the run has had its time, which is counted from its first step; empty while it has not."""
        self._first_clock = clock if self._first_clock is None else self._first_clock
        limit = self._control.time_limit
        return limit.why if limit and clock - self._first_clock >= limit.seconds else ""

    def _why_rates(self) -> str:
        if self.rates.fall:
            return f"winding down {self._ending}"
        return f"learning rate times {self.rates.factor:g}"

    def _interlude(self, *, over: bool) -> Interlude | None:
        """More epochs win over a rule that would end the run here: they were asked for. A pause has nothing to
        wait for where the run is over."""
        if self._control.stopping:
            return None
        more, frees = self._control.take_epochs(), self._control.take_free()
        frees = frees and (more > 0 or not over)
        return Interlude(more, frees) if more or frees else None

    def _why_save(self, at: Moment, found: Evaluation | None, *, ends: bool) -> str | None:
        if self._control.throwing_away:
            return None
        asked = self._control.take_checkpoint()
        return self._saving.why(self.live.saving, at, Wanted(asked, ends, found))


def _in_force(asked: Live, known: Mapping[str, Any]) -> Live:
    if not known:
        return asked
    return going_on(asked, then_asked=known["asked"], then_in_force=known["live"])
