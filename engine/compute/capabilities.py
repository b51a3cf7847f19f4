"""What a model is asked before its first step: may examples share a row, and how is its loss found.

Whether a model keeps examples in one row apart stands in no config: some take positions from a mask, some
know no positions, some carry a state along. So it is tried: two short texts in one row against each alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import SettingsError
from ...data.examples import IGNORED
from ...settings.definitions import TrainingSettings
from ..lora import HALF, computing_type, in_its_type, rounds_to_tf32
from . import loss

LENGTH = 24
MOST_MIXED, MOST_MIXED_COARSE = 1e-5, 0.1
"""Of what one text running on into the other would change: in float32, and where rounding is coarser."""


@dataclass(frozen=True)
class Ways:
    """How a run works with its model, and why not otherwise."""

    loss: loss.Loss
    packed: bool
    why_not_packed: str = ""
    why_not_usual_loss: str = ""

    def notes(self) -> Iterator[str]:
        """For the log of a run."""
        if self.packed:
            yield "Packing: the examples of a batch stand in one row, without padding; the model keeps them apart."
        elif self.why_not_packed:
            yield f"Packing is off: {self.why_not_packed}. Shorter examples are padded."
        if self.why_not_usual_loss:
            yield f"The loss is worked out from all logits: {self.why_not_usual_loss}."

    def as_log(self) -> dict[str, str]:
        """For training_log.json."""
        off = f"off: {self.why_not_packed}" if self.why_not_packed else "off"
        usual = (
            f"from all logits: {self.why_not_usual_loss}" if self.why_not_usual_loss else "supervised rows only"
        )
        return {"packing": "on" if self.packed else off, "loss_from": usual}


def tried(model: Any, settings: TrainingSettings) -> Ways:
    """Try both, and decide; SettingsError where packing is a must and the model mixes examples."""
    asked = settings.machine.packing
    with torch.no_grad(), quiet(model), in_its_type(model):
        documents = _documents(model)
        way, other_loss = _loss(model, documents, settings.learning.label_smoothing)
        mixed = "" if asked == "off" else _why_mixed(model, documents)
    if asked == "on" and mixed:
        raise SettingsError([f"Packing: it cannot be on, because {mixed}. Choose auto or off."])
    return Ways(way, asked != "off" and not mixed, mixed, other_loss)


def _documents(model: Any) -> torch.Tensor:
    """Two short texts of any ids; the same ones each time."""
    ids = torch.Generator().manual_seed(7)
    known = model.get_input_embeddings().weight.shape[0]
    return torch.randint(0, known, (2, LENGTH), generator=ids).to(model.device)


def _loss(model: Any, documents: torch.Tensor, smoothing: float) -> tuple[loss.Loss, str]:
    labels = documents.clone()
    labels[:, 0] = IGNORED
    trial = {"input_ids": documents, "attention_mask": torch.ones_like(documents)}
    return loss.chosen(model, trial, labels, smoothing)


def _why_mixed(model: Any, documents: torch.Tensor) -> str:
    """Why the two may not share a row, or nothing."""
    alone = torch.cat([model(input_ids=d[None], use_cache=False).logits.float() for d in documents], dim=1)
    row, positions = documents.reshape(1, -1), torch.arange(2 * LENGTH, device=documents.device)[None]
    try:
        together = _logits(model, row, positions % LENGTH)
    except (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError) as error:
        return f"this model takes no positions of our own ({type(error).__name__})"
    share = _apart(together, alone) / max(_apart(_logits(model, row, positions), alone), 1e-30)
    bound = MOST_MIXED_COARSE if _coarse(model) else MOST_MIXED
    if share <= bound:
        return ""
    return f"this model lets examples in one row see each other ({share:.2g} of what running on would change)"


def _logits(model: Any, row: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=row, position_ids=positions, use_cache=False).logits
    return logits.float()


def _apart(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found - right).norm() / right.norm())


def _coarse(model: Any) -> bool:
    """Whether the same numbers in another place may round otherwise."""
    shortened = model.device.type == "cuda" and rounds_to_tf32()
    in_half = computing_type(model) in HALF or model.dtype in (torch.bfloat16, torch.float16)
    return in_half or shortened or bool(getattr(model, "is_loaded_in_8bit", False))


@contextmanager
def quiet(model: torch.nn.Module) -> Iterator[None]:
    """Inside, nothing is left to chance: no dropout anywhere."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    for module, _ in modes:
        if type(module).__name__ == "Linear4bit":
            module.training = True  # out of training, some CPUs rewrite its weights for good
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
