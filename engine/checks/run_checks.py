"""Check a run against the model, the machine and the run folder; Check, the probe and a run all start here.

What is known only of a loaded model is checked again by the same functions after loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...core import dist_env
from ...core.errors import ModelError, SettingsError, TrainingProError
from ...core.findings import Finding, advice, problem, texts
from ...core.host import Host, ModelCard
from ...core.model_shape import ModelShape
from ...core.version import launch_command
from ...records.folder import choose_run_folder
from ...settings.definitions import RANDOM_SEED, SETTINGS, LoraSettings, TrainingSettings
from ...settings.target_layers import is_known_architecture, target_layers
from .optimizers import optimizer_problems
from .reporters import reporter_problems

LORA_ONLY_KEYS = (
    *("rslora", "dora", "lora_plus", "modules_to_save", "bias", "layers_to_transform", "train_head"),
)  # fmt: skip
SAFE_LR = 1e-4
"""Smallest learning rate without notable loss in bfloat16; measured, see docs/engine.md."""


@dataclass(frozen=True)
class DeviceInfo:
    """Device ('cpu', 'cuda'), quantization ('8bit') and dtype of the unquantized weights.

    Empty where it is not known before the model is loaded.
    """

    device: str
    held: str
    kind: str
    owns_process: bool
    model_problems: tuple[Finding, ...] = ()
    """Problems of the model itself, once it is loaded."""

    @staticmethod
    def of(host: Host) -> DeviceInfo:
        model = None if host.model_status().problem else host.loaded_model().model
        if model is not None:
            quantized = "8bit" if getattr(model, "is_loaded_in_8bit", False) else ""
            dtype = str(model.dtype).removeprefix("torch.")
            problems = tuple(loaded_model_problems(model))
            return DeviceInfo(model.device.type, quantized, dtype, host.owns_process, problems)
        card = _model_card_or_none(host)
        device = "cpu" if host.memory().device.lower().startswith("cpu") else "cuda"
        held = card.weight_precision(on_card=device != "cpu") if card else ""
        return DeviceInfo(device, held, held if "float" in held else "", host.owns_process)


def _model_card_or_none(host: Host) -> ModelCard | None:
    try:
        return host.card()
    except ModelError:  # no model is chosen, or it is unloaded; whoever needs it reports that
        return None


def check_run(settings: TrainingSettings, host: Host) -> list[Finding]:
    """Check the settings against the model and the machine."""
    device = DeviceInfo.of(host)
    findings = list(_check_method(settings, host))
    findings += [finding for rule in _RULES for finding in rule(settings, device)]
    if (card := _model_card_or_none(host)) and not settings.lora.whole_model:
        findings += rank_findings(settings.lora, card)
    if not settings.lora.whole_model and _needs_layer_check(settings.lora, host):
        from ..lora import lora_problems

        findings += lora_problems(settings.lora, host)
    return findings


def check_run_folder(settings: TrainingSettings, host: Host, resume: str) -> Iterator[Finding]:
    """Yield the problems of the run's name and folder."""
    try:
        folder = choose_run_folder(settings, host.folders, resume)
        folder.refuse_without_start()
        if folder.initial_lora is not None:
            from ..lora import refuse_shape_mismatch

            refuse_shape_mismatch(settings.lora, folder.initial_lora)
    except TrainingProError as error:
        yield from (problem("name", line) for line in str(error).splitlines())


def _needs_layer_check(lora: LoraSettings, host: Host) -> bool:
    """Whether the target layers need a check; a plain LoRA on all layers fits any model and loads no library."""
    others = lora.layers or lora.saved_modules or lora.bias != "none"
    is_plain = lora.targets == SETTINGS["targets"].default and not others
    return not is_plain or ((lora.dropout > 0 or lora.dora) and _has_experts(host))


def _has_experts(host: Host) -> bool:
    card = _model_card_or_none(host)
    shape = ModelShape.of(card.config) if card else None
    return shape is not None and shape.experts is not None


def raise_problems(findings: Iterable[Finding]) -> None:
    """Raise SettingsError if there are any problems."""
    if problems := texts(findings, "problem"):
        raise SettingsError(problems)


def is_offloaded(model: Any) -> bool:
    """Whether accelerate moves some of the weights to the GPU only when they are used."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


def loaded_model_problems(model: Any) -> Iterator[Finding]:
    """Yield why this model can't be trained as it is loaded."""
    if is_offloaded(model):  # and no LoRA can be added to it
        yield problem(
            "",
            "The model did not fit on the GPU, so some of its layers are in RAM or on disk and can't "
            "be trained. Free some VRAM and load the model again, load it in 4-bit, or choose a "
            "smaller model.",
        )
    gpus = {parameter.device.index or 0 for parameter in model.parameters()}
    # HF's Trainer would move the model to the first GPU. With several processes, each has a GPU of its own.
    if 0 not in gpus and len(gpus) == 1 and dist_env.world_size() == 1:
        yield problem(
            "",
            f"The model is on GPU {min(gpus)}, but a run uses GPU 0 unless the model is spread over several GPUs. "
            f"Load the model on GPU 0, or start the program with CUDA_VISIBLE_DEVICES={min(gpus)}.",
        )
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not quantizer.is_trainable:  # the Trainer raises an error for it
        method = quantizer.quantization_config.quant_method
        name = getattr(method, "value", method)
        yield problem(
            "",
            f"The model is quantized with {name}, which transformers can't train. Load the original model, and to "
            "save memory, load it in 4-bit.",
        )


_BASE_WEIGHTS = {
    "train_head": ("the embeddings and the head", "turn Train Head off"),
    "modules_to_save": ("these modules", "clear Modules to save"),
    "bias": ("the biases", "set Bias to none"),
}
"""Settings that train weights of the model beside the LoRA, which is float32, and how to turn them off."""


def _trained_base_weights(lora: LoraSettings) -> Iterator[tuple[str, str, str, str]]:
    """Yield the weights of the model itself that are trained: key and label, the weights, how to turn it off."""
    if lora.whole_model:
        yield "method", "Method full", "its weights", "train a LoRA"
        return
    for key, words in _BASE_WEIGHTS.items():
        if getattr(lora, key) != SETTINGS[key].default:
            yield key, SETTINGS[key].label, *words


def float16_problems(settings: TrainingSettings, dtype: str) -> Iterator[Finding]:
    """In float16 the optimizer's epsilon rounds to 0, and dividing by it gives NaN."""
    for key, label, weights, turn_off in _trained_base_weights(settings.lora) if dtype == "float16" else ():
        yield problem(
            key,
            f"{label}: the model is in float16, and an optimizer step would turn {weights} into NaN. Load the "
            f"model in bfloat16 or float32, or {turn_off}.",
        )


def rounding_advice(settings: TrainingSettings, dtype: str) -> Iterator[Finding]:
    """Advice for training weights of this dtype; a LoRA itself is always float32."""
    lora, rate = settings.lora, settings.learning.learning_rate
    rate *= lora.head_rate if lora.train_head or lora.saved_modules else 1
    if dtype != "bfloat16" or rate >= SAFE_LR:
        return
    for key, label, weights, turn_off in _trained_base_weights(lora):
        yield advice(
            key,
            f"{label}: the model is in bfloat16, which rounds away changes that are smaller than about 1/256 of a "
            f"weight. At their learning rate of {rate:g}, many updates of {weights} are lost. Load the model in "
            f"float32, train them at {SAFE_LR:g} or more, or {turn_off}.",
        )


def dora_problems(dora: bool, quantization: str) -> Iterator[Finding]:
    if dora and quantization == "8bit":
        yield problem(
            "dora",
            "DoRA can't be trained on 8-bit weights. Load the model in 4-bit or 16-bit precision, or turn DoRA "
            "off.",
        )


def rank_findings(lora: LoraSettings, card: ModelCard) -> Iterator[Finding]:
    """The rank of a change to a layer is at most its smaller dimension, which rarely exceeds the hidden size."""
    shape = ModelShape.of(card.config)
    if shape is None:
        return
    if lora.rank > shape.hidden:
        yield problem(
            "rank",
            f"LoRA Rank {lora.rank} is larger than the model's hidden size ({shape.hidden}). A rank above that "
            f"adds nothing. Use {shape.hidden} or less.",
        )
        return
    sides = shape.lora_sides(target_layers(lora.targets))
    small = {name: side for name, side in sorted(sides.items()) if side < lora.rank}
    if small and is_known_architecture(card.config, lora.targets):
        listed = ", ".join(f"{name}: {side}" for name, side in small.items())
        yield advice(
            "rank",
            f"LoRA Rank {lora.rank} is larger than the smaller dimension of some layers ({listed}). In a layer, "
            "a rank above the smaller dimension adds nothing and only uses more memory. Use "
            f"{min(small.values())} or less, unless the other layers need a higher rank.",
        )


def attention_problems(attention: str, device: str, compute_dtype: str) -> Iterator[Finding]:
    """`compute_dtype` is empty if the compute dtype is only known after loading."""
    if attention != "flash_attention_2":
        return
    if device != "cuda":
        yield problem("attention", "Attention: flash_attention_2 needs an NVIDIA GPU. Choose auto.")
    elif find_spec("flash_attn") is None:
        yield problem(
            "attention",
            "Attention: flash_attention_2 needs the flash-attn package. Install it (pip install flash-attn "
            "--no-build-isolation), or choose auto.",
        )
    elif compute_dtype == "float32":
        yield problem(
            "attention",
            "Attention: flash_attention_2 needs a model in bfloat16 or float16, but this one is in float32. "
            "Load it in one of those types, or choose auto.",
        )


def liger_problems(requested: bool, device: str) -> Iterator[Finding]:
    if not requested:
        return
    if find_spec("liger_kernel") is None:
        yield problem(
            "liger",
            "Liger kernels: the liger-kernel package is missing. Install it (pip install "
            "liger-kernel), or turn Liger kernels off.",
        )
    elif device != "cuda":
        yield problem("liger", "Liger kernels need a GPU. Turn Liger kernels off.")


def _workers_problems(settings: TrainingSettings, device: DeviceInfo) -> Iterator[Finding]:
    if settings.machine.workers and not device.owns_process:
        yield problem(
            "workers",
            "Workers: inside the webui, Training PRO starts no worker processes, because on Windows, each of them "
            "would start the webui again. Set Workers to 0.",
        )


def _shared_seed_problems(settings: TrainingSettings, device: DeviceInfo) -> Iterator[Finding]:
    """Processes train on the same split in the same order, and are not connected yet when the data are split."""
    if dist_env.world_size() > 1 and RANDOM_SEED in (settings.what.seed, settings.what.data_seed):
        yield problem("seed", "Seed -1: each process would pick a different seed. Enter a fixed seed, such as 42.")


def _sharding_problems(settings: TrainingSettings, device: DeviceInfo) -> Iterator[Finding]:
    """Accelerate silently ignores FSDP on a CPU, and saving and loading a divided LoRA is untested."""
    if name := dist_env.sharding():
        yield problem(
            "",
            f"The launcher is set up for {name}, which divides the model among the processes. Training PRO only "
            "supports data parallelism, where each process holds the whole model. Start Training PRO with "
            f"torchrun, or with accelerate launch without {name}.",
        )


_RULES: tuple[Callable[[TrainingSettings, DeviceInfo], Iterator[Finding]], ...] = (
    lambda settings, device: iter(device.model_problems),
    lambda settings, device: optimizer_problems(settings.learning.optimizer, device.device),
    lambda settings, device: float16_problems(settings, device.kind),
    lambda settings, device: rounding_advice(settings, device.kind),
    lambda settings, device: dora_problems(settings.lora.dora and not settings.lora.whole_model, device.held),
    lambda settings, device: attention_problems(settings.machine.attention, device.device, device.held),
    lambda settings, device: liger_problems(settings.machine.liger, device.device),
    lambda settings, device: reporter_problems(settings.records.reporters),
    _workers_problems,
    _shared_seed_problems,
    _sharding_problems,
)


def _check_method(settings: TrainingSettings, host: Host) -> Iterator[Finding]:
    """Yield problems with full fine-tuning, known before anything is loaded."""
    if not settings.lora.whole_model:
        return
    if not host.owns_process:
        yield problem(
            "method",
            "Method full: full fine-tuning is not possible inside the webui, because it would change "
            f"the loaded model. Train a LoRA, or run this command outside the webui: {launch_command()} "
            "train --method full",
        )
        return
    card, lora = host.card(), settings.lora
    if card.loading in ("8bit", "4bit"):
        yield problem(
            "method",
            f"Method full: a model loaded in {card.loading[0]}-bit can't be fully fine-tuned. Load it in 16 or "
            "32 bits.",
        )
    if card.name == settings.what.name:
        yield problem(
            "name",
            f"Name: {card.name!r} is the name of the model that you are training. Choose another name for the new "
            "model.",
        )
    changed = [key for key in LORA_ONLY_KEYS if getattr(lora, key) != SETTINGS[key].default]
    if changed:
        labels = ", ".join(SETTINGS[key].label for key in changed)
        yield problem(
            "method",
            f"The method is 'full', but these settings apply only to a LoRA: {labels}. Reset them to their "
            "defaults.",
        )
