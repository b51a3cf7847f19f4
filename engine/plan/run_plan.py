"""A run as it was resolved from what the user asked for: everything that is fixed before its first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import Remedy
from ...core.host import Memory, ModelCard
from ...data.prepare import TrainingData
from ...data.report import Expecting, plan_checks, remedies
from ...records.folder import RunFolder
from ...schedulers import Phase, multipliers
from ...settings.definitions import SETTINGS, TrainingSettings, keys_of
from ...train_utils import StepPlan
from .lr_plan import Rates

SAMPLE = 10
DATA = "data and slicing"


@dataclass(frozen=True)
class Blueprint:
    """What is trained, on what, in how many steps, at which rates, and where it is kept."""

    settings: TrainingSettings
    card: ModelCard
    data: TrainingData
    phases: tuple[Phase, ...]
    multipliers: tuple[float, ...]
    folder: RunFolder

    @property
    def plan(self) -> StepPlan:
        return self.data.plan

    def rates(self, factor: float = 1.0) -> Rates:
        """The learning rates, as they are planned."""
        return Rates(self.settings.learning.learning_rate, self.multipliers, factor)

    def remedies(self, machine: Memory) -> list[Remedy]:
        """What would take less memory than these settings."""
        expecting = Expecting.of(self.card, self.data.examples, machine)
        return remedies(expecting, self.settings, self.data.report.cutoff) if expecting else []

    def sample(self) -> list[dict[str, str]]:
        """The first examples as trained."""
        examples = self.data.examples
        return [{"value": examples[n].text} for n in range(min(SAMPLE, len(examples)))]

    def unchangeable(self) -> dict[str, Any]:
        """What a run that goes on must have in common with its checkpoint."""
        asked = self.settings.values()
        kept = {key: asked[key] for key, setting in SETTINGS.items() if setting.fixed}
        if self.settings.lora.whole_model:
            of_a_lora = keys_of("lora")
            kept = {key: value for key, value in kept.items() if key not in of_a_lora} | {"method": "full"}
        return {
            DATA: self.data.examples.digest(),
            "model": self.card.name,
            **kept,
            "accumulation": self.plan.accumulated * self.plan.processes,
        }


def blueprint(settings: TrainingSettings, card: ModelCard, data: TrainingData, folder: RunFolder) -> Blueprint:
    """Resolve the schedule for this many steps."""
    phases = plan_checks.phases(settings, data.plan)
    return Blueprint(settings, card, data, tuple(phases), tuple(multipliers(phases, data.plan.steps)), folder)
