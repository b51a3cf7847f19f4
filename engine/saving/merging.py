"""Merge a LoRA into a full model on disk; the model in memory stays unchanged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

from ...core.engine import MergeRequest
from ...core.errors import ModelError, SavingError
from ...core.files import PART_SUFFIX, free_bytes, move_new_folder, write_error_reason
from ...core.host import Host, describe_precision, get_model_card
from ...core.jobs import Job, JobEnded, Request, Stage
from ...records.folder import choose_output
from ...settings.definitions import SETTINGS
from ...train_utils import size
from ..checks import is_offloaded
from ..lora import adapter
from .safe_save import save_model, save_tokenizer

# Free disk space needed, as a multiple of the weights: config and tokenizer are saved with them.
FREE_SPACE_FACTOR = 1.02
Weights = Mapping[str, torch.Tensor]


def merge(request: MergeRequest, host: Host, job: Job) -> JobEnded:
    """Merge LoRA and model and save the result as safetensors, with config and tokenizer."""
    folder, out = adapter.lora_folder(request.lora, host), choose_output(request.out, host.folders)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise SavingError(
            f"{out} already exists and is not an empty folder. Choose a folder that does not exist yet."
        )
    card = get_model_card(host)
    # Without the LoRAs that the user has attached: only the one that was asked for is merged.
    with adapter.without_loras(host) as (base, _):
        precision = describe_precision(base)
        is_packed = hasattr(base, "gguf_weights")
        if getattr(getattr(base, "hf_quantizer", None), "pre_quantized", False):
            raise ModelError(
                f"The files of {card.name} are quantized themselves, and merging a LoRA into them would lose "
                "precision. Load the original model that they were made from, and merge the LoRA into that."
            )
        if is_packed or precision in ("4-bit", "8-bit") or getattr(base.config, "quantization_config", None):
            raise ModelError(
                f"{card.name} is loaded with quantized weights ({precision}), and merging a LoRA into them "
                "would lose precision. Load the model in bfloat16 (--load bfloat16) and merge again. The "
                "LoRA is unchanged."
            )
        if is_offloaded(base):
            raise ModelError(
                f"{card.name} did not fit on the GPU, and offloaded layers can't be merged. Merge on a "
                "device where the whole model fits, such as the CPU. The LoRA is unchanged."
            )
        needed = sum(p.numel() * p.element_size() for p in base.parameters()) * FREE_SPACE_FACTOR
        free = free_bytes(out)
        if free < needed:
            raise SavingError(
                f"{out.parent} has {size(free)} free, but the model needs {size(needed)}. Free some space first."
            )
        job.log.append(Stage(text=f"Merging {request.lora} into {card.name}"))
        weights = merged_weights(base, folder, str(request.lora))
        job.log.append(Stage(text=f"Writing {out}"))
        # In a folder within another: lists of models look only one level deep and never show an incomplete one.
        outer = out.with_name(out.name + PART_SUFFIX)
        inner = outer / out.name
        shutil.rmtree(outer, ignore_errors=True)  # of a merge that was killed
        try:
            inner.mkdir(parents=True)
            _save(base, weights, inner, request.shard_size or SETTINGS["shard_size"].default)
            if job.control.asked(Request.STOP):
                return JobEnded(outcome="stopped", text="Stopped. Nothing was merged.")
            with adapter.translate_write_errors():
                save_tokenizer(card, base, inner)
            if out.is_dir():
                out.rmdir()  # it is empty
            move_new_folder(inner, out)
        except OSError as error:
            reason = write_error_reason(error, outer)
            raise SavingError(f"{out} can't be written: {reason}. Choose another folder.") from error
        finally:
            shutil.rmtree(outer, ignore_errors=True)
    location = f"in {out} ({size(sum(file.stat().st_size for file in out.iterdir()))}, {precision})"
    text = f"{request.lora} was merged into {card.name}. The merged model is {location}"
    return JobEnded(outcome="finished", text=text, folder=out)


def merged_weights(base: Any, folder: Path, lora_name: str) -> Weights:
    """All weights by name, those that the LoRA changes on the CPU; the model's own are left alone."""
    # Layer by layer and on the CPU, so that the model in memory stays as it is and no second one is needed.
    weights: dict[str, torch.Tensor] = dict(base.state_dict())
    changed: dict[str, torch.Tensor] = {}
    names = {id(weight): name for name, weight in base.named_parameters()}
    adapter.load_lora(base, folder, lora_name)
    try:
        for weight, _ in vars(base).get(adapter.KEPT_BIASES, ()):
            changed[names[id(weight)]] = weight.detach().to("cpu", copy=True)
        with torch.no_grad():
            for name, layer in base.named_modules():
                layer_weights: Weights = {}
                if isinstance(layer, BaseTunerLayer):
                    layer_weights = _merge_layer(layer)
                elif isinstance(layer, AuxiliaryTrainingWrapper):  # a head or embeddings, trained in full
                    own = dict(layer.original_module.named_parameters())
                    (trained,) = layer.modules_to_save.values()
                    layer_weights = {
                        each: weight.detach().to("cpu", own[each].dtype, copy=True)
                        for each, weight in trained.named_parameters()
                    }
                # PEFT wraps a layer of experts once for each of its tensors.
                module = re.sub(r"(\.base_layer)+$", "", name)
                changed |= {f"{module}.{each}": weight for each, weight in layer_weights.items()}
    finally:
        adapter.remove_peft_layers(base)
    # Names that the model does not have would be saved and never loaded.
    unknown = sorted(changed.keys() - weights.keys())
    if unknown:
        raise ModelError(
            f"The LoRA {lora_name!r} changes weights that this model does not have: "
            f"{', '.join(unknown[:3])}{' and more' if len(unknown) > 3 else ''}. It can't be "
            "merged, so nothing was written. Attach it to the model instead."
        )
    return weights | changed


def _merge_layer(layer: Any) -> dict[str, torch.Tensor]:
    """Weights of a layer that the LoRA changes; PEFT merges in place, so its own are restored bit for bit."""
    base_weights = dict(layer.get_base_layer().named_parameters())
    tensors = {name: weight.data for name, weight in base_weights.items()}
    before = {name: weight.clone() for name, weight in tensors.items()}
    layer.merge(safe_merge=True)  # the only LoRA
    after = {n: w.detach().to("cpu", copy=True) for n, w in base_weights.items() if not torch.equal(w, before[n])}
    for name, weight in base_weights.items():
        # Bit for bit: subtracting what was added would leave rounding.
        weight.data = tensors[name].copy_(before[name])  # PEFT may have replaced the tensors
    layer.merged_adapters.clear()
    return after


def _save(base: Any, weights: Weights, folder: Path, shard_size: str) -> None:
    """Save the model; head and embeddings that are no longer equal are untied in the config."""
    # A tied model saves one tensor for both; a LoRA on the head alone makes them two.
    targets = (base.get_input_embeddings(), base.get_output_embeddings())
    modules = dict(base.named_modules(remove_duplicate=False))
    names = [f"{name}.weight" for target in targets for name, module in modules.items() if module is target][:2]
    untied = len(names) == 2 and bool(getattr(base.config.get_text_config(), "tie_word_embeddings", False))
    state_dict = dict(weights)
    if untied and torch.equal(state_dict[names[0]].cpu(), state_dict[names[1]].cpu()):
        state_dict[names[1]] = state_dict[names[0]]  # one tensor, which is written once
        untied = False
    configs = [base.config, base.config.get_text_config()]
    saved = [dict(vars(config)) for config in configs]
    try:
        for config in configs:
            if untied:
                config.tie_word_embeddings = False
        with adapter.translate_write_errors():
            save_model(base, folder, state_dict=state_dict, max_shard_size=shard_size)
    finally:  # saving modifies the config too
        for config, values in zip(configs, saved, strict=True):
            vars(config).clear()
            vars(config).update(values)
