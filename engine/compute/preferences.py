"""Objectives that compare whole replies: DPO, IPO, KTO, ORPO and SimPO.

Each has a margin, by how much the model prefers a reply as the data do, and a loss that falls with the margin. The
log probability of a reply is the sum of its tokens' losses with the other sign, so no logits are kept.

The reference of DPO, IPO and KTO is the same model without its LoRA, so no second model is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from ...data.examples import IGNORE_INDEX
from ...settings.definitions import PreferenceSettings
from ..lora import adapter, evaluation_context
from .collator import Batch, list_sides
from .loss import BatchLosses, Objective

# By how much a chosen reply shall be likelier, in nats per token: gamma / beta of SimPO (Meng et al., 2024).
SIMPO_TARGET = 0.5
# The mean log probability of a token is below 0; at 0 itself, the odds of ORPO would be infinite.
MAX_MEAN_LOG_PROB = -1e-6


class Replies(NamedTuple):
    """Log probabilities of the replies of a batch and of those that they are compared with, and their tokens.

    `base` and `other_base` are those of the model without the LoRA, or 0 where an objective needs no reference.
    """

    own: torch.Tensor
    other: torch.Tensor
    base: torch.Tensor
    other_base: torch.Tensor
    tokens: torch.Tensor
    other_tokens: torch.Tensor
    desirable: torch.Tensor  # whether the data prefer the reply; always true of pairs


def _gain_difference(replies: Replies) -> torch.Tensor:
    return (replies.own - replies.base) - (replies.other - replies.other_base)


def _mean_gain_difference(replies: Replies) -> torch.Tensor:
    """By token, as in TRL and, by its authors' word there, in the results of the IPO paper."""
    gain, other_gain = replies.own - replies.base, replies.other - replies.other_base
    return gain / replies.tokens - other_gain / replies.other_tokens


def _log_odds_ratio(replies: Replies) -> torch.Tensor:
    means = replies.own / replies.tokens, replies.other / replies.other_tokens
    own, other = (mean.clamp(max=MAX_MEAN_LOG_PROB) for mean in means)
    return (own - torch.log(-torch.expm1(own))) - (other - torch.log(-torch.expm1(other)))


def _gain_over_shift(replies: Replies) -> torch.Tensor:
    """By how much a reply has gained beyond what replies to other prompts have; for an undesirable one, lost.

    The shift is that of this batch, so it is another one where a batch is split for memory. As in TRL, no gradient
    flows through it, and it is at least 0.
    """
    shift = (replies.other - replies.other_base).detach().mean().clamp(min=0)
    gain = replies.own - replies.base - shift
    return torch.where(replies.desirable, gain, -gain)


def _logistic(margin: torch.Tensor, beta: float, smoothing: float) -> torch.Tensor:
    """With smoothing, a share of the pairs counts as labeled the other way around."""
    return -(1 - smoothing) * F.logsigmoid(beta * margin) - smoothing * F.logsigmoid(-beta * margin)


Loss: TypeAlias = Callable[[torch.Tensor, float, float], torch.Tensor]
# For each objective its margin, and its loss for a margin, a beta and a smoothing. The other part of ORPO, the
# next-token loss on the chosen reply, is `chosen_weight`.
OBJECTIVES: Mapping[str, tuple[Callable[[Replies], torch.Tensor], Loss]] = {
    "dpo": (_gain_difference, _logistic),
    "ipo": (_mean_gain_difference, lambda margin, beta, _: (margin - 1 / (2 * beta)) ** 2),
    "kto": (_gain_over_shift, lambda margin, beta, _: torch.sigmoid(-beta * margin)),
    "orpo": (_log_odds_ratio, lambda margin, beta, _: -beta * F.logsigmoid(margin)),
    "simpo": (_mean_gain_difference, lambda margin, *rest: _logistic(margin - SIMPO_TARGET, *rest)),
}


@dataclass(frozen=True)
class PreferenceObjective(Objective):
    """Learns from preferences: a loss for each example, which is a pair of replies or a labeled reply."""

    settings: PreferenceSettings
    figures: ClassVar[tuple[str, ...]] = ("margin", "preferred", "chosen", "rejected", "distance")

    def counted(self, batch: Batch) -> torch.Tensor:
        # A label for each example, behind the one that some versions of transformers leave out.
        return F.pad(torch.zeros(len(batch.examples), dtype=torch.long), (1, 0), value=IGNORE_INDEX)

    def __call__(self, model: Any, batch: Batch) -> BatchLosses:
        counts = [int(np.count_nonzero(side.labels != IGNORE_INDEX)) for side in list_sides(batch.examples)]

        def log_probs(reader: Any) -> torch.Tensor:
            # The losses are in the order of the sides. Not added up by index, which a GPU does in any order.
            losses, _ = self.loss(reader, batch.inputs, batch.labels, batch.supervised)
            return -torch.stack([part.sum() for part in losses.split(counts)])

        base = None
        if self.settings.needs_reference:  # first, so that its memory is free again when gradients need some
            plain = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
            with evaluation_context(plain), adapter.disable_lora(plain):
                base = log_probs(plain)
        sums = log_probs(model)
        bases = torch.zeros_like(sums) if base is None else base
        tokens = torch.tensor(counts, dtype=sums.dtype).to(sums.device, non_blocking=True)
        liked = torch.tensor([example.desirable is not False for example in batch.examples])
        desirable = liked.to(sums.device, non_blocking=True)
        halves = [values.chunk(2) for values in (sums, bases, tokens)]
        (own, other), (own_base, other_base), (count, other_count) = halves
        replies = Replies(own, other, own_base, other_base, count, other_count, desirable)

        margin, loss = OBJECTIVES[self.settings.objective]
        margins = margin(replies)
        losses = loss(margins, self.settings.effective_beta, self.settings.preference_smoothing)
        if weight := self.settings.effective_chosen_weight:
            losses = losses - weight * torch.where(desirable, own / count, 0)
        with torch.no_grad():
            preferred = torch.where(margins == 0, 0.5, (margins > 0).float())
            mean, rejected = own / count, other / other_count
            if batch.examples[0].desirable is not None:  # the other replies are neither chosen nor rejected
                rejected = mean.masked_fill(desirable, math.nan)
            chosen = mean.masked_fill(~desirable, math.nan)
            distance = torch.full_like(mean, math.nan) if base is None else chosen - own_base / count
        figures = dict(zip(self.figures, (margins.detach(), preferred, chosen, rejected, distance), strict=True))
        return BatchLosses(losses, preferred, torch.arange(len(losses), device=losses.device), figures)
