"""training_graph.png: the run as a picture, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw(graph: Sequence[Mapping[str, Any]], title: str, path: Path) -> bool:
    """Draw loss, smoothed loss and learning rate; False where matplotlib is not there."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    loss = figure.add_subplot()
    steps = [entry["current_steps"] for entry in graph]
    loss.plot(steps, [e["loss"] for e in graph], color="#9db8d9", linewidth=1, label="loss")
    loss.plot(steps, [e["smoothed_loss"] for e in graph], color="#1f5fa8", linewidth=2, label="smoothed loss")
    rate = loss.twinx()
    rate.plot(steps, [e["learning_rate"] for e in graph], color="#c77d1a", linestyle="--", label="learning rate")
    loss.set_xlabel("step")
    loss.set_ylabel("loss")
    rate.set_ylabel("learning rate")
    loss.set_title(title, fontsize=10, parse_math=False)  # a name may hold two $
    lines = [*loss.get_lines(), *rate.get_lines()]
    loss.legend(lines, [str(line.get_label()) for line in lines], loc="upper right")
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="png", dpi=110)
    part.replace(path)
    return True
