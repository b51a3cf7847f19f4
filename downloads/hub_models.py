"""Models of the Hugging Face hub: which one is meant, what of it is needed, and why one is of no use here."""

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

MAIN = "main"
HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
NO_OWNERS = ("datasets", "spaces")
BEFORE_REVISION = ("tree", "blob", "resolve")
"""In the address of a model's page."""

BESIDE_WEIGHTS = (
    *("config.json", "generation_config.json", "*preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    *("LICENSE*", "NOTICE*", "USE_POLICY*", "README.md"),
)
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Each may be an index of several files instead; the first that is there counts, as for transformers."""
INDEX = ".index.json"
SAFE_NAME = re.compile(r"(\w[\w.+ ()-]*/)*\w[\w.+ ()-]*")
"""A file's name that leads out of no folder."""
CAN_BE_TRAINED = ("bitsandbytes", "mxfp4")
"""Ways in which weights may be quantized on the hub already: the second is unpacked when it is loaded."""


@dataclass(frozen=True)
class Wanted:
    """A model of the hub, by its owner and name, at a branch, tag or commit."""

    repository: str
    revision: str = MAIN

    @property
    def folder(self) -> str:
        """The name of its folder, as the webui's own download has it."""
        behind = "" if self.revision == MAIN else f"_{self.revision}"
        return re.sub(r"[^\w.-]", "_", self.repository + behind)

    @property
    def words(self) -> str:
        return self.repository + ("" if self.revision == MAIN else f" ({self.revision})")


@dataclass(frozen=True)
class Part:
    """A file of a model; `content` is another where its bytes are, and their SHA-256 where it is `hashed`."""

    name: str
    size: int
    content: str
    hashed: bool


@dataclass(frozen=True)
class Offer:
    """What is brought of a model: its files at one commit, small ones first."""

    wanted: Wanted
    commit: str
    kind: str
    licence: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def wanted(asked: str, revision: str = "") -> Wanted:
    """OWNER/NAME, or the address of its page; a revision that is given beside it wins."""
    found, in_address = _named(asked.strip())
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", found):
        raise ModelError(
            f"{asked.strip()!r} is no model of the hub: write OWNER/NAME as it stands at the top of its page, "
            "such as Qwen/Qwen3-0.6B, or paste the address of that page."
        )
    return Wanted(found, revision.strip() or in_address or MAIN)


def _named(asked: str) -> tuple[str, str]:
    """Owner and name; and the revision, of an address that has one."""
    host, path = _taken_apart(asked)
    if not host:
        return asked.strip("/"), ""
    segments = [*map(unquote, path.strip("/").split("/"))]
    if host not in (*HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc) or segments[0] in NO_OWNERS:
        return asked, ""
    owner, name, page, revision, *_ = [*segments, "", "", "", ""]
    return f"{owner}/{name}", revision if page in BEFORE_REVISION else ""


def _taken_apart(asked: str) -> tuple[str, str]:
    """Host and path of an address, also of one without https:// before it."""
    if "://" not in asked and asked.partition("/")[0] not in HOSTS:
        return "", asked
    address = urlsplit(asked if "://" in asked else f"https://{asked}")
    return address.netloc, address.path


def no_model(name: str, files: Collection[str], base: str) -> str:
    """Why a repository with these files is no model in transformers format; empty where it is one."""
    if "config.json" in files and _kind_of_weights(files):
        return ""
    if any(file.endswith(".gguf") for file in files):
        return f"{name} holds GGUF files only, which are for answering. {_get_instead(base)}"
    if "adapter_config.json" in files:
        return f"{name} is a LoRA, not a model. {_get_instead(base)}"
    lacks = "weights (.safetensors or .bin)" if "config.json" in files else "config.json"
    return f"{name} is no model in transformers format: it holds no {lacks}. Choose another one."


def not_for_training(name: str, config: Mapping[str, Any], base: str) -> str:
    """Why a model with this config cannot be trained here; empty where it can, as far as that tells."""
    if config.get("is_encoder_decoder"):
        return f"{name} is an encoder-decoder model; only causal language models can be trained here."
    if not ModelCard(name, dict(config), None, "").writes_on:
        kind = ", ".join(config["architectures"])
        return f"{name} ({kind}) does not write text on: nothing in it predicts a next token. Choose another one."
    quantized = config.get("quantization_config") or {}
    if (how := quantized.get("quant_method", CAN_BE_TRAINED[0])) not in CAN_BE_TRAINED:
        instead = f"{_get_instead(base)} Where memory is short, that one can be loaded as 4bit."
        return f"{name} is quantized already ({str(how).upper()}), and such weights cannot be trained. {instead}"
    return ""


def _get_instead(base: str) -> str:
    return f"Get the model that it was made of instead{f': {base}' if base else ''}."


def needed(files: Collection[str], read: Callable[[str], Mapping[str, Any]]) -> list[str]:
    """The names of what is brought; `read` reads an index. What else there is holds the weights once more."""
    return [*filter(_is_beside_weights, files), *_weights(_kind_of_weights(files), read)]


def _is_beside_weights(name: str) -> bool:
    """How it is loaded, how one talks to it, what is allowed."""
    alike = (pattern for pattern in BESIDE_WEIGHTS if pattern.count("/") == name.count("/"))
    return any(fnmatchcase(name, pattern) for pattern in alike)


def _kind_of_weights(files: Collection[str]) -> str:
    """The file or index that transformers would load; empty where there is none."""
    return next((name for one in WEIGHTS for name in (one, one + INDEX) if name in files), "")


def _weights(found: str, read: Callable[[str], Mapping[str, Any]]) -> Iterable[str]:
    if not found.endswith(INDEX):
        return [found]
    return [found, *sorted(set(dict(read(found).get("weight_map") or {}).values()))]


def missing(names: Iterable[str], files: Collection[str]) -> list[str]:
    """Those that are not there, or at a place where nothing of ours would be put."""
    return [name for name in names if name not in files or not SAFE_NAME.fullmatch(name)]
