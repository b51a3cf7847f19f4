"""The files of a LoRA for the Hugging Face Hub: weights, config without local paths, and a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import read_json, safe_paths
from ...core.hub_upload import REPOSITORY, HubUpload, UploadFile
from .filenames import run_folder_of
from .loras import ADAPTER_FILES, ADAPTER_WEIGHTS
from .run_records import read_parameters

CARD = "README.md"
CONFIG = ADAPTER_FILES[0]
CARD_SETTINGS = (
    "rank",
    "alpha",
    "targets",
    "cutoff",
    "batch_size",
    "accumulation",
    "epochs",
    "learning_rate",
    "schedule",
)
"""Settings in the model card; none of them names a dataset."""


def plan_upload(
    folder: Path, name: str, repository: str, *, public: bool = False, base: str = "", also: Sequence[str] = ()
) -> HubUpload:
    """The files of the LoRA in `folder`; `also` names other files in it, which stay here otherwise."""
    config: dict[str, Any] = read_json(folder / CONFIG, {})
    if not config:
        raise SavingError(f"{folder / CONFIG} is missing or damaged, so {name} can't be uploaded.")
    if base and not REPOSITORY.fullmatch(base):
        raise SavingError(f"{base!r} is not of the form OWNER/NAME. Enter the OWNER/NAME of the base model.")
    config["base_model_name_or_path"] = base or _public_name(str(config.get("base_model_name_or_path") or ""))
    files = [UploadFile(CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())]
    files += [UploadFile(file, folder / file) for file in ADAPTER_WEIGHTS if (folder / file).is_file()]
    files.append(UploadFile(CARD, _model_card(folder, repository, config).encode()))
    files += [_extra_file(folder, file) for file in also]
    return HubUpload(name, repository, public, tuple(files))


def _public_name(base: str) -> str:
    """The name of a base model without its local folder, which may contain the name of a person."""
    if REPOSITORY.fullmatch(base) and not Path(base).exists():
        return base
    return re.split(r"[\\/]", base.rstrip("\\/"))[-1]


def _extra_file(folder: Path, name: str) -> UploadFile:
    path = safe_paths.child(folder, name, "File")
    if not path.is_file() or name in (CONFIG, *ADAPTER_WEIGHTS, CARD):
        raise SavingError(
            f"File: {name!r} does not exist in {folder}, or it is one of the files that are always uploaded. "
            "Remove it from the list."
        )
    return UploadFile(name, path)


def _model_card(folder: Path, repository: str, config: Mapping[str, Any]) -> str:
    """The model card: base model, settings, and how to load it. The license is left to the user."""
    base = config["base_model_name_or_path"]
    known = bool(REPOSITORY.fullmatch(base))
    settings = {**read_parameters(run_folder_of(folder)), **read_parameters(folder)}
    if settings.get("alpha") == "auto":
        settings["alpha"] = config.get("lora_alpha", "auto")
    title = repository.partition("/")[2]
    return "\n".join(
        [
            "---",
            *([f"base_model: {base}"] if known else []),
            *("library_name: peft", "pipeline_tag: text-generation", "tags:", "- lora", "---", ""),
            *(f"# {title}", "", f"A LoRA for `{base or 'an unknown base model'}`, trained with Training PRO.", ""),
            *_settings_table(settings),
            *_usage(repository, base if known else "OWNER/BASE_MODEL"),
        ]
    )


def _settings_table(settings: Mapping[str, Any]) -> Iterator[str]:
    values = {key: settings[key] for key in CARD_SETTINGS if key in settings}
    if values:
        yield from ("| setting | value |", "| --- | --- |")
        yield from (f"| {key} | `{value}` |" for key, value in values.items())
        yield ""


def _usage(repository: str, base: str) -> Iterator[str]:
    yield from ("```python", "from peft import PeftModel", "from transformers import AutoModelForCausalLM", "")
    yield f'model = AutoModelForCausalLM.from_pretrained("{base}")'
    yield from (f'model = PeftModel.from_pretrained(model, "{repository}")', "```", "")
