"""Estimates of the memory and the disk space that a run takes, from config.json, settings and examples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ...core.errors import Remedy
from ...core.files import free_bytes, nearest_existing
from ...core.findings import Finding, advice, problem
from ...core.host import DeviceMemory, ModelCard
from ...core.model_shape import HEAD, ModelShape, model_bytes, target_layers
from ...settings.definitions import SETTINGS, LoraSettings, TrainingSettings
from ...train_utils import StepPlan, format_count, head_rows, interval_steps, size
from ..examples import Examples

# Bytes of optimizer state for a float32 weight: Adam keeps two float32 numbers, Lion one, and Adafactor a row and
# a column for each matrix.
STATE_BYTES = (("8bit", 2.0), ("lion", 4.0), ("adafactor", 0.1), ("sgd", 0.0))
ADAM_STATE_BYTES = 8.0
MIN_CUTOFF = 32
# Share of all activations that glibc's allocator loses to fragmentation on a CPU; measured (docs/engine.md).
CPU_FRAGMENTATION = 0.3
USABLE_SHARE = 0.95  # of the free memory: drivers and fragmentation take the rest
CHECKPOINTING_SLOWDOWN, SMALLER_BATCH_SLOWDOWN, ADAMW_8BIT_SLOWDOWN = 1.25, 1.03, 1.01
RECORD_BYTES = 2_000_000  # about the size of the graph, its picture, the log and the samples
MAX_BACKUPS = 2
PART_NAMES = {"lora": "LoRA", "head": "output layer", "overhead": "other"}  # the words of the page


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of a step in bytes, part by part; estimated before anything is loaded, within about a fifth."""

    weights: int
    lora: int
    gradients: int
    optimizer: int
    activations: int
    head: int
    overhead: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def words(self) -> str:
        """'3.1 GB (weights 2.2 GB, activations ...)', the largest part first."""
        parts = sorted(vars(self).items(), key=lambda part: -part[1])
        words = (f"{PART_NAMES.get(name, name)} {size(count)}" for name, count in parts if count)
        return f"{size(self.total)} ({', '.join(words)})"


@dataclass(frozen=True)
class MemoryModel:
    """Memory model of a run: the sizes of the model, the lengths of the examples, the machine."""

    shape: ModelShape
    card: ModelCard
    lengths: tuple[int, ...]  # longest first
    learned: tuple[int, ...]  # largest first
    on_card: bool
    free: int  # bytes for the whole run with the model; 0 where unknown
    sides: int = 1  # 2 where each example is compared with another; without the LoRA, nothing is kept of a pass

    @staticmethod
    def of(card: ModelCard, examples: Examples, machine: DeviceMemory | None) -> MemoryModel | None:
        """Build the memory model; None where the config does not give the model's size."""
        shape, lengths = ModelShape.of(card.config, card.param_counts), examples.lengths()
        if shape is None or not lengths:
            return None
        free, on_card = (machine.free, not machine.is_cpu) if machine else (0, False)
        longest, most = sorted(lengths, reverse=True), sorted(examples.learned(), reverse=True)
        sides = 2 if examples.are_compared else 1
        return MemoryModel(shape, card, tuple(longest), tuple(most), on_card, free, sides)

    def fits(self, estimate: MemoryEstimate) -> bool:
        """Whether an estimate fits into the free memory; on a GPU with unknown memory it does not."""
        return estimate.total <= USABLE_SHARE * self.free if self.free else not self.on_card

    def memory(self, settings: TrainingSettings, *, checkpointing: str = "") -> MemoryEstimate:
        """The memory of a step on the longest batch, by arithmetic on the model's sizes."""
        checkpointing = checkpointing or resolve_checkpointing(self, settings)
        recomputes_all = checkpointing in ("on", "offload")
        shape, lora, batch = self.shape, settings.lora, settings.steps.batch_size
        parts, precision = target_layers(lora.targets), self.card.weight_precision(on_card=self.on_card)
        weights, compute_bytes = model_bytes(shape, precision), 4 if precision == "float32" else 2
        unpacked = 0  # weights of a GGUF file that are unpacked for a moment; the largest is mostly the head
        if packed := self.card.packed:
            weights, unpacked = packed.blocks + packed.plain * compute_bytes, packed.largest
        trained, head = _trained_numbers(shape, lora)
        weight_bytes = compute_bytes if lora.whole_model else 4
        new_experts = 0 if lora.whole_model else shape.recreated_numbers(parts, checkpointing=recomputes_all)
        longest, learned = self.lengths[:batch], sum(self.learned[:batch])
        tokens = sum(longest) if settings.machine.packing != "off" else len(longest) * longest[0]
        # Numbers that a layer keeps for each token: the inputs of both norms (in half precision as float32, so
        # twice; on a GPU, torch's fused norm keeps them once, but the rest is a little too low there) and of the
        # layers with a LoRA; queries, the keys and values expanded to as many heads, and the output of attention;
        # the factors of the MLP's product. With dropout, another copy for each LoRA.
        targets = {name: widths for name, widths in shape.linears.items() if parts is None or name in parts}
        numbers = 2 * shape.hidden * (2 if compute_bytes == 2 else 1)
        numbers += shape.hidden * (bool(targets.keys() & {"q", "k", "v"}) + bool(targets.keys() & {"gate", "up"}))
        numbers += 4 * shape.heads * shape.head
        numbers += ((2 if shape.lean_gate else 3) if shape.gated else 1) * shape.active_feed
        numbers += targets.get("down", (0, 0))[0] + lora.rank * len(targets)
        numbers += sum(wide for wide, _ in targets.values()) if lora.dropout else 0
        all_layers = tokens * shape.layers * numbers
        # Checkpointing keeps the input of a layer, if not in RAM, and recomputes one layer at a time.
        recomputed = shape.layers if recomputes_all else shape.layers // 2 if checkpointing == "half" else 0
        inputs = recomputed * shape.hidden if checkpointing != "offload" else 0
        activations = tokens * (inputs + (shape.layers - recomputed + bool(recomputed)) * numbers)
        # On an H100, a LoRA on 1.7 billion weights needed 11.2 GB where this expected 10.3 GB (docs/engine.md).
        overhead = 6e8 + 0.05 * weights if self.on_card else CPU_FRAGMENTATION * all_layers * compute_bytes
        overhead += unpacked * compute_bytes
        # Where the output layer is trained, its logits are computed for all supervised rows at once.
        named = HEAD in lora.targets or HEAD in lora.saved_modules
        trains_head = lora.whole_model or lora.train_head or named
        rows = learned if trains_head else min(learned, head_rows(shape.vocabulary, on_card=self.on_card))
        state_bytes = 0.0 if "paged" in settings.learning.optimizer else _state_bytes(settings)
        # Autograd keeps a copy of the LoRA in the compute dtype, for the gradient of each layer.
        cast = 0 if recomputes_all or compute_bytes == 4 else compute_bytes * trained
        return MemoryEstimate(
            weights=round(weights),
            lora=0 if lora.whole_model else 4 * trained + cast + compute_bytes * head,
            gradients=weight_bytes * trained + compute_bytes * head,
            optimizer=round(_bytes_per_weight(state_bytes, weight_bytes) * trained)
            + round(_bytes_per_weight(state_bytes, compute_bytes) * head),
            activations=(activations + new_experts) * compute_bytes,
            head=rows * shape.vocabulary * (8 if compute_bytes == 4 else 10)
            + learned * shape.hidden * compute_bytes * 2,
            overhead=round(overhead),
        )


def resolve_checkpointing(model: MemoryModel | None, settings: TrainingSettings) -> str:
    """How activations are recomputed: with auto, no more of them than makes the run fit."""
    setting = settings.machine.gradient_checkpointing
    if setting != "auto":
        return setting
    if model is None or not model.on_card:
        return "off"
    ways = ("off", "half")
    return next((way for way in ways if model.fits(model.memory(settings, checkpointing=way))), "on")


def largest_batch(model: MemoryModel, settings: TrainingSettings, scale: float = 1.0) -> int:
    """Return the largest batch of the longest examples that fits; 0 where the free memory is unknown.

    `scale` corrects the part that grows with the batch: memory that a probe measured, divided by the estimate.
    """
    largest = 0
    most = min(len(model.lengths), 1024) if model.free else 0
    while largest < most and _fits_with(model, settings, {"batch_size": largest + 1}, scale):
        largest += 1
    return largest


def fit_to_memory(model: MemoryModel, settings: TrainingSettings, scale: float = 1.0) -> dict[str, Any]:
    """Return the settings to change so that the run fits, at the least cost in speed; empty where it fits already.

    Only gradient checkpointing, batch size and accumulation (their product stays) and an 8-bit optimizer.
    """
    steps, is_adamw = settings.steps, settings.learning.optimizer.startswith("adamw_torch")
    optimizers: list[dict[str, Any]] = [{}, {"optimizer": "adamw_8bit"}] if is_adamw else [{}]
    # Of the whole slowdown, half of the layers costs half, as a power: the factors of all changes are multiplied.
    checkpointing: list[tuple[float, dict[str, Any]]] = [(0.0, {})]
    checkpointing += [(0.5, {"gradient_checkpointing": "half"}), (1.0, {"gradient_checkpointing": "on"})]
    sizes_of_pairs = 2 if settings.has_pairs else 1
    divisors = [d for d in range(1, steps.batch_size + 1) if steps.batch_size % (d * sizes_of_pairs) == 0]
    candidates = []
    for (recomputed, first), second, divisor in product(checkpointing, optimizers, divisors):
        slowdown = (
            CHECKPOINTING_SLOWDOWN**recomputed
            * ADAMW_8BIT_SLOWDOWN ** len(second)
            * SMALLER_BATCH_SLOWDOWN ** (divisor - 1)
        )
        sizes = {"batch_size": steps.batch_size // divisor, "accumulation": steps.accumulation * divisor}
        changes = {**first, **second, **(sizes if divisor > 1 else {})}
        if _fits_with(model, settings, changes, scale):
            candidates.append((slowdown, changes))
    return min(candidates, key=lambda candidate: candidate[0], default=(0.0, {}))[1]


def _fits_with(model: MemoryModel, settings: TrainingSettings, changes: Mapping[str, Any], scale: float) -> bool:
    estimate = model.memory(apply_changes(settings, changes))
    scaled = {name: round(getattr(estimate, name) * scale) for name in ("activations", "head")}
    return model.fits(replace(estimate, **scaled))


def find_remedies(model: MemoryModel, settings: TrainingSettings, cutoff: int) -> list[Remedy]:
    """List what saves memory where one example alone is too much, the most effective first, with figures."""
    candidates: list[dict[str, Any]] = [{"gradient_checkpointing": "on"}, {"optimizer": "adamw_8bit"}]
    if resolve_checkpointing(model, settings) == "on":
        candidates[0] = {"gradient_checkpointing": "offload"}
    if cutoff >= 2 * MIN_CUTOFF:
        candidates.append({"cutoff": cutoff // 2})
    if (half := settings.lora.rank // 2) > 0:
        candidates.append({"rank": half, **settings.lora.alpha_for(half)})
    single = apply_changes(settings, {"batch_size": 1})
    remedies = []
    for changes in candidates:
        shorter = min(cutoff, int(changes.get("cutoff", cutoff)))
        shortened = replace(model, lengths=tuple(min(n, model.sides * shorter) for n in model.lengths))
        saved = model.memory(single).total - shortened.memory(apply_changes(single, changes)).total
        words = ", ".join(f"{SETTINGS[key].label} {value}" for key, value in changes.items())
        remedies.append((saved, Remedy(f"{words} (saves about {size(saved)})", changes)))
    return [remedy for saved, remedy in sorted(remedies, key=lambda each: -each[0]) if saved > 0]


def check_memory(model: MemoryModel, settings: TrainingSettings) -> Iterator[Finding]:
    """Yield advice where the longest example alone is too much for the memory that is free now."""
    if not model.fits(model.memory(settings)) and not largest_batch(model, settings):
        remedies = find_remedies(model, settings, model.lengths[0] // model.sides)
        help_text = f" What saves memory: {'; '.join(each.words for each in remedies)}." if remedies else ""
        words = "The memory that is free now has no room for the longest example, even alone."
        yield advice("batch_size", f"{words}{help_text}")


def apply_changes(settings: TrainingSettings, changes: Mapping[str, Any]) -> TrainingSettings:
    sections = {}
    for name in ("steps", "learning", "lora", "machine"):
        section = getattr(settings, name)
        sections[name] = replace(section, **{k: v for k, v in changes.items() if hasattr(section, k)})
    return replace(settings, **sections)


def _trained_numbers(shape: ModelShape, lora: LoraSettings) -> tuple[int, int]:
    """The numbers of the LoRA or of the whole model, and of the output layer and others trained with a LoRA."""
    head = shape.vocabulary * shape.hidden if lora.train_head else 0
    # Tied embeddings and head are one tensor, so they count once.
    others = head * (1 if shape.tied else 2) + shape.full_weights
    if lora.whole_model:
        return shape.linear_weights + shape.other_weights, others
    return shape.lora_weights(lora.rank, target_layers(lora.targets)), others


def _state_bytes(settings: TrainingSettings) -> float:
    """Bytes of optimizer state for each float32 weight, in GPU or system memory."""
    return next((count for word, count in STATE_BYTES if word in settings.learning.optimizer), ADAM_STATE_BYTES)


def _bytes_per_weight(state_bytes: float, weight_bytes: int) -> float:
    """Optimizer state in bytes for a weight of this size: in the weight's dtype, or in 8 bits for any dtype."""
    return max(state_bytes * weight_bytes / 4, min(state_bytes, 2))


@dataclass(frozen=True)
class DiskEstimate:
    """Sizes in bytes; `most` is the most that is on disk at once."""

    made: int  # the LoRA, or the model
    checkpoint: int
    full_copies: int  # checkpoints and backups that are complete at the same time
    shrunk: int  # older checkpoints, of which only the LoRA is kept
    most: int
    free: int
    whole: bool = False  # whether the result is a whole model
    exact: bool = True  # a run is never refused for an inexact size
    unwritable: str = ""  # the folder, if it is not writable

    def words(self) -> str:
        """Such as 'at most 4 GB (LoRA 336 MB, up to 4 checkpoints and backups of 1 GB each); 9 GB is free'."""
        made = f"{'model' if self.whole else 'LoRA'} {'' if self.exact else 'about '}{size(self.made)}"
        copies = format_count(self.full_copies, "checkpoint or backup", "checkpoints and backups")
        each = " each" if self.full_copies > 1 else ""
        older = f", {format_count(self.shrunk, 'older checkpoint')} of {size(self.made)}" if self.shrunk else ""
        parts = f"{made}, up to {copies} of {size(self.checkpoint)}{each}{older}"
        return f"at most {size(self.most)} ({parts}); {size(self.free)} is free"

    def findings(self) -> Iterator[Finding]:
        fits = not self.exact or self.free >= self.made + RECORD_BYTES
        if self.unwritable:
            remedy = "Make it writable, or choose another working folder (--user-data)."
            yield problem("", f"Disk: {self.unwritable} is not writable. {remedy}")
        if not fits:
            key, what, remedy = "rank", "LoRA", "use a lower rank or fewer target modules"
            if self.whole:
                key, what, remedy = "method", "model", "train a LoRA"
            needs = f"needs {size(self.made + RECORD_BYTES)}, but only {size(self.free)} is free"
            yield problem(key, f"Disk: the {what} {needs}. Free some space, or {remedy}.")
        elif self.free < self.most and not self.unwritable:
            yield advice(
                "keep_checkpoints",
                f"Disk: the run may need up to {size(self.most)}, but only {size(self.free)} is free. Free some "
                "space, keep fewer full checkpoints, or save less often.",
            )


def estimate_disk(model: MemoryModel, settings: TrainingSettings, plan: StepPlan, folder: Path) -> DiskEstimate:
    """Estimate the disk space of a run."""
    shape, lora, saving = model.shape, settings.lora, settings.saving
    # A LoRA is float32, other weights have the model's dtype.
    weight_bytes = 4 if model.card.weight_precision(on_card=model.on_card) == "float32" else 2
    per_weight, state_bytes = _bytes_per_weight(_state_bytes(settings), weight_bytes), _state_bytes(settings)
    trained, others = _trained_numbers(shape, lora)
    made, state = weight_bytes * trained, round(per_weight * trained)
    if not lora.whole_model:
        # Tied weights are one tensor, but are written twice.
        written_twice = shape.vocabulary * shape.hidden if lora.train_head and shape.tied else 0
        made = 4 * trained + weight_bytes * (others + written_twice)
        state = round(state_bytes * trained + per_weight * others)
    saved_steps: set[int] = set()  # those that are certain from the settings
    if saving.save_each_epoch:
        saved_steps = {*range(plan.steps_per_epoch, plan.steps, plan.steps_per_epoch), plan.steps}
    if every := interval_steps(saving.save_every, plan.steps):
        saved_steps.update(range(every, plan.steps + 1, every))
    kept = min(len(saved_steps), saving.keep_checkpoints)
    if saving.keep_best != "no" or saving.save_on_loss_drop:  # as many as there can be, and the best one
        kept = saving.keep_checkpoints + (saving.keep_best != "no")
    copies = kept + 1  # and the one being written
    copies += MAX_BACKUPS if saving.backup_minutes else 0
    slim = max(0, len(saved_steps) - saving.keep_checkpoints)
    parent = nearest_existing(folder)
    return DiskEstimate(
        made=made,
        checkpoint=made + state,
        full_copies=copies,
        shrunk=slim,
        most=copies * (made + state) + slim * made + made + RECORD_BYTES,
        free=free_bytes(folder),
        whole=lora.whole_model,
        exact=model.card.param_counts is not None,
        unwritable="" if os.access(parent, os.W_OK) else str(parent),
    )
