"""How well the part kept aside is known: its loss, perplexity and accuracy, without learning from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.errors import first_line
from ...core.jobs import Advice, Evaluated, EventLog, Occasion, RunControl, Stage
from ...data.examples import origins
from ...records.report import graph_file
from ...train_utils import perplexity
from ..compute import Ways, distributed
from ..plan import Blueprint, Evaluation
from ..tokenizer import working_tokenizer
from .context_gain import context_gain, laters
from .eval_loop import AtOnce, Pass, Sums, Told, measuring

NOTHING_ASIDE = "Nothing is kept aside, so there is nothing to evaluate. Keep a share aside (eval_share)."

EVALUATING, TELLS_SECONDS = "Evaluating on the part kept aside", 3.0


class Testing:
    """When the part kept aside is gone through, and what came of it so far: it stands in the run's graph."""

    def __init__(
        self, blueprint: Blueprint, graph: list[dict[str, Any]], control: RunControl[Any], log: EventLog
    ) -> None:
        self._blueprint, self._graph, self._control, self._log = blueprint, graph, control, log
        self._there = len(blueprint.data.kept_aside) > 0
        self.kept_aside = blueprint.data.kept_aside.digest() if self._there else ""
        self.evaluations = graph_file.evaluations_of(graph, self.kept_aside) if self._there else []
        self.measure: Callable[[], Measured | None] = lambda: None
        self._stage_told = 0.0

    def stopping(self) -> bool:
        """Whether there is somebody waiting for the run to stop."""
        return self._control.stopping

    def told(self, share: float) -> None:
        """How far the evaluation is that goes on now; nothing of one that is over in a moment."""
        if time.monotonic() - self._stage_told > TELLS_SECONDS:
            self._log.append(Stage(text=EVALUATING, share=share))
            self._stage_told = time.monotonic()

    def let_go(self) -> None:
        """Hold on to nothing that holds the model."""
        self.measure = lambda: None

    def at_start(self, step: int) -> Evaluation | None:
        """Before the first step. A run that goes on knows it already, but for what its stop did not wait for."""
        if not self._there:
            return None
        if not self.evaluations:
            return self._evaluated(step, "start")
        left_out = self._is_planned(step) and self.evaluations[-1].step < step
        return self._evaluated(step, "planned") if left_out else None

    def after(self, step: int, *, last: bool) -> Evaluation | None:
        """After a step: at the last one, where it is planned, or at a wish."""
        wished, stopping = self._control.take_evaluation(), self._control.stopping
        if wished and not self._there:
            self._log.append(Advice(text=NOTHING_ASIDE))
        if not self._there:
            return None
        wished, stopping = distributed.heard(wished, stopping)  # what follows is done by all processes, or by none
        if stopping:
            return None
        if last:
            return self._evaluated(step, "end")
        if self._is_planned(step):
            return self._evaluated(step, "planned")
        return self._evaluated(step, "asked") if wished else None

    def _is_planned(self, step: int) -> bool:
        every = self._blueprint.settings.aside.eval_every or self._blueprint.plan.steps_per_epoch
        return step % every == 0

    def at_end(self, step: int) -> Evaluation | None:
        """Where a rule ends the run after this step."""
        return self._evaluated(step, "end") if self._there else None

    def _evaluated(self, step: int, why: Occasion) -> Evaluation | None:
        """One evaluation; where it cannot be done that is said, and the run goes on."""
        self._log.append(Stage(text=EVALUATING))
        began = self._stage_told = time.monotonic()
        try:
            found = self.measure()
        except Exception as error:  # noqa: BLE001 - whatever it is, hours of training do not end for it
            self._log.append(
                Advice(text=f"The evaluation after step {step} failed, and the run goes on: {first_line(error)}")
            )
            found = None
        if found is not None:
            self._keep(self._event(found, step, why, time.monotonic() - began))
        if why != "end":
            self._log.append(Stage(text="Training"))
        return Evaluation(found.loss, found.accuracy, why == "asked") if found is not None else None

    def _event(self, found: Measured, step: int, why: Occasion, seconds: float) -> Evaluated:
        return Evaluated(
            step=step,
            epoch=step / self._blueprint.plan.steps_per_epoch,
            why=why,
            loss=found.loss,
            perplexity=perplexity(found.loss),
            accuracy=found.accuracy,
            tokens=found.tokens,
            seconds=seconds,
            by_source=found.by_source,
            context_gain=found.context_gain,
        )

    def _keep(self, evaluated: Evaluated) -> None:
        self.evaluations.append(evaluated)
        self._graph.append(graph_file.entry(evaluated, self.kept_aside))
        self._log.append(evaluated)


@dataclass(frozen=True)
class Measured:
    """What a pass over the part kept aside says."""

    loss: float
    accuracy: float
    tokens: int
    by_source: dict[str, float]
    context_gain: float | None


class Measuring:
    """Goes through the part kept aside with a model in training, which it leaves as it found it."""

    def __init__(
        self,
        blueprint: Blueprint,
        model: Any,
        ways: Ways,
        stopping: Callable[[], bool],
        told: Told = lambda share: None,
    ) -> None:
        kept, settings, card = blueprint.data.kept_aside, blueprint.settings, blueprint.card
        bos = working_tokenizer(card.tokenizer).bos  # some have one that they never put: a marker of turns
        in_order = settings.steps.batching == "length_then_order"
        self._examples, self._origins = list(kept), origins(kept, settings)
        self._groups = self._origins.of(self._examples)
        self._told = told
        self._laters = laters(kept, bos, card.context, rows_too=in_order)
        self._pass = Pass(model, ways, AtOnce(examples=settings.steps.batch_size), stopping)

    def __call__(self) -> Measured | None:
        """None where the run is to stop meanwhile."""
        with measuring(self._pass.model):
            sums = self._pass.sums(self._examples, self._groups, len(self._origins.names), self._told)
            if sums is None:
                return None
            return self._measured(sums, context_gain(self._pass, self._laters))

    def expected_seconds(self) -> float:
        """How long it takes, by a part of it."""
        beside = [example for later in self._laters for example in later]
        with measuring(self._pass.model):
            return self._pass.expected_seconds([*self._examples, *beside])

    def _measured(self, sums: Sums, gain: float | None) -> Measured:
        names, tokens = self._origins.names, sums.tokens
        apart = {name: float(sums.losses[n] / tokens[n]) for n, name in enumerate(names) if tokens[n]}
        return Measured(
            loss=sums.loss,
            accuracy=float(sums.hits.sum() / max(tokens.sum(), 1)),
            tokens=int(tokens.sum()),
            by_source=apart if self._origins.several else {},
            context_gain=gain,
        )
