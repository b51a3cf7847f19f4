"""Standalone host for our own page and command line: models from a folder, loaded by transformers."""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core import dist_env, evaluations_table, gguf_header
from ..core.errors import ModelError, first_line
from ..core.evaluations_table import EvaluationRow
from ..core.files import read_json, safe_paths
from ..core.host import (
    DeviceMemory,
    Folders,
    LoadedModel,
    ModelCard,
    ModelStatus,
    PackedWeights,
    describe_precision,
)
from ..core.jobs import Job, JobEnded, JobFn, Request
from ..core.version import install_command
from ..downloads import download, hub_models
from . import memory
from .gguf_positions import complete_config, refuse_half_read
from .memory import check_placement, device_limits, parse_limits

# Files that transformers loads from a folder with a config.json.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
WEIGHT_SUFFIXES = (".safetensors", ".bin")
# Architectures whose head transformers ties to the embeddings although a GGUF file has one.
TIED = ("falcon", "bloom")
# Where the header does not say so, llama.cpp adds BOS with these (llama-vocab.cpp).
ADDS_BOS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
)
LOADING_OPTIONS: Mapping[str, str] = {
    "auto": "auto (the model's data type; float32 on a CPU; a GGUF file stays packed)",
    "float32": "float32 (the most memory)",
    "bfloat16": "bfloat16",
    "float16": "float16 (older GPUs)",
    "8bit": "8-bit",
    "4bit": "4-bit (NF4, the least memory)",
}
# Loads the model of a GGUF file in some parts: the engine's `load_gguf`, which this package may not import.
GgufLoader = Callable[..., Any]


def standalone_folders(user_data: Path) -> Folders:
    """Folders inside a working folder of our own."""
    root = user_data.resolve()
    return Folders(
        user_data=root,
        models=root / "models",
        loras=root / "loras",
        logs=root / "logs",
        examples=Path(__file__).resolve().parent.parent / "examples",
    )


def list_models(root: Path) -> list[str]:
    """Names of the folders with a config.json and of the GGUF files, at any depth, in the models folder."""
    folders = (path.parent for path in root.glob("*/config.json"))
    walked = os.walk(root, followlinks=True)
    files = [Path(parent, name) for parent, _, names in walked for name in names if name.endswith(".gguf")]
    files = [path for path in files if "mmproj" not in path.name.lower()]  # for pictures, beside a model
    # Of a file in several parts, the first one stands for all.
    later_parts = {p for p in files if (part := gguf_header.PART.search(p.name)) and int(part[1]) > 1}
    names = {p.relative_to(root).as_posix() for p in [*folders, *files] if p not in later_parts}
    return sorted((n for n in names if not safe_paths.has_impossible_character(n)), key=str.casefold)


class StandaloneHost:
    """Lends a model that it loads itself when it is first needed."""

    owns_process, read_only_reason, own_process, loadings = True, "", None, LOADING_OPTIONS
    uses_gpu = staticmethod(memory.uses_gpu)

    def __init__(
        self,
        folders: Folders,
        *,
        model: str = "",
        loading: str = "auto",
        tokenizer: str = "",
        max_memory: Sequence[str] = (),
        load_gguf: GgufLoader | None = None,
    ) -> None:
        self.folders, self._load_gguf = folders, load_gguf
        self._limits, self._limits_words = parse_limits(max_memory), " ".join(max_memory)
        self._lock, self._card_lock = threading.Lock(), threading.Lock()
        self.selected_model = (_unquoted(model), loading)
        # A tokenizer belongs to the model that it was given for: a page may load another model later.
        self._tokenizer_of = {self.selected_model[0]: tokenizer}
        self._card: ModelCard | None = None
        self._loaded: LoadedModel | None = None

    def models(self) -> list[str]:
        return list_models(self.folders.models)

    def model_status(self) -> ModelStatus:
        if self._loaded is None:
            return ModelStatus(problem="No model is loaded. Choose one above and press Load model.")
        return ModelStatus(self._loaded.card.name, describe_precision(self._loaded.model), self._loaded.loras)

    def card(self) -> ModelCard:
        if self._loaded is not None:
            return self._loaded.card
        with self._card_lock:  # two threads that import transformers at once get a half-initialized module
            if self._card is None:
                self._card = self._read_card()
            return self._card

    def loaded_model(self) -> LoadedModel:
        if self._loaded is None:
            card = self.card()
            self._loaded = LoadedModel(card, self._load_weights(card))
        return self._loaded

    def load(self, name: str, loading: str) -> None:
        """Load a model in the models folder, or the one that the command line named, by whatever path."""
        # A name without a model is refused before the one in memory is unloaded, since both may not fit.
        name = _unquoted(name)
        self._listed_path(name)
        previous = self.model_status().model
        self.unload()
        self.selected_model, self._card = (name, loading), None  # its files may have changed
        try:
            self.loaded_model()
        except ModelError as error:
            unloaded = f" {previous} was unloaded to free memory. No model is loaded now." if previous else ""
            raise ModelError(f"{error}{unloaded}") from error

    def download_job(self, name: str) -> tuple[str, JobFn]:
        """Return the name of a model of the hub and the job that downloads it; the loaded model is not touched."""
        repository, models = hub_models.parse_hub_model(name), self.folders.models

        def work(job: Job) -> JobEnded:
            is_stopping = partial(job.control.asked, Request.STOP)
            return download.download_model(repository, models, unknown_type_reason, job.log.append, is_stopping)

        return repository.words, work

    def unload(self) -> None:
        self._loaded = None
        gc.collect()  # a model holds itself in cycles, and the cache is emptied of what nothing holds
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def reload(self, card: ModelCard) -> None:
        """Load the chosen model, which is still the same: choosing another one needs exclusive use."""
        self.loaded_model()

    def set_loras(self, model: Any, names: Sequence[str]) -> None:
        if self._loaded is not None:
            self._loaded = replace(self._loaded, model=model, loras=tuple(names))

    def llama_cpp(self) -> None:
        """Models run in transformers here."""

    def exclusive_use(self) -> AbstractContextManager[Any]:
        return self._lock

    def chat_template(self) -> str:
        return ""

    def memory(self) -> DeviceMemory:
        loaded = self._loaded  # another thread may unload it
        return memory.read_memory(loaded.model if loaded else None)

    def add_evaluation(self, row: EvaluationRow) -> None:
        evaluations_table.add_row(row, self.folders.logs)

    def size_on_disk(self, name: str) -> int:
        """Bytes of a model's weight files; 0 for a model that the page may not load."""
        try:
            path = self._listed_path(name)
        except ModelError:
            return 0
        if path.suffix == ".gguf":
            with suppress(ValueError):  # a part is missing
                return sum(part.stat().st_size for part in gguf_header.file_parts(path))
        if path.is_file():
            return path.stat().st_size
        by_kind = (list(path.glob(pattern)) for pattern in ("*.safetensors", "*.gguf", "*.bin"))
        return sum(file.stat().st_size for file in next(filter(None, by_kind), []))

    def config(self, name: str) -> dict[str, Any]:
        """Read a model's config.json; empty if it cannot be read."""
        try:
            path = self._listed_path(name)
            return dict(read_json((path.parent if path.name in WEIGHT_FILES else path) / "config.json", {}))
        except ModelError:
            return {}

    def _any_path(self, name: str) -> Path:
        """Path of a model given by its name or by any path; for the owner of the machine only."""
        if not name:
            choose = "Choose one and press Load model, or name it with --model."
            raise ModelError(f"No model is loaded. {choose} {self._available()}")
        for path in (self.folders.models / name, Path(name).absolute()):
            if not path.is_file() and not (path / "config.json").is_file():
                continue
            # Not one of several weight files, nor one without a config.
            is_whole = path.name in WEIGHT_FILES and (path.parent / "config.json").is_file()
            if path.suffix in WEIGHT_SUFFIXES and not is_whole:
                raise ModelError(
                    f"{path} can't be loaded on its own. A single weights file must be called "
                    f"{' or '.join(WEIGHT_FILES)} and have a config.json next to it. If the weights are in "
                    "several files, enter their folder."
                )
            return path
        raise self._not_a_model(name)

    def _listed_path(self, name: str) -> Path:
        """Path of a model given by its name only; links in the models folder are followed."""
        name = _unquoted(name)
        if name and name == self.selected_model[0]:
            return self._any_path(name)
        path = safe_paths.descendant(self.folders.models, name, "Model", refusal=ModelError, follow_links=True)
        if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file():
            return path
        raise self._not_a_model(name)

    def _available(self) -> str:
        """Which models there are, or how to get one."""
        names, models = ", ".join(self.models()), self.folders.models
        get = f"{models} has no models yet. Copy one to it, or download one with the get command."
        return f"Available: {names}." if names else get

    def _not_a_model(self, name: str) -> ModelError:
        path = str(Path(name))
        return ModelError(
            f"There is no model {path!r} in {self.folders.models}, and {path!r} is not the path of a folder with "
            f"a config.json. {self._available()}"
        )

    def _read_card(self) -> ModelCard:
        given, loading = self.selected_model
        path = self._any_path(given)
        _require("transformers", "to read a model")
        from transformers import AutoConfig, AutoTokenizer

        folder, options = _model_source(path)
        is_gguf = "gguf_file" in options
        if is_gguf and loading not in ("auto", "float32", "bfloat16"):
            raise ModelError(
                f"{path.name} can't be loaded as {loading}, because GGUF files are quantized already. Load it as "
                "auto, float32 or bfloat16."
            )
        requested = self._tokenizer_of.get(given, "")
        tensors: Mapping[str, gguf_header.TensorInfo] = {}
        try:
            if is_gguf:
                header = gguf_header.read_header(path)  # says what is wrong more plainly than transformers
                tensors = gguf_header.read_tensors(path)
                refuse_half_read(header)
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **options)
            if is_gguf:
                complete_config(config, path, header, tensors)
            read_tokenizer = AutoTokenizer.from_pretrained
            tokenizer = None if requested else read_tokenizer(folder, trust_remote_code=False, **options)
        except Exception as error:  # a damaged file makes transformers and tokenizers raise anything
            is_whole = bool(tensors) and (isinstance(error, ModelError) or "not supported" in str(error))
            choice = "choose another one"
            if is_gguf:  # of any architecture or tokenizer that transformers can't read from such files
                origin = gguf_header.find_base_model(path)
                choice = f"use the original model{f', {origin}' * bool(origin)} (a folder with .safetensors files)"
            remedy = f"{choice[0].upper()}{choice[1:]}" if is_whole else f"Download it again, or {choice}"
            raise ModelError(f"{path} can't be read as a model: {_first_line(error)} {remedy}.") from error
        packed = None
        if is_gguf:
            architecture = header["general.architecture"]
            if gguf_header.PART.search(path.name):  # transformers looks for a head in the first part only
                config.tie_word_embeddings &= "output.weight" not in tensors or architecture in TIED
            if loading == "auto" and self._load_gguf and not self._limits and _packs(architecture):
                packed = _packed_weights(tensors)
        if is_gguf and tokenizer is not None:  # transformers 5.6 takes the BOS token of the file for its EOS token
            for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
                if isinstance(token := getattr(config, key, None), int):
                    setattr(tokenizer, key, token)
            if "tokenizer.ggml.add_bos_token" not in header and header.get("tokenizer.ggml.pre") in ADDS_BOS:
                tokenizer.add_bos_token = True
        name = path.stem if is_gguf else Path(folder).resolve().name
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(
                f"{name} is an encoder-decoder model; only causal language models can be trained here."
            )
        if requested:
            tokenizer = _load_tokenizer(requested, self.folders.models, config.get_text_config().vocab_size, name)
        # The name in the models folder, or else the absolute path: a command from another folder finds it, too.
        models = self.folders.models
        source = models / given if (models / given).exists() else Path(given).absolute()
        return ModelCard(
            name,
            config.to_dict(),
            tokenizer,
            loading,
            tokenizer_name=requested,
            max_memory=self._limits_words,
            given_name=source.relative_to(models).as_posix() if source.is_relative_to(models) else str(source),
            packed=packed,
        )

    def _load_weights(self, card: ModelCard) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        name, loading = self.selected_model
        path = self._any_path(name)
        folder, source = _model_source(path)
        is_gguf, missing = "gguf_file" in source, list[str]()
        options = _load_options(loading, is_gguf=is_gguf)
        dtype, device = options["dtype"], options["device_map"][""]
        if self._limits:  # spread the model over the devices within their limits
            options |= {"device_map": "auto", "max_memory": device_limits(self._limits)}
        if path.name in WEIGHT_FILES:
            options["use_safetensors"] = path.suffix == ".safetensors"
        try:
            parts = gguf_header.file_parts(path) if is_gguf else []
            values = dict(card.config)
            config = AutoConfig.for_model(values.pop("model_type"), **values) if is_gguf else None
            if self._load_gguf is not None and (card.packed or len(parts) > 1):
                model = self._load_gguf(parts, config, dtype, device, packed=card.packed is not None)
            else:
                options |= {"config": config, **unpacked_gguf(path)} if is_gguf else {}
                model, report = AutoModelForCausalLM.from_pretrained(
                    folder, trust_remote_code=False, output_loading_info=True, **options
                )
                missing = sorted(report["missing_keys"])
        except Exception as error:  # a damaged file makes any library below raise anything
            advice = ""
            if card.max_memory:  # for any error, since each library words a lack of room differently
                advice = f" The memory limits are set to {card.max_memory} (--max-memory). Raise one of them."
            elif isinstance(error, MemoryError) or "memory" in str(error).lower():  # so torch says it
                choose = "Choose" if is_gguf or loading == "4bit" else "Load it in 4-bit, or choose"
                advice = f" {choose} a smaller model."
            raise ModelError(f"{card.name} can't be loaded as {loading}: {_first_line(error)}{advice}") from error
        if missing:  # transformers only warns of them, and fills them with random numbers
            raise ModelError(
                f"{card.name} is incomplete: {len(missing)} of its weights are missing, such as {missing[0]}. "
                "Download it again."
            )
        if is_gguf:
            model.name_or_path = str(path)  # which a LoRA names as its base model; transformers sets the folder
        check_placement(model, card.name)
        # On some CPUs, bitsandbytes repacks 4-bit weights at the first answer, which loses bits and gradients.
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
        return model.eval()


def _load_tokenizer(name: str, models: Path, vocabulary: int, model: str) -> Any:
    """Load the tokenizer of a folder, or of the folder that a file such as tokenizer.json lies in."""
    from transformers import AutoTokenizer

    path = next((path for path in (models / _unquoted(name), Path(_unquoted(name))) if path.exists()), None)
    if path is None:
        raise ModelError(
            f"There is no tokenizer {name!r} in {models}, and the path {name!r} does not exist. Enter the path of "
            "the tokenizer's folder."
        )
    try:
        folder = str(path.parent if path.is_file() else path)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"{path} can't be read as a tokenizer: {_first_line(error)}"
        raise ModelError(f"{said} Enter the folder of a tokenizer.") from error
    size = max(tokenizer.get_vocab().values()) + 1
    if size > vocabulary:
        raise ModelError(
            f"The tokenizer {name!r} has {size} tokens, but {model} has a vocabulary of only {vocabulary}. "
            "Use the tokenizer that the model was trained with."
        )
    return tokenizer


def _unquoted(name: str) -> str:
    """Strip quotes, which Windows Explorer adds to a copied path."""
    return name.strip(' "')


def unknown_type_reason(name: str, model_type: str) -> str:
    """Why transformers cannot load this model type; empty if it can."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return ""
    return (
        f"{name} has an architecture ({model_type or 'not given in its config'}) that transformers "
        f"{transformers.__version__} can't load as a causal language model. Update transformers, or "
        "choose another model."
    )


def _packs(architecture: str) -> bool:
    """Whether layers of this architecture can stay packed: transformers unpacks blocks, and knows their names."""
    home = "transformers.integrations.gguf"
    if not importlib.util.find_spec(home) or not importlib.util.find_spec(f"{home}.dequant"):  # transformers 5.6
        return False
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    aliases = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
    return aliases.get(architecture, architecture) in GGUF_SUPPORTED_ARCHITECTURES


def _packed_weights(tensors: Mapping[str, gguf_header.TensorInfo]) -> PackedWeights | None:
    """What the file needs in memory; None where nothing in it is packed."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    blocks = plain = largest = 0
    for shape, kind in tensors.values():
        weights = math.prod(shape)
        if kind in gguf_header.PACKED_TYPES and len(shape) == 2:
            elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            blocks += weights // elements * block_bytes
            largest = max(largest, weights)
        else:
            plain += weights
    return PackedWeights(blocks, plain, largest) if blocks else None


def unpacked_gguf(file: Path) -> dict[str, Any]:
    """Arguments that make `from_pretrained` unpack a GGUF file into a plain model, which can be trained."""
    import transformers

    if not hasattr(transformers, "GgufConfig"):  # older versions always unpack
        return {"gguf_file": file.name}
    return {"gguf_file": file.name, "quantization_config": transformers.GgufConfig(dequantize=True)}


def _model_source(path: Path) -> tuple[str, dict[str, Any]]:
    """Arguments of `from_pretrained`: the folder and, for a GGUF file, its name."""
    if not path.is_file():
        return str(path), {}
    if path.suffix in WEIGHT_SUFFIXES:
        return str(path.parent), {}
    _require("gguf", "to read a GGUF file")
    return str(path.parent), {"gguf_file": path.name}


def _load_options(loading: str, *, is_gguf: bool = False) -> dict[str, Any]:
    import torch

    # Under torchrun, each process loads the model onto a GPU of its own.
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(dist_env.local_rank())
    device_map = {"": dist_env.local_rank()} if on_gpu else {"": "cpu"}
    # Older GPUs emulate bfloat16 through float32, without the units that make float16 fast on them.
    has_bf16 = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    half = torch.bfloat16 if has_bf16 else torch.float16
    if loading == "auto":
        own = half if is_gguf else "auto"  # the config of a GGUF file has no data type
        return {"dtype": own if on_gpu else torch.float32, "device_map": device_map}
    if loading in ("float32", "bfloat16", "float16"):
        return {"dtype": getattr(torch, loading), "device_map": device_map}
    _require("bitsandbytes", f"to load a model as {loading}")
    dtype = half if on_gpu else torch.float32  # of the weights that are not quantized
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(load_in_8bit=True)
    if loading == "4bit":
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    return {"quantization_config": config, "device_map": device_map, "dtype": dtype}


def _require(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModelError(f"The {package} package is needed {purpose}. Install it: {install_command(package)}")


def _first_line(error: Exception) -> str:
    """First line of a library's message, as a full sentence."""
    if "custom code" in str(error):
        return "It needs custom Python code (trust_remote_code), and Training PRO does not run code from models."
    return first_line(error).strip(" :.") + "."
