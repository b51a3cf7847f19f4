"""What the buttons of the Runs tab do with the chosen run or checkpoint: on the disk, the model, or a running run.

An action on the disk returns its message, and raises an error if it is not possible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from ...core.engine import GgufRequest, MergeRequest
from ...core.errors import SavingError
from ...core.files import safe_paths
from ...core.host import Folders
from ...core.jobs import EvidenceMeasured, JobEnded, RecallMeasured
from ...records.folder import LoraEntry, copy_as_lora, inventory, loras, refuse_in_progress, run_files, trash
from ...records.remote import confirm_request, send_request
from ...settings.name_rules import name_problem
from ...settings.parsing import parse_keys
from ...train_utils import format_count, plural, size
from ..base import PageContext, markup


def require_choice(chosen: str | None) -> str:
    if not chosen:
        raise SavingError("Choose a run first.")
    return chosen


def chosen_folder(chosen: str | None, folders: Folders) -> Path:
    return inventory.find_folder(require_choice(chosen), folders)


def run_folder(chosen: str | None, folders: Folders) -> Path:
    return inventory.find_run(require_choice(chosen), folders)


def new_name(typed: str | None, kind: str) -> str:
    """The typed name for a new model or file, without spaces around it."""
    name = (typed or "").strip()
    if problem := name_problem(name, kind) if name else "":
        raise SavingError(f"New name: {problem}")
    return name


def delete(context: PageContext, chosen: str | None, folders: Folders) -> str:
    item = trash.move_to_trash(require_choice(chosen), folders, loaded=context.host.model_status().loras)
    return f"{item.name} is in the trash ({size(item.size)}). To restore it, press 'Restore last deleted'."


def restore_latest(folders: Folders) -> str:
    latest = next(iter(trash.list_trash(folders)), None)
    if latest is None:
        raise SavingError("There is nothing in the trash.")
    restored = trash.restore_item(latest, folders)
    return f"{restored.relative_to(folders.loras).as_posix()} is restored."


def empty_question(context: PageContext) -> str:
    """What would be deleted; empty if the trash is empty or cannot be read."""
    items = context.read_disk(trash.list_trash, ())
    count = f"{len(items)} {plural(len(items), 'item')}"
    return f"Delete {count} permanently ({size(sum(item.size for item in items))})?" if items else ""


def empty_trash(folders: Folders) -> str:
    if not trash.list_trash(folders):
        raise SavingError("There is nothing in the trash.")
    return f"The trash is empty now. {size(trash.empty_trash(folders))} was freed."


def slim_question(context: PageContext, chosen: str | None) -> str:
    """What would be shrunk; empty if that is nothing."""
    checkpoints = context.read_disk(
        lambda folders: inventory.slimmable_checkpoints(chosen_folder(chosen, folders)), []
    )
    return f"Never resume from {format_count(len(checkpoints), 'checkpoint')}?" if checkpoints else ""


def slim(chosen: str | None, folders: Folders) -> str:
    folder = chosen_folder(chosen, folders)
    refuse_in_progress(folder.relative_to(folders.loras).parts[0], folders)
    checkpoints = inventory.slimmable_checkpoints(folder)
    freed, number = sum(loras.slim_checkpoint(checkpoint) for checkpoint in checkpoints), len(checkpoints)
    if not checkpoints:
        kept = "The newest checkpoint, the best one and those that you saved by hand stay complete."
        return f"There is nothing to shrink. {kept}"
    now = f"{format_count(number, 'checkpoint')} now {plural(number, 'contains', 'contain')} only the LoRA"
    return f"{now}, which freed {size(freed)}. You can't resume from {plural(number, 'it', 'them')}."


def save_note(chosen: str | None, note: str | None, folders: Folders) -> str:
    folder = run_folder(chosen, folders)
    run_files.write_note(folder, note or "")
    return f"The note for {folder.name} is saved."


def copy_lora(chosen: str | None, name: str | None, folders: Folders) -> str:
    copy = copy_as_lora(chosen_folder(chosen, folders), (name or "").strip(), folders)
    return f"{copy.name} is now a separate LoRA."


def export_gguf(context: PageContext, chosen: str | None, typed: str | None, folders: Folders) -> str:
    lora, name = require_choice(chosen), new_name(typed, "GGUF file")
    folder = run_folder(lora, folders)
    existing = {file.name for file in folder.glob("*.gguf")}
    request = GgufRequest(lora, str(folder / f"{name}.gguf") if name else "")
    file = context.engine.export_gguf(request, context.host)
    verb = "replaced" if file.name in existing else "saved"
    purpose = "To use the LoRA in llama.cpp, load a GGUF file of the base model and add --lora with this file."
    return f"{file} ({size(file.stat().st_size)}) was {verb}. {purpose}"


def resume(context: PageContext, chosen: str | None) -> str:
    """Resume from the chosen checkpoint, or else from the newest one; returns the message as HTML."""
    folders = context.host.folders
    name, *part = chosen_folder(chosen, folders).relative_to(folders.loras).parts
    if loras.run_status(folders.loras / name) == "finished":
        raise SavingError(
            f"{name} can't be resumed. You can resume a run only if it was stopped, failed, or was "
            "interrupted by a crash."
        )
    message = f"{context.resume_run(folders.loras / name, part[-1] if part else 'newest')} See the Train tab."
    return markup.card("", markup.paragraph(message), mood="good")


def require_lora(chosen: str | None, folders: Folders) -> str:
    name = require_choice(chosen)
    loras.find_lora(name, folders.loras)
    return name


async def attach(context: PageContext, chosen: str | None) -> AsyncIterator[str]:
    """Attach the LoRA to the model in memory, at its full strength."""
    async for status in context.attach_lora(require_lora(chosen, context.host.folders)):
        yield status


async def measure(context: PageContext, chosen: str | None) -> AsyncIterator[str]:
    """Measure what the LoRA learned, forgot and copies; the result ends the status."""
    recalls, evidence = list[RecallMeasured](), None
    name = require_lora(chosen, context.host.folders)
    work = partial(context.engine.evidence, name, context.host)
    async for status, events in context.follow_job("evidence", f"Testing {name}", work):
        recalls += [event for event in events if isinstance(event, RecallMeasured)]
        evidence = next((event for event in events if isinstance(event, EvidenceMeasured)), evidence)
        heading = markup.paragraph(f"{name}:") if recalls or evidence else ""
        yield markup.join([status, heading, markup.evidence(evidence, recalls), markup.recall(recalls)])


async def merge(
    context: PageContext, chosen: str | None, typed: str | None, shard_size: str
) -> AsyncIterator[str]:
    """Merge the LoRA into a model with the typed name, and yield the progress."""
    lora, name = require_lora(chosen, context.host.folders), new_name(typed, "model")
    if not name:
        raise SavingError("New name: enter a name for the model.")
    folder = safe_paths.child(context.host.folders.models, name, "New name")
    if folder.exists():
        raise SavingError(f"New name: a model named {name!r} already exists. Choose another name.")
    request = MergeRequest(lora, str(folder), **parse_keys({"shard_size": shard_size}))
    work = partial(context.engine.merge, request, context.host)
    async for status, events in context.follow_job("merge", f"Merging {lora} into a model", work):
        yield status
        if events and isinstance(end := events[-1], JobEnded) and end.outcome == "finished":
            # The result, and where to choose the new model: the standalone page updates its menu at once.
            where = (
                "in the model menu above" if context.models else "on the Model tab, after you refresh that menu"
            )
            if context.host.own_process is not None:
                where = "under 'What to train'. For llama.cpp, convert it to GGUF"
            text = f"{end.text}. You can choose this model {where}."
            yield markup.card("", markup.paragraph(text), mood="good")


def send(context: PageContext, request: str, chosen: str | None) -> str:
    """Send a request to the chosen run, which another program may train; returns the message as HTML."""
    name = require_choice(chosen).partition("/")[0]
    context.check_writable()
    send_request(name, request, context.host.folders)
    return markup.card("", markup.paragraph(confirm_request(name, request, context.host.folders)), mood="good")


def describe_missing_lora(run: LoraEntry | None, chosen: str) -> str:
    """Why a run or checkpoint can't be attached, tested, copied, merged or exported; empty if it can."""
    if run is None:
        return ""
    folders = dict(zip(run.names, (run.folder, *(part.folder for part in run.parts)), strict=True))
    if loras.has_lora(folders.get(chosen, run.folder)):
        return ""
    reason = f"{chosen} has no saved LoRA, so you can't attach, test, copy, merge or export it."
    if any(map(loras.has_lora, folders.values())):
        return f"{reason} Choose one of its checkpoints instead."
    return f"{reason} Save a checkpoint first." if run.status == "in progress" else reason
