"""Access to the Hugging Face hub by its own library: model info, file downloads and error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..core.errors import ModelError, first_line
from . import hub_models
from .hub_models import DownloadPlan, HubFile, HubModel

TIMEOUT_SECONDS = 30
"""Seconds without data after which a connection counts as lost."""
TypeRefusal = Callable[[str, str], str]
"""Says why a model of this name and type can't be loaded; empty if it can."""


def plan_download(model: HubModel, refuse_type: TypeRefusal) -> DownloadPlan:
    """Return the files to download for a model; raises ModelError if it cannot be trained here."""
    with explain_hub_errors(model):
        info = import_hub().HfApi().model_info(
            model.repository, revision=model.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )  # fmt: skip
        files = {file.rfilename: _hub_file(file) for file in info.siblings}
        model_card = info.card_data or {}
        base, read_json = _first_string(model_card.get("base_model")), partial(_read_json, model, info.sha)
        _raise_if(hub_models.not_a_model_reason(model.repository, files, base))
        config = read_json("config.json")
        _raise_if(hub_models.untrainable_reason(model.repository, config, base))
        _raise_if(refuse_type(model.repository, str(config.get("model_type", ""))))
        names = hub_models.needed_files(files, read_json)
    if missing_files := hub_models.missing_files(names, files):
        _raise_if(
            f"{model.words} is incomplete on the Hub: it is missing {', '.join(missing_files)}. "
            "Choose another model."
        )
    smallest_first = sorted((files[name] for name in names), key=lambda file: file.size)
    license_name = _first_string(model_card.get("license"))
    return DownloadPlan(model, info.sha, config["model_type"], license_name, tuple(smallest_first))


@contextmanager
def open_stream(model: HubModel, commit: str, name: str, *, begin: int = 0) -> Iterator[Any]:
    """Open a streaming download of a file, from byte `begin` on."""
    from huggingface_hub.utils import build_hf_headers

    hub_library = import_hub()
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    address = hub_library.hf_hub_url(model.repository, name, revision=commit)
    with hub_library.get_session().stream("GET", address, headers=headers, timeout=TIMEOUT_SECONDS) as response:
        hub_library.hf_raise_for_status(response)
        yield response


@contextmanager
def explain_hub_errors(model: HubModel) -> Iterator[None]:
    """Turn errors of the hub into a ModelError that says what to do."""
    try:
        yield
    except hub_errors() as error:
        raise ModelError(_error_message(error, model)) from error


def hub_errors() -> tuple[type[Exception], ...]:
    """Errors of the hub and of the connection; huggingface_hub names them for whatever HTTP client it uses."""
    from huggingface_hub import errors

    return errors.HTTPError, errors.OfflineModeIsEnabled


def is_temporary(error: Exception) -> bool:
    """Whether an error may be temporary: a lost connection or an overloaded hub."""
    return (status := http_status(error)) in (0, 429) or status >= 500


def import_hub() -> Any:
    """Import huggingface_hub with telemetry off, since it would also write a file in the home folder."""
    import huggingface_hub
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
    return huggingface_hub


def _hub_file(file: Any) -> HubFile:
    return HubFile(file.rfilename, file.size, file.lfs.sha256 if file.lfs else file.blob_id, bool(file.lfs))


def _first_string(value: Any) -> str:
    """First or only string of a value in a model card; empty if it has no string."""
    item = value[0] if isinstance(value, list) and value else value
    return item if isinstance(item, str) else ""


def _raise_if(reason: str) -> None:
    if reason:
        raise ModelError(reason)


def _read_json(model: HubModel, commit: str, name: str) -> Mapping[str, Any]:
    with open_stream(model, commit, name) as response:
        text = response.read()
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ModelError(
            f"{name} of {model.words} is damaged on the Hub: it is not valid JSON. Choose another model."
        )
    return content


def http_status(error: Exception) -> int:
    """HTTP status of an error; 0 if there was no response."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def _error_message(error: Exception, model: HubModel) -> str:
    from huggingface_hub import constants, errors

    endpoint, name = constants.ENDPOINT, model.repository
    sentences = {
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so the Hub can't be used. "
        "Unset the variable, then restart the program.",
        errors.RevisionNotFoundError: f"{name} has no revision {model.revision!r}. See the list of "
        f"revisions at {endpoint}/{name}, or omit the revision.",
        errors.DisabledRepoError: f"{name} was removed from the Hub. Choose another model.",
        errors.GatedRepoError: f"{name} is a gated model. Accept its license at {endpoint}/{name}, "
        f"create a token at {endpoint}/settings/tokens, set HF_TOKEN to it, and restart the program.",
        errors.RepositoryNotFoundError: f"There is no model {name} at {endpoint}, or it is private. "
        "Check the spelling. For a private model, set HF_TOKEN to your token and restart the program.",
    }
    messages = (message for error_type, message in sentences.items() if isinstance(error, error_type))
    return next(messages, "") or connection_message(error, endpoint)


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
