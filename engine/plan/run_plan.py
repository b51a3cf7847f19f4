"""Run plan: everything about a run that is fixed before its first step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...core.errors import Remedy
from ...core.host import DeviceMemory, ModelCard
from ...data.prepare import TrainingData
from ...data.report import MemoryModel, find_remedies
from ...records.folder import RunFolder
from ...schedulers import Phase, lr_multipliers
from ...settings.definitions import SETTINGS, TrainingSettings, section_keys
from ...train_utils import StepPlan
from .lr_plan import LrPlan

PREVIEW_EXAMPLES = 10
DATA_KEY = "data and slicing"


@dataclass(frozen=True)
class RunPlan:
    """Settings, model, data, learning-rate schedule and folder of a run."""

    settings: TrainingSettings
    card: ModelCard
    data: TrainingData
    phases: tuple[Phase, ...]
    multipliers: tuple[float, ...]
    folder: RunFolder

    @cached_property
    def validation_key(self) -> str:
        """Fingerprint of the validation split, whose losses only compare with each other; empty without one."""
        return self.data.validation.digest() if len(self.data.validation) else ""

    @property
    def plan(self) -> StepPlan:
        return self.data.plan

    def rates(self, factor: float = 1.0) -> LrPlan:
        """Learning rates of the schedule."""
        return LrPlan(self.settings.learning.learning_rate, self.multipliers, factor)

    def remedies(self, machine: DeviceMemory) -> list[Remedy]:
        """Changes to the settings that would take less memory."""
        estimate = MemoryModel.of(self.card, self.data.examples, machine)
        return find_remedies(estimate, self.settings, self.data.resolved.cutoff) if estimate else []

    def sample(self) -> list[dict[str, str]]:
        """Text of the first examples, as trained."""
        examples = self.data.examples
        return [{"value": examples[n].text} for n in range(min(PREVIEW_EXAMPLES, len(examples)))]

    def unchangeable(self) -> dict[str, Any]:
        """Values that must be the same when a run resumes from its checkpoint."""
        values = self.settings.values()
        fixed = {key: values[key] for key, setting in SETTINGS.items() if setting.fixed}
        fixed["alpha"] = self.settings.lora.effective_alpha
        if self.settings.lora.whole_model:
            lora_keys = section_keys("lora")
            fixed = {key: value for key, value in fixed.items() if key not in lora_keys} | {"method": "full"}
        return {
            DATA_KEY: self.data.examples.digest(),
            "model": self.card.name,
            **fixed,
            "accumulation": self.data.resolved.accumulation * self.plan.processes,
        }


def build_run_plan(settings: TrainingSettings, card: ModelCard, data: TrainingData, folder: RunFolder) -> RunPlan:
    """Build the run plan, with the schedule resolved for the number of steps."""
    phases = settings.learning.phases(data.plan)
    return RunPlan(settings, card, data, tuple(phases), tuple(lr_multipliers(phases, data.plan.steps)), folder)
