"""How well a run learned, in words, and by which figures: from its losses and those of the part kept aside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.jobs import Evaluated
from ...train_utils import plural
from .graph_file import best_of, evaluations_of, number, steps_of

Kind = Literal[
    "could learn more", "about right", "did not learn", "began to memorize", "became worse", "not known"
]
NOTEWORTHY = 0.01
"""So much of a loss, up or down, is more than chance."""
LAST_PART = 0.25
"""So much of a run is looked at where only its own losses are known."""
FEW = 8
"""Fewer steps than that say nothing of how it goes."""


@dataclass(frozen=True)
class Verdict:
    """What is to be said, where it turned, the checkpoint that is the better one, and the figures behind it."""

    kind: Kind
    text: str
    step: int
    better: str
    evidence: Mapping[str, float]

    def as_log(self) -> dict[str, Any]:
        """For training_log.json."""
        return {**vars(self), "evidence": dict(self.evidence)}


def judge_run(
    graph: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[int, str],
    kept_aside: str = "",
    kept: int = 0,
    *,
    evaluates: bool = False,
) -> Verdict:
    """From the entries of a graph and the checkpoints by their step; `kept` is the step that was kept, if not the
    last one. Without a part kept aside, only what the losses of the training itself can tell. Where there is one
    and nothing was measured yet, `evaluates` or its digest say so."""
    steps = steps_of(graph)
    after = [e for e in evaluations_of(graph, kept_aside) if math.isfinite(e.loss)]
    if not steps or len(after) < 2:
        why = ONCE if after else TOO_SOON if kept_aside or evaluates else NEVER
        return _of_training_alone(steps, why)
    return _Judged(steps, after, checkpoints, kept).verdict()


def read_verdict(log: Mapping[str, Any]) -> str:
    """What a run's log says of how well it learned; nothing where it was written without a verdict."""
    known = log.get("verdict")
    return str(known.get("text") or "") if isinstance(known, Mapping) else ""


NEVER = "Nothing was kept aside"
ONCE = "The part kept aside was gone through only once"
TOO_SOON = "The run ended before the part kept aside was gone through"


class _Judged:
    def __init__(
        self,
        steps: Sequence[Mapping[str, Any]],
        measured: Sequence[Evaluated],
        checkpoints: Mapping[int, str],
        kept: int,
    ) -> None:
        self._smoothed = {int(e["current_steps"]): number(e["smoothed_loss"]) for e in steps}
        self._measured, self._checkpoints, self._kept = measured, checkpoints, kept
        self._first, self._last, self._before = measured[0], measured[-1], measured[-2]
        best = best_of(measured)
        assert best is not None
        self._best = best

    def verdict(self) -> Verdict:
        if self._last.loss > self._best.loss * (1 + NOTEWORTHY):
            return self._past_its_best()
        fallen = self._before.loss - self._last.loss
        if self._best is self._last and fallen > NOTEWORTHY * self._before.loss:
            return self._made(
                "could learn more",
                f"The loss on the part kept aside was still falling at the end: {self._says(self._before)}, "
                f"{self._says(self._last)}. More epochs or a higher learning rate may bring more.",
                self._last,
            )
        if self._first.step == 0 and self._first.loss - self._best.loss <= NOTEWORTHY * self._first.loss:
            return self._made(
                "did not learn",
                f"The loss on the part kept aside is what it was before the start: {self._says(self._first)}, "
                f"{self._says(self._last)}. More epochs or a higher learning rate may bring something.",
                self._last,
            )
        return self._made(
            "about right",
            f"The loss on the part kept aside fell from {self._first.loss:.4f} to {self._best.loss:.4f} "
            f"(step {self._best.step}) and is {self._last.loss:.4f} at the end.",
            self._best,
        )

    def _past_its_best(self) -> Verdict:
        then, now = self._training(self._best.step), self._training(self._last.step)
        rose = f"The loss on the part kept aside rose from {self._says(self._best)} to {self._says(self._last)}"
        if math.isfinite(then) and math.isfinite(now) and now < then:
            text = f"{rose}, while that of the training went on falling, {then:.4f} to {now:.4f}."
            return self._made("began to memorize", text + self._which(), self._best)
        text = f"{rose}, and that of the training did not fall either. Try a lower learning rate."
        return self._made("became worse", text + self._which(), self._best)

    def _which(self) -> str:
        """The checkpoint to take."""
        if self._kept and self._kept == self._best.step:
            return f" What is kept is that of step {self._kept}, before it."
        if name := self._better():
            return f" {name} is the better one."
        if self._best.step == 0:
            return " It was never lower than before the first step: for such texts the model is better without."
        return f" No checkpoint of about step {self._best.step} is left; end the next run there."

    def _better(self) -> str:
        """The name of the checkpoint with the lowest loss, where one was measured and is better than the end."""
        there = [e for e in self._measured if e.step in self._checkpoints and e.step != self._last.step]
        found = best_of(there)
        return self._checkpoints[found.step] if found and found.loss < self._last.loss else ""

    def _training(self, step: int) -> float:
        """The smoothed loss at a step; before the first one that of the first."""
        return self._smoothed.get(max(step, min(self._smoothed)), math.nan)

    def _says(self, one: Evaluated) -> str:
        return f"{one.loss:.4f} (step {one.step})"

    def _made(self, kind: Kind, text: str, turn: Evaluated) -> Verdict:
        evidence = {
            "kept_aside_first": self._first.loss,
            "kept_aside_lowest": self._best.loss,
            "kept_aside_lowest_at_step": self._best.step,
            "kept_aside_last": self._last.loss,
            "training_at_lowest": self._training(self._best.step),
            "training_last": self._training(self._last.step),
        }
        better = self._better() if kind in ("began to memorize", "became worse") else ""
        return Verdict(kind, f"{_title(kind, turn.step)}. {text}", turn.step, better, evidence)


def _title(kind: Kind, step: int) -> str:
    words: dict[Kind, str] = {
        "began to memorize": f"It began to memorize {f'at step {step}' if step else 'from the first step on'}",
        "became worse": "It became worse",
        "could learn more": "It could learn more",
        "did not learn": "It did not learn what helps there",
    }
    return words.get(kind, "About right")


def _of_training_alone(steps: Sequence[Mapping[str, Any]], why: str) -> Verdict:
    losses = [loss for e in steps if math.isfinite(loss := number(e["smoothed_loss"]))]
    if not losses:
        return Verdict("not known", "No step has a loss that is a number.", 0, "", {})
    first, last = losses[0], losses[-1]
    earlier = losses[-1 - int(LAST_PART * len(losses))]
    falling = earlier - last > NOTEWORTHY * earlier
    fell = "was still falling" if last < first else "fell again"
    course = f"and {fell if falling else 'did not fall any more'} in the last quarter of the run."
    if len(losses) < FEW:
        course = f"in {len(losses)} {plural(len(losses), 'step')}, too few to say more."
    text = (
        f"{why}, so learning cannot be told from memorizing. The smoothed loss went from "
        f"{first:.4f} to {last:.4f} {course}"
    )
    evidence = {"training_first": first, "training_before_last_quarter": earlier, "training_last": last}
    return Verdict("not known", text, 0, "", evidence)
