"""Chunked cross-entropy: only supervised positions go through the head, some rows at a time.

With a large vocabulary the logits are the largest tensor of a step. They are computed for some rows at a time,
together with their gradient, so that no logits are kept and none are computed twice. Where the head itself is
trained, they are computed for all supervised rows at once; a model that does more with its logits than soft
capping computes all of them. The loss is the same each way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from ...core.host import unwrap_peft
from ...data.examples import IGNORE_INDEX
from ...train_utils import head_rows

FLOAT16_SCALE = 1024.0  # lifts small probabilities into the range of float16; exact, as a power of two
TOLERANCE, HALF_TOLERANCE = 1e-4, 3e-2


@dataclass(frozen=True)
class TokenLosses:
    """Loss of each supervised token of a batch, whether its prediction was right, and its (row, column)."""

    losses: torch.Tensor
    hits: torch.Tensor
    positions: torch.Tensor

    def owners_at_labels(self, owners: torch.Tensor) -> torch.Tensor:
        """Return the owner of each supervised token."""
        return owners[self.positions[:, 0], self.positions[:, 1]]


class LossFunction(Protocol):
    """Computes the losses of the supervised tokens of a batch."""

    def __call__(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> TokenLosses: ...


@dataclass(frozen=True)
class Head:
    """Output layer of a model, with the soft cap that some models put on their logits."""

    module: Any
    cap: float | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether it is a plain linear layer that is not trained."""
        return type(self.module) is torch.nn.Linear and not any(w.requires_grad for w in self.module.parameters())

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        logits = self.module(rows).float()
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


@dataclass(frozen=True)
class FullLogitsLoss:
    """Loss from all logits of the model; works for any model."""

    smoothing: float = 0.0

    def __call__(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> TokenLosses:
        logits = model(**inputs, use_cache=False).logits
        rows, targets, positions = _supervised_rows(logits, labels)
        return _token_losses(rows.float(), targets, positions, self.smoothing)


@dataclass(frozen=True)
class ChunkedLoss:
    """Loss for which only the hidden states of supervised positions go through the head."""

    head: Head
    smoothing: float = 0.0

    def __call__(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> TokenLosses:
        with _recorded_input(self.head.module) as recorded:
            model(**inputs, use_cache=False)
        (hidden,) = recorded
        rows, targets, positions = _supervised_rows(hidden, labels)
        if not self.head.is_frozen:
            return _token_losses(self.head.logits(rows), targets, positions, self.smoothing)
        weight = self.head.module.weight
        rows, targets = rows.to(weight.device, weight.dtype), targets.to(weight.device)
        losses, hits = _ChunkedCrossEntropy.apply(
            rows, weight, self.head.module.bias, targets, self.smoothing, self.head.cap
        )
        return TokenLosses(losses, hits, positions)


def _token_losses(
    logits: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor, smoothing: float
) -> TokenLosses:
    targets = targets.to(logits.device)  # the head may be on another GPU than its input
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return TokenLosses(losses, logits.detach().argmax(-1) == targets, positions)


def _supervised_rows(
    states: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the states that predict a label, these labels, and their positions: one column further."""
    labels = labels.to(states.device)
    rows, columns = (labels[:, 1:] != IGNORE_INDEX).nonzero().unbind(1)
    return states[rows, columns], labels[rows, columns + 1], torch.stack([rows, columns + 1], dim=1)


@contextmanager
def _recorded_input(head: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Record the input of the head within this context; one column of it is returned in place of logits."""
    recorded: list[torch.Tensor] = []
    original = vars(head).get("forward")

    def record(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        recorded.append(hidden)
        return hidden[..., :1]

    head.forward = record
    try:
        yield recorded
    finally:
        del head.forward
        if original is not None:  # accelerate replaces the forward of a layer that is spread over several GPUs
            head.forward = original


class _ChunkedCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Cross-entropy through a frozen head, in chunks; the gradient is computed together with the loss."""

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
            rows_slice = slice(start, start + chunk_size)
            chunk = _Chunk(
                F.linear(rows[rows_slice], weight, bias).float(), targets[rows_slice, None], smoothing, cap
            )
            losses[rows_slice], hits[rows_slice] = chunk.losses, chunk.hits
            if gradient is not None:
                gradient[rows_slice] = _backprop_head(chunk.gradient(), weight)
        ctx.gradient = gradient
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        gradient = grad[:, None].to(ctx.gradient.dtype) * ctx.gradient
        return gradient, None, None, None, None, None


def _backprop_head(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Backpropagate a gradient of the logits to the input of the head, in the dtype of the head."""
    if weight.dtype == gradient.dtype:
        return gradient @ weight
    return (gradient.mul_(FLOAT16_SCALE).to(weight.dtype) @ weight).div_(FLOAT16_SCALE)


class _Chunk:
    """Logits of a few rows; their gradient overwrites them, so that no second tensor of this size is needed."""

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor, smoothing: float, cap: float | None) -> None:
        self._targets, self._smoothing = targets, smoothing
        self._slope = None
        if cap is not None:
            logits = logits.div_(cap).tanh_()
            self._slope = 1 - logits**2
            logits.mul_(cap)
        top, at_target = logits.amax(-1, keepdim=True), logits.gather(1, targets)
        mean = logits.mean(-1, keepdim=True) if smoothing else at_target
        self.hits = (at_target == top)[:, 0]
        self._powers = logits.sub_(top).exp_()
        self._sum = self._powers.sum(-1, keepdim=True)
        target_score = (1 - smoothing) * at_target + smoothing * mean
        self.losses = (top + self._sum.log() - target_score)[:, 0]

    def gradient(self) -> torch.Tensor:
        """Gradient of the losses with respect to the logits before the cap: probabilities minus targets."""
        gradient = self._powers.div_(self._sum)
        if self._smoothing:
            gradient -= self._smoothing / gradient.shape[1]
        subtrahend = torch.full_like(self._targets, self._smoothing - 1, dtype=gradient.dtype)
        gradient.scatter_add_(1, self._targets, subtrahend)
        return gradient if self._slope is None else gradient.mul_(self._slope)


def choose_loss(model: Any, texts: torch.Tensor, smoothing: float) -> tuple[LossFunction, str]:
    """Return the cheapest loss function that is correct for this model, and why it is not the chunked one."""
    full, head = FullLogitsLoss(smoothing), _find_head(model)
    inputs, labels = {"input_ids": texts, "attention_mask": torch.ones_like(texts)}, texts.clone()
    labels[:, 0] = IGNORE_INDEX
    if head is None:
        return full, "this model does not say which layer is its output layer"
    chunked = ChunkedLoss(head, smoothing)
    with torch.no_grad():
        expected = full(model, inputs, labels).losses
        try:
            losses = chunked(model, inputs, labels).losses
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            return full, f"this model uses its output layer in an unusual way ({type(error).__name__})"
    is_full_precision = next(head.module.parameters()).dtype in (torch.float32, torch.float64)
    bound = (TOLERANCE if is_full_precision else HALF_TOLERANCE) * (1 + expected.abs())
    losses = losses.to(expected.device)
    if losses.shape == expected.shape and bool(((expected - losses).abs() <= bound).all()):
        return chunked, ""
    return full, "this model changes the logits after its output layer"


def _find_head(model: Any) -> Head | None:
    base = unwrap_peft(model)
    module = base.get_output_embeddings()
    if module is None:
        return None
    text_config = base.config.get_text_config()
    return Head(module, getattr(text_config, "final_logit_softcapping", None) or None)
