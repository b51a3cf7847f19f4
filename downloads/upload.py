"""Upload of a LoRA to the Hugging Face Hub in one commit, so that it is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import SavingError, first_line
from ..core.hub_upload import HubUpload
from . import hub_models

GIT_FILES = {".gitattributes"}  # the Hub itself puts it into a new repository


def upload_lora(upload: HubUpload) -> str:
    """Create the repository if there is none, upload the files, and return the address; raises SavingError."""
    library = hub_models.import_hub()
    from huggingface_hub import constants, errors

    constants.HF_HUB_DISABLE_XET = True  # it writes logs into the home folder
    name = upload.repository
    if not library.get_token():
        raise SavingError(
            "There is no token for the Hub. Create one with write access at "
            f"{constants.ENDPOINT}/settings/tokens. Then run 'hf auth login', or set HF_TOKEN and restart the "
            "program."
        )
    api, kept = library.HfApi(), set[str]()
    with _explain_errors(name):
        try:
            info = api.model_info(name, timeout=hub_models.TIMEOUT_SECONDS)
        except errors.RepositoryNotFoundError:
            api.create_repo(name, private=not upload.public)
        else:
            # A repository that is there may be of another model, or be seen by people who should not see it.
            there = {file.rfilename for file in info.siblings}
            others, kept = there - {file.name for file in upload.files} - GIT_FILES, there & {"README.md"}
            if others:
                examples = ", ".join(sorted(others)[:3])
                raise SavingError(
                    f"A repository named {name} already exists and contains files that are not part of this "
                    f"upload ({examples}). Choose another name."
                )
            if info.private == upload.public:
                actual, asked = ("private", "public") if info.private else ("public", "private")
                raise SavingError(
                    f"{name} exists and is {actual}, but you asked for a {asked} repository. Change the "
                    "visibility in its settings on the Hub, or choose another name."
                )
    # A card that is there may have been edited, at least its license.
    operations = [library.CommitOperationAdd(f.name, f.content) for f in upload.files if f.name not in kept]
    interrupted = (
        f" The upload was interrupted. None of the files are in {name}, because the Hub accepts either all of "
        "them or none. Upload the LoRA again."
    )
    with _explain_errors(name, interrupted):
        api.create_commit(name, operations, commit_message=f"Upload {upload.lora}")
    return f"{constants.ENDPOINT}/{name}"


@contextmanager
def _explain_errors(name: str, rest: str = "") -> Iterator[None]:
    """Turn errors of the Hub and of the connection into a SavingError; `rest` says what became of the upload."""
    from huggingface_hub import constants, errors

    try:
        yield
    except KeyboardInterrupt as error:
        raise SavingError(f"Stopped.{rest}") from error
    except errors.HFValidationError as error:
        raise SavingError(f"{name} is not a valid repository name: {first_line(error)}") from error
    except (errors.HTTPError, OSError) as error:  # OSError: a file of the LoRA, or the Hub is offline
        status, endpoint, owner = hub_models.http_status(error), constants.ENDPOINT, name.partition("/")[0]
        if isinstance(error, errors.OfflineModeIsEnabled):
            message = (
                "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so nothing can be uploaded. Unset the variable, "
                "then restart the program."
            )
        elif status == 403 or isinstance(error, errors.RepositoryNotFoundError):
            message = (
                f"Your token does not have write access to {owner}. For OWNER, enter your own user name or "
                f"organization, or create a token with write access at {endpoint}/settings/tokens."
            )
        elif status == 409:
            message = f"The name {name} is taken. Choose another name."
        else:
            message = hub_models.connection_message(error, endpoint)
        raise SavingError(f"{message}{rest}") from error
