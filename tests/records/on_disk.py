"""Folders of LoRAs as runs leave them, written without any training."""

from __future__ import annotations

import json
from pathlib import Path


def write_files(root: Path, name: str, files: dict[str, object]) -> Path:
    """Write a folder with these files; content that is not text is written as JSON."""
    for path, content in files.items():
        file = root / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return root / name


def lora(prefix: str = "") -> dict[str, object]:
    config = {"base_model_name_or_path": "C:\\models\\toy-7B\\"}
    return {f"{prefix}adapter_config.json": config, f"{prefix}adapter_model.safetensors": "weights"}


def checkpoint(name: str, step: int, loss: float = 2.0) -> dict[str, object]:
    graph = [{"current_steps": s, "loss": loss + step - s, "smoothed_loss": loss} for s in range(1, step + 1)]
    state = {"step": step, "smoothed": loss, "graph": graph}
    return {**lora(f"{name}/"), f"{name}/run_state.json": state, f"{name}/optimizer.pt": 100 * "o"}


LOG = {
    "base_model_name": "toy",
    "current_steps": 8,
    "steps": 8,
    "loss": 1.5,
    "smoothed_loss": 1.75,
    "ended": "finished",
    "ended_at": "2026-11-21T06:40:00+00:00",
}
SAMPLE = '{{"event": "sample_generated", "at": 0.0, "step": {}, "prompt": "", "text": "a", "without": ""}}\n'
FINISHED: dict[str, object] = {
    **lora(),
    "training_log.json": LOG,
    "training_parameters.json": {"name": "story", "rank": 4},
    "training_prompt.json": {"kind": "text"},
    "samples.jsonl": "".join(SAMPLE.format(step) for step in (0, 8)),
    "notes.txt": "the good one\n",
    **checkpoint("checkpoint-4-epoch-1", 4, 2.5),
    **checkpoint("checkpoint-6-user", 6),
    **checkpoint("checkpoint-8-epoch-2", 8),
    **lora("Backup-2026-11-20/"),
    "Backup-2026-11-20/training_log.json": {"base_model_name": "older", "current_steps": 3, "ended": "finished"},
    "Backup-2026-11-20/training_parameters.json": {"name": "story", "rank": 2},
}
CUT_OFF: dict[str, object] = {
    "training_parameters.json": {"name": "night"},
    **checkpoint("checkpoint-4", 4, 2.5),
    **checkpoint("backup/checkpoint-5", 5, 2.25),
    **lora("checkpoint-2/"),
}
