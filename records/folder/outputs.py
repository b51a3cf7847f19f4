"""What is made from a LoRA: a LoRA of its own from a checkpoint, an upload to the Hub, and where files may go."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import SavingError, first_line
from ...core.files import PART_SUFFIX, atomic_write, read_json, safe_paths, write_json
from ...core.host import Folders
from ...core.hub_upload import REPOSITORY, HubUpload, UploadFile
from ...core.readable import quote
from ...settings.name_rules import name_problem
from ...train_utils import checkpoint_step
from . import loras, run_files
from .loras import ADAPTER_FILES, ADAPTER_WEIGHTS

MODEL_CONFIG, CONFIG, CARD = "config.json", ADAPTER_FILES[0], "README.md"
# What a log says about the run as a whole, which is not true of its earlier checkpoints.
JUDGED_ENTRIES = ("verdict", "ended_because", "ended_at", "training_time", "phases", "context_gain")
# Settings in the model card; none of them names a dataset.
CARD_SETTINGS = (
    *("rank", "alpha", "targets", "cutoff", "batch_size", "accumulation", "learning_rate", "schedule"),
)


def choose_output(text: str, folders: Folders, *, own: Path | None = None) -> Path:
    """Return the absolute path of a new file or folder; refuse one inside a LoRA, a model or a folder of ours.

    `own` is the LoRA that is written out: its files may lie beside it.
    """
    if not text.strip() or "\x00" in text:
        raise SavingError(f"{quote(text)} is not a path. Enter the path of a new file or folder.")
    try:
        out = Path(text).expanduser().absolute()
    except RuntimeError as error:  # ~NAME, without a user of that name
        raise SavingError(f"The user named in {quote(text)} does not exist. Enter another path.") from error
    if problem := safe_paths.name_fault(out.name):
        raise SavingError(f"{quote(out.name)} {problem}. Choose another name.")
    try:
        place = out.resolve()
        owner = next((f for f in (place, *place.parents) if _description(f, folders)), None)
    except (OSError, RuntimeError, ValueError) as error:  # a path that is too long, or a link to itself
        raise SavingError(f"{out} can't be written: {first_line(error)}. Choose another folder.") from error
    if owner is not None and (own is None or owner != own.resolve()):
        raise SavingError(
            f"{out} is {'' if owner == place else 'in '}{_description(owner, folders)}. Choose a separate folder."
        )
    return out


def _description(folder: Path, folders: Folders) -> str:
    """What a folder belongs to, in words; empty if it is free."""
    among_loras = folder.parent == folders.loras.resolve()
    if loras.has_lora(folder) or (folder / run_files.PARAMETERS).is_file() or (among_loras and folder.is_dir()):
        return f"the folder of the LoRA {quote(folder.name)}"
    among_models = folder.parent == folders.models.resolve()
    if loras.has_weights(folder) or (among_models and (folder / MODEL_CONFIG).is_file()):
        return f"the folder of the model {quote(folder.name)}"
    if folder in {path.resolve() for path in (folders.training, folders.logs, folders.examples)}:
        return f"Training PRO's own folder {quote(folder.name)}"
    return "the trash" if among_loras and run_files.is_hidden(folder) else ""


def copy_as_lora(checkpoint: Path, name: str, folders: Folders) -> Path:
    """Copy the LoRA of a checkpoint to `loras/NAME`, with the records up to its step; the checkpoint stays."""
    if problem := name_problem(name):
        raise SavingError(f"Name: {problem}")
    target = safe_paths.child(folders.loras, name, "Name")
    if target.exists():
        raise SavingError(f"Name: {name!r} already exists. Choose another name.")
    if not loras.has_lora(checkpoint):
        raise SavingError(f"{checkpoint} has no LoRA. Choose another checkpoint.")
    has_records = (checkpoint / run_files.PARAMETERS).is_file()  # a backup of a whole LoRA has its own
    run = checkpoint if has_records else run_files.run_folder_of(checkpoint)
    run_log: dict[str, Any] = dict(run_files.read_log(run))
    step = checkpoint_step(checkpoint.name) or (run_log.get("current_steps") or 0)
    entries = run_files.read_state(checkpoint).get("graph") or run_files.read_graph(run)
    graph = [entry for entry in entries if entry["current_steps"] <= step]
    samples = [sample for sample in run_files.read_samples(run) if sample.step <= step]

    # The log of the run, if there is one, with the figures of this step.
    is_last = has_records or step == run_log.get("current_steps")  # the last state of the run
    of_others = ["recall", *(() if has_records else ("kept_step", "kept_because"))]
    of_others += [] if is_last else JUDGED_ENTRIES
    log = {key: value for key, value in run_log.items() if key not in of_others}
    if recalls := [recall.as_log() for recall in run_log.get("recall", []) if recall.step <= step]:
        log["recall"] = recalls
    last: Mapping[str, Any] = next((entry for entry in reversed(graph) if "loss" in entry), {})
    log |= {key: last[key] for key in ("loss", "smoothed_loss", "learning_rate", "epoch") if key in last}
    lora = run.parent if has_records else run
    log["made_from"] = f"{lora.name}/{checkpoint.relative_to(lora).as_posix()}"
    log |= {"current_steps": step, "ended": run_log.get("ended", "stopped") if is_last else "stopped"}

    hidden = f"{name}{PART_SUFFIX}{run_files.HIDDEN_SUFFIX}"  # hidden until it is complete
    try:
        with atomic_write(target, hidden) as partial:
            partial.mkdir()
            files = [
                *(checkpoint / file for file in ADAPTER_FILES),
                run / run_files.TRAINING_PROMPT,
                run / run_files.DATA_SAMPLE,
            ]
            for file in filter(Path.is_file, files):
                shutil.copy2(file, partial / file.name)
            write_json(partial / run_files.LOG, run_files.log_entry(log))
            if graph:
                write_json(partial / run_files.GRAPH, graph)
            if parameters := run_files.read_parameters(run):
                write_json(partial / run_files.PARAMETERS, {**parameters, "name": name})
            if samples:
                run_files.write_samples(partial, samples)
    except OSError as error:
        raise SavingError(f"{target} can't be written: {error.strerror or error}.") from error
    return target


def plan_upload(
    folder: Path, name: str, repository: str, *, public: bool = False, base: str = "", also: Sequence[str] = ()
) -> HubUpload:
    """The files of the LoRA in `folder`; `also` names other files in it, which stay here otherwise."""
    config: dict[str, Any] = read_json(folder / CONFIG, {})
    if not config:
        raise SavingError(f"{folder / CONFIG} is missing or damaged, so {name} can't be uploaded.")
    if base and not REPOSITORY.fullmatch(base):
        raise SavingError(f"{base!r} is not of the form OWNER/NAME. Enter the OWNER/NAME of the base model.")
    if not base:
        base = str(config.get("base_model_name_or_path") or "")
        if Path(base).exists() or not REPOSITORY.fullmatch(base):
            # Without its local folder, which may contain the name of a person.
            base = re.split(r"[\\/]", base.rstrip("\\/"))[-1]
    # PEFT writes the path from which the model was loaded into the config. On the Hub, it would lead nowhere.
    config["base_model_name_or_path"] = base
    files = [UploadFile(CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())]
    files += [UploadFile(file, folder / file) for file in ADAPTER_WEIGHTS if (folder / file).is_file()]
    files.append(UploadFile(CARD, _model_card(folder, repository, config).encode()))
    logs = [run_files.read_log(place) for place in (folder, run_files.run_folder_of(folder))]
    # A run that crashed and was kept does not know its data.
    is_private = any(log.get("kept_after_crash") or log.get("data", {}).get("private") for log in logs)
    left_out = tuple(extra for extra in also if is_private and extra in run_files.RECORDS)
    for extra in (extra for extra in also if extra not in left_out):
        path = safe_paths.child(folder, extra, "File")
        if not path.is_file() or extra in (CONFIG, *ADAPTER_WEIGHTS, CARD):
            raise SavingError(
                f"File: {extra!r} does not exist in {folder}, or it is one of the files that are always uploaded. "
                "Remove it from the list."
            )
        files.append(UploadFile(extra, path))
    return HubUpload(name, repository, public, tuple(files), left_out)


def _model_card(folder: Path, repository: str, config: Mapping[str, Any]) -> str:
    """The model card: base model, settings, and how to load it. The license is left to the user."""
    base = config["base_model_name_or_path"]
    known = bool(REPOSITORY.fullmatch(base))
    settings = {**run_files.read_parameters(run_files.run_folder_of(folder)), **run_files.read_parameters(folder)}
    if settings.get("alpha") == "auto":
        settings["alpha"] = config.get("lora_alpha", "auto")
    shown = [f"| {key} | `{settings[key]}` |" for key in CARD_SETTINGS if key in settings]
    return "\n".join(
        [
            "---",
            *([f"base_model: {base}"] if known else []),
            *("library_name: peft", "pipeline_tag: text-generation", "tags:", "- lora", "---", ""),
            *(f"# {repository.partition('/')[2]}", ""),
            *(f"A LoRA for `{base or 'an unknown base model'}`, trained with Training PRO.", ""),
            *(["| setting | value |", "| --- | --- |", *shown, ""] if shown else []),
            *("```python", "from peft import PeftModel", "from transformers import AutoModelForCausalLM", ""),
            f'model = AutoModelForCausalLM.from_pretrained("{base if known else "OWNER/BASE_MODEL"}")',
            *(f'model = PeftModel.from_pretrained(model, "{repository}")', "```", ""),
        ]
    )
