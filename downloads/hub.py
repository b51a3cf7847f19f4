"""The Hugging Face hub, asked by its own library: what there is of a model, its files, its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..core.errors import ModelError, first_line
from . import hub_models
from .hub_models import Offer, Part, Wanted

PATIENCE_SECONDS = 30
"""Without a byte; then the line counts as dead."""


def offer(asked: Wanted) -> Offer:
    """What is brought of it; a ModelError where that is nothing that can be trained here."""
    with in_words(asked):
        info = library().HfApi().model_info(
            asked.repository, revision=asked.revision, files_metadata=True, timeout=PATIENCE_SECONDS
        )  # fmt: skip
        files = {file.rfilename: _part(file) for file in info.siblings}
        about = info.card_data or {}
        base, read = _first(about.get("base_model")), partial(_json, asked, info.sha)
        _refuse(hub_models.no_model(asked.repository, files, base))
        config = read("config.json")
        _refuse(hub_models.not_for_training(asked.repository, config, base))
        _refuse(_not_known(asked.repository, str(config.get("model_type", ""))))
        names = hub_models.needed(files, read)
    if lacking := hub_models.missing(names, files):
        _refuse(f"{asked.words} is not whole on the hub: it lacks {', '.join(lacking)}. Choose another model.")
    parts = sorted((files[name] for name in names), key=lambda part: part.size)
    return Offer(asked, info.sha, config["model_type"], _first(about.get("license")), tuple(parts))


@contextmanager
def stream(asked: Wanted, commit: str, name: str, *, begin: int = 0) -> Iterator[Any]:
    """A file of the repository's as it comes, from that byte on."""
    from huggingface_hub.utils import build_hf_headers

    there = library()
    headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={begin}-"}
    if not begin:
        del headers["Range"]
    address = there.hf_hub_url(asked.repository, name, revision=commit)
    with there.get_session().stream("GET", address, headers=headers, timeout=PATIENCE_SECONDS) as answer:
        there.hf_raise_for_status(answer)
        yield answer


@contextmanager
def in_words(asked: Wanted) -> Iterator[None]:
    """What goes wrong with the hub inside becomes a ModelError that says what to do."""
    try:
        yield
    except troubles() as error:
        raise ModelError(_sentence(error, asked)) from error


def troubles() -> tuple[type[Exception], ...]:
    """What the hub and the line to it may raise; by the library's own name for it, whichever way it speaks."""
    from huggingface_hub import errors

    return errors.HTTPError, errors.OfflineModeIsEnabled


def passes(error: Exception) -> bool:
    """Whether it may be over in a moment: a broken line, or a hub that has too much to do."""
    status = _status(error)
    return status == 429 or status == 0 or status >= 500


def library() -> Any:
    """The library of the hub; what it would tell of this machine it keeps a file for, in the home folder."""
    import huggingface_hub
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
    return huggingface_hub


def _part(file: Any) -> Part:
    return Part(file.rfilename, file.size, file.lfs.sha256 if file.lfs else file.blob_id, bool(file.lfs))


def _first(value: Any) -> str:
    """What stands in a model's card alone or in a list; what are no words is nothing."""
    one = value[0] if isinstance(value, list) and value else value
    return one if isinstance(one, str) else ""


def _refuse(reason: str) -> None:
    if reason:
        raise ModelError(reason)


def _not_known(name: str, kind: str) -> str:
    """Why transformers cannot load a model of this kind; empty where it can."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return ""
    return (
        f"{name} is of a kind ({kind or 'its config names none'}) that transformers {transformers.__version__} "
        "loads as no causal language model. A newer transformers may; or choose another model."
    )


def _json(asked: Wanted, commit: str, name: str) -> Mapping[str, Any]:
    with stream(asked, commit, name) as answer:
        text = answer.read()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ModelError(f"{name} of {asked.words} is broken on the hub: it is no JSON. Choose another model.")
    return found


def _status(error: Exception) -> int:
    """What the hub answered; 0 where no answer came."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def _sentence(error: Exception, asked: Wanted) -> str:
    from huggingface_hub import constants, errors

    there, name = constants.ENDPOINT, asked.repository
    sentences = {
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so nothing is asked of the "
        "hub. Take it out of the environment, then start again.",
        errors.RevisionNotFoundError: f"{name} has no revision {asked.revision!r}. Look which there are at "
        f"{there}/{name}, or leave it out.",
        errors.DisabledRepoError: f"{name} was taken off the hub. Choose another model.",
        errors.GatedRepoError: f"{name} is for those whom its makers let in: accept its licence at "
        f"{there}/{name}, make a token at {there}/settings/tokens, and set HF_TOKEN to it before you start.",
        errors.RepositoryNotFoundError: f"There is no model {name} at {there}, or it is private. Look how it "
        "is spelt; for a private one set HF_TOKEN to your token before you start.",
    }
    found = (words for kind, words in sentences.items() if isinstance(error, kind))
    return next(found, "") or _of_the_line(error, there)


def _of_the_line(error: Exception, there: str) -> str:
    """What is no refusal of this model."""
    status, said = _status(error), first_line(error).rstrip(".")
    if not status:
        return (
            f"{there} cannot be reached ({said}). Is there a network? A proxy is named by HTTPS_PROXY, a mirror "
            "of the hub by HF_ENDPOINT."
        )
    if status == 401:
        return f"{there} does not know the token in use. Set HF_TOKEN to another one, or to none."
    if status == 403:
        return f"{there} refuses it to the token in use ({said}). Set what it may read at {there}/settings/tokens."
    return f"{there} answers {status} ({said}). Try again in a while."
