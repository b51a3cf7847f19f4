"""Merge a LoRA into a full model on disk; the model in memory stays unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

from ...core.engine import MergeRequest
from ...core.errors import ModelError, SavingError
from ...core.files import PART_SUFFIX, move_new_folder, write_error_reason
from ...core.host import Host, describe_precision, get_model_card
from ...core.jobs import Job, JobEnded, Stage
from ...records.folder import choose_output
from ...settings.definitions import SETTINGS
from ...train_utils import size
from ..checks import is_offloaded
from ..lora import (
    KEPT_BIASES,
    load_lora,
    lora_folder,
    remove_peft_layers,
    translate_write_errors,
    without_loras,
)
from .safe_save import save_model

ADAPTER = "merged"
FREE_SPACE_FACTOR = 1.02
"""Free disk space needed, as a multiple of the weights: config and tokenizer are saved with them."""
WRAPPER_SUFFIX = ".base_layer"
Weights = Mapping[str, torch.Tensor]


def merge(request: MergeRequest, host: Host, job: Job) -> JobEnded:
    """Merge LoRA and model and save the result as safetensors, with config and tokenizer."""
    folder, out = lora_folder(request.lora, host), choose_output(request.out, host.folders)
    _refuse_overwriting(out)
    card = get_model_card(host)
    with without_loras(host) as (base, _):
        _refuse_quantized(base, card.name)
        _refuse_offloaded(base, card.name)
        _refuse_without_space(base, out)
        job.log.append(Stage(text=f"Merging {request.lora} into {card.name}"))
        weights = merged_weights(base, folder, str(request.lora))
        with _temporary_folder(out) as temporary:
            job.log.append(Stage(text=f"Writing {out}"))
            _save(base, weights, temporary, request.shard_size or SETTINGS["shard_size"].default)
            with translate_write_errors():
                card.tokenizer.save_pretrained(temporary)
        precision = describe_precision(base)
    location = f"in {out} ({size(sum(file.stat().st_size for file in out.iterdir()))}, {precision})"
    text = f"{request.lora} was merged into {card.name}. The merged model is {location}"
    return JobEnded(outcome="finished", text=text, folder=out)


def _refuse_overwriting(out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise SavingError(
            f"{out} already exists and is not an empty folder. Choose a folder that does not exist yet."
        )


def _refuse_quantized(base: Any, name: str) -> None:
    precision = describe_precision(base)
    if precision in ("4-bit", "8-bit") or getattr(base.config, "quantization_config", None):
        raise ModelError(
            f"{name} is loaded with quantized weights ({precision}), and merging a LoRA into them "
            "would lose precision. Load the model in bfloat16 (--load bfloat16) and merge again. The "
            "LoRA is unchanged."
        )


def _refuse_offloaded(base: torch.nn.Module, name: str) -> None:
    if is_offloaded(base):
        raise ModelError(
            f"{name} did not fit on the GPU, and offloaded layers can't be merged. Merge on a "
            "device where the whole model fits, such as the CPU. The LoRA is unchanged."
        )


def _refuse_without_space(base: torch.nn.Module, out: Path) -> None:
    parent = next(folder for folder in out.parents if folder.is_dir())
    needed = sum(p.numel() * p.element_size() for p in base.parameters()) * FREE_SPACE_FACTOR
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise SavingError(
            f"{parent} has {size(free)} free, but the model needs {size(needed)}. Free some space first."
        )


def merged_weights(base: Any, folder: Path, lora_name: str) -> Weights:
    """All weights by name, those that the LoRA changes on the CPU; the model's own are left alone."""
    weights: dict[str, torch.Tensor] = dict(base.state_dict())
    changed: dict[str, torch.Tensor] = {}
    names = {id(weight): name for name, weight in base.named_parameters()}
    load_lora(base, folder, ADAPTER, called=lora_name)
    try:
        for weight, _ in vars(base).get(KEPT_BIASES, ()):
            changed[names[id(weight)]] = weight.detach().to("cpu", copy=True)
        with torch.no_grad():
            for name, layer in base.named_modules():
                if isinstance(layer, BaseTunerLayer):
                    changed |= _with_full_names(name, _merge_layer(layer))
                elif isinstance(layer, AuxiliaryTrainingWrapper):
                    changed |= _with_full_names(name, _saved_module_weights(layer))
    finally:
        remove_peft_layers(base)
    _refuse_unknown_names(changed.keys() - weights.keys(), lora_name)
    return weights | changed


def _refuse_unknown_names(names: Set[str], lora_name: str) -> None:
    """Refuse names that the model does not have; such weights would be saved and never loaded."""
    if names:
        raise ModelError(
            f"The LoRA {lora_name!r} changes weights that this model does not have: "
            f"{', '.join(sorted(names)[:3])}{' and more' if len(names) > 3 else ''}. It can't be "
            "merged, so nothing was written. Attach it to the model instead."
        )


def _with_full_names(module: str, weights: Weights) -> dict[str, torch.Tensor]:
    """Full names of weights in the base model; PEFT wraps a layer of experts once for each of its tensors."""
    while module.endswith(WRAPPER_SUFFIX):
        module = module.removesuffix(WRAPPER_SUFFIX)
    return {f"{module}.{name}": weight for name, weight in weights.items()}


def _merge_layer(layer: Any) -> dict[str, torch.Tensor]:
    """Weights of a layer that the LoRA changes; PEFT merges in place, so its own are restored bit for bit."""
    base_weights = dict(layer.get_base_layer().named_parameters())
    tensors = {name: weight.data for name, weight in base_weights.items()}
    before = {name: weight.clone() for name, weight in tensors.items()}
    layer.merge(safe_merge=True, adapter_names=[ADAPTER])
    after = {n: w.detach().to("cpu", copy=True) for n, w in base_weights.items() if not torch.equal(w, before[n])}
    for name, weight in base_weights.items():
        weight.data = tensors[name].copy_(before[name])  # PEFT may have replaced the tensors
    layer.merged_adapters.clear()
    return after


def _saved_module_weights(layer: Any) -> dict[str, torch.Tensor]:
    """Weights of a head or embeddings from modules_to_save."""
    base_weights, trained = dict(layer.original_module.named_parameters()), layer.modules_to_save[ADAPTER]
    return {
        name: weight.detach().to("cpu", base_weights[name].dtype, copy=True)
        for name, weight in trained.named_parameters()
    }


def _save(base: Any, weights: Weights, folder: Path, shard_size: str) -> None:
    """Save the model; head and embeddings that are no longer equal are untied in the config."""
    names = _head_and_embeddings(base)
    tied = len(names) == 2 and bool(getattr(base.config.get_text_config(), "tie_word_embeddings", False))
    state_dict = dict(weights)
    if tied and torch.equal(state_dict[names[0]].cpu(), state_dict[names[1]].cpu()):
        state_dict[names[1]] = state_dict[names[0]]
        tied = False
    with _config_for_saving(base, untied=tied), translate_write_errors():
        save_model(base, folder, state_dict=state_dict, max_shard_size=shard_size)


def _head_and_embeddings(base: Any) -> list[str]:
    targets = [base.get_input_embeddings(), base.get_output_embeddings()]
    modules = dict(base.named_modules(remove_duplicate=False))
    return [f"{name}.weight" for target in targets for name, module in modules.items() if module is target][:2]


@contextmanager
def _config_for_saving(base: Any, *, untied: bool) -> Iterator[None]:
    """Change the config for saving and restore it on exit; saving modifies it too."""
    configs = [base.config, base.config.get_text_config()]
    saved = [dict(vars(config)) for config in configs]
    for config in configs:
        if untied:
            config.tie_word_embeddings = False
    try:
        yield
    finally:
        for config, values in zip(configs, saved, strict=True):
            vars(config).clear()
            vars(config).update(values)


@contextmanager
def _temporary_folder(out: Path) -> Iterator[Path]:
    """Temporary folder that is renamed to `out` when it is complete.

    It is nested in another folder: lists of models look only one level deep and never show an incomplete one.
    """
    parent = out.with_name(out.name + PART_SUFFIX)
    folder = parent / out.name
    shutil.rmtree(parent, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
        if out.is_dir():
            out.rmdir()  # it is empty
        move_new_folder(folder, out)
    except OSError as error:
        raise SavingError(
            f"{out} can't be written: {write_error_reason(error, parent)}. Choose another folder."
        ) from error
    finally:
        shutil.rmtree(parent, ignore_errors=True)
