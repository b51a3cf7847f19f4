"""The one place where a batch becomes a loss: in training, in an evaluation and in the test of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...data.examples import Example, ExampleDatasets
from ...settings.definitions import LearningSettings
from .capabilities import ModelCapabilities
from .collator import Batch, collate
from .loss import LossFunction, TokenLosses


@dataclass(frozen=True)
class Objective:
    """Next-token prediction: the losses of the supervised tokens, the hits among them, and their number as weight.

    Whoever calls it sets the mode of the model, the gradients and the autocast, and divides the sum of the losses.
    """

    loss: LossFunction
    packed: bool
    noise: float = 0.0  # NEFTune's alpha
    embeddings: torch.nn.Module | None = None  # where the noise is added

    @staticmethod
    def training(capabilities: ModelCapabilities, learning: LearningSettings, model: Any) -> Objective:
        return Objective(
            capabilities.loss, capabilities.packed, learning.neftune_noise, model.get_input_embeddings()
        )

    def collate(self, examples: Sequence[Example], joins: Sequence[bool] = ()) -> Batch:
        return collate(examples, joins, in_one_row=self.packed)

    def __call__(self, model: Any, batch: Batch) -> TokenLosses:
        if not self.noise or self.embeddings is None:
            return self.loss(model, batch.inputs, batch.labels)
        with add_neftune_noise(self.embeddings, self.noise, batch):
            return self.loss(model, batch.inputs, batch.labels)


@contextmanager
def add_neftune_noise(embeddings: torch.nn.Module, alpha: float, batch: Batch) -> Iterator[None]:
    """Add uniform noise of up to alpha / sqrt(tokens of the example * width) to each embedding in this context."""
    # NEFTune (Jain et al., 2023). Its formula has the length of the padded sequence; transformers' own hook would
    # take that of the whole packed row. Here it is the length of each example, however the batch is made.
    lengths = torch.tensor([len(example.ids) for example in batch.examples], dtype=torch.float32)
    lengths = lengths.to(batch.owners.device)[batch.owners]

    def add(module: torch.nn.Module, args: Any, embedded: torch.Tensor) -> torch.Tensor:
        scale = alpha / (lengths.to(embedded.device) * embedded.shape[-1]).sqrt()
        noise = torch.empty_like(embedded, dtype=torch.float32).uniform_(-1, 1) * scale[..., None]
        return embedded + noise.to(embedded.dtype)

    hook = embeddings.register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()


class StepSums:
    """Sums over the batches of a step: its tokens, and its loss by dataset, from the losses of training."""

    def __init__(self, datasets: ExampleDatasets) -> None:
        self._datasets = datasets
        self._tokens = 0
        self._losses: torch.Tensor | None = None

    def add(self, batch: Batch, rows: TokenLosses) -> None:
        self._tokens += batch.tokens
        if not self._datasets.has_several:
            return
        device = rows.losses.device  # summed there, so that no batch has to synchronize the GPU
        if self._losses is None:
            self._losses = torch.zeros(2, len(self._datasets.names), dtype=torch.float64, device=device)
        dataset_of_example = torch.tensor(self._datasets.of(batch.examples), device=device)
        owners = rows.owners_at_labels(batch.owners.to(rows.positions.device)).to(device)
        losses = torch.stack([rows.losses.detach().double(), torch.ones_like(rows.losses, dtype=torch.float64)])
        self._losses.index_add_(1, dataset_of_example[owners], losses)

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Drop what is added within this context if it ends with an error: the batch is repeated in parts."""
        before = self._tokens, None if self._losses is None else self._losses.clone()
        try:
            yield
        except BaseException:
            self._tokens, self._losses = before
            raise

    def take(self) -> tuple[int, dict[str, float]]:
        """Return the tokens of the step and the mean loss of each dataset, and start the next step."""
        tokens, self._tokens = self._tokens, 0
        if self._losses is None:
            return tokens, {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._losses)  # the batches of a step are distributed over the processes
        losses, counts = self._losses.tolist()
        self._losses.zero_()
        names = self._datasets.names
        return tokens, {n: loss / count for n, loss, count in zip(names, losses, counts, strict=True) if count}
