"""The one place where a batch becomes a loss: in training, in an evaluation and in the test of one step.

Before the first step, it is tested what the model supports: packing, and a loss from the supervised rows only.
No config says whether a model separates the examples packed into one row: some derive positions from a mask, some
have no positions, some carry a state along. So it is tested: two short texts in one row against each alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...core.errors import SettingsError
from ...data.examples import ExampleDatasets
from ...settings.definitions import TrainingSettings
from ..lora import HALF_PRECISION, compute_dtype, evaluation_context, is_tf32_enabled
from . import distributed, loss
from .collator import Batch
from .hf_private import attention_of
from .loss import BatchLosses, LossFunction, Objective
from .preferences import PreferenceObjective

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
    with evaluation_context(model):
        texts = probe_texts(model)
        loss_fn, why_full_logits = loss.choose_loss(model, texts, settings.learning.label_smoothing)
        why_mixed = "" if packing == "off" else _find_leak(model, texts)
        if packing == "auto" and attention_of(model) == "eager":  # as Gemma 2 has it
            why_mixed = "its attention would take memory for every pair of tokens in a packed row"
    if packing == "on" and why_mixed:
        raise SettingsError([f"Packing can't be used, because {why_mixed}. Choose auto or off."])
    return ModelCapabilities(loss_fn, packing != "off" and not why_mixed, why_mixed, why_full_logits)


def probe_texts(model: Any) -> torch.Tensor:
    """Return two short texts of random ids, the same ones each time."""
    generator = torch.Generator().manual_seed(7)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return torch.randint(0, vocabulary, (2, PROBE_LENGTH), generator=generator).to(model.device)


def packed_logits(model: Any, texts: torch.Tensor, *, apart: bool = True) -> torch.Tensor:
    """Return the logits of the texts in one row."""
    row = texts.reshape(1, -1)
    positions = torch.arange(row.shape[1], device=row.device)[None]
    # Positions that begin again at 0 are what tells the model where a text begins.
    positions = positions % texts.shape[1] if apart else positions
    logits: torch.Tensor = model(input_ids=row, position_ids=positions, use_cache=False).logits
    return logits.float()


def _find_leak(model: Any, texts: torch.Tensor) -> str:
    """Return why the two texts cannot share a row, or an empty string."""
    alone = torch.cat([model(input_ids=text[None], use_cache=False).logits.float() for text in texts], 1)
    try:
        packed = [packed_logits(model, texts, apart=apart) for apart in (True, False)]
    except (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError) as error:
        return f"this model does not accept position IDs ({type(error).__name__})"
    # 0 where the second text is as if it were alone, 1 where it is as if the first one were a part of it.
    apart, together = (float((logits - alone).norm() / alone.norm()) for logits in packed)
    leak = apart / max(together, 1e-30)
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


@dataclass(frozen=True)
class NextToken(Objective):
    """Next-token prediction: the losses of the supervised tokens."""

    noise: float = 0.0  # NEFTune's alpha
    embeddings: torch.nn.Module | None = None  # where the noise is added

    def __call__(self, model: Any, batch: Batch) -> BatchLosses:
        noise: AbstractContextManager[None] = nullcontext()
        if self.noise and self.embeddings is not None:
            noise = add_neftune_noise(self.embeddings, self.noise, batch)
        with noise:
            losses, hits = self.loss(model, batch.inputs, batch.labels, batch.supervised)
        rows, columns = batch.supervised.unbind(1)
        return BatchLosses(losses, hits, batch.owners[rows, columns].to(losses.device))


def make_objective(
    capabilities: ModelCapabilities, settings: TrainingSettings | None, model: Any = None
) -> Objective:
    """The objective of a run (without settings: next tokens), to train this model or, for None, to evaluate."""
    loss_fn, packed = replace(capabilities.loss, smoothing=0.0), capabilities.packed
    if settings is not None and settings.preferences.compares:
        return PreferenceObjective(loss_fn, packed, settings.preferences)
    if settings is None or model is None:
        return NextToken(loss_fn, packed)
    return NextToken(capabilities.loss, packed, settings.learning.neftune_noise, model.get_input_embeddings())


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
    """Sums over the batches of a step: its tokens, its loss by dataset, and the figures of its objective."""

    def __init__(self, datasets: ExampleDatasets, figures: tuple[str, ...] = ()) -> None:
        self._datasets, self._figures = datasets, figures
        self._tokens = 0
        self._sums: torch.Tensor | None = None  # of values, and how many; datasets first

    def add(self, batch: Batch, rows: BatchLosses) -> None:
        self._tokens += batch.tokens
        if not self._datasets.has_several and not self._figures:
            return
        device = rows.losses.device  # summed there, so that no batch has to synchronize the GPU
        columns = len(self._datasets.names)
        if self._sums is None:
            dtype = torch.float32 if device.type == "mps" else torch.float64  # which a Mac's GPU does not have
            self._sums = torch.zeros(2, columns + len(self._figures), dtype=dtype, device=device)
        dataset_of_example = torch.tensor(self._datasets.of(batch.examples)).to(device, non_blocking=True)
        losses = torch.stack([rows.losses.detach(), torch.ones_like(rows.losses)]).to(self._sums.dtype)
        self._sums.index_add_(1, dataset_of_example[rows.owners], losses)
        for column, name in enumerate(self._figures, start=columns):
            values = rows.figures[name].to(self._sums.dtype)
            self._sums[:, column] += torch.stack([values.nansum(), (~values.isnan()).sum()])

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Drop what is added within this context if it ends with an error: the batch is repeated in parts."""
        before = self._tokens, None if self._sums is None else self._sums.clone()
        try:
            yield
        except BaseException:
            self._tokens, self._sums = before
            raise

    def take(self) -> tuple[int, dict[str, float], dict[str, float]]:
        """Return the tokens of the step, the mean loss of each dataset and the figures; start the next step."""
        tokens = np.array([float(self._tokens)])
        sums = np.zeros((2, 0)) if self._sums is None else self._sums.cpu().numpy()
        self._tokens, self._sums = 0, None
        distributed.sum_over_ranks([tokens, *sums])  # the batches of a step are distributed over the processes
        means = [total / count if count else None for total, count in zip(*sums.tolist(), strict=True)]
        columns = len(self._datasets.names)
        by_source = _known(self._datasets.names, means[:columns]) if self._datasets.has_several else {}
        return int(tokens[0]), by_source, _known(self._figures, means[columns:])


def _known(names: Sequence[str], values: Sequence[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
