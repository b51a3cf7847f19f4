"""Full fine-tuning: unfreeze all weights and save the result as a model of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.errors import SettingsError
from ...core.host import Host
from ...core.jobs import Job, Note, RunPlanned
from ...settings.definitions import TrainingSettings
from ..lora import adapter, removed_message, translate_write_errors
from ..plan import RunPlan
from .safe_save import save_model


@contextmanager
def unload_if_trained(settings: TrainingSettings, host: Host, job: Job) -> Iterator[None]:
    """Unload a model that was fully fine-tuned; its weights changed, so the next use loads it again."""
    try:
        yield
    finally:
        if settings.lora.whole_model and any(isinstance(event, RunPlanned) for event in job.log.since(0)):
            names = host.model_status().loras
            host.unload()
            message = (
                "The run changed the weights of the loaded model, so Training PRO unloaded it. It will load the "
                "model again when you need it."
            )
            if names:
                message += f" {removed_message(names)}"
            job.log.append(Note(text=message))


@contextmanager
def unfreeze(base: Any) -> Iterator[Any]:
    """Let all weights be trained; the caller restores the flags together with the others."""
    if getattr(base, "is_quantized", False):
        raise SettingsError(
            ["Method full: a quantized model can't be fully fine-tuned. Load it in 16 or 32 bits."]
        )
    base.requires_grad_(True)
    yield base


def save_trained_model(run: RunPlan, model: Any, folder: Path) -> None:
    """Save the result of a run: the LoRA, or the model in shards with its tokenizer."""
    if not run.settings.lora.whole_model:
        adapter.save_adapter(model, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Training switches the cache off; saved so, the model would generate without it for whoever loads it.
    use_cache, model.config.use_cache = model.config.use_cache, True
    try:
        with translate_write_errors():
            save_model(model, folder, max_shard_size=run.settings.machine.shard_size)
            run.card.tokenizer.save_pretrained(folder)
    finally:
        model.config.use_cache = use_cache
