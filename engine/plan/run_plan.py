"""Run plan: everything about a run that is fixed before its first step."""

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
    """Settings, model, data, learning-rate schedule and folder of a run."""

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
        """Learning rates of the schedule."""
        return Rates(self.settings.learning.learning_rate, self.multipliers, factor)

    def remedies(self, machine: Memory) -> list[Remedy]:
        """Changes to the settings that would take less memory."""
        estimate = Expecting.of(self.card, self.data.examples, machine)
        return remedies(estimate, self.settings, self.data.report.cutoff) if estimate else []

    def sample(self) -> list[dict[str, str]]:
        """Text of the first examples, as trained."""
        examples = self.data.examples
        return [{"value": examples[i].text} for i in range(min(SAMPLE, len(examples)))]

    def unchangeable(self) -> dict[str, Any]:
        """Values that must be the same when a run resumes from its checkpoint."""
        values = self.settings.values()
        fixed = {key: values[key] for key, setting in SETTINGS.items() if setting.fixed}
        if self.settings.lora.whole_model:
            lora_keys = keys_of("lora")
            fixed = {key: value for key, value in fixed.items() if key not in lora_keys} | {"method": "full"}
        return {
            DATA: self.data.examples.digest(),
            "model": self.card.name,
            **fixed,
            "accumulation": self.plan.accumulated * self.plan.processes,
        }


def blueprint(settings: TrainingSettings, card: ModelCard, data: TrainingData, folder: RunFolder) -> Blueprint:
    """Build the run plan, with the schedule resolved for the number of steps."""
    phases = plan_checks.phases(settings, data.plan)
    return Blueprint(settings, card, data, tuple(phases), tuple(multipliers(phases, data.plan.steps)), folder)
