"""Our own host: models from a folder, loaded by transformers, for the page and the command line."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import dist_env, evaluations_table
from ..core.errors import ModelError, first_line
from ..core.evaluations_table import Row
from ..core.files import read_json, safe_paths
from ..core.host import Folders, LoadedModel, Memory, ModelCard, Standing, precision_of
from ..core.jobs import Ended, Job, Work
from ..downloads import download, hub_models
from . import memory

LOADINGS: Mapping[str, str] = {
    "auto": "auto (the model's own type; float32 on a CPU)",
    "float32": "float32 (the most memory)",
    "bfloat16": "bfloat16",
    "float16": "float16 (older cards)",
    "8bit": "8-bit",
    "4bit": "4-bit (NF4, the least memory)",
}


def folders(user_data: Path) -> Folders:
    """The folders of a working folder of our own."""
    root = user_data.resolve()
    return Folders(
        user_data=root,
        models=root / "models",
        loras=root / "loras",
        logs=root / "logs",
        examples=Path(__file__).resolve().parent.parent / "examples",
    )


class StandaloneHost:
    """Lends a model that it loads itself, when it is first needed."""

    own_process, read_only = True, ""

    def __init__(self, folders: Folders, *, model: str = "", loading: str = "auto") -> None:
        self._folders = folders
        self._in_use = threading.Lock()
        self._reading = threading.Lock()
        self._chosen = (model, loading)
        self._card: ModelCard | None = None
        self._loaded: LoadedModel | None = None

    @property
    def folders(self) -> Folders:
        return self._folders

    def models(self) -> list[str]:
        """Folders with a config, and GGUF files, under the models folder."""
        root = self._folders.models
        found = (
            [p.parent for p in root.glob("*/config.json")]
            + list(root.glob("*.gguf"))
            + list(root.glob("*/*.gguf"))
        )
        return sorted({p.relative_to(root).as_posix() for p in found}, key=str.casefold)

    def choose(self, name: str, loading: str) -> None:
        """From now on this model is meant; one that is in memory goes."""
        name = _unquoted(name)
        if (name, loading) != self._chosen:
            self.unload()
            self._chosen, self._card = (name, loading), None

    def standing(self) -> Standing:
        if self._loaded is None:
            return Standing(problem="No model is loaded. Choose one above and press Load model.")
        return Standing(self._loaded.card.name, precision_of(self._loaded.model), self._loaded.loras)

    def card(self) -> ModelCard:
        if self._loaded is not None:
            return self._loaded.card
        with self._reading:  # two threads that import transformers at once get half of it
            if self._card is None:
                self._card = self._read_card()
            return self._card

    def loaded(self) -> LoadedModel:
        if self._loaded is None:
            self.load(*self._chosen)
        assert self._loaded is not None
        return self._loaded

    def load(self, name: str, loading: str) -> None:
        """What is in memory makes room first, also the same model: both may not fit.

        A name that is no model's is refused before. It may be any path: a page asks `offered` first.
        """
        self._path_of(_unquoted(name))
        before = self.standing().model
        self.unload()
        self.choose(name, loading)
        try:
            card = self.card()
            self._loaded = LoadedModel(card, _weights(self._path(), card, loading))
        except ModelError as error:
            gone = f" {before} made room for it: no model is in memory now." if before else ""
            raise ModelError(f"{error}{gone}") from error

    def get(self, asked: str) -> tuple[str, Work]:
        """A model of the hub by its name, and the work that brings it here; the one in memory stays as it is."""
        wanted, models = hub_models.wanted(asked), self._folders.models

        def work(job: Job) -> Ended:
            return download.get(wanted, models, job.log.append, lambda: job.control.stopping)

        return wanted.words, work

    def offered(self, name: str) -> str:
        """Return the name of a model that a page may load: of one in the models folder, or of the chosen one."""
        self._offered_path(name)
        return _unquoted(name)

    def unload(self) -> None:
        self._loaded = None
        _forget_freed_memory()

    def load_again(self, card: ModelCard) -> None:
        """It is still the one that is chosen: whoever chooses another waits for exclusive use."""
        self.loaded()

    def note_loras(self, model: Any, names: Sequence[str]) -> None:
        if self._loaded is not None:
            self._loaded = replace(self._loaded, model=model, loras=tuple(names))

    def exclusive_use(self) -> AbstractContextManager[Any]:
        return self._in_use

    def chat_template(self) -> str:
        return ""

    def memory(self) -> Memory:
        loaded = self._loaded  # another thread may let go of it
        return memory.memory(loaded.model if loaded else None)

    def note_evaluation(self, row: Row) -> None:
        evaluations_table.add(row, self._folders.logs)

    def size_on_disk(self, name: str) -> int:
        """The bytes of a model's weights, for the page's memory figure; 0 for what the page does not offer."""
        try:
            path = self._offered_path(name)
        except ModelError:
            return 0
        return path.stat().st_size if path.is_file() else memory.weights_size(path)

    def config(self, name: str) -> dict[str, Any]:
        """What a model's config.json says; empty where there is none to be read."""
        try:
            found: dict[str, Any] = read_json(self._offered_path(name) / "config.json", {})
        except ModelError:
            return {}
        return found

    def on_card(self) -> bool:
        """Whether models are loaded onto a graphics card."""
        return memory.on_card()

    @property
    def chosen(self) -> tuple[str, str]:
        return self._chosen

    def _path(self) -> Path:
        return self._path_of(self._chosen[0])

    def _path_of(self, name: str) -> Path:
        """The path of a model by its name, or by any path, which belongs to the owner of the machine."""
        if not name:
            models = self._folders.models
            raise ModelError(f"No model is chosen. Put one into {models}, or bring one with get, and choose it.")
        for path in (self._folders.models / name, Path(name)):
            if path.is_file() or (path / "config.json").is_file():
                return path
        raise ModelError(_not_a_model(Path(name), self._folders.models, self.models()))

    def _offered_path(self, name: str) -> Path:
        """The path of a model by its name alone; models that users link into the folder are read there."""
        name = _unquoted(name)
        if name and name == self._chosen[0]:
            return self._path_of(name)
        path = safe_paths.descendant(self._folders.models, name, "Model", refusal=ModelError, follow_links=True)
        if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file():
            return path
        raise ModelError(_not_a_model(Path(name), self._folders.models, self.models()))

    def _read_card(self) -> ModelCard:
        path = self._path()
        _need("transformers", "to read a model")
        from transformers import AutoConfig, AutoTokenizer

        folder, more = _where(path)
        try:
            config = AutoConfig.from_pretrained(folder, **more)
            tokenizer = AutoTokenizer.from_pretrained(folder, **more)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"{path} cannot be read as a model: {_first_line(error)} Download it anew, or choose another one."
            ) from error
        name = path.stem if path.is_file() else path.resolve().name
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(
                f"{name} is an encoder-decoder model; only causal language models can be trained here."
            )
        return ModelCard(name, config.to_dict(), tokenizer, self._chosen[1])


def _unquoted(name: str) -> str:
    """The Explorer copies a path in quotes."""
    return name.strip(' "')


def _weights(path: Path, card: ModelCard, loading: str) -> Any:
    _need("torch", "to load a model")
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    folder, more = _where(path)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, **more, **_how(loading, card.config))
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, RuntimeError, MemoryError) as error:
        helps = _help(error, loading)
        raise ModelError(f"{card.name} cannot be loaded as {loading}: {_first_line(error)}{helps}") from error
    return _never_repacked(model.eval())


def _help(error: Exception, loading: str) -> str:
    """What may help where memory ran out: torch says so in one word, on a card and beside it."""
    if not isinstance(error, MemoryError) and "memory" not in str(error).lower():
        return ""
    return " Choose a smaller model." if loading == "4bit" else " Load it as 4bit, or choose a smaller model."


def _never_repacked(model: Any) -> Any:
    """On some CPUs bitsandbytes packs 4-bit weights anew at the first answer, which loses bits and gradients."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def _where(path: Path) -> tuple[str, dict[str, str]]:
    """A model's folder, and the GGUF file in it where it is one."""
    if path.is_file():
        _need("gguf", "to read a GGUF file")
        return str(path.parent), {"gguf_file": path.name}
    return str(path), {}


def _how(loading: str, config: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    card = torch.cuda.is_available()
    if card:
        torch.cuda.set_device(dist_env.local_rank())
    place = {"": dist_env.local_rank()} if card else {"": "cpu"}
    if loading == "auto":
        return {"dtype": "auto" if card else torch.float32, "device_map": place}
    if loading in ("float32", "bfloat16", "float16"):
        return {"dtype": getattr(torch, loading), "device_map": place}
    _need("bitsandbytes", f"to load a model as {loading}")
    return {"quantization_config": _quantized(loading, card), "device_map": place, **_other_weights(card)}


def _quantized(loading: str, card: bool) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    if loading == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=_computing(card) or torch.float32,
    )


def _other_weights(card: bool) -> dict[str, Any]:
    """The type of what is not quantized: float32 on a CPU, the card's best otherwise."""
    import torch

    return {"dtype": _computing(card) or torch.float32}


def _computing(card: bool) -> Any:
    import torch

    if not card:
        return None
    # Older cards do it too, by way of float32, and without what makes float16 fast there.
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def _forget_freed_memory() -> None:
    import gc
    import sys

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _need(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModelError(f"The package {package} is needed {purpose}. Install it with: pip install {package}")


def _not_a_model(asked: Path, models: Path, known: Sequence[str]) -> str:
    none = f" {models} holds no model yet; the command get brings one."
    there = f" There are: {', '.join(known)}." if known else none
    return f"There is no model {str(asked)!r}: neither in {models} nor as a folder with a config.json.{there}"


def _first_line(error: Exception) -> str:
    """What a library says first, as a whole sentence."""
    return first_line(error).strip(" :.") + "."
