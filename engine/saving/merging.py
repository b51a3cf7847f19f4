"""A LoRA baked into a full model: written aside, renamed when whole, the model in memory as before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

from ...core.engine import Merge
from ...core.errors import ModelError, SavingError
from ...core.files import PART, moved_when_new
from ...core.host import Host, card_of, precision_of
from ...core.jobs import Ended, Job, Stage
from ...train_utils import size
from ..checks import is_offloaded
from ..lora import loaded_onto, lora_folder, take_out, weights_written, without_loras

ADAPTER = "merged"
SHARD = "5GB"
LEFT_FREE = 1.02
"""So many times the weights have to be free on the disk: config and tokenizer go beside them."""
WRAPPED = ".base_layer"
Weights = Mapping[str, torch.Tensor]


def merge(asked: Merge, host: Host, job: Job) -> Ended:
    """The weights of model and LoRA together as safetensors, with config and tokenizer."""
    folder, out = lora_folder(asked.lora, host), Path(asked.out).expanduser().absolute()
    _refuse_to_write_over(out, host.folders.loras)
    card = card_of(host)
    with without_loras(host) as (base, _):
        _refuse_quantized(base, card.name)
        _refuse_offloaded(base, card.name)
        _refuse_without_room(base, out)
        job.log.append(Stage(text=f"Merging {asked.lora} into {card.name}"))
        weights = merged(base, folder, str(asked.lora))
        with _aside(out) as written:
            job.log.append(Stage(text=f"Writing {out}"))
            _write(base, weights, written)
            card.tokenizer.save_pretrained(written)
        kind = precision_of(base)
    where = f"in {out} ({size(sum(file.stat().st_size for file in out.iterdir()))}, {kind})"
    return Ended(outcome="finished", text=f"{card.name} with {asked.lora} baked in is {where}", folder=out)


def _refuse_to_write_over(out: Path, loras: Path) -> None:
    others = [path for path in out.resolve().parents if path.parent == loras.resolve() and path.exists()]
    if others:
        raise SavingError(f"{out} lies in the folder of the LoRA {others[0].name!r}. Name a folder of its own.")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise SavingError(f"{out} is not empty. Name a folder that is not there yet.")


def _refuse_quantized(base: Any, name: str) -> None:
    kind = precision_of(base)
    if kind in ("4-bit", "8-bit") or getattr(base.config, "quantization_config", None):
        raise ModelError(
            f"{name} is loaded with quantized weights ({kind}), which cannot take a LoRA in without loss. "
            "Load it in bfloat16 (--load bfloat16) and merge again; the LoRA stays as it is."
        )


def _refuse_offloaded(base: torch.nn.Module, name: str) -> None:
    if is_offloaded(base):
        raise ModelError(
            f"{name} did not fit on the graphics card, and what was put beside it cannot take a LoRA in. Merge "
            "where all of it fits, if need be on a processor; the LoRA stays as it is."
        )


def _refuse_without_room(base: torch.nn.Module, out: Path) -> None:
    there = next(folder for folder in out.parents if folder.is_dir())
    needed = sum(p.numel() * p.element_size() for p in base.parameters()) * LEFT_FREE
    free = shutil.disk_usage(there).free
    if free < needed:
        raise SavingError(f"{there} has {size(free)} free, and the model takes {size(needed)}. Make room first.")


def merged(base: Any, folder: Path, called: str) -> Weights:
    """All weights by their names, those that the LoRA changes on the CPU; the model's own are not touched."""
    own: dict[str, torch.Tensor] = dict(base.state_dict())
    changed: dict[str, torch.Tensor] = {}
    loaded_onto(base, folder, ADAPTER, called=called)
    try:
        with torch.no_grad():
            for name, layer in base.named_modules():
                if isinstance(layer, BaseTunerLayer):
                    changed |= _named(name, _with_lora(layer))
                elif isinstance(layer, AuxiliaryTrainingWrapper):
                    changed |= _named(name, _trained_whole(layer))
    finally:
        take_out(base)
    _refuse_strangers(changed.keys() - own.keys(), called)
    return own | changed


def _refuse_strangers(names: Set[str], called: str) -> None:
    """A weight under a name that the model does not know would be written, and never be read."""
    if names:
        raise ModelError(
            f"The LoRA {called!r} changes weights that have no place in this model: "
            f"{', '.join(sorted(names)[:3])}{' and more' if len(names) > 3 else ''}. Nothing is written. "
            "Use it as a LoRA beside the model."
        )


def _named(module: str, weights: Weights) -> dict[str, torch.Tensor]:
    """By their names in the model; PEFT wraps a layer of experts once for each of its tensors."""
    while module.endswith(WRAPPED):
        module = module.removesuffix(WRAPPED)
    return {f"{module}.{name}": weight for name, weight in weights.items()}


def _with_lora(layer: Any) -> dict[str, torch.Tensor]:
    """What the LoRA changes. PEFT merges in place: the layer's own weights are put back, bit for bit."""
    own = dict(layer.get_base_layer().named_parameters())
    places = {name: weight.data for name, weight in own.items()}
    before = {name: weight.clone() for name, weight in places.items()}
    layer.merge(safe_merge=True, adapter_names=[ADAPTER])
    after = {n: w.detach().to("cpu", copy=True) for n, w in own.items() if not torch.equal(w, before[n])}
    for name, weight in own.items():
        weight.data = places[name].copy_(before[name])  # PEFT may have put them elsewhere
    layer.merged_adapters.clear()
    return after


def _trained_whole(layer: Any) -> dict[str, torch.Tensor]:
    """A head or embeddings that were trained beside the LoRA."""
    own, trained = dict(layer.original_module.named_parameters()), layer.modules_to_save[ADAPTER]
    return {
        name: weight.detach().to("cpu", own[name].dtype, copy=True) for name, weight in trained.named_parameters()
    }


def _write(base: Any, weights: Weights, folder: Path) -> None:
    """Head and embeddings that are still the same stay one tensor; else the config says that they are two."""
    names = _head_and_embeddings(base)
    tied = len(names) == 2 and bool(getattr(base.config.get_text_config(), "tie_word_embeddings", False))
    both = dict(weights)
    if tied and torch.equal(both[names[0]].cpu(), both[names[1]].cpu()):
        both[names[1]] = both[names[0]]
        tied = False
    with _said_in_config(base, untied=tied), weights_written():
        base.save_pretrained(folder, state_dict=both, max_shard_size=SHARD)


def _head_and_embeddings(base: Any) -> list[str]:
    wanted = [base.get_input_embeddings(), base.get_output_embeddings()]
    found = dict(base.named_modules(remove_duplicate=False))
    return [f"{name}.weight" for part in wanted for name, module in found.items() if module is part][:2]


@contextmanager
def _said_in_config(base: Any, *, untied: bool) -> Iterator[None]:
    """Inside, the config is what is to be written; saving writes into it as well."""
    configs = [base.config, base.config.get_text_config()]
    before = [dict(vars(config)) for config in configs]
    for config in configs:
        if untied:
            config.tie_word_embeddings = False
    try:
        yield
    finally:
        for config, known in zip(configs, before, strict=True):
            vars(config).clear()
            vars(config).update(known)


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """A folder that takes the wanted one's place when everything in it is whole.

    It lies in one of its own: whoever lists models looks only one folder deep, and never meets half of one.
    """
    around = out.with_name(out.name + PART)
    written = around / out.name
    shutil.rmtree(around, ignore_errors=True)
    try:
        written.mkdir(parents=True)
        yield written
        if out.is_dir():
            out.rmdir()  # it is empty
        moved_when_new(written, out)
    except OSError as error:
        raise SavingError(f"{out} cannot be written: {error}. Name another folder.") from error
    finally:
        shutil.rmtree(around, ignore_errors=True)
