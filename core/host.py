"""The seam to whoever lends the model: the webui, our own page, or a test."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..train_utils import Counted, of_text
from .errors import ModelError
from .evaluations_table import Row


@dataclass(frozen=True)
class Folders:
    """Where things lie; nothing of ours is read or written elsewhere."""

    user_data: Path
    models: Path
    loras: Path
    logs: Path
    examples: Path

    @property
    def training(self) -> Path:
        """What is ours beside models and LoRAs."""
        return self.user_data / "training"

    def kept(self, *, whole_model: bool) -> Path:
        """Where what a run makes is kept: a LoRA among the LoRAs, a whole model among the models."""
        return self.models if whole_model else self.loras

    @property
    def datasets(self) -> Path:
        return self.training / "datasets"

    @property
    def form(self) -> Path:
        """The form as it was left."""
        return self.training / "form.json"

    @property
    def queue(self) -> Path:
        """The runs that wait for their turn."""
        return self.training / "queue.json"

    @property
    def prepared(self) -> Path:
        """Data sets made ready, for the next start."""
        return self.training / "prepared"

    @property
    def formats(self) -> Path:
        """The prompt formats of the user's own."""
        return self.training / "formats"

    @property
    def refusals(self) -> Path:
        """Phrases of other assistants that Check looks for, in a list of the user's own."""
        return self.training / "refusals.txt"

    @property
    def presets(self) -> Path:
        return self.training / "presets"


HEADS = ("ForCausalLM", "LMHead", "ForConditionalGeneration")  # in the names of classes that predict a token


@dataclass(frozen=True)
class ModelCard:
    """What can be known of a model without its weights."""

    name: str
    config: dict[str, Any]
    tokenizer: Any
    loading: str
    counted: Counted | None = None
    """Its weights, where they were counted because its layers are not known."""

    @property
    def context(self) -> int:
        """The longest text it can read, in tokens; 0 where its config does not say."""
        for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"):
            if isinstance(length := of_text(self.config).get(key), int):
                return length
        return 0

    @property
    def writes_on(self) -> bool:
        """Whether it predicts a next token, as far as its config says: a model for pictures or search does not."""
        if "AutoModelForCausalLM" in (self.config.get("auto_map") or {}):
            return True
        classes = [str(name) for name in self.config.get("architectures") or ()]
        known = any(head in name for name in classes for head in HEADS)
        return not self.config.get("is_encoder_decoder") and (known or not classes)


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, on loan; `loras` are on it, the PEFT model around it then being `model`."""

    card: ModelCard
    model: Any
    loras: tuple[str, ...] = ()


def bare(model: Any) -> Any:
    """A model without PEFT's around it; what PEFT has put into it stays there."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass(frozen=True)
class Standing:
    """What is in memory now, for a page's first line; `problem` says why it cannot be trained, and what to do."""

    model: str = ""
    precision: str = ""
    loras: tuple[str, ...] = ()
    problem: str = ""


def precision_of(model: Any) -> str:
    """How a model is held in memory, in words."""
    if getattr(model, "is_loaded_in_4bit", False):
        return "4-bit"
    if getattr(model, "is_loaded_in_8bit", False):
        return "8-bit"
    return str(getattr(model, "dtype", "")).removeprefix("torch.")


@dataclass(frozen=True)
class Memory:
    """What the device in use has, in bytes, and how much of it is taken."""

    device: str
    used: int
    total: int
    held: int = 0  # of what is taken, by this process: a run may use it anew

    @property
    def free(self) -> int:
        """What this process may take in all, a loaded model included; 0 where nothing is known."""
        return self.total - self.used + self.held


class Host(Protocol):
    """Who lends the model. Every method may raise a TrainingProError that names the next click."""

    @property
    def folders(self) -> Folders: ...

    @property
    def own_process(self) -> bool:
        """Whether the process is Training PRO's own: it may start others, and change the model for good."""
        ...

    @property
    def read_only(self) -> str:
        """Why this page may only look (several people use it), or an empty text."""
        ...

    def models(self) -> list[str]:
        """The models on disk, by name."""
        ...

    def standing(self) -> Standing:
        """What is in memory; loads nothing and raises nothing."""
        ...

    def card(self) -> ModelCard:
        """The model that Check is about: the loaded one, or the one chosen."""
        ...

    def loaded(self) -> LoadedModel:
        """The model in memory; a ModelError where there is none, or none that can be trained."""
        ...

    def load(self, name: str, loading: str) -> None: ...

    def unload(self) -> None: ...

    def load_again(self, card: ModelCard) -> None:
        """The model that was unloaded, as it was loaded then; whatever was loaded meanwhile goes."""
        ...

    def note_loras(self, model: Any, names: Sequence[str]) -> None:
        """From now on `model` stands for the loaded one, with these LoRAs on."""
        ...

    def exclusive_use(self) -> AbstractContextManager[None]:
        """Nobody else touches the model inside; waits for whoever does now."""
        ...

    def chat_template(self) -> str:
        """The template for chat where the tokenizer has none of its own; may be empty."""
        ...

    def memory(self) -> Memory: ...

    def note_evaluation(self, row: Row) -> None:
        """One more row in logs/evaluations.csv, which a host may hold in memory."""
        ...


def card_of(host: Host) -> ModelCard:
    """What the run is about; a model that its host has put to sleep is loaded again for it."""
    try:
        return host.card()
    except ModelError:
        return host.loaded().card
