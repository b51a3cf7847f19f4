"""The files of a run: written completely, flat keys first, and drawn whatever the name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_pro.core.files import write_json, write_text
from training_pro.core.jobs import EvaluationDone
from training_pro.records.folder.run_files import log_entry
from training_pro.records.report import Mark, graph_entry
from training_pro.records.report.curve_png import draw_graph

GRAPH = [
    {"current_steps": step, "loss": 3 / step, "smoothed_loss": 3.0, "learning_rate": 1e-3} for step in (1, 2, 3)
]
PNG = b"\x89PNG\r\n\x1a\n"


def test_flat_keys_come_first_and_nothing_is_lost():
    log = log_entry({"extra": 1, "loss": 2.0, "base_model_name": "m", "versions": {}})
    assert list(log) == [
        "base_model_name",
        "base_model_class",
        "base_loaded_in_4bit",
        "base_loaded_in_8bit",
        "projections",
        "loss",
        "learning_rate",
        "epoch",
        "current_steps",
        "extra",
        "versions",
    ]
    assert (log["base_model_name"], log["loss"], log["extra"], log["epoch"]) == ("m", 2.0, 1, None)


def test_an_image_is_written_completely(tmp_path):
    assert draw_graph(GRAPH, "a on tiny", tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(PNG)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.png"]


def test_phases_evaluations_and_checkpoints_are_drawn_too(tmp_path, monkeypatch):
    """A missing number leaves a gap."""
    from matplotlib.figure import Figure

    figures = []

    def savefig(figure, path, **_):
        figures.append(figure)
        path.write_bytes(PNG)

    monkeypatch.setattr(Figure, "savefig", savefig)
    graph = [dict(step, phase="by length" if step["current_steps"] < 3 else "sequential") for step in GRAPH]
    graph[1]["loss"] = None
    evaluation = EvaluationDone(
        step=2, epoch=1.0, why="end", loss=2.5, perplexity=1.0, accuracy=0.5, tokens=9, seconds=1.0
    )
    assert draw_graph(
        [*graph, graph_entry(evaluation)], "a on tiny", tmp_path / "graph.png", [Mark(2, "checkpoint-2")]
    )
    axes = figures[0].axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["loss", "smoothed loss", "validation loss", "learning rate"]
    assert [text.get_text() for text in axes.texts] == ["by length", "sequential", "checkpoint-2"]


def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path):
    assert draw_graph(GRAPH, r"$\frac{$ on tiny", tmp_path / "graph.png")


def test_files_are_written_completely_or_not_at_all(tmp_path, monkeypatch):
    from pathlib import Path

    file = tmp_path / "folder" / "log.json"
    write_json(file, {"name": "größer", "at": Path("x")})
    assert json.loads(file.read_text(encoding="utf-8")) == {"name": "größer", "at": "x"}
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("the power went")))
    with pytest.raises(OSError, match="the power went"):
        write_text(file, "half")
    assert json.loads(file.read_text(encoding="utf-8"))["name"] == "größer"


def test_the_font_cache_stays_out_of_the_home_folder(tmp_path):
    """In a process of its own, since matplotlib reads the folder only when it is imported."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "import conftest; from training_pro.records.report.curve_png import draw_graph\n"
        "graph = [{'current_steps': 1, 'loss': 1.0, 'smoothed_loss': 1.0, 'learning_rate': 1.0, 'epoch': 1.0}]\n"
        "draw_graph(graph, 'a', Path(sys.argv[2]) / 'graph.png', cache=Path(sys.argv[2]) / 'cache')\n"
        "import matplotlib; print(matplotlib.get_cachedir())\n"
    )
    tests = Path(__file__).resolve().parents[2]
    env = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    env.pop("MPLCONFIGDIR", None)
    process = subprocess.run(
        [sys.executable, "-c", code, str(tests), str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.strip() == str(tmp_path / "cache"), process.stderr
    assert not (tmp_path / "home").exists()
