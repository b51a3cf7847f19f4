"""Probe what the model supports before the first step: packing, and a loss from the supervised rows only.

No config says whether a model separates the examples packed into one row: some derive positions from a mask,
some have no positions, some carry a state along. So it is tested: two short texts in one row against each alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import SettingsError
from ...settings.definitions import TrainingSettings
from ..lora import HALF_PRECISION, autocast_model, compute_dtype, is_tf32_enabled
from . import loss
from .loss import LossFunction

PROBE_LENGTH = 24
# Largest leak between packed texts, relative to running them together: in float32, and where equal values at
# another position of a row may round differently.
MAX_LEAK, MAX_LEAK_COARSE = 1e-5, 0.1


@dataclass(frozen=True)
class ModelCapabilities:
    """Loss function and packing for the model at hand, with the reasons for any fallback."""

    loss: LossFunction
    packed: bool
    packing_refusal: str = ""
    chunked_loss_refusal: str = ""

    def notes(self) -> Iterator[str]:
        """Yield the lines for the log of a run."""
        if self.packed:
            yield (
                "Packing is on: the examples of a batch are processed as one sequence, which saves time. The "
                "model still learns each example separately."
            )
        elif self.packing_refusal:
            yield f"Packing is off: {self.packing_refusal}. Each batch is padded to its longest example."
        if self.chunked_loss_refusal:
            yield f"The loss is computed from all logits at once, because {self.chunked_loss_refusal}."

    def as_log(self) -> dict[str, str]:
        """Return the entries of training_log.json."""
        packing = "on" if self.packed else ": ".join(filter(None, ["off", self.packing_refusal]))
        loss_from = "supervised rows only"
        if self.chunked_loss_refusal:
            loss_from = f"from all logits: {self.chunked_loss_refusal}"
        return {"packing": packing, "loss_from": loss_from}


def probe_model(model: Any, settings: TrainingSettings) -> ModelCapabilities:
    """Test packing and the chunked loss; SettingsError if packing is 'on' and the model mixes examples."""
    packing = settings.machine.packing
    with torch.no_grad(), eval_mode(model), autocast_model(model):
        texts = probe_texts(model, PROBE_LENGTH)
        loss_fn, why_full_logits = loss.choose_loss(model, texts, settings.learning.label_smoothing)
        why_mixed = "" if packing == "off" else _find_leak(model, texts)
    if packing == "on" and why_mixed:
        raise SettingsError([f"Packing can't be used, because {why_mixed}. Choose auto or off."])
    return ModelCapabilities(loss_fn, packing != "off" and not why_mixed, why_mixed, why_full_logits)


def probe_texts(model: Any, length: int) -> torch.Tensor:
    """Return two short texts of random ids, the same ones each time."""
    generator = torch.Generator().manual_seed(7)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return torch.randint(0, vocabulary, (2, length), generator=generator).to(model.device)


def _find_leak(model: Any, texts: torch.Tensor) -> str:
    """Return why the two texts cannot share a row, or an empty string."""
    alone_logits = torch.cat([model(input_ids=text[None], use_cache=False).logits.float() for text in texts], 1)
    row, positions = texts.reshape(1, -1), torch.arange(2 * PROBE_LENGTH, device=texts.device)[None]
    try:
        # Positions that begin again at 0 are what tells the model where a text begins.
        apart = packed_logits(model, row, positions % PROBE_LENGTH)
    except (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError) as error:
        return f"this model does not accept position IDs ({type(error).__name__})"
    together = packed_logits(model, row, positions)
    # 0 where the second text is as if it were alone, 1 where it is as if the first one were a part of it.
    distances = [float((logits - alone_logits).norm() / alone_logits.norm()) for logits in (apart, together)]
    leak = distances[0] / max(distances[1], 1e-30)
    rounds_coarsely = (
        compute_dtype(model) in HALF_PRECISION
        or model.dtype in (torch.bfloat16, torch.float16)
        or (model.device.type == "cuda" and is_tf32_enabled())
        or bool(getattr(model, "is_loaded_in_8bit", False))
    )
    if leak <= (MAX_LEAK_COARSE if rounds_coarsely else MAX_LEAK):
        return ""
    return (
        f"in this model, packed examples can see each other (leak {leak:.2g}, where 1 means that they are "
        "not separated at all)"
    )


def packed_logits(model: Any, row: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=row, position_ids=positions, use_cache=False).logits
    return logits.float()


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Set the model to eval mode within this context, without dropout, and restore each module's mode."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    for module, _ in modes:
        if type(module).__name__ == "Linear4bit":
            module.training = True  # in eval mode, bitsandbytes repacks its weights permanently on some CPUs
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
