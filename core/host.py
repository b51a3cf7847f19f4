"""The Host protocol: a program that lends the model, such as the webui, the standalone page or a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .errors import ModelError
from .evaluations_table import EvaluationRow
from .model_shape import BITS_OF_WEIGHTS, ParamCounts, get_text_config


@dataclass
class Folders:
    """The folders of the program; Training PRO reads and writes no others."""

    user_data: Path
    models: Path
    loras: Path
    logs: Path
    examples: Path

    def __post_init__(self) -> None:
        # Training PRO's own files, apart from models and LoRAs.
        self.training = self.user_data / "training"
        self.datasets = self.training / "datasets"
        self.chats = self.user_data / "logs"  # of TextGen: instruct/*.json and chat/CHARACTER/*.json
        self.form = self.training / "form.json"
        self.queue = self.training / "queue.json"
        self.running = self.training / "running"  # of each run in progress: its requests, and its first events
        self.own_model = self.training / "own_model.json"  # what to train in a process of its own, if it is chosen
        self.prepared_data = self.training / "prepared"  # for the next start
        self.environment = self.training / "environment"  # the Python environment of training processes
        self.exports = self.training / "exports"  # runs that were written out to train on another machine
        self.formats = self.training / "formats"  # the user's own prompt formats
        self.presets = self.training / "presets"
        self.pairs = self.training / "pairs.json"  # which preferences the user switched or dropped
        # The user's list of assistant refusal phrases that Check looks for.
        self.refusal_phrases = self.training / "refusals.txt"

    def output_folder(self, *, full_finetune: bool) -> Path:
        """Folder for the result of a run: `models` for a fully fine-tuned model, else `loras`."""
        return self.models if full_finetune else self.loras


# Parts of the class names of models that predict tokens
CAUSAL_LM_CLASSES = ("ForCausalLM", "LMHead", "ForConditionalGeneration")


@dataclass(frozen=True)
class PackedWeights:
    """Sizes of a GGUF file whose layers keep their blocks in memory."""

    blocks: int  # bytes
    plain: int  # weights that are unpacked when the model is loaded
    largest: int  # weights of the largest packed layer, which is unpacked for a moment


@dataclass(frozen=True)
class ModelCard:
    """What is known about a model without its weights."""

    name: str
    config: dict[str, Any]
    tokenizer: Any
    loading: str
    param_counts: ParamCounts | None = None  # None until they are counted, and where they can't be
    tokenizer_name: str = ""  # of the tokenizer that was chosen instead of the model's own
    max_memory: str = ""  # memory limits that it is loaded with, as typed: '20GB cpu=30GB'
    given_name: str = ""  # what a command finds this model by, if not by its name: a path, a link or a file
    packed: PackedWeights | None = None  # of a GGUF file that keeps its blocks

    @property
    def context(self) -> int:
        """Context length in tokens; 0 if the config does not say."""
        for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"):
            if isinstance(length := get_text_config(self.config).get(key), int):
                return length
        return 0

    def weight_precision(self, *, on_card: bool) -> str:
        """The precision of the weights in memory: as loaded, otherwise the model's dtype (float32 on a CPU)."""
        if self.loading in BITS_OF_WEIGHTS:
            return self.loading
        quantized = self.config.get("quantization_config") or {}
        for bits in ("4bit", "8bit"):  # a folder with weights that are quantized already
            if quantized.get(f"load_in_{bits}"):
                return bits
        if not on_card:
            return "float32"
        dtype: Any = self.config.get("dtype") or self.config.get("torch_dtype") or "bfloat16"
        name = str(dtype).removeprefix("torch.")
        return name if name in BITS_OF_WEIGHTS else "bfloat16"

    @property
    def is_causal_lm(self) -> bool:
        """Whether the model predicts the next token, judged by its config; image and embedding models do not."""
        if "AutoModelForCausalLM" in (self.config.get("auto_map") or {}):
            return True
        classes = [str(name) for name in self.config.get("architectures") or ()]
        known = any(head in name for name in classes for head in CAUSAL_LM_CLASSES)
        return not self.config.get("is_encoder_decoder") and (known or not classes)


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory; if `loras` is not empty, `model` is a PEFT model with these LoRAs."""

    card: ModelCard
    model: Any
    loras: tuple[str, ...] = ()


def unwrap_peft(model: Any) -> Any:
    """Return the model inside a PEFT model; layers that PEFT has replaced stay replaced."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass(frozen=True)
class ModelStatus:
    """State of the model for the status line; `problem` says why it cannot be trained, and what to do."""

    model: str = ""
    precision: str = ""
    loras: tuple[str, ...] = ()
    problem: str = ""


def describe_precision(model: Any) -> str:
    """Precision of a model in memory, in words."""
    if getattr(model, "is_loaded_in_4bit", False):
        return "4-bit"
    if getattr(model, "is_loaded_in_8bit", False):
        return "8-bit"
    if weights := getattr(model, "gguf_weights", None):
        return f"GGUF {weights.kind}"
    return str(getattr(model, "dtype", "")).removeprefix("torch.")


@dataclass(frozen=True)
class DeviceMemory:
    """Total and used memory of the device, in bytes."""

    device: str
    used: int
    total: int
    reserved: int = 0  # part of `used` that this process has reserved: a run can use it again

    @property
    def is_cpu(self) -> bool:
        return self.device.lower().startswith("cpu")

    @property
    def free(self) -> int:
        """Memory that this process can use, including the loaded model; 0 if unknown."""
        return self.total - self.used + self.reserved


@dataclass(frozen=True)
class OwnProcess:
    """A model that is trained in a process of its own, by another Python than that of the program with the tab."""

    python: Path
    model: str
    loading: str = "auto"
    # A context for the time of a run, in which the program with the tab may unload its own model.
    lend_memory: Callable[[], AbstractContextManager[None]] = field(default=nullcontext, compare=False)
    unloads_chat: bool = field(default=False, compare=False)  # whether it will unload one that is loaded now


class LlamaCpp(Protocol):
    """A model that runs in llama.cpp: it takes LoRAs as GGUF files, and needs no torch."""

    file: Path  # of the model

    def attach(self, name: str, file: Path, strength: float) -> None: ...

    def detach(self) -> tuple[str, ...]: ...


class Host(Protocol):
    """Lends the model. Every method may raise a TrainingProError whose message says what to click next."""

    @property
    def folders(self) -> Folders: ...

    # Whether Training PRO owns the process: then it may start others and change the model permanently.
    owns_process: bool

    @property
    def own_process(self) -> OwnProcess | None:
        """What is trained in a process of its own; None if it is the model of this host."""

    @property
    def read_only_reason(self) -> str:
        """Why this page is read-only (several people use it); empty if it is not."""

    def models(self) -> list[str]:
        """Names of the models on disk."""

    def model_status(self) -> ModelStatus:
        """State of the model in memory; loads nothing and never raises."""

    def card(self) -> ModelCard:
        """Card of the loaded model or, if none is loaded, of the chosen one."""

    def loaded_model(self) -> LoadedModel:
        """The model in memory; raises ModelError if there is none, or none that can be trained."""

    def load(self, name: str, loading: str) -> None: ...

    def unload(self) -> None: ...

    def reload(self, card: ModelCard) -> None:
        """Reload a model that was unloaded, with the same options; replaces a model loaded in the meantime."""

    def set_loras(self, model: Any, names: Sequence[str]) -> None:
        """Replace the loaded model by `model`, which carries these LoRAs."""

    def llama_cpp(self) -> LlamaCpp | None:
        """The loaded model, if llama.cpp runs it."""

    def exclusive_use(self) -> AbstractContextManager[None]:
        """Context with exclusive use of the model; waits for the current user."""

    def chat_template(self) -> str:
        """Chat template for tokenizers without one; may be empty."""

    def memory(self) -> DeviceMemory: ...

    def add_evaluation(self, row: EvaluationRow) -> None:
        """Add a row to logs/evaluations.csv, which a host may keep in memory."""


def get_model_card(host: Host) -> ModelCard:
    """Return the model card; reloads a model that its host has unloaded for inactivity."""
    try:
        return host.card()
    except ModelError:
        if host.own_process is not None:
            raise
        return host.loaded_model().card
