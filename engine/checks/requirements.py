"""What this model or this machine cannot do, in words: Check, the probe and a run ask it here, before all else.

What is only known of a model in memory is asked again, by the same functions, when it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...core import dist_env
from ...core.errors import ModelError, SettingsError
from ...core.host import Host, ModelCard
from ...data.report import weights_as
from ...settings.definitions import SETTINGS, Lora, TrainingSettings
from ...train_utils import ModelShape
from .method import problems as of_the_method
from .optimizers import optimizer_problems

REPORTERS: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}


@dataclass(frozen=True)
class Here:
    """The device ('cpu', 'cuda'), how weights are held ('8bit'), the type of those that are not quantized; empty
    where it is not known before the model is loaded."""

    device: str
    held: str
    kind: str
    own_process: bool
    offloaded: bool = False
    card: int = 0
    """The number of the only one that the model lies on."""

    @staticmethod
    def of(host: Host) -> Here:
        model = None if host.standing().problem else host.loaded().model
        if model is not None:
            quantized = "8bit" if getattr(model, "is_loaded_in_8bit", False) else ""
            kind = str(model.dtype).removeprefix("torch.")
            where = is_offloaded(model), only_card(model)
            return Here(model.device.type, quantized, kind, host.own_process, *where)
        card = _card(host)
        device = "cpu" if host.memory().device.lower().startswith("cpu") else "cuda"
        held = weights_as(card, on_card=device != "cpu") if card else ""
        return Here(device, held, held if "float" in held else "", host.own_process)


def _card(host: Host) -> ModelCard | None:
    try:
        return host.card()
    except ModelError:  # nothing is chosen, or it sleeps; whoever needs it says so
        return None


def problems(settings: TrainingSettings, host: Host) -> list[str]:
    """Everything at once; empty where nothing stands in the way."""
    here = Here.of(host)
    said = [said for rule in _RULES for said in rule(settings, here)]
    return [*of_the_method(settings, host), *said, *_layers(settings, host)]


def _layers(settings: TrainingSettings, host: Host) -> Iterator[str]:
    if settings.lora.whole_model or not _is_a_question(settings.lora, host):
        return
    from ..lora import lora_problems

    yield from lora_problems(settings.lora, host)


def _is_a_question(lora: Lora, host: Host) -> bool:
    """On all layers there are, a plain LoRA sits on any model; what needs no look loads no library."""
    return lora.targets != SETTINGS["targets"].default or ((lora.dropout > 0 or lora.dora) and _has_experts(host))


def _has_experts(host: Host) -> bool:
    card = _card(host)
    shape = ModelShape.of(card.config) if card else None
    return shape is not None and shape.experts is not None


def refuse(settings: TrainingSettings, host: Host) -> None:
    """SettingsError with all of them."""
    refuse_for(problems(settings, host))


def refuse_for(found: Iterator[str] | list[str]) -> None:
    """SettingsError where there are any."""
    if said := list(found):
        raise SettingsError(said)


def is_offloaded(model: Any) -> bool:
    """Whether accelerate brings some of its weights onto the card only when they are used."""
    return any(weights.device.type == "meta" for weights in model.parameters())


def offloaded_problems(offloaded: bool) -> Iterator[str]:
    """Such weights are nowhere for a LoRA that sits on them, nor for an optimizer."""
    if offloaded:
        yield (
            "Model: it did not fit on the graphics card, so some of its layers were put into the system's memory "
            "or on the disk, and nothing can be trained there. Free memory on the card and load it again, load it "
            "in 4 bits, or choose a smaller one."
        )


def only_card(model: Any) -> int:
    """The number of the card that a model lies on; 0 where it lies on several, or on none."""
    places = {weights.device for weights in model.parameters()}
    return (places.pop().index or 0) if len(places) == 1 else 0


def card_problems(card: int) -> Iterator[str]:
    """HF's Trainer works on the first one, and would move the host's model to it."""
    if card and dist_env.count() == 1:  # of several, each has a card of its own
        yield (
            f"Model: it lies on graphics card {card} alone, and a run trains on card 0 or on all that a model is "
            f"spread over. Load it on card 0, or start the program with CUDA_VISIBLE_DEVICES={card}."
        )


def float16_problems(settings: TrainingSettings, kind: str) -> Iterator[str]:
    """The optimizer's small numbers are zero in float16, and what is divided by them is none."""
    if kind != "float16":
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


def dora_problems(dora: bool, held: str) -> Iterator[str]:
    if dora and held == "8bit":
        yield "DoRA: it cannot be trained on 8-bit weights. Load the model in 4 or 16 bits, or leave it off."


def attention_problems(asked: str, device: str, computed_in: str) -> Iterator[str]:
    """`computed_in` is empty where that is only known of the model in memory."""
    if asked != "flash_attention_2":
        return
    if device != "cuda":
        yield "Attention: flash_attention_2 wants an NVIDIA card. Choose auto."
    elif find_spec("flash_attn") is None:
        yield (
            "Attention: flash_attention_2 needs the package flash-attn. Install it (pip install flash-attn "
            "--no-build-isolation), or choose auto."
        )
    elif computed_in == "float32":
        yield (
            "Attention: flash_attention_2 works in bfloat16 and float16 only, and this model in float32. Load it "
            "in one of these, or choose auto."
        )


def liger_problems(asked: bool, device: str) -> Iterator[str]:
    if not asked:
        return
    if find_spec("liger_kernel") is None:
        yield "Liger: the package is missing: pip install liger-kernel. Or leave it off."
    elif device != "cuda":
        yield "Liger: its kernels want a graphics card. Leave it off."


def _report_to(settings: TrainingSettings, here: Here) -> Iterator[str]:
    asked = settings.records.report_to
    packages = REPORTERS.get(asked, ())
    if packages and not any(find_spec(package) for package in packages):
        yield f"Report to: {asked} is not installed. Install it (pip install {packages[0]}), or choose none."


def _workers(settings: TrainingSettings, here: Here) -> Iterator[str]:
    if settings.machine.workers and not here.own_process:
        yield (
            "Workers: inside the webui none can be started (on Windows each would start the webui). Set it to 0."
        )


_RULES: tuple[Callable[[TrainingSettings, Here], Iterator[str]], ...] = (
    lambda settings, here: offloaded_problems(here.offloaded),
    lambda settings, here: card_problems(here.card),
    lambda settings, here: optimizer_problems(settings.learning.optimizer, here.device),
    lambda settings, here: float16_problems(settings, here.kind),
    lambda settings, here: dora_problems(settings.lora.dora and not settings.lora.whole_model, here.held),
    lambda settings, here: attention_problems(settings.machine.attention, here.device, here.held),
    lambda settings, here: liger_problems(settings.machine.liger, here.device),
    _report_to,
    _workers,
)
