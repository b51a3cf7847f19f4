"""How fast an earlier run went: what one to come will take, if it goes like that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.files import read_json
from ...core.host import ModelCard
from ...train_utils import duration
from ..folder import GRAPH, LOG, is_hidden
from .graph_file import steps_of

FEWEST_STEPS = 3


def expected_time(tokens: float, card: ModelCard, method: str, kept: Path) -> Iterator[str]:
    """By the last run with this model, loaded and trained the same way; nothing where there is none."""
    for name, log in _alike(card, method, kept):
        if speed := _tokens_a_second(kept / name / GRAPH):
            yield (
                f"Time: about {duration(tokens / speed)}, if it goes as {name} did with this model "
                f"({log.get('device')}, {speed:,.0f} tokens a second). Test one step measures it."
            )
            return


def _alike(card: ModelCard, method: str, kept: Path) -> list[tuple[str, dict[str, Any]]]:
    """The runs that tell something of it, the newest first."""
    folders = [path for path in kept.iterdir() if not is_hidden(path)] if kept.is_dir() else []
    logs = [(folder.name, read_json(folder / LOG, {})) for folder in folders]
    same = (card.name, card.loading, method)
    found = [one for one in logs if tuple(map(one[1].get, ("base_model_name", "loaded_as", "method"))) == same]
    return sorted(found, key=lambda one: str(one[1].get("ended_at")), reverse=True)


def _tokens_a_second(graph: Path) -> float:
    """Of all steps but the first, which also makes everything ready; 0 where there are too few."""
    steps = [e for e in steps_of(read_json(graph, [])) if e.get("tokens") and e.get("seconds")]
    if len(steps) < FEWEST_STEPS:
        return 0.0
    return float(sum(e["tokens"] for e in steps[1:]) / sum(e["seconds"] for e in steps[1:]))
