"""What goes wrong in a step: too little memory, a loss that is no number or has exploded; told in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...core.errors import ModelError, Remedy, TrainingProError
from ...core.host import Memory
from ...train_utils import size
from .gpu_memory import let_go_of

EXPLODED = 3.0
"""A loss so many times the smoothed one, that is also far worse than guessing, comes from broken weights."""
WORSE_THAN_GUESSING = 2.0
_SAID = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")


class BreakdownError(TrainingProError):
    """A step that would have spoiled the weights; they are those of the step before, unless they are `spoiled`."""

    def __init__(self, text: str, *, spoiled: bool = False) -> None:
        self.spoiled = spoiled
        super().__init__(text)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def why_unsound(loss: float, norm: float, smoothed: float | None, vocabulary: int, *, scaled: bool) -> str:
    """Why a step must not change the weights, in words; `scaled` gradients of float16 look after themselves."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm) and not scaled:
        return f"the gradients are {norm}, at a loss of {loss:.4f}"
    guessing = math.log(max(2, vocabulary))
    if smoothed is not None and loss > max(EXPLODED * smoothed, WORSE_THAN_GUESSING * guessing):
        return f"the loss has exploded: {loss:.4g} after a smoothed loss of {smoothed:.4g}"
    return ""


def broken_down(why: str, step: int, learning_rate: float, computed_in: str) -> BreakdownError:
    """What happened and what helps, where the weights are still those of a good step."""
    what = f"Step {step} would have broken the LoRA: {why}. The weights are those of step {step - 1}."
    return BreakdownError(f"{what} {_what_helps(learning_rate, computed_in)}")


def spoiled(step: int, learning_rate: float, computed_in: str) -> BreakdownError:
    """The weights that the steps so far have left are no numbers; only a checkpoint may be good."""
    what = f"Training has broken the weights: after step {step} they are no numbers any more (NaN or infinite)."
    return BreakdownError(f"{what} {_what_helps(learning_rate, computed_in)}", spoiled=True)


def _what_helps(learning_rate: float, computed_in: str) -> str:
    half = " Compute in bfloat16 or float32: float16 overflows." if computed_in == "float16" else ""
    return (
        f"What helps most: a lower learning rate (it was {learning_rate:.3g}; try a tenth of it), a longer "
        f"warm-up, gradients clipped at 1 or less, alpha no larger than rank.{half}"
    )


def does_not_fit(place: torch.device, remedies: Sequence[Remedy], tokens: int = 0) -> ModelError:
    """One example of so many tokens alone is too much; 0 where it was not an example's fault."""
    what = f": one example of {tokens} tokens alone does not fit" if tokens else ", in one forward pass"
    ways = [*(remedy.words for remedy in remedies), "the model loaded in 4 bits"]
    return ModelError(f"Out of memory{what}{_figures(place)}. What helps most: {'; '.join(ways)}.", remedies)


@contextmanager
def told_where_memory_runs_out(
    place: torch.device, remedies: Callable[[Memory], Sequence[Remedy]]
) -> Iterator[None]:
    """Also outside of a step: where the model is tried, or a part kept aside is gone through."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        let_go_of(error)  # its figures are of what is left: model and LoRA
        raise does_not_fit(place, remedies(memory_of(place))) from None


def cannot_halve(batch: int, accumulation: int, why: str) -> ModelError:
    """Out of memory where a batch cannot be done again in halves."""
    smaller = {"batch_size": max(1, batch // 2), "accumulation": 2 * accumulation}
    words = f"True Batch Size {smaller['batch_size']} and Gradient Accumulation {smaller['accumulation']}"
    return ModelError(
        f"Out of memory, and {why} a batch cannot be done again in halves. Start anew with {words}: the steps "
        "stay what they are.",
        [Remedy(words, smaller)],
    )


def memory_of(place: torch.device) -> Memory:
    """What there is where the model lies; nothing is known of it on a CPU."""
    if place.type != "cuda":
        return Memory("CPU", 0, 0)
    free, total = torch.cuda.mem_get_info(place)
    return Memory(place.type, total - free, total, torch.cuda.memory_allocated(place))


def _figures(place: torch.device) -> str:
    if place.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(place)
    held = torch.cuda.memory_allocated(place)
    return f" ({size(total)} on the card, {size(held)} of it hold model and LoRA, {size(free)} are free)"
