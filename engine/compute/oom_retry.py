"""A batch that does not fit into memory is done again in halves, and so from then on: the step stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...core.errors import ModelError
from ...data.examples import Example
from .gpu_memory import free_memory
from .loss_by_dataset import LossesApart
from .step_errors import is_out_of_memory


class Piece(NamedTuple):
    """Some examples of a batch, and which of them go on from the one before."""

    examples: tuple[Example, ...]
    joins: tuple[bool, ...]

    @property
    def texts(self) -> int:
        """What the model reads as one counts once, and is never taken apart."""
        return sum(not joined for joined in self.joins)

    @property
    def tokens(self) -> int:
        return sum(len(example.ids) for example in self.examples)

    def first(self, texts: int) -> tuple[Piece, Piece]:
        """The first so many texts, and the rest."""
        starts = [number for number, joined in enumerate(self.joins) if not joined]
        cut = starts[texts]
        return Piece(self.examples[:cut], self.joins[:cut]), Piece(self.examples[cut:], self.joins[cut:])


@dataclass(frozen=True)
class Work:
    """How a piece is made ready and done, on which gradients, and what is said where it does not fit."""

    inputs: Callable[[Piece], dict[str, Any]]
    step: Callable[[Piece, dict[str, Any]], torch.Tensor]
    parameters: Sequence[torch.nn.Parameter]
    apart: LossesApart
    told: Callable[[Piece, int], None]
    refused: Callable[[Piece], ModelError]
    may_halve: bool = True


@dataclass
class Halving:
    """How many texts are done at once; 0 where all of a batch fits."""

    most: int = 0

    def done(self, batch: Piece, inputs: dict[str, Any] | None, work: Work) -> torch.Tensor:
        """The loss of a batch, its gradients added to those of the step: each is divided by all its labels."""
        if not self.most or batch.texts <= self.most:
            return self._done_at_once(batch, inputs or work.inputs(batch), work)
        piece, rest = batch.first(self.most)
        return self._done_at_once(piece, work.inputs(piece), work) + self.done(rest, None, work)

    def _done_at_once(self, piece: Piece, inputs: dict[str, Any], work: Work) -> torch.Tensor:
        """Or in halves where memory runs out, beginning with the gradients that were there before."""
        aside, counted = GradientsAside(work.parameters if work.may_halve else ()), work.apart.so_far()
        loss = _tried(piece, inputs, work)
        if loss is not None:
            aside.add()
            return loss
        aside.put_back()
        work.apart.back_to(counted)
        free_memory()
        if piece.texts < 2 or not work.may_halve:
            raise work.refused(piece)
        self.most = (piece.texts + 1) // 2
        work.told(piece, self.most)
        return self.done(piece, None, work)


class GradientsAside:
    """The gradients that a step has so far, apart while a batch makes its own: if it fails, only those go."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._kept = [(parameter, parameter.grad) for parameter in parameters if parameter.requires_grad]
        for parameter, _ in self._kept:
            parameter.grad = None

    def add(self) -> None:
        """The batch is done: both together."""
        for parameter, before in self._kept:
            if before is not None:
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)

    def put_back(self) -> None:
        """The batch failed: what it has made of its own goes."""
        for parameter, before in self._kept:
            parameter.grad = before


def _tried(piece: Piece, inputs: dict[str, Any], work: Work) -> torch.Tensor | None:
    """None where memory ran out; the error, and all that it holds, is gone by then."""
    try:
        return work.step(piece, inputs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
