"""Save a LoRA or a fine-tuned model despite disk errors: retry, free space, another name or folder, or later."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from ...core.errors import SavingError, first_line
from ...core.files import is_disk_full, write_error_reason
from ...core.host import Folders, Host, ModelCard
from ...core.jobs import Advice, EventLog, Job, Note, Request, RunPlanned
from ...records.folder import RunFolder, loras
from ...settings.definitions import TrainingSettings
from ..lora import adapter
from ..plan import RunPlan

WriteFn = Callable[[Path], None]
# docs/keeping.md says in which order the places are tried.
SAVE_ATTEMPTS = 3
PAUSE_SECONDS = 1.0
# Hours of training are in memory, so that nothing but the user ends the attempts.
RETRY_SECONDS = 10.0
RESCUE_FOLDER = "rescued"

TOKENIZER_FILES = (
    *("tokenizer*", "*.model", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", "*processor_config.json", "tekken.json", "*.tiktoken", "tokenization_*.py"),
)


def save_with_fallbacks(folder: RunFolder, folders: Folders, write: WriteFn, job: Job) -> RunFolder:
    """Save the LoRA and return its folder; SavingError only if the user gives it up."""
    while True:
        problems: list[str] = []
        for candidate in _candidate_folders(folder, folders):
            temporary = candidate.empty_weights_folder()
            existed = candidate.path.exists()
            try:
                write(temporary)
                candidate.move_into_place(temporary)
            except OSError as error:
                reason = write_error_reason(error, candidate.path)
                problems.append(f"{candidate.path} could not be written: {reason}.")
                full = is_disk_full(error, candidate.path)  # checked before the incomplete files are removed
                shutil.rmtree(temporary if existed else candidate.path, ignore_errors=True)
                if full:
                    loras.free_disk_space(candidate.path, candidate.start)
                continue
            if candidate is not folder:
                job.log.append(Advice(text=f"{problems[0]} The LoRA was saved in {candidate.path} instead."))
            return candidate
        # The LoRA stays in memory until there is space, or the user gives it up.
        said = list(dict.fromkeys(problems))
        if job.control.asked(Request.DISCARD):
            raise SavingError("\n".join(["The LoRA could not be saved:", *said]))
        job.log.append(
            Advice(
                text=f"The LoRA is finished but could not be saved anywhere: {' '.join(said)} The LoRA stays in "
                f"memory, and Training PRO tries to save it again every {RETRY_SECONDS:g} s. Free some space, or "
                "press 'Stop and discard' to discard the LoRA."
            )
        )
        time.sleep(RETRY_SECONDS)


def _candidate_folders(folder: RunFolder, folders: Folders) -> Iterator[RunFolder]:
    """Folders to try: its own, several times; another name; another folder, perhaps on another disk."""
    for attempt in range(SAVE_ATTEMPTS):
        time.sleep(PAUSE_SECONDS if attempt else 0)
        yield folder
    # Perhaps only this one folder can't be written.
    yield replace(folder, path=folder.path.with_name(loras.free_name(folder.path.parent, folder.name)))
    for parent in (folders.user_data / RESCUE_FOLDER, Path(tempfile.gettempdir()) / RESCUE_FOLDER):
        exists = (parent / folder.name).exists()
        name = loras.free_name(parent, folder.name) if exists else folder.name
        yield replace(folder, path=parent / name)


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Save a model with its generation config as it is."""
    # transformers refuses to save values that have no effect without do_sample. Many published models have some,
    # and the webui sets one in every generation config. `do_sample` of the stand-in makes every other value
    # allowed; the model's own file is written below.
    own = model.generation_config
    model.generation_config = GenerationConfig(do_sample=True)
    try:
        model.save_pretrained(folder, **options)
    finally:
        model.generation_config = own
    own.to_json_file(folder / GENERATION_CONFIG_NAME)


def write_record(write: Callable[[], object], folder: Path, log: EventLog) -> None:
    """Write a record next to the LoRA; a failure is logged and the LoRA is kept."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - the LoRA is saved; matplotlib may be one that can't be imported
        reason = write_error_reason(error, folder) if isinstance(error, OSError) else first_line(error)
        log.append(Note(text=f"A file in the LoRA's folder could not be saved: {reason}."))


@contextmanager
def unload_if_trained(settings: TrainingSettings, host: Host, job: Job) -> Iterator[None]:
    """Unload a model that was fully fine-tuned; its weights changed, so the next use loads it again."""
    try:
        yield
    finally:
        if settings.lora.whole_model and any(isinstance(event, RunPlanned) for event in job.log.since(0)):
            names = host.model_status().loras
            host.unload()
            removed = f" {adapter.removed_message(names)}" if names else ""
            unloaded = "The run changed the weights of the loaded model, so Training PRO unloaded it."
            again = f"It will load the model again when you need it.{removed}"
            job.log.append(Note(text=f"{unloaded} {again}"))


def save_tokenizer(card: ModelCard, base: Any, folder: Path) -> None:
    """Copy the tokenizer as it is: llama.cpp's converter can't read all that transformers 5 writes."""
    own = Path(str(getattr(base, "name_or_path", "") or folder))
    files = {file for pattern in TOKENIZER_FILES for file in own.glob(pattern) if file.is_file()}
    if card.tokenizer_name or card.given_name.endswith(".gguf") or not any("token" in file.name for file in files):
        card.tokenizer.save_pretrained(folder)
        return
    for file in files:
        shutil.copyfile(file, folder / file.name)


def save_trained_model(run: RunPlan, model: Any, folder: Path) -> None:
    """Save the result of a run: the LoRA, or the model in shards with its tokenizer."""
    if not run.settings.lora.whole_model:
        adapter.save_adapter(model, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Training switches the cache off; saved so, the model would generate without it for whoever loads it.
    use_cache, model.config.use_cache = model.config.use_cache, True
    try:
        with adapter.translate_write_errors():
            save_model(model, folder, max_shard_size=run.settings.machine.shard_size)
            save_tokenizer(run.card, model, folder)
    finally:
        model.config.use_cache = use_cache
