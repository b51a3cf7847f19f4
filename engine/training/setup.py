"""Setup of a run: prepared data, the base model without LoRAs, and a fresh LoRA in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import set_seed

from ...core import dist_env
from ...core.errors import DataError, SettingsError
from ...core.host import Host, ModelCard
from ...core.jobs import Advice, Job, Note, Stage
from ...data.prepare import TrainingData, prepare
from ...settings.definitions import TrainingSettings
from ..checks import (
    card_problems,
    dora_problems,
    float16_problems,
    is_offloaded,
    offloaded_problems,
    only_card,
    refuse_for,
    rounding_advice,
)
from ..compute import compiled, loras_in_fewer_passes, set_up
from ..lora import (
    adapted,
    begin_with,
    injected,
    lora_config,
    refuse_if_elsewhere,
    resolved,
    slow_type_advice,
    without_loras,
)
from ..plan import Blueprint
from ..saving import full_finetune
from ..tokenizer import working_tokenizer


def prepared(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> TrainingData:
    """Prepare the data as Check does; DataError where Check reports problems."""
    data = prepare(
        settings,
        host.folders,
        card,
        working_tokenizer(card.tokenizer, host.chat_template()),
        lambda text, share: job.log.append(Stage(text=text, share=share)),
        machine=host.memory(),
        keep=dist_env.is_first(),
    )
    if data.report.problems:
        raise DataError("\n".join(data.report.problems))
    for advice in data.report.advice:
        job.log.append(Advice(text=advice))
    return data


@contextmanager
def bare_model(host: Host, job: Job) -> Iterator[Any]:
    """Yield the host's model without its LoRAs, which are put back and logged."""
    with without_loras(host) as (base, names):
        if names:
            job.log.append(Note(text=f"{', '.join(names)} is taken off for this run and put back after it."))
        yield base


@contextmanager
def ready_to_train(base: Any, run: Blueprint, job: Job) -> Iterator[Any]:
    """Yield the model ready to train: a fresh LoRA in it, and the machine settings applied."""
    settings = run.settings
    refuse_for([*offloaded_problems(is_offloaded(base)), *card_problems(only_card(base))])
    for advice in slow_type_advice(base):
        job.log.append(Advice(text=advice))
    set_seed(settings.what.seed)
    with set_up(settings.machine, base, job):
        if _uses_gradient_checkpointing(run, base):
            enable = getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)
            enable({"use_reentrant": False})  # renamed within transformers 5
            base.enable_input_require_grads()
        base.config.use_cache = False
        with _trainable(base, run, job) as model, compiled(model, settings.machine.compile, job):
            yield model


@contextmanager
def _trainable(base: Any, run: Blueprint, job: Job) -> Iterator[Any]:
    """Yield the model with its trainable weights: a LoRA, or all of the model."""
    settings = run.settings
    if settings.lora.whole_model:
        job.log.append(Note(text="All of the model is trained; what is said of a LoRA does not count."))
        with full_finetune.opened(base) as model:
            _told_by_types(model, settings, job)
            yield model
        return
    targets = resolved(settings.lora.targets, base)
    refuse_for(dora_problems(settings.lora.dora, "8bit" if getattr(base, "is_loaded_in_8bit", False) else ""))
    with injected(base, lora_config(settings.lora, base, targets)) as model:
        refuse_if_elsewhere(targets, model)
        job.log.append(Note(text=f"The LoRA sits on {targets.words(adapted(model))}."))
        _told_by_types(model, settings, job)
        if run.folder.begins_with is not None and not run.folder.is_open:
            begin_with(model, run.folder.begins_with)
        if not settings.machine.compile:
            loras_in_fewer_passes(model)
        yield model


def _told_by_types(model: Any, settings: TrainingSettings, job: Job) -> None:
    """Refuse dtypes of trained weights that no optimizer can step in; advise on those that lose small steps."""
    dtypes = {str(weights.dtype).removeprefix("torch.") for weights in model.parameters() if weights.requires_grad}
    refuse_for(message for dtype in sorted(dtypes) for message in float16_problems(settings, dtype))
    for advice in (message for dtype in sorted(dtypes) for message in rounding_advice(settings, dtype)):
        job.log.append(Advice(text=advice))


def _uses_gradient_checkpointing(run: Blueprint, base: Any) -> bool:
    """Whether to checkpoint gradients: as set, or for auto as resolved from the memory estimate."""
    setting = run.settings.machine.gradient_checkpointing
    enabled = setting == "on" or (setting == "auto" and run.data.report.resolved["gradient_checkpointing"] == "on")
    if enabled and not getattr(base, "supports_gradient_checkpointing", False):
        if setting == "on":
            raise SettingsError(["Gradient checkpointing: this model does not support it. Choose off."])
        return False
    return enabled
