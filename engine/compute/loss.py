"""The loss of a model's supervised positions: only those go through its head, in chunks.

With a large vocabulary the logits are the largest tensor of a step. They are made for some rows at a time,
and their gradient is worked out at once, so that no logits are kept and none are made twice. Where the head
itself is trained, they are made for all supervised rows together; a model that does more with its logits
than a soft cap makes all of them. The loss is the same each way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from ...core.host import bare
from ...data.examples import IGNORED
from ...train_utils import rows_at_once

SPREAD = 1024.0  # lifts small probabilities into the range of float16; a power of two, so exact otherwise
CLOSE, CLOSE_IN_HALF = 1e-4, 3e-2


@dataclass(frozen=True)
class Rows:
    """The supervised positions of a batch: the loss of each, whether it was hit, and where it stands."""

    losses: torch.Tensor
    hits: torch.Tensor
    places: torch.Tensor

    def of_owners(self, owners: torch.Tensor) -> torch.Tensor:
        """Whose each position is."""
        return owners[self.places[:, 0], self.places[:, 1]]


class Loss(Protocol):
    """From a batch to its supervised positions."""

    def __call__(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> Rows: ...


@dataclass(frozen=True)
class Head:
    """The last layer of a model: from hidden states to logits, which some models squeeze into a range."""

    module: Any
    cap: float | None = None

    @property
    def fixed(self) -> bool:
        """Whether it is a plain layer that is not trained."""
        return type(self.module) is torch.nn.Linear and not self.module.weight.requires_grad

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        made = self.module(rows).float()
        return made if self.cap is None else torch.tanh(made / self.cap) * self.cap


@dataclass(frozen=True)
class WholeHead:
    """All logits of the model's own making; for any model."""

    smoothing: float = 0.0

    def __call__(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> Rows:
        logits = model(**inputs, use_cache=False).logits
        places, targets = supervised(labels.to(logits.device))
        rows = logits[places[:, 0], places[:, 1]].float()
        return _rows(rows, targets, places, self.smoothing)


@dataclass(frozen=True)
class SupervisedOnly:
    """Only the hidden states of supervised positions go through the head."""

    head: Head
    smoothing: float = 0.0

    def __call__(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> Rows:
        with _caught(self.head.module) as caught:
            model(**inputs, use_cache=False)
        (hidden,) = caught
        places, targets = supervised(labels.to(hidden.device))
        rows = hidden[places[:, 0], places[:, 1]]
        if not self.head.fixed:
            return _rows(self.head.logits(rows), targets, places, self.smoothing)
        weight = self.head.module.weight
        rows, targets = rows.to(weight.device, weight.dtype), targets.to(weight.device)
        losses, hits = _InChunks.apply(rows, weight, self.head.module.bias, targets, self.smoothing, self.head.cap)
        return Rows(losses, hits, _predicted(places))


def _rows(logits: torch.Tensor, targets: torch.Tensor, places: torch.Tensor, smoothing: float) -> Rows:
    targets = targets.to(logits.device)  # the head may lie on another card than what goes into it
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return Rows(losses, logits.detach().argmax(-1) == targets, _predicted(places))


def _predicted(places: torch.Tensor) -> torch.Tensor:
    """Where what is predicted from these places stands: one column on."""
    return places + torch.tensor([0, 1], device=places.device)


def supervised(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each position that something is predicted from, and what it is."""
    places = (labels[:, 1:] != IGNORED).nonzero()
    return places, labels[:, 1:][places[:, 0], places[:, 1]]


@contextmanager
def _caught(head: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Inside, the head hands out what comes in, and lets one column of it pass for logits."""
    caught: list[torch.Tensor] = []
    own = vars(head).get("forward")

    def catch(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        caught.append(hidden)
        return hidden[..., :1]

    head.forward = catch
    try:
        yield caught
    finally:
        del head.forward
        if own is not None:  # a layer that is spread over several cards has a forward of its own
            head.forward = own


class _InChunks(torch.autograd.Function):  # type: ignore[misc]
    """Cross-entropy of rows through a head that is not trained; their gradient is ready when the loss is."""

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
        at_once = rows_at_once(len(weight), on_card=rows.device.type != "cpu")
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            chunk = _Chunk(F.linear(rows[part], weight, bias).float(), targets[part, None], smoothing, cap)
            losses[part], hits[part] = chunk.losses, chunk.hits
            if gradient is not None:
                gradient[part] = _through(chunk.gradient(), weight)
        ctx.gradient = gradient
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    def backward(ctx: Any, wanted: torch.Tensor, _: Any) -> Any:
        gradient = wanted[:, None].to(ctx.gradient.dtype) * ctx.gradient
        return gradient, None, None, None, None, None


def _through(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """From a gradient by the logits to one by what went into the head, in the head's type."""
    if weight.dtype == gradient.dtype:
        return gradient @ weight
    return (gradient.mul_(SPREAD).to(weight.dtype) @ weight).div_(SPREAD)


class _Chunk:
    """The logits of a few rows, overwritten by their gradient when that is asked for: nothing as large is made."""

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
        right = (1 - smoothing) * at_target + smoothing * mean
        self.losses = (top + self._sum.log() - right)[:, 0]

    def gradient(self) -> torch.Tensor:
        """Of the losses by the logits as the head gave them: the probabilities less the targets."""
        gradient = self._powers.div_(self._sum)
        if self._smoothing:
            gradient -= self._smoothing / gradient.shape[1]
        less = torch.full_like(self._targets, self._smoothing - 1, dtype=gradient.dtype)
        gradient.scatter_add_(1, self._targets, less)
        return gradient if self._slope is None else gradient.mul_(self._slope)


def chosen(model: Any, trial: Mapping[str, Any], labels: torch.Tensor, smoothing: float) -> tuple[Loss, str]:
    """The cheapest way to this model's loss that is right, and why it is not the usual one, if it is not."""
    whole, head = WholeHead(smoothing), _head(model)
    if head is None:
        return whole, "this model does not say which layer its head is"
    cheap = SupervisedOnly(head, smoothing)
    with torch.no_grad():
        right = whole(model, trial, labels).losses
        try:
            found = cheap(model, trial, labels).losses
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            return whole, f"this model uses its head in a way of its own ({type(error).__name__})"
    if _alike(right, found.to(right.device), next(head.module.parameters()).dtype):
        return cheap, ""
    return whole, "this model does more with its logits than its head says"


def _head(model: Any) -> Head | None:
    base = bare(model)
    module = base.get_output_embeddings()
    if module is None:
        return None
    text = base.config.get_text_config()
    return Head(module, getattr(text, "final_logit_softcapping", None) or None)


def _alike(right: torch.Tensor, found: torch.Tensor, kind: torch.dtype) -> bool:
    bound = CLOSE if kind in (torch.float32, torch.float64) else CLOSE_IN_HALF
    return found.shape == right.shape and bool(((right - found).abs() <= bound * (1 + right.abs())).all())
