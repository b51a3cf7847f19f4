"""What comes before a first step: the data as Check sees them, the model without LoRAs, a fresh LoRA in it."""

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
    """The same as Check does; DataError where Check would say 'not ready'."""
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
    """The host's model without LoRAs; what is on it is put back afterwards, and that is said."""
    with without_loras(host) as (base, names):
        if names:
            job.log.append(Note(text=f"{', '.join(names)} is taken off for this run and put back after it."))
        yield base


@contextmanager
def ready_to_train(base: Any, run: Blueprint, job: Job) -> Iterator[Any]:
    """The model with a fresh LoRA in it, and the machine as the settings say."""
    settings = run.settings
    refuse_for([*offloaded_problems(is_offloaded(base)), *card_problems(only_card(base))])
    for advice in slow_type_advice(base):
        job.log.append(Advice(text=advice))
    set_seed(settings.what.seed)
    with set_up(settings.machine, base, job):
        if _checkpoints_gradients(run, base):
            enable = getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)
            enable({"use_reentrant": False})  # its name changes within transformers 5
            base.enable_input_require_grads()
        base.config.use_cache = False
        with _learning(base, run, job) as model, compiled(model, settings.machine.compile, job):
            yield model


@contextmanager
def _learning(base: Any, run: Blueprint, job: Job) -> Iterator[Any]:
    """The model with what is trained: a LoRA in it, or all of it."""
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
    """What is trained has a type that an optimizer can step in; where it loses small steps, that is said."""
    kinds = {str(weights.dtype).removeprefix("torch.") for weights in model.parameters() if weights.requires_grad}
    refuse_for(said for kind in sorted(kinds) for said in float16_problems(settings, kind))
    for advice in (said for kind in sorted(kinds) for said in rounding_advice(settings, kind)):
        job.log.append(Advice(text=advice))


def _checkpoints_gradients(run: Blueprint, base: Any) -> bool:
    """As asked; auto was decided on by what the run is expected to take."""
    asked = run.settings.machine.gradient_checkpointing
    wanted = asked == "on" or (asked == "auto" and run.data.report.resolved["gradient_checkpointing"] == "on")
    if wanted and not getattr(base, "supports_gradient_checkpointing", False):
        if asked == "on":
            raise SettingsError(["Gradient checkpointing: this model does not support it. Choose off."])
        return False
    return wanted
