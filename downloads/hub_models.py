"""Models on the Hugging Face Hub: their names, the files that a model needs, and why one can't be used.

Its errors are explained here for datasets too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from ..core.errors import DataError, ModelError, first_line
from ..core.host import ModelCard

TIMEOUT_SECONDS = 30  # without data for so long, a connection counts as lost
MAIN_REVISION = "main"
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
# The configs, the tokenizer, the chat template and the license. Other files repeat the weights in other formats.
SMALL_FILES = (
    *("config.json", "generation_config.json", "*preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    *("LICENSE*", "NOTICE*", "USE_POLICY*", "README.md"),
)
# Transformers loads the first of these that exists. An index lists the files that the weights are split into.
INDEX_SUFFIX = ".index.json"
WEIGHT_FILES = tuple(
    name for file in ("model.safetensors", "pytorch_model.bin") for name in (file, file + INDEX_SUFFIX)
)
# A repository decides where its files go: no name may lead out of the model's folder.
SAFE_NAME = re.compile(r"(\w[\w.+ ()-]*/)*\w[\w.+ ()-]*")
# Quantizations on the Hub that can be trained; mxfp4 is dequantized when it is loaded.
TRAINABLE_QUANTIZATIONS = ("bitsandbytes", "mxfp4")


@dataclass(frozen=True)
class HubModel:
    """A model, or a dataset, of the hub: OWNER/NAME at a branch, tag or commit."""

    repository: str
    revision: str = MAIN_REVISION
    kind: str = "model"

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
    text = text.strip()
    name, revision_in_url = text.strip("/"), ""
    if "://" in text or text.partition("/")[0].lower() in HUB_HOSTS:
        try:
            url = urlsplit(text if "://" in text else f"https://{text}")
        except ValueError:  # such as brackets around a host that is not an IPv6 address
            url = urlsplit("")
        hosts = {*HUB_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc} - {""}
        owner, name, page, in_url, *_ = [*map(unquote, url.path.strip("/").split("/")), "", "", "", ""]
        is_model = url.netloc.lower() in hosts and owner not in ("datasets", "spaces")
        name = f"{owner}/{name}" if is_model else ""
        revision_in_url = in_url if page in ("tree", "blob", "resolve") else ""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise ModelError(
            f"{text!r} is neither OWNER/NAME nor the address of a model page. Enter OWNER/NAME as shown "
            "at the top of the model's page, such as Qwen/Qwen3-0.6B, or paste the address of that page."
        )
    return HubModel(name, revision.strip() or revision_in_url or MAIN_REVISION)


def plan_download(model: HubModel, refuse_type: Callable[[str, str], str]) -> DownloadPlan:
    """The files to download for a model; `refuse_type` says why one of a name and type can't be loaded, or ''."""
    with explain_hub_errors(model):
        info = import_hub().HfApi().model_info(
            model.repository, revision=model.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )  # fmt: skip
        files = {
            # Large files have a SHA-256; of the others, git knows only the hash of its own blob.
            f.rfilename: HubFile(f.rfilename, f.size, f.lfs.sha256 if f.lfs else f.blob_id, bool(f.lfs))
            for f in info.siblings
        }
        card = info.card_data or {}
        name, base = model.repository, first_string(card.get("base_model"))
        use_base = f"Download its base model instead{f': {base}' if base else ''}."
        weights = next((file for file in WEIGHT_FILES if file in files), "")
        if "config.json" not in files or not weights:
            if any(file.endswith(".gguf") for file in files):
                raise ModelError(f"{name} has only GGUF files, which Training PRO does not download. {use_base}")
            if "adapter_config.json" in files:
                raise ModelError(f"{name} is a LoRA, not a model. {use_base}")
            missing = "weights (.safetensors or .bin)" if "config.json" in files else "config.json"
            raise ModelError(
                f"{name} is not a model in transformers format: it has no {missing}. Choose another model."
            )
        # The config alone decides whether we can train it, so nothing large is downloaded in vain.
        config = _read_json(model, info.sha, "config.json")
        _refuse_untrainable(name, config, use_base)
        model_type = str(config.get("model_type", ""))
        if reason := refuse_type(name, model_type):
            raise ModelError(reason)
        # `*` also matches a slash, so the number of slashes is compared: original/params.model is not ours.
        needed = [
            file
            for file in files
            if any(fnmatchcase(file, p) and p.count("/") == file.count("/") for p in SMALL_FILES)
        ]
        needed.append(weights)
        if weights.endswith(INDEX_SUFFIX):
            index = _read_json(model, info.sha, weights).get("weight_map") or {}
            needed += sorted(set(dict(index).values()))
    if missing_files := [file for file in needed if file not in files or not SAFE_NAME.fullmatch(file)]:
        raise ModelError(
            f"{model.words} is incomplete on the Hub: it is missing {', '.join(missing_files)}. "
            "Choose another model."
        )
    smallest_first = sorted((files[file] for file in needed), key=lambda file: file.size)
    return DownloadPlan(model, info.sha, model_type, first_string(card.get("license")), tuple(smallest_first))


def _refuse_untrainable(name: str, config: Mapping[str, Any], use_base: str) -> None:
    """Raise ModelError if the config shows that a model can't be trained here."""
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{name} is an encoder-decoder model; only causal language models can be trained here.")
    if not ModelCard(name, dict(config), None, "").is_causal_lm:
        classes = ", ".join(config["architectures"])
        raise ModelError(f"{name} ({classes}) can't generate text. Choose another model.")
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method", TRAINABLE_QUANTIZATIONS[0])
    if method not in TRAINABLE_QUANTIZATIONS:
        raise ModelError(
            f"{name} is already quantized ({str(method).upper()}), and Training PRO can't train a model in this "
            f"format. {use_base} If you are short on memory, you can load that model in 4-bit."
        )


def _read_json(model: HubModel, commit: str, name: str) -> Mapping[str, Any]:
    with open_stream(model, commit, name) as (_, pieces):
        content = b"".join(pieces)
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{name} of {model.words} is damaged on the Hub: it is not valid JSON. Choose another model."
        ) from error


def first_string(value: Any) -> str:
    """First or only string of a value in a model card, which authors write by hand; empty if it has none."""
    item = value[0] if isinstance(value, list) and value else value
    return item if isinstance(item, str) else ""


def import_hub() -> Any:
    """Import huggingface_hub with telemetry off, since it would also write a file in the home folder."""
    import huggingface_hub
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
    return huggingface_hub


@contextmanager
def temporary_cache() -> Iterator[str]:
    """Let huggingface_hub keep files in a temporary folder within this context, not in the home folder."""
    constants = import_hub().constants
    usual = constants.HF_HUB_CACHE
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        constants.HF_HUB_CACHE = folder
        try:
            yield folder
        finally:
            constants.HF_HUB_CACHE = usual


@contextmanager
def open_stream(model: HubModel, commit: str, name: str, begin: int = 0) -> Iterator[tuple[int, Iterable[bytes]]]:
    """Open a streaming download of a file, from byte `begin` on: its HTTP status, and its bytes."""
    from huggingface_hub.utils import build_hf_headers

    hub_library = import_hub()
    # Without compression, the bytes that arrive are those of the file, so their number is where to resume.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    address = hub_library.hf_hub_url(model.repository, name, revision=commit)
    with hub_library.get_session().stream("GET", address, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        hub_library.hf_raise_for_status(response)
        yield response.status_code, response.iter_bytes()


def hub_errors() -> tuple[type[Exception], ...]:
    """Errors of the hub and of the connection; huggingface_hub names them for whatever HTTP client it uses."""
    from huggingface_hub import errors

    return errors.HTTPError, errors.OfflineModeIsEnabled, ConnectionError


def may_retry(error: Exception) -> bool:
    """Whether another try may help, after a lost connection or an error of the server."""
    status = http_status(error)
    return isinstance(error, hub_errors()) and (status in (0, 429) or status >= 500)


def http_status(error: Exception) -> int:
    """HTTP status of an error; 0 if there was no response."""
    return getattr(getattr(error, "response", None), "status_code", 0)


@contextmanager
def explain_hub_errors(model: HubModel) -> Iterator[None]:
    """Turn errors of the hub into a ModelError, or of a dataset a DataError, that says what to do."""
    from huggingface_hub import constants, errors

    endpoint, name, kind = constants.ENDPOINT, model.repository, model.kind
    page = f"{endpoint}/{'datasets/' * (kind == 'dataset')}{name}"
    refusal: Callable[[str], Exception] = DataError if kind == "dataset" else ModelError
    # GatedRepoError stands before RepositoryNotFoundError, because it is one.
    sentences = {
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so the Hub can't be used. "
        "Unset the variable, then restart the program.",
        errors.RevisionNotFoundError: f"{name} has no revision {model.revision!r}. See the list of "
        f"revisions at {page}, or omit the revision.",
        errors.DisabledRepoError: f"{name} was removed from the Hub. Choose another {kind}.",
        errors.GatedRepoError: f"{name} is a gated {kind}. Accept its license at {page}, "
        f"create a token at {endpoint}/settings/tokens, set HF_TOKEN to it, and restart the program.",
        errors.RepositoryNotFoundError: f"There is no {kind} {name} at {endpoint}, or it is private. "
        f"Check the spelling. For a private {kind}, set HF_TOKEN to your token and restart the program.",
    }
    try:
        yield
    except hub_errors() as error:
        known = (sentence for kind, sentence in sentences.items() if isinstance(error, kind))
        raise refusal(next(known, "") or connection_message(error, endpoint)) from error


def connection_message(error: Exception, endpoint: str) -> str:
    """Message for an error that does not concern this model."""
    status, reason = http_status(error), first_line(error).rstrip(".")
    if not status:
        return (
            f"{endpoint} can't be reached ({reason}). Check your network connection. If you use a proxy, set "
            "HTTPS_PROXY. If you use a mirror of the Hub, set HF_ENDPOINT."
        )
    if status == 401:
        return f"{endpoint} does not accept your token. Set HF_TOKEN to another token, or unset it."
    if status == 403:
        return (
            f"{endpoint} denies access with your token ({reason}). Change the permissions of the token at "
            f"{endpoint}/settings/tokens."
        )
    return f"{endpoint} returned status {status} ({reason}). Try again later."
