"""The memory that a run is expected to take, from config.json, the settings and the lengths of the examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ...core.errors import Remedy
from ...core.host import Memory, ModelCard
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import BITS_OF_WEIGHTS, Load, MemoryEstimate, ModelShape, memory_estimate, size
from ..examples import Examples

PARTS: Mapping[str, tuple[str, ...]] = {
    "q-v": ("q", "v"),
    "q-k-v": ("q", "k", "v"),
    "q-k-v-o": ("q", "k", "v", "o"),
    "k-v-down": ("k", "v", "down"),
}
NAMED = frozenset({"q", "k", "v", "o", "gate", "up", "down"})
STATE_BYTES = (("8bit", 2.0), ("lion", 4.0), ("adafactor", 0.1), ("sgd", 0.0))
ADAM_BYTES = 8.0
SHORTEST = 32
ROOM = 0.95  # of what is free: drivers and fragments take the rest
SLOWER_CHECKPOINTED, SLOWER_HALVED, SLOWER_8_BIT = 1.25, 1.03, 1.01


@dataclass(frozen=True)
class Expecting:
    """What decides on the memory of a run: a model's sizes, its examples, the machine."""

    shape: ModelShape
    card: ModelCard
    lengths: tuple[int, ...]  # the longest first
    learned: tuple[int, ...]  # the most first
    on_card: bool
    free: int  # bytes for all of the run, the model included; 0 where nothing is known

    @staticmethod
    def of(card: ModelCard, examples: Examples, machine: Memory | None) -> Expecting | None:
        """None where the config does not say how large the model is."""
        shape, lengths = ModelShape.of(card.config, card.counted), examples.lengths()
        if shape is None or not lengths:
            return None
        free = machine.free if machine else 0
        longest, most = sorted(lengths, reverse=True), sorted(examples.learned(), reverse=True)
        return Expecting(shape, card, tuple(longest), tuple(most), is_on_card(machine), free)

    def checkpoints(self, settings: TrainingSettings) -> bool:
        """Whether gradient checkpointing is on; auto: where a run without it would not fit on the card."""
        asked = settings.machine.gradient_checkpointing
        if asked != "auto":
            return asked == "on"
        return self.on_card and not self.fits(self._memory(settings, checkpointing=False))

    def memory(self, settings: TrainingSettings) -> MemoryEstimate:
        return self._memory(settings, checkpointing=self.checkpoints(settings))

    def fits(self, estimate: MemoryEstimate) -> bool:
        """Whether there is so much; where nothing is known, on a card, it is taken not to."""
        return estimate.total <= ROOM * self.free if self.free else not self.on_card

    def _memory(self, settings: TrainingSettings, *, checkpointing: bool) -> MemoryEstimate:
        lora, batch = settings.lora, settings.steps.batch_size
        longest = self.lengths[:batch]
        packed = settings.machine.packing != "off"
        load = Load(
            weights_as=weights_as(self.card, on_card=self.on_card),
            rank=lora.rank,
            parts=parts(settings),
            tokens=sum(longest) if packed else len(longest) * longest[0],
            learned=sum(self.learned[:batch]),
            checkpointing=checkpointing,
            dropout=lora.dropout > 0,
            state_bytes=0.0 if "paged" in settings.learning.optimizer else state_bytes(settings),
            train_head=lora.train_head,
            whole=lora.whole_model,
            graphics_card=self.on_card,
        )
        return memory_estimate(self.shape, load)


def is_on_card(machine: Memory | None) -> bool:
    return machine is not None and not machine.device.lower().startswith("cpu")


def weights_as(card: ModelCard, *, on_card: bool) -> str:
    """How the weights are held: as they were loaded, else in the model's own type (float32 on a CPU)."""
    if card.loading in BITS_OF_WEIGHTS:
        return card.loading
    if not on_card:
        return "float32"
    own: Any = card.config.get("dtype") or card.config.get("torch_dtype") or "bfloat16"
    named = str(own).removeprefix("torch.")
    return named if named in BITS_OF_WEIGHTS else "bfloat16"


def largest_batch(expecting: Expecting, settings: TrainingSettings, scale: float = 1.0) -> int:
    """The most examples that fit at once, each as long as the longest ones; 0 where that is not known.

    `scale` is what a probe measured of what grows with the batch, against what was expected of it.
    """
    if not expecting.free:
        return 0
    fitting = 0
    for batch in range(1, min(len(expecting.lengths), 1024) + 1):
        if not expecting.fits(_scaled(expecting.memory(changed(settings, {"batch_size": batch})), scale)):
            break
        fitting = batch
    return fitting


def fitted_to_card(expecting: Expecting, settings: TrainingSettings, scale: float = 1.0) -> dict[str, Any]:
    """The memory settings to change so that the run fits, at the least cost in speed; empty where none need to.

    Only gradient checkpointing, batch size and accumulation (their product stays) and an 8-bit optimizer.
    """
    fitting = (
        (slower, changes)
        for slower, changes in _ways_to_save(settings)
        if expecting.fits(_scaled(expecting.memory(changed(settings, changes)), scale))
    )
    return min(fitting, key=lambda way: way[0], default=(0.0, {}))[1]


def _ways_to_save(settings: TrainingSettings) -> Iterator[tuple[float, dict[str, Any]]]:
    steps = settings.steps
    eighth = [{}, {"optimizer": "adamw_8bit"}] if settings.learning.optimizer.startswith("adamw_torch") else [{}]
    checkpointing = [{}, {"gradient_checkpointing": "on"}]
    divisors = [d for d in range(1, steps.batch_size + 1) if steps.batch_size % d == 0]
    for first, second, divisor in product(checkpointing, eighth, divisors):
        slower = SLOWER_CHECKPOINTED ** len(first) * SLOWER_8_BIT ** len(second) * SLOWER_HALVED ** (divisor - 1)
        sizes = {"batch_size": steps.batch_size // divisor, "accumulation": steps.accumulation * divisor}
        yield slower, {**first, **second, **(sizes if divisor > 1 else {})}


def remedies(expecting: Expecting, settings: TrainingSettings, cutoff: int) -> list[Remedy]:
    """What takes less memory where one example alone is too much: the most helpful first, with figures."""
    alone = changed(settings, {"batch_size": 1})
    now = expecting.memory(alone).total
    found = []
    for changes in _ways_for_one(settings, cutoff):
        shorter = min(cutoff, int(changes.get("cutoff", cutoff)))
        there = replace(expecting, lengths=tuple(min(n, shorter) for n in expecting.lengths))
        saved = now - there.memory(changed(alone, changes)).total
        words = ", ".join(f"{SETTINGS[key].label} {value}" for key, value in changes.items())
        found.append((saved, Remedy(f"{words} (about {size(saved)} less)", changes)))
    helpful = [(saved, remedy) for saved, remedy in found if saved > 0]
    return [remedy for _, remedy in sorted(helpful, key=lambda one: -one[0])]


def _ways_for_one(settings: TrainingSettings, cutoff: int) -> Iterator[dict[str, Any]]:
    yield {"gradient_checkpointing": "on"}
    yield {"optimizer": "adamw_8bit"}
    if cutoff >= 2 * SHORTEST:
        yield {"cutoff": cutoff // 2}
    if settings.lora.rank > 1:
        half = settings.lora.rank // 2
        yield {"rank": half, "alpha": settings.lora.alpha * half / settings.lora.rank}


def changed(settings: TrainingSettings, changes: Mapping[str, Any]) -> TrainingSettings:
    sections = {}
    for name in ("steps", "learning", "lora", "machine"):
        section = getattr(settings, name)
        sections[name] = replace(section, **{k: v for k, v in changes.items() if hasattr(section, k)})
    return replace(settings, **sections)


def _scaled(estimate: MemoryEstimate, scale: float) -> MemoryEstimate:
    grows = {name: round(getattr(estimate, name) * scale) for name in ("activations", "head")}
    return replace(estimate, **grows)


def state_bytes(settings: TrainingSettings) -> float:
    """What the optimizer keeps for each trained weight in float32, wherever that lies."""
    return next((count for word, count in STATE_BYTES if word in settings.learning.optimizer), ADAM_BYTES)


def parts(settings: TrainingSettings) -> frozenset[str] | None:
    return parts_of(settings.lora.targets)


def parts_of(targets: str | tuple[str, ...]) -> frozenset[str] | None:
    """The layers that are meant, None for all; a list of one's own with other names is taken for all."""
    if isinstance(targets, str):
        return frozenset(PARTS[targets]) if targets in PARTS else None
    named = frozenset(name.rpartition(".")[2].removesuffix("_proj") for name in targets)
    return named if named <= NAMED else None
