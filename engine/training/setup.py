"""Setup of a run: prepared data, the base model without LoRAs, and a fresh LoRA in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from transformers import set_seed

from ...core import dist_env
from ...core.errors import DataError, SettingsError
from ...core.host import Host, ModelCard
from ...core.jobs import Advice, Job, Note, Request, Stage
from ...data.prepare import TrainingData, prepare
from ...records.folder import RunFolder
from ...settings.definitions import MAX_SEED, RANDOM_SEED, SETTINGS, TrainingSettings
from ...train_utils import plural
from ..checks import (
    base_weight_findings,
    dora_problems,
    loaded_model_problems,
    raise_problems,
)
from ..compute import apply_machine_settings, compile_layers, patch_lora_layers
from ..lora import (
    adapted_layers,
    choose_targets,
    inject_lora,
    load_initial_weights,
    lora_config,
    refuse_misplaced_targets,
    slow_dtype_advice,
    tied_layer_notes,
    unused_bias_advice,
    without_loras,
)
from ..plan import RunPlan
from ..saving import earlier_settings, load_run_state, safe_save
from ..tokenizer import make_working_tokenizer


def draw_seeds(settings: TrainingSettings, folder: RunFolder, job: Job) -> TrainingSettings:
    """Replace a seed of -1 by a random one, or by that of the checkpoint that the run resumes from."""
    drawn: dict[str, Any] = {
        key: secrets.randbelow(MAX_SEED + 1)
        for key in ("seed", "data_seed")
        if getattr(settings.what, key) == RANDOM_SEED
    }
    if not drawn:
        return settings
    how = "picked at random and saved with the run"
    if folder.start is not None:
        earlier = earlier_settings(folder, load_run_state(folder.start.folder))
        drawn, how = {key: earlier[key] for key in drawn}, "taken from the checkpoint"
    for key, seed in drawn.items():
        job.log.append(Note(text=f"{SETTINGS[key].label} {seed}: {how}."))
    return replace(settings, what=replace(settings.what, **drawn))


def prepare_data(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> TrainingData:
    """Prepare the data as Check does; DataError where Check reports problems."""
    data = prepare(
        settings,
        host.folders,
        card,
        make_working_tokenizer(card.tokenizer, host.chat_template()),
        lambda text, share: job.log.append(Stage(text=text, share=share)),
        machine=host.memory(),
        keep=dist_env.is_main_process(),
        is_stopped=lambda: job.control.asked(Request.STOP),
    )
    if data.report.problems:
        raise DataError("\n".join(data.report.problems))
    for advice in data.report.advice:
        job.log.append(Advice(text=advice))
    for finding in data.unused:
        job.log.append(Note(text=finding.text))
    return data


@contextmanager
def borrow_base_model(host: Host, job: Job) -> Iterator[Any]:
    """Yield the host's model without its LoRAs, which are put back and logged."""
    with without_loras(host) as (base, names):
        if names:
            are = plural(len(names), "is", "are")
            text = f"{', '.join(names)} {are} detached for this run and attached again afterward."
            job.log.append(Note(text=text))
        yield base


@contextmanager
def model_ready_to_train(base: Any, run_plan: RunPlan, job: Job) -> Iterator[Any]:
    """Yield the model ready to train: a fresh LoRA in it, or all weights trainable, and the machine settings."""
    settings = run_plan.settings
    raise_problems(loaded_model_problems(base))
    for advice in slow_dtype_advice(base):
        job.log.append(Advice(text=advice))
    # Where only `auto` asks for it, a model without gradient checkpointing trains without.
    checkpoints_gradients = run_plan.data.resolved.gradient_checkpointing
    if checkpoints_gradients and not getattr(base, "supports_gradient_checkpointing", False):
        if settings.machine.gradient_checkpointing == "on":
            raise SettingsError(["Gradient checkpointing: this model does not support it. Choose off."])
        checkpoints_gradients = False
    set_seed(settings.what.weights_seed)
    with apply_machine_settings(settings.machine, base, job):
        if checkpoints_gradients:
            # Renamed within transformers 5; the older name is needed for 5.6.2 only.
            enable = getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
            base.enable_input_require_grads()
        base.config.use_cache = False
        with _trainable(base, run_plan, job) as model:
            # Dtypes that no optimizer can step in are refused; those that lose small steps get advice.
            trained = sorted({str(weights.dtype) for weights in model.parameters() if weights.requires_grad})
            dtypes = [dtype.removeprefix("torch.") for dtype in trained]
            findings = [finding for dtype in dtypes for finding in base_weight_findings(settings, dtype)]
            raise_problems(findings)
            for finding in findings:
                job.log.append(Advice(text=finding.text))
            with compile_layers(model, settings.machine.compile, job):
                yield model


@contextmanager
def _trainable(base: Any, run_plan: RunPlan, job: Job) -> Iterator[Any]:
    """Yield the model with a fresh LoRA in it, or with all weights trainable."""
    settings, folder = run_plan.settings, run_plan.folder
    if settings.lora.whole_model:
        job.log.append(Note(text="This run trains all weights of the model."))
        with safe_save.unfreeze(base) as model:
            yield model
        return
    targets = choose_targets(settings.lora, base)
    raise_problems(dora_problems(settings.lora.dora, "8bit" if getattr(base, "is_loaded_in_8bit", False) else ""))
    config = lora_config(settings.lora, base, targets)
    for note in tied_layer_notes(targets.names, config.modules_to_save or (), base):
        job.log.append(Note(text=note))
    for advice in unused_bias_advice(settings.lora, base, targets.names):
        job.log.append(Advice(text=advice.text))
    with inject_lora(base, config) as model:
        refuse_misplaced_targets(targets, model)
        job.log.append(Note(text=f"The LoRA is added to {targets.words(adapted_layers(model))}."))
        if folder.initial_lora is not None and not folder.is_open:  # a later segment has its checkpoint
            load_initial_weights(model, folder.initial_lora)
        if not settings.machine.compile:
            patch_lora_layers(model)
        yield model
