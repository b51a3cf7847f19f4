"""Upload of a LoRA to the Hugging Face Hub in one commit, so that it is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..core.errors import SavingError, first_line
from ..core.hub_upload import HubUpload
from . import hub

GIT_FILES = {".gitattributes"}
"""Files that the Hub itself puts into a new repository."""


def upload_lora(upload: HubUpload) -> str:
    """Create the repository if there is none, upload the files, and return the address; raises SavingError.

    The token comes from where huggingface_hub keeps it, and is passed to nothing else.
    """
    library = hub.import_hub()
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_XET = True  # it writes logs into the home folder
    if not library.get_token():
        raise SavingError(_NO_TOKEN.format(endpoint=constants.ENDPOINT))
    api = library.HfApi()
    with _explain_errors(upload):
        if not _is_there(api, upload):
            api.create_repo(upload.repository, private=not upload.public)
    with _explain_errors(upload, interrupted=True):
        api.create_commit(upload.repository, _operations(library, upload), commit_message=f"Upload {upload.lora}")
    return f"{constants.ENDPOINT}/{upload.repository}"


def _is_there(api: Any, upload: HubUpload) -> bool:
    """Whether the repository exists; SavingError if it holds something else, or is not as visible as asked."""
    from huggingface_hub import errors

    name = upload.repository
    try:
        info = api.model_info(name, timeout=hub.TIMEOUT_SECONDS)
    except errors.RepositoryNotFoundError:
        return False
    others = {file.rfilename for file in info.siblings} - {file.name for file in upload.files} - GIT_FILES
    if others:
        examples = ", ".join(sorted(others)[:3])
        raise SavingError(
            f"A repository named {name} already exists and contains files that are not part of this upload "
            f"({examples}). Choose another name."
        )
    if info.private == upload.public:
        actual, asked = ("private", "public") if info.private else ("public", "private")
        raise SavingError(
            f"{name} exists and is {actual}, but you asked for a {asked} repository. Change the visibility in its "
            "settings on the Hub, or choose another name."
        )
    return True


def _operations(library: Any, upload: HubUpload) -> list[Any]:
    return [
        library.CommitOperationAdd(
            file.name, file.content if isinstance(file.content, bytes) else str(file.content)
        )
        for file in upload.files
    ]


@contextmanager
def _explain_errors(upload: HubUpload, *, interrupted: bool = False) -> Iterator[None]:
    """Turn errors of the Hub and of the connection into a SavingError; say what became of the upload."""
    from huggingface_hub import errors

    failures: tuple[type[Exception], ...] = (*hub.hub_errors(), OSError)
    rest = f" {INTERRUPTED.format(name=upload.repository)}" if interrupted else ""
    try:
        yield
    except KeyboardInterrupt as error:
        raise SavingError(f"Stopped.{rest}") from error
    except errors.HFValidationError as error:
        raise SavingError(f"{upload.repository} is not a valid repository name: {first_line(error)}") from error
    except failures as error:
        raise SavingError(f"{_error_message(error, upload)}{rest}") from error


def _error_message(error: Exception, upload: HubUpload) -> str:
    from huggingface_hub import constants, errors

    status, endpoint, owner = hub.http_status(error), constants.ENDPOINT, upload.repository.partition("/")[0]
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so nothing can be uploaded. Unset the variable, then "
            "restart the program."
        )
    if status == 403 or isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"Your token does not have write access to {owner}. For OWNER, enter your own user name or "
            f"organization, or create a token with write access at {endpoint}/settings/tokens."
        )
    if status == 409:
        return f"The name {upload.repository} is taken. Choose another name."
    return hub.connection_message(error, endpoint)


INTERRUPTED = (
    "The upload was interrupted. None of the files are in {name}, because the Hub accepts either all of them or "
    "none. Upload the LoRA again."
)
_NO_TOKEN = (
    "There is no token for the Hub. Create one with write access at {endpoint}/settings/tokens. Then run 'hf auth "
    "login', or set HF_TOKEN and restart the program."
)
