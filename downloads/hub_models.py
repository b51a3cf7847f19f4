"""Models of the Hugging Face hub: parsing their names, the files needed, and why a model cannot be used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

from ..core.errors import ModelError
from ..core.host import ModelCard

MAIN_REVISION = "main"
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
NON_MODEL_PATHS = ("datasets", "spaces")
REVISION_SEGMENTS = ("tree", "blob", "resolve")
"""Path segments that precede the revision in the URL of a model page."""

SMALL_FILES = (
    *("config.json", "generation_config.json", "*preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    *("LICENSE*", "NOTICE*", "USE_POLICY*", "README.md"),
)
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Weight files, or an index of several files instead; the first that exists is used, as by transformers."""
INDEX_SUFFIX = ".index.json"
SAFE_NAME = re.compile(r"(\w[\w.+ ()-]*/)*\w[\w.+ ()-]*")
"""File names that cannot lead out of a folder."""
TRAINABLE_QUANTIZATIONS = ("bitsandbytes", "mxfp4")
"""Quantizations on the hub that can be trained; mxfp4 is dequantized when it is loaded."""


@dataclass(frozen=True)
class HubModel:
    """A model of the hub: OWNER/NAME at a branch, tag or commit."""

    repository: str
    revision: str = MAIN_REVISION

    @property
    def folder(self) -> str:
        """Name of its folder, the same as the webui's own download uses."""
        suffix = "" if self.revision == MAIN_REVISION else f"_{self.revision}"
        return re.sub(r"[^\w.-]", "_", self.repository + suffix)

    @property
    def words(self) -> str:
        return self.repository + ("" if self.revision == MAIN_REVISION else f" ({self.revision})")


@dataclass(frozen=True)
class HubFile:
    """A file of a model; `digest` identifies its bytes, by their SHA-256 if `is_sha256`."""

    name: str
    size: int
    digest: str
    is_sha256: bool


@dataclass(frozen=True)
class DownloadPlan:
    """The files of a model to download, at one commit, small ones first."""

    model: HubModel
    commit: str
    model_type: str
    license: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def parse_hub_model(text: str, revision: str = "") -> HubModel:
    """Parse OWNER/NAME or the URL of a model page; `revision` takes precedence over one in the URL."""
    name, revision_in_url = _split_name(text.strip())
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise ModelError(
            f"{text.strip()!r} is neither OWNER/NAME nor the address of a model page. Enter OWNER/NAME as shown "
            "at the top of the model's page, such as Qwen/Qwen3-0.6B, or paste the address of that page."
        )
    return HubModel(name, revision.strip() or revision_in_url or MAIN_REVISION)


def _split_name(text: str) -> tuple[str, str]:
    """Split a name or URL into OWNER/NAME and the revision, if the URL has one."""
    host, path = _split_url(text)
    if not host:
        return text.strip("/"), ""
    segments = [*map(unquote, path.strip("/").split("/"))]
    if (
        host not in (*HUB_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc)
        or segments[0] in NON_MODEL_PATHS
    ):
        return text, ""
    owner, name, page, revision, *_ = [*segments, "", "", "", ""]
    return f"{owner}/{name}", revision if page in REVISION_SEGMENTS else ""


def _split_url(text: str) -> tuple[str, str]:
    """Host and path of a URL, also without https:// in front."""
    if "://" not in text and text.partition("/")[0].lower() not in HUB_HOSTS:
        return "", text
    try:
        url = urlsplit(text if "://" in text else f"https://{text}")
    except ValueError:  # such as brackets around a host that is not an IPv6 address
        return "", text
    return url.netloc.lower(), url.path


def not_a_model_reason(name: str, files: Collection[str], base: str) -> str:
    """Why a repository with these files is not a model in transformers format; empty if it is."""
    if "config.json" in files and _weights_file(files):
        return ""
    if any(file.endswith(".gguf") for file in files):
        return f"{name} has only GGUF files, which Training PRO does not download. {_base_model_advice(base)}"
    if "adapter_config.json" in files:
        return f"{name} is a LoRA, not a model. {_base_model_advice(base)}"
    missing_part = "weights (.safetensors or .bin)" if "config.json" in files else "config.json"
    return f"{name} is not a model in transformers format: it has no {missing_part}. Choose another model."


def untrainable_reason(name: str, config: Mapping[str, Any], base: str) -> str:
    """Why a model with this config cannot be trained here; empty if the config does not forbid it."""
    if config.get("is_encoder_decoder"):
        return f"{name} is an encoder-decoder model; only causal language models can be trained here."
    if not ModelCard(name, dict(config), None, "").is_causal_lm:
        classes = ", ".join(config["architectures"])
        return f"{name} ({classes}) can't generate text. Choose another model."
    quantized = config.get("quantization_config") or {}
    if (method := quantized.get("quant_method", TRAINABLE_QUANTIZATIONS[0])) not in TRAINABLE_QUANTIZATIONS:
        advice = f"{_base_model_advice(base)} If you are short on memory, you can load that model in 4-bit."
        return (
            f"{name} is already quantized ({str(method).upper()}), and Training PRO can't train a model in this "
            f"format. {advice}"
        )
    return ""


def _base_model_advice(base: str) -> str:
    return f"Download its base model instead{f': {base}' if base else ''}."


def needed_files(files: Collection[str], read: Callable[[str], Mapping[str, Any]]) -> list[str]:
    """Names of the files to download; `read` reads an index. Other files repeat the weights in other formats."""
    return [*filter(_is_small_file, files), *_weight_files(_weights_file(files), read)]


def _is_small_file(name: str) -> bool:
    """Whether a file is a config, tokenizer, chat template or license."""
    patterns = (pattern for pattern in SMALL_FILES if pattern.count("/") == name.count("/"))
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _weights_file(files: Collection[str]) -> str:
    """Weight file or index that transformers would load; empty if there is none."""
    return next((name for file in WEIGHT_FILES for name in (file, file + INDEX_SUFFIX) if name in files), "")


def _weight_files(weights_file: str, read: Callable[[str], Mapping[str, Any]]) -> Iterable[str]:
    if not weights_file.endswith(INDEX_SUFFIX):
        return [weights_file]
    return [weights_file, *sorted(set(dict(read(weights_file).get("weight_map") or {}).values()))]


def missing_files(names: Iterable[str], files: Collection[str]) -> list[str]:
    """Names that are not in the repository or that are unsafe as paths."""
    return [name for name in names if name not in files or not SAFE_NAME.fullmatch(name)]
