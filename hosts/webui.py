"""Host for TextGen: lends the model that it has loaded, under its lock."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..core.evaluations_table import EvaluationRow
from ..core.files import read_json, write_json
from ..core.host import (
    DeviceMemory,
    Folders,
    LoadedModel,
    ModelCard,
    ModelStatus,
    OwnProcess,
    describe_precision,
    unwrap_peft,
)
from ..core.own_environment import own_environment
from ..core.version import launch_command
from . import memory
from .llama_cpp import LlamaCppModel
from .standalone import LOADING_OPTIONS, list_models, standalone_folders

# Classes of models that the webui's other loaders make, and the names of these loaders.
_CANNOT_TRAIN: Mapping[str, str] = {
    "Exllamav3Model": "ExLlamaV3",
    "Exllamav3HF": "ExLlamaV3_HF",
    "TensorRTLLMModel": "TensorRT-LLM",
}
_NEXT_CLICK = (
    "In the Model tab, choose a model in transformers format (a folder with .safetensors files), set "
    "Model loader to Transformers, and press Load. Or choose a model under 'What to train'."
)


class WebuiHost:
    """Lends the model in `modules.shared`; modules of the webui are imported inside methods."""

    owns_process, loadings = False, LOADING_OPTIONS

    def __init__(self) -> None:
        self._load_options: dict[str, Any] = {}

    @property
    def folders(self) -> Folders:
        shared = _shared()
        models, loras = Path(shared.args.model_dir).resolve(), Path(shared.args.lora_dir).resolve()
        return replace(standalone_folders(Path(shared.user_data_dir)), models=models, loras=loras)

    @property
    def read_only_reason(self) -> str:
        if _shared().args.multi_user:
            return "The webui is running with --multi-user, so this page is read-only: you can't control runs."
        return ""

    def models(self) -> list[str]:
        return list_models(self.folders.models)

    @property
    def selected_model(self) -> tuple[str, str]:
        """What a process of its own trains, empty for the model that the host has loaded; and how it is loaded."""
        selected = read_json(self.folders.own_model, {})
        return str(selected.get("model", "")), str(selected.get("loading", "auto"))

    def choose_model(self, name: str, loading: str) -> None:
        if name:
            self._check_listed(name)
        self._select(model=name, loading=loading)

    @property
    def unloads_for_runs(self) -> bool:
        """Whether the host's model is unloaded while another one is trained."""
        return read_json(self.folders.own_model, {}).get("unloads") is True

    @unloads_for_runs.setter
    def unloads_for_runs(self, unloads: bool) -> None:
        self._select(unloads=unloads)

    def _select(self, **values: object) -> None:
        write_json(self.folders.own_model, read_json(self.folders.own_model, {}) | values)

    def _check_listed(self, name: str) -> None:
        if name not in self.models():
            raise ModelError(f"There is no model {name!r} in {self.folders.models}. Choose another one.")

    @property
    def own_process(self) -> OwnProcess | None:
        """The chosen model, or the GGUF file that the host chats with; None if the host's own model is trained."""
        shared, folders = _shared(), self.folders
        name, loading = self.selected_model
        is_unloaded = shared.model is None and shared.model_name not in (None, "None")
        # A model that was unloaded for a run, or because it was idle, is still the one that the host chats with.
        is_hosts = type(shared.model).__name__ == "LlamaServer" or (
            is_unloaded and shared.args.loader == "llama.cpp"
        )
        if not name and not is_hosts:
            return None
        path = folders.models / (name or shared.model_name)
        if path.is_dir() and not (name and (path / "config.json").is_file()):  # the webui names it by its folder
            path = next(iter(sorted(path.glob("*.gguf"))), path)
        return OwnProcess(
            own_environment(folders).python,
            str(path),
            loading,
            lend_memory=self._unload_meanwhile,
            unloads_chat=self.unloads_for_runs and shared.model is not None,
        )

    @contextmanager
    def _unload_meanwhile(self) -> Iterator[None]:
        """Unload the host's model for the time of a run, if the user wants that; it is loaded again as it was."""
        shared = _shared()
        name = shared.model_name
        if not self.unloads_for_runs or shared.model is None:
            yield
            return
        with shared.generation_lock or nullcontext():  # a reply that is being written ends first
            self.unload()
        try:
            yield
        finally:
            if shared.model is None and shared.model_name == name:  # the user has loaded no other one meanwhile
                vars(shared.args).update(self._load_options)
                self.load(name, "")

    def model_status(self) -> ModelStatus:
        try:
            shared, target = _shared(), self.own_process
        except ModelError as error:
            return ModelStatus(problem=str(error))
        if target is not None:
            name, chosen, problem = Path(target.model).name, self.selected_model[0], ""
            if chosen and not Path(target.model).exists():
                problem = f"{chosen}, chosen under 'What to train', is not in {self.folders.models}. Choose again."
            elif not own_environment(self.folders).state.can_train:
                problem = (
                    f"To train {name}, the environment for training is not ready. Set it up on the Train tab."
                )
            return ModelStatus(
                name.removesuffix(".gguf"), "in a process of its own", tuple(shared.lora_names), problem
            )
        if problem := _untrainable_reason(shared):
            return ModelStatus(problem=problem, loras=tuple(shared.lora_names))
        return ModelStatus(shared.model_name, describe_precision(shared.model), tuple(shared.lora_names))

    def card(self) -> ModelCard:
        shared, target = _shared(), self.own_process
        if target is not None:
            if problem := self.model_status().problem:
                raise ModelError(problem)
            path = Path(target.model)
            return ModelCard(
                path.name.removesuffix(".gguf"),
                dict(read_json(path / "config.json", {})),
                None,
                target.loading,
                given_name=str(path),
            )
        if problem := _untrainable_reason(shared):
            raise ModelError(problem)
        loading = "8bit" if getattr(shared.args, "load_in_8bit", False) else "auto"
        loading = "4bit" if getattr(shared.args, "load_in_4bit", False) else loading
        return ModelCard(shared.model_name, shared.model.config.to_dict(), shared.tokenizer, loading)

    def loaded_model(self) -> LoadedModel:
        shared = _shared()
        if _idle_unloaded(shared):
            self.load(shared.model_name, "")
        if self.own_process is not None and shared.model is None:  # wanted to attach a LoRA
            needed = "load its model in the Model tab: a GGUF file, or a folder with the Transformers loader"
            raise ModelError(f"To attach a LoRA, {needed}.")
        if problem := _untrainable_reason(shared):  # `card` may be that of the model chosen for training
            raise ModelError(problem)
        card = self.card()
        return LoadedModel(card, shared.model, tuple(shared.lora_names))

    def load(self, name: str, loading: str) -> None:
        """Load a model with the options of the webui's Model tab; `loading` is ignored."""
        shared, models = _shared(), _import_module("models")
        if name != shared.model_name:
            self._check_listed(name)
        models.unload_model(keep_model_name=True)
        shared.model, shared.tokenizer = models.load_model(name)
        if shared.model is None:
            raise ModelError(f"The webui could not load {name!r}. See its console for the reason. {_NEXT_CLICK}")

    def unload(self) -> None:
        """Unload the model; its name stays set, so that it can be loaded again."""
        # The user may choose another model in the Model tab meanwhile, which changes the options.
        self._load_options = dict(vars(_shared().args))
        _import_module("models").unload_model(keep_model_name=True)

    def reload(self, card: ModelCard) -> None:
        """Reload with the options in use when the model was unloaded, whatever the Model tab says now."""
        vars(_shared().args).update(self._load_options)
        self.load(card.name, card.loading)

    def set_loras(self, model: Any, names: Sequence[str]) -> None:
        """Set the model and its LoRAs; does nothing if the webui has unloaded the model meanwhile."""
        shared = _shared()
        # Its user may have pressed Unload or loaded another model while a run went on.
        if unwrap_peft(shared.model) is unwrap_peft(model):
            shared.model, shared.lora_names = model, list(names)

    def llama_cpp(self) -> LlamaCppModel | None:
        shared = _shared()
        if _idle_unloaded(shared) and shared.args.loader == "llama.cpp":
            self.load(shared.model_name, "")
        if type(shared.model).__name__ != "LlamaServer":
            return None
        return LlamaCppModel(shared, _import_module("models"), _import_module("llama_cpp_server"))

    def exclusive_use(self) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] | None = _shared().generation_lock
        return nullcontext() if lock is None else lock

    def chat_template(self) -> str:
        state = _shared().persistent_interface_state or {}
        return str(state.get("instruction_template_str") or "")

    def memory(self) -> DeviceMemory:
        is_elsewhere = self.own_process is not None or self.model_status().problem
        return memory.read_memory(None if is_elsewhere else _shared().model)

    def add_evaluation(self, row: EvaluationRow) -> None:
        """Add a row by the webui's own module, which keeps the table in memory and rewrites the file from it."""
        evaluate, cells = _import_module("evaluate"), row.cells()
        # The table is read again first: a command may have added rows to the file.
        evaluate.past_evaluations = evaluate.load_past_evaluations()
        evaluate.add_entry_to_past_evaluations(row.perplexity, row.model, row.dataset, row.stride, row.max_length)
        table = evaluate.past_evaluations
        for column, cell in cells.items():
            table.loc[table.index[-1], column] = cell
        evaluate.save_past_evaluations(table)


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(f"modules.{name}")
    except ImportError as error:
        raise ModelError(
            f"This version of TextGen is not supported (modules.{name}: {error}). "
            f"Update the webui, or run Training PRO on its own:  {launch_command()} page"
        ) from error


def _shared() -> Any:
    shared = _import_module("shared")
    names = ("model", "tokenizer", "model_name", "lora_names", "args", "user_data_dir", "generation_lock")
    missing = [name for name in names if not hasattr(shared, name)]
    if missing:
        raise ModelError(
            "This version of TextGen has no "
            f"{', '.join('shared.' + m for m in missing)}. Update Training PRO, or run it on its own:  "
            f"{launch_command()} page"
        )
    return shared


def _idle_unloaded(shared: Any) -> bool:
    """Whether the webui unloaded the model for inactivity (--idle-timeout)."""
    return shared.model is None and shared.model_name not in (None, "None") and bool(shared.args.idle_timeout)


def _untrainable_reason(shared: Any) -> str:
    """Why the loaded model cannot be trained, and what to click next; empty if it can."""
    if importlib.util.find_spec("torch") is None:
        return (
            "This TextGen does not include torch, so it can't train itself. Under 'What to train', choose a "
            "model, or load a GGUF file in the Model tab. It is trained in a process of its own."
        )
    if _idle_unloaded(shared):
        return (
            f"The webui unloaded {shared.model_name} because it was idle. The Start button loads it again. Before "
            "you use Check, press Load in the Model tab."
        )
    if shared.model is None:
        return f"No model is loaded. {_NEXT_CLICK}"
    class_name = type(shared.model).__name__
    if class_name in _CANNOT_TRAIN:
        return f"The model was loaded with {_CANNOT_TRAIN[class_name]}, which can't train. {_NEXT_CLICK}"
    if not hasattr(shared.model, "named_parameters") or not hasattr(shared.model, "config"):
        return f"The loaded model has the type {class_name}, which can't be trained. {_NEXT_CLICK}"
    if getattr(shared.model.config, "is_encoder_decoder", False):
        return f"{shared.model_name} is an encoder-decoder model; only causal language models can be trained here."
    if shared.tokenizer is None:
        return f"The loaded model has no tokenizer. {_NEXT_CLICK}"
    return ""
