"""Draw the map of a dataset: what its rows are about, by the model's own hidden states."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core.engine import MapRequest
from ...core.errors import ModelError, StoppedError
from ...core.host import Host, get_model_card
from ...core.jobs import Job, JobEnded, Request, Stage
from ...data import workshop
from ...data.workshop import mapping
from ...settings.parsing import row_settings
from ...train_utils import duration, format_count
from ..compute import failures
from ..lora import adapter, evaluation_context, model_device
from ..tokenizer import make_working_tokenizer
from .eval_loop import StageProgress

# The share of the layers after which the topics of texts are farthest apart, and how much of a text is read:
# see docs/benchmarks.md
LAYER, MAX_TOKENS = 0.25, 64
BATCH = 32


class _Reached(Exception):  # noqa: N818 - no error: the layers above are not needed
    """A forward pass has come to the layer."""


def draw_map(asked: MapRequest, host: Host, job: Job) -> JobEnded:
    """Write the map of a dataset into a file."""
    card, started = get_model_card(host), time.monotonic()
    rows = mapping.read_rows(workshop.Dataset(Path(asked.data), row_settings(asked.rows)))
    encode = make_working_tokenizer(card.tokenizer, host.chat_template()).encode
    ids = [
        each.ids[:MAX_TOKENS].tolist() or [0] for each in encode([words[: 20 * MAX_TOKENS] for words, _ in rows])
    ]
    with adapter.without_loras(host) as (base, _):
        vectors = embed(base, ids, job)
    job.log.append(Stage(text="Finding clusters"))
    mapping.write_map(rows, vectors, asked.out)
    text = f"{format_count(len(rows), 'row')} mapped in {duration(time.monotonic() - started)}."
    return JobEnded(outcome="finished", text=text)


def embed(model: Any, ids: Sequence[Sequence[int]], job: Job, layer: float = LAYER) -> Any:
    """The mean hidden state of each text after this share of the layers; raises StoppedError."""
    decoder, count = model.get_decoder(), model.config.get_text_config().num_hidden_layers
    lists = (m for m in decoder.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)
    layers = next(lists, None)
    if layers is None:
        raise ModelError("The layers of this model were not found, so it can't draw a map. Choose another model.")
    reached = list[torch.Tensor]()

    def stop_here(module: Any, inputs: Any, output: Any) -> None:
        reached.append(output[0] if isinstance(output, tuple) else output)
        raise _Reached

    def mean_states(numbers: Sequence[int]) -> None:
        longest = max(len(ids[n]) for n in numbers)
        mask = torch.tensor([[1] * len(ids[n]) + [0] * (longest - len(ids[n])) for n in numbers])
        padded = torch.tensor([[*ids[n], *[0] * (longest - len(ids[n]))] for n in numbers])
        reached.clear()
        with suppress(_Reached):
            decoder(input_ids=padded.to(device), attention_mask=mask.to(device), use_cache=False)
        # The first token collects attention, and is the same for all texts: it counts only where it stands alone.
        mask[:, 0] = mask.sum(1) == 1
        weights = mask.to(reached[0].device)[..., None].float()
        vectors[list(numbers)] = ((reached[0].float() * weights).sum(1) / weights.sum(1)).cpu().numpy()

    device, progress = model_device(model), StageProgress(Stage(text="Reading the rows"), job.log)
    vectors = np.zeros((len(ids), model.config.get_text_config().hidden_size), np.float32)
    by_length = np.argsort([-len(each) for each in ids], kind="stable").tolist()
    splitter = failures.BatchSplitter()
    handle = layers[max(0, round(layer * count) - 1)].register_forward_hook(stop_here)
    try:
        with evaluation_context(model):
            for start in range(0, len(ids), BATCH):
                if job.control.asked(Request.STOP):
                    raise StoppedError("Stopped. No map was written.")
                for _ in splitter.run(by_length[start : start + BATCH], mean_states):
                    pass
                progress(start / len(ids))
    finally:
        handle.remove()
    return vectors
