"""Chunked cross-entropy: only supervised positions go through the head, some rows at a time.

With a large vocabulary the logits are the largest tensor of a step. They are computed for some rows at a time,
together with their gradient, so that no logits are kept and none are computed twice. Where the head itself is
trained, they are computed for all supervised rows at once; a model that does more with its logits than soft
capping computes all of them. The loss is the same each way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from ...core.host import unwrap_peft
from ...data.examples import IGNORE_INDEX, Example
from ...train_utils import head_rows
from .collator import Batch, collate, find_supervised
from .packed_gguf import PackedLinear, plain_weight

# Lifts small probabilities into the range of float16, whose smallest normal number is 6e-5; exact, as a power of
# two.
FLOAT16_SCALE = 1024.0
# By how much the chunked loss may differ from the one of all logits, relative to 1 + that loss: with a head in
# full and in half precision.
TOLERANCE, HALF_TOLERANCE = 1e-4, 3e-2


@dataclass(frozen=True)
class BatchLosses:
    """What an objective makes of a batch: a loss for each supervised token, or for each example."""

    losses: torch.Tensor
    hits: torch.Tensor  # whether a token is predicted, or a reply preferred, as in the data
    owners: torch.Tensor  # the number of the example that each loss is of
    figures: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of examples, by name; NaN for none


@dataclass(frozen=True)
class LossFunction:
    """Computes the loss of each supervised token, and whether it was predicted; only these go through the head.

    Without a head, it takes all logits of the model, which works for any model.
    """

    smoothing: float = 0.0
    head: Any = None  # the output layer
    cap: float | None = None  # the soft cap that some models put on their logits

    def __call__(
        self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor, supervised: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = find_supervised(labels) if supervised is None else supervised
        if self.head is None:
            rows, targets = _supervised_rows(model(**inputs, use_cache=False).logits, labels, positions)
            return _token_losses(rows.float(), targets, self.smoothing)
        head, cap, recorded = self.head, self.cap, list[torch.Tensor]()
        own_forward = vars(head).get("forward")

        def record(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            recorded.append(hidden)
            return hidden[..., :1]  # in place of logits

        head.forward = record
        try:
            model(**inputs, use_cache=False)
        finally:
            del head.forward
            if own_forward is not None:  # accelerate replaces that of a layer that is spread over several GPUs
                head.forward = own_forward
        (hidden,) = recorded
        rows, targets = _supervised_rows(hidden, labels, positions)
        is_plain = type(head) in (torch.nn.Linear, PackedLinear)
        if not is_plain or any(weights.requires_grad for weights in head.parameters()):
            # A head that is trained needs a gradient of its own, so autograd has to keep what it needs for that.
            logits = head(rows).float()
            logits = logits if cap is None else torch.tanh(logits / cap) * cap
            return _token_losses(logits, targets, self.smoothing)
        weight = plain_weight(head)
        rows, targets = rows.to(weight.device, weight.dtype), targets.to(weight.device)
        losses, hits = _ChunkedCrossEntropy.apply(rows, weight, head.bias, targets, self.smoothing, cap)
        return losses, hits


def _token_losses(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    targets = targets.to(logits.device)  # the head may be on another GPU than its input
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return losses, logits.detach().argmax(1) == targets


def _supervised_rows(
    states: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states that predict the labels at these positions, from one column before, and these labels."""
    rows, columns = positions.to(states.device).unbind(1)
    return states[rows, columns - 1], labels.to(states.device)[rows, columns]


class _ChunkedCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Cross-entropy through a frozen head, in chunks; the gradient is computed together with the loss.

    With label smoothing e, logits z (after the cap), target t and V tokens in the vocabulary:

        loss = logsumexp(z) - (1 - e) z_t - e mean(z)      gradient = softmax(z) - e / V - (1 - e) [is t]
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        smoothing: float,
        cap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        losses = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
        hits = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
        gradient = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        chunk_size = head_rows(len(weight), on_card=rows.device.type != "cpu")
        for start in range(0, len(rows), chunk_size):
            chunk = slice(start, start + chunk_size)
            # The logits are the only tensor of their size: each operation on them overwrites them.
            logits, target = F.linear(rows[chunk], weight, bias).float(), targets[chunk, None]
            slope = None
            if cap is not None:  # z = cap * tanh(x / cap), so dz / dx = 1 - tanh(x / cap)^2
                logits = logits.div_(cap).tanh_()
                slope = 1 - logits**2
                logits.mul_(cap)
            top, at_target = logits.amax(1, keepdim=True), logits.gather(1, target)
            mean = logits.mean(1, keepdim=True) if smoothing else at_target
            hits[chunk] = (at_target == top)[:, 0]
            powers = logits.sub_(top).exp_()  # less the largest, so that no power overflows
            total = powers.sum(1, keepdim=True)
            losses[chunk] = (top + total.log() - ((1 - smoothing) * at_target + smoothing * mean))[:, 0]
            if gradient is None:
                continue
            slopes = powers.div_(total)
            if smoothing:
                slopes -= smoothing / slopes.shape[1]
            slopes.scatter_add_(1, target, torch.full_like(target, smoothing - 1, dtype=slopes.dtype))
            if slope is not None:
                slopes.mul_(slope)
            if weight.dtype == slopes.dtype:
                gradient[chunk] = slopes @ weight
            else:
                gradient[chunk] = (slopes.mul_(FLOAT16_SCALE).to(weight.dtype) @ weight).div_(FLOAT16_SCALE)
        ctx.gradient = gradient
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        gradient = grad[:, None].to(ctx.gradient.dtype) * ctx.gradient
        return gradient, None, None, None, None, None


def choose_loss(model: Any, texts: torch.Tensor, smoothing: float) -> tuple[LossFunction, str]:
    """Return the cheapest loss function that is correct for this model, and why it is not the chunked one."""
    full, base = LossFunction(smoothing), unwrap_peft(model)
    inputs, labels = {"input_ids": texts, "attention_mask": torch.ones_like(texts)}, texts.clone()
    labels[:, 0] = IGNORE_INDEX
    head = base.get_output_embeddings()
    if head is None:
        return full, "this model does not say which layer is its output layer"
    cap = getattr(base.config.get_text_config(), "final_logit_softcapping", None) or None
    chunked = LossFunction(smoothing, head, cap)
    with torch.no_grad():
        expected, _ = full(model, inputs, labels)
        try:
            losses, _ = chunked(model, inputs, labels)
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            return full, f"this model uses its output layer in an unusual way ({type(error).__name__})"
    dtype = getattr(head, "compute_dtype", next(head.parameters()).dtype)  # a packed head has blocks
    is_full_precision = dtype in (torch.float32, torch.float64)
    bound = (TOLERANCE if is_full_precision else HALF_TOLERANCE) * (1 + expected.abs())
    losses = losses.to(expected.device)
    if losses.shape == expected.shape and bool(((expected - losses).abs() <= bound).all()):
        return chunked, ""
    return full, "this model changes the logits after its output layer"


@dataclass(frozen=True)
class Objective:
    """What a model learns: it makes batches of examples, and losses of batches.

    Whoever calls it sets the mode of the model, the gradients and the autocast, and divides the sum of the losses.
    """

    loss: LossFunction
    packed: bool
    figures: ClassVar[tuple[str, ...]] = ()  # the names of what it measures beside the losses

    def collate(self, examples: Sequence[Example], joins: Sequence[bool] = ()) -> Batch:
        return collate(examples, joins, in_one_row=self.packed)

    def counted(self, batch: Batch) -> torch.Tensor:
        """As many labels as the batch has losses."""
        return batch.labels

    def __call__(self, model: Any, batch: Batch) -> BatchLosses:
        raise NotImplementedError
