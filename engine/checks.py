"""Check a run against the model, the machine and the run folder; Check, the probe and a run all start here.

What is known only of a loaded model is checked again by the same functions after loading.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from ..core import dist_env
from ..core.errors import ModelError, SettingsError, TrainingProError
from ..core.findings import Finding, advice, problem, texts
from ..core.host import Host, ModelCard
from ..core.model_shape import OUTER_LAYERS, ModelShape, target_layers
from ..core.version import install_command, launch_command
from ..records.folder import RunFolder, choose_run_folder, read_log
from ..settings.definitions import RANDOM_SEED, SETTINGS, LoraSettings, TrainingSettings

# A whole model has no LoRA that these could apply to.
LORA_ONLY_KEYS = ("rslora", "dora", "lora_plus", "modules_to_save", "bias", "layers_to_transform", "train_head")
# Settings that train weights of the model beside the LoRA, which is float32, and how to turn them off.
_BASE_WEIGHTS = {
    "train_head": ("the embeddings and the head", "turn Train Head off"),
    "modules_to_save": ("these modules", "clear Modules to save"),
    "bias": ("the biases", "set Bias to none"),
}
# At 1e-4, the change of a bfloat16 head had 0.90 of the norm that it had in float32, and at 3e-5 only 0.50
# (docs/engine.md, "Full fine-tuning and Train Head in bfloat16").
SAFE_LR = 1e-4

# torchao stands before bitsandbytes, whose patterns also match its names.
_OPTIMIZER_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "bitsandbytes": ("8bit", "paged_", "lion", "ademamix", "bnb"),
    "grokadamw": ("grokadamw",),
    "optimi": ("stable_adamw",),
    "torchdistx": ("adamw_anyprecision",),
    "apex": ("adamw_apex_fused",),
}
_INSTALL_HINTS = {
    "optimi": install_command("torch-optimi"),
    "torchao": f"{install_command('torchao==0.17')}, because 0.18 does not work with the webui's PEFT 0.18",
    "torchdistx": "not on PyPI: https://github.com/pytorch/torchdistx",
    "apex": "from NVIDIA, not on PyPI: https://github.com/NVIDIA/apex",
}
_UNSUPPORTED_OPTIMIZERS = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend NPUs",
    "galore": "it is an alternative to LoRA and can't train a LoRA",
    "apollo": "it is an alternative to LoRA and can't train a LoRA",
    "schedule_free": "it averages the weights over many steps, but a checkpoint stores the weights of one step",
    "lomo": "it updates the weights during the backward pass, so gradients can't be accumulated or clipped",
}


def check_run(settings: TrainingSettings, host: Host) -> Iterator[Finding]:
    """Yield what the model and the machine say of the settings, before anything is loaded or after it."""
    lora = settings.lora
    card: ModelCard | None = None
    with suppress(ModelError):  # no model is chosen, or it is unloaded; whoever needs it reports that
        card = host.card()
    if lora.whole_model:
        yield from _check_full_finetune(settings, host)
    # Device, quantization and dtype of the unquantized weights; empty where a model must be loaded to know them.
    if not host.model_status().problem and (model := host.loaded_model().model) is not None:
        device = model.device.type
        held = "8bit" if getattr(model, "is_loaded_in_8bit", False) else ""
        dtype = str(model.dtype).removeprefix("torch.")
        yield from loaded_model_problems(model)
    else:
        device = "cpu" if host.memory().is_cpu else "cuda"
        held = card.weight_precision(on_card=device != "cpu") if card else ""
        dtype = held if "float" in held else ""
    yield from optimizer_problems(settings.learning.optimizer, device)
    yield from base_weight_findings(settings, dtype)
    yield from dora_problems(lora.dora and not lora.whole_model, held)
    yield from attention_problems(settings.machine.attention, device, held)
    if settings.machine.liger:
        yield from liger_problems(device)
    reporter = settings.records.report_to
    modules = ("tensorboard", "tensorboardX") if reporter == "tensorboard" else (reporter,)
    if reporter != "none" and not any(map(find_spec, modules)):
        install = f"{reporter} is not installed. Install it ({install_command(reporter)}), or choose none."
        yield problem("report_to", f"Report to: {install}")
    if settings.machine.workers and not host.owns_process:
        # On Windows, each process would start the webui again.
        yield problem(
            "workers", "Workers: inside the webui, Training PRO starts no worker processes. Set it to 0."
        )
    # Processes train on the same split in the same order, and are not connected yet when the data are split.
    if dist_env.world_size() > 1 and RANDOM_SEED in (settings.what.seed, settings.what.data_seed):
        yield problem("seed", "Seed -1: each process would pick a different seed. Enter a fixed seed, such as 42.")
    # Accelerate 1.13 and 1.15 silently ignore FSDP on a CPU, and saving and loading a divided LoRA is untested.
    if name := dist_env.sharding():
        yield problem(
            "",
            f"The launcher is set up for {name}, which divides the model among processes. Here, each holds the "
            f"whole model. Start Training PRO with torchrun, or with accelerate launch without {name}.",
        )
    if lora.whole_model:
        return
    shape = ModelShape.of(card.config) if card else None
    if shape and lora.rank > shape.hidden:
        larger = f"LoRA Rank {lora.rank} is larger than the model's hidden size ({shape.hidden})."
        yield problem("rank", f"{larger} A rank above that adds nothing. Use {shape.hidden} or less.")
    if lora.train_head and card and card.packed:
        loaded = "a GGUF model whose layers stay packed has no plain head to train"
        yield problem("train_head", f"Train Head: {loaded}. Load it as float32 or bfloat16 (--load float32).")
    if card and card.given_name.endswith(".gguf"):
        yield from _llama_cpp_advice(lora, shape)
    # A plain LoRA on all layers fits any model, and then no library is loaded. PEFT refuses dropout and DoRA on
    # experts that share one tensor.
    is_plain = lora.targets == SETTINGS["targets"].default and not lora.layers and not lora.saved_modules
    has_experts = shape is not None and shape.experts is not None
    if not is_plain or lora.bias != "none" or (has_experts and (lora.dropout > 0 or lora.dora)):
        from .lora import lora_problems

        yield from lora_problems(lora, host)


def _llama_cpp_advice(lora: LoraSettings, shape: ModelShape | None) -> Iterator[Finding]:
    """Yield what of a LoRA on a GGUF file has no form in llama.cpp, with which most people use such files."""
    kinds, listed = target_layers(lora.targets), () if isinstance(lora.targets, str) else lora.targets
    is_outer = any(name.rpartition(".")[2] in OUTER_LAYERS for name in listed)
    has_experts = shape is not None and shape.experts is not None and not (kinds and kinds <= {"q", "k", "v", "o"})
    unknown = {
        "dora": lora.dora,
        "bias": lora.bias != "none",
        "train_head": lora.train_head,
        "modules_to_save": bool(lora.saved_modules),
        "targets": has_experts or (shape is not None and shape.tied and is_outer),
    }
    for key in (key for key, is_used in unknown.items() if is_used):
        remedy = "Choose q-k-v-o" if has_experts and key == "targets" else "Change it"
        yield advice(
            key,
            f"{SETTINGS[key].label}: llama.cpp can't use such a LoRA. The run saves no .gguf file, so you can't "
            f"attach the LoRA there. {remedy}, or merge the LoRA into the original model afterwards.",
        )


def check_run_folder(settings: TrainingSettings, host: Host, resume: str) -> Iterator[Finding]:
    """Yield the problems of the run's name and folder."""
    try:
        folder = choose_run_folder(settings, host.folders, resume)
        folder.refuse_without_start()
        if folder.initial_lora is not None:
            from .lora import adapter

            adapter.refuse_shape_mismatch(settings.lora, folder.initial_lora)
        yield from continued_advice(folder, settings, host.card())
    except TrainingProError as error:
        yield from (problem("name", line) for line in str(error).splitlines())


def continued_advice(folder: RunFolder, settings: TrainingSettings, card: ModelCard) -> Iterator[Finding]:
    """Yield how the model differs from that of what is trained further, and what preferences are compared with."""
    log, trained = read_log(folder.initial_lora or folder.path), f"{folder.name!r} was trained on"
    model, loading = log.get("base_model_name"), log.get("loaded_as")
    if folder.initial_lora and model and model != card.name:  # a resume is refused
        text = f"{trained} {model}, but the model is now {card.name}. A LoRA fits only the model it was made for."
        yield advice("name", text)
    if folder.start and loading and loading != card.loading:
        text = f"{trained} the model loaded as {loading}, but it is now loaded as {card.loading}."
        yield advice("name", f"{text} To resume the same run, load it as before.")
    if folder.initial_lora and settings.preferences.needs_reference:
        name = settings.preferences.objective
        text = f"Objective {name} compares with the model without any LoRA, also without {folder.name!r}."
        remedy = "To begin from what that LoRA does, merge it into a model first, or choose ORPO or SimPO."
        yield advice("objective", f"{text} {remedy}")


def raise_problems(findings: Iterable[Finding]) -> None:
    """Raise SettingsError if there are any problems."""
    if problems := texts(findings, "problem"):
        raise SettingsError(problems)


def is_offloaded(model: Any) -> bool:
    """Whether accelerate moves some of the weights to the GPU only when they are used."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


def loaded_model_problems(model: Any) -> Iterator[Finding]:
    """Yield why this model can't be trained as it is loaded."""
    # Offloaded weights are on the meta device until they are used, so a LoRA on them would be there, too.
    if is_offloaded(model):
        yield problem(
            "",
            "The model did not fit on the GPU, so some of its layers are in RAM or on disk and can't be trained. "
            "Free some VRAM and load the model again, load it in 4-bit, or choose a smaller model.",
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
            f"The model is quantized with {name}, which transformers can't train. Choose a version of it with "
            "16-bit weights. To save memory, load that one in 4-bit.",
        )


def base_weight_findings(settings: TrainingSettings, dtype: str) -> Iterator[Finding]:
    """Yield what training the model's own weights in this dtype does; a LoRA itself is always float32."""
    lora, rate = settings.lora, settings.learning.learning_rate
    rate *= lora.head_rate if lora.train_head or lora.saved_modules else 1
    trained = {key: words for key, words in _BASE_WEIGHTS.items() if getattr(lora, key) != SETTINGS[key].default}
    if lora.whole_model:
        trained = {"method": ("its weights", "train a LoRA")}
    for key, (weights, turn_off) in trained.items():
        label = "Method full" if key == "method" else SETTINGS[key].label
        # The optimizer's epsilon of 1e-8 rounds to 0 in float16, and dividing by it gives NaN.
        if dtype == "float16":
            yield problem(
                key,
                f"{label}: the model is in float16, and an optimizer step would turn {weights} into NaN. Load the "
                f"model in bfloat16 or float32, or {turn_off}.",
            )
        # bfloat16 has 8 significant bits, so a change below 1/256 of a weight is lost.
        if dtype == "bfloat16" and rate < SAFE_LR:
            higher = "" if lora.whole_model else f" train them at {SAFE_LR:g} or more,"
            yield advice(
                key,
                f"{label}: the model is in bfloat16, which rounds away changes that are smaller than about 1/256 "
                f"of a weight. At their learning rate of {rate:g}, many updates of {weights} are lost. Load the "
                f"model in float32,{higher} or {turn_off}.",
            )


def dora_problems(dora: bool, quantization: str) -> Iterator[Finding]:
    # This combination fails in PEFT and bitsandbytes.
    if dora and quantization == "8bit":
        remedy = "Load the model in 4-bit or 16-bit precision, or turn DoRA off."
        yield problem("dora", f"DoRA can't be trained on 8-bit weights. {remedy}")


def attention_problems(attention: str, device: str, compute_dtype: str) -> Iterator[Finding]:
    """`compute_dtype` is empty if the compute dtype is only known after loading."""
    if attention != "flash_attention_2":
        return
    if device != "cuda":
        yield problem("attention", "Attention: flash_attention_2 needs an NVIDIA GPU. Choose auto.")
    elif find_spec("flash_attn") is None:
        install = f"Install it ({install_command('flash-attn --no-build-isolation')}), or choose auto."
        yield problem("attention", f"Attention: flash_attention_2 needs the flash-attn package. {install}")
    elif compute_dtype == "float32":
        # The kernels of flash-attn accept only half precision.
        remedy = "Load the model in one of these types, or choose auto."
        yield problem("attention", f"Attention: flash_attention_2 needs bfloat16 or float16. {remedy}")


def liger_problems(device: str) -> Iterator[Finding]:
    if find_spec("liger_kernel") is None:
        install = f"Install it ({install_command('liger-kernel')}), or turn Liger kernels off."
        yield problem("liger", f"Liger kernels: the liger-kernel package is missing. {install}")
    elif device != "cuda":
        yield problem("liger", "Liger kernels need a GPU. Turn Liger kernels off.")


def optimizer_problems(name: str, device: str) -> Iterator[Finding]:
    """Yield why an optimizer does not work on a device ('cpu' or 'cuda'), with the remedy; at most one reason."""
    if name not in SETTINGS["optimizer"].choices:
        # This import takes seconds, so only for a name that is not among the choices.
        from transformers.training_args import OptimizerNames

        known = [optimizer.value for optimizer in OptimizerNames]
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {similar[0]}?" if similar else f"Available: {', '.join(known)}."
            yield problem("optimizer", f"Optimizer: transformers has no optimizer called {name!r}. {hint}")
            return
    reasons = [reason for pattern, reason in _UNSUPPORTED_OPTIMIZERS.items() if pattern in name]
    needed = [package for package, words in _OPTIMIZER_PACKAGES.items() if any(word in name for word in words)]
    package = needed[0] if needed else ""
    if reasons:
        yield problem("optimizer", f"Optimizer: {name} does not work here: {reasons[0]}. Choose adamw_torch.")
    elif package and find_spec(package) is None:
        hint = _INSTALL_HINTS.get(package) or install_command(package)
        install = f"needs the {package} package ({hint}). Install it, or choose adamw_torch."
        yield problem("optimizer", f"Optimizer: {name} {install}")
    elif package == "bitsandbytes" and device == "cpu":
        # From 0.50 on, bitsandbytes runs all but the paged optimizers on the CPU.
        bitsandbytes = tuple(map(int, version("bitsandbytes").split(".")[:2]))
        if "paged" in name or bitsandbytes < (0, 50):
            yield problem("optimizer", f"Optimizer: {name} needs a GPU. Choose adamw_torch or adafactor.")


def _check_full_finetune(settings: TrainingSettings, host: Host) -> Iterator[Finding]:
    if not host.owns_process:
        yield problem(
            "method",
            "Method full: full fine-tuning is not possible inside the webui, because it would change the loaded "
            f"model. Train a LoRA, or run this command outside the webui: {launch_command()} train --method full",
        )
        return
    card = host.card()
    if card.packed:
        loaded = "a GGUF model whose layers stay packed can't be fully fine-tuned"
        yield problem("method", f"Method full: {loaded}. Load it as float32 or bfloat16 (--load float32).")
    if card.loading in ("8bit", "4bit"):
        loaded = f"a model loaded in {card.loading[0]}-bit can't be fully fine-tuned"
        yield problem("method", f"Method full: {loaded}. Load it in 16 or 32 bits.")
    if card.name == settings.what.name:
        taken = f"{card.name!r} is the name of the model that you are training"
        yield problem("name", f"Name: {taken}. Choose another name for the new model.")
    changed = [key for key in LORA_ONLY_KEYS if getattr(settings.lora, key) != SETTINGS[key].default]
    if changed:
        labels = ", ".join(SETTINGS[key].label for key in changed)
        only = f"these settings apply only to a LoRA: {labels}. Reset them to their defaults."
        yield problem("method", f"The method is 'full', but {only}")
