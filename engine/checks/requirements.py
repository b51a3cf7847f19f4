"""Problems of model and machine in words; Check, the probe and a run all begin with these functions.

What is only known of a loaded model is checked again, by the same functions, after loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...core import dist_env
from ...core.errors import ModelError, SettingsError
from ...core.host import Host, ModelCard
from ...core.launcher import launch_command
from ...data.report import weight_precision
from ...settings.definitions import SETTINGS, LoraSettings, TrainingSettings
from ...train_utils import ModelShape
from .optimizers import optimizer_problems

REPORTERS: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}


@dataclass(frozen=True)
class DeviceInfo:
    """Device ('cpu', 'cuda'), quantization ('8bit') and dtype of the unquantized weights.

    Empty where it is not known before the model is loaded.
    """

    device: str
    held: str
    kind: str
    owns_process: bool
    offloaded: bool = False
    card: int = 0
    """Index of the GPU, if the model lies on a single one."""

    @staticmethod
    def of(host: Host) -> DeviceInfo:
        model = None if host.model_status().problem else host.loaded_model().model
        if model is not None:
            quantized = "8bit" if getattr(model, "is_loaded_in_8bit", False) else ""
            dtype = str(model.dtype).removeprefix("torch.")
            placement = is_offloaded(model), only_gpu_index(model)
            return DeviceInfo(model.device.type, quantized, dtype, host.owns_process, *placement)
        card = _model_card_or_none(host)
        device = "cpu" if host.memory().device.lower().startswith("cpu") else "cuda"
        held = weight_precision(card, on_card=device != "cpu") if card else ""
        return DeviceInfo(device, held, held if "float" in held else "", host.owns_process)


def _model_card_or_none(host: Host) -> ModelCard | None:
    try:
        return host.card()
    except ModelError:  # no model is chosen, or it is unloaded; whoever needs it reports that
        return None


def run_problems(settings: TrainingSettings, host: Host) -> list[str]:
    """All problems that prevent a run."""
    device_info = DeviceInfo.of(host)
    messages = [message for rule in _RULES for message in rule(settings, device_info)]
    return [*problems(settings, host), *messages, *_target_layer_problems(settings, host)]


def _target_layer_problems(settings: TrainingSettings, host: Host) -> Iterator[str]:
    if settings.lora.whole_model or not _needs_layer_check(settings.lora, host):
        return
    from ..lora import lora_problems

    yield from lora_problems(settings.lora, host)


def _needs_layer_check(lora: LoraSettings, host: Host) -> bool:
    """Whether the target layers need a check; a plain LoRA on all layers fits any model and loads no library."""
    return lora.targets != SETTINGS["targets"].default or ((lora.dropout > 0 or lora.dora) and _has_experts(host))


def _has_experts(host: Host) -> bool:
    card = _model_card_or_none(host)
    shape = ModelShape.of(card.config) if card else None
    return shape is not None and shape.experts is not None


def raise_run_problems(settings: TrainingSettings, host: Host) -> None:
    """Raise SettingsError with all problems that prevent a run."""
    raise_problems(run_problems(settings, host))


def raise_problems(problems: Iterator[str] | list[str]) -> None:
    """Raise SettingsError if there are any problems."""
    if messages := list(problems):
        raise SettingsError(messages)


def is_offloaded(model: Any) -> bool:
    """Whether accelerate moves some of the weights to the GPU only when they are used."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


def offloaded_problems(offloaded: bool) -> Iterator[str]:
    """Offloaded weights cannot be trained, and no LoRA can be put on them."""
    if offloaded:
        yield (
            "Model: it did not fit on the graphics card, so some of its layers were put into the system's memory "
            "or on the disk, and nothing can be trained there. Free memory on the card and load it again, load it "
            "in 4 bits, or choose a smaller one."
        )


def only_gpu_index(model: Any) -> int:
    """Index of the GPU that the model lies on; 0 for several GPUs or none."""
    devices = {parameter.device for parameter in model.parameters()}
    return (devices.pop().index or 0) if len(devices) == 1 else 0


def gpu_index_problems(card: int) -> Iterator[str]:
    """HF's Trainer uses the first GPU and would move the host's model there."""
    if card and dist_env.world_size() == 1:  # with several processes, each has its own GPU
        yield (
            f"Model: it lies on graphics card {card} alone, and a run trains on card 0 or on all that a model is "
            f"spread over. Load it on card 0, or start the program with CUDA_VISIBLE_DEVICES={card}."
        )


def float16_problems(settings: TrainingSettings, dtype: str) -> Iterator[str]:
    """In float16 the optimizer's epsilon rounds to 0, and dividing by it gives NaN."""
    if dtype != "float16":
        return
    if settings.lora.whole_model:
        yield (
            "Method full: the model is held in float16, in which a step of the optimizer makes its weights NaN. "
            "Load it in bfloat16 or float32."
        )
    elif settings.lora.train_head:
        yield (
            "Train Head: the model is held in float16, in which a step of the optimizer makes embeddings and head "
            "NaN. Load it in bfloat16 or float32, or leave Train Head off."
        )


def dora_problems(dora: bool, quantization: str) -> Iterator[str]:
    if dora and quantization == "8bit":
        yield "DoRA: it cannot be trained on 8-bit weights. Load the model in 4 or 16 bits, or leave it off."


def attention_problems(attention: str, device: str, compute_dtype: str) -> Iterator[str]:
    """`compute_dtype` is empty if the compute dtype is only known after loading."""
    if attention != "flash_attention_2":
        return
    if device != "cuda":
        yield "Attention: flash_attention_2 wants an NVIDIA card. Choose auto."
    elif find_spec("flash_attn") is None:
        yield (
            "Attention: flash_attention_2 needs the package flash-attn. Install it (pip install flash-attn "
            "--no-build-isolation), or choose auto."
        )
    elif compute_dtype == "float32":
        yield (
            "Attention: flash_attention_2 works in bfloat16 and float16 only, and this model in float32. Load it "
            "in one of these, or choose auto."
        )


def liger_problems(requested: bool, device: str) -> Iterator[str]:
    if not requested:
        return
    if find_spec("liger_kernel") is None:
        yield "Liger: the package is missing: pip install liger-kernel. Or leave it off."
    elif device != "cuda":
        yield "Liger: its kernels want a graphics card. Leave it off."


def _report_to_problems(settings: TrainingSettings, device_info: DeviceInfo) -> Iterator[str]:
    reporter = settings.records.report_to
    packages = REPORTERS.get(reporter, ())
    if packages and not any(find_spec(package) for package in packages):
        yield f"Report to: {reporter} is not installed. Install it (pip install {packages[0]}), or choose none."


def _workers_problems(settings: TrainingSettings, device_info: DeviceInfo) -> Iterator[str]:
    if settings.machine.workers and not device_info.owns_process:
        yield (
            "Workers: inside the webui none can be started (on Windows each would start the webui). Set it to 0."
        )


_RULES: tuple[Callable[[TrainingSettings, DeviceInfo], Iterator[str]], ...] = (
    lambda settings, device_info: offloaded_problems(device_info.offloaded),
    lambda settings, device_info: gpu_index_problems(device_info.card),
    lambda settings, device_info: optimizer_problems(settings.learning.optimizer, device_info.device),
    lambda settings, device_info: float16_problems(settings, device_info.kind),
    lambda settings, device_info: dora_problems(
        settings.lora.dora and not settings.lora.whole_model, device_info.held
    ),
    lambda settings, device_info: attention_problems(
        settings.machine.attention, device_info.device, device_info.held
    ),
    lambda settings, device_info: liger_problems(settings.machine.liger, device_info.device),
    _report_to_problems,
    _workers_problems,
)


def problems(settings: TrainingSettings, host: Host) -> list[str]:
    """Problems with full fine-tuning, known before anything is loaded."""
    if not settings.lora.whole_model:
        return []
    if not host.owns_process:
        return [
            "Method full: inside the webui the model is only lent, and would not come back as it was. Train a "
            f"LoRA, or run it on its own: {launch_command()} train --method full"
        ]
    card, messages = host.card(), []
    if card.loading in ("8bit", "4bit"):
        messages.append(
            f"Method full: a model in {card.loading} cannot be trained whole. Load it in 16 or 32 bits."
        )
    if card.name == settings.what.name:
        messages.append(f"Name: {card.name!r} is the model that is trained. The new one needs another name.")
    lora = settings.lora
    if lora.dora or lora.rslora or lora.train_head or lora.lora_plus != 1:
        messages.append("Method full: rsLoRA, DoRA, LoRA+ and Train Head are parts of a LoRA. Leave them off.")
    return messages
