"""The folder of a run in training: locked for every process until its process ends, and its picture."""

import os
import subprocess
import sys

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.core.jobs import EvaluationDone
from training_pro.records.folder import hold_run_lock, is_in_progress
from training_pro.records.report import Mark, curve_png, graph_entry
from training_pro.tests.conftest import ROOT
from training_pro.tests.fakes import make_folders

GRAPH = [{"current_steps": n, "loss": 3 / n, "smoothed_loss": 3.0, "learning_rate": 1e-3} for n in (1, 2, 3)]
PNG = b"\x89PNG\r\n\x1a\n"
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import conftest; from pathlib import Path\n"
HOLDING = PROGRAM + (
    "from training_pro.hosts.standalone import standalone_folders\n"
    "from training_pro.records.folder import hold_run_lock\n"
    "with hold_run_lock('a', standalone_folders(Path(sys.argv[1]))):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)
DRAWING = PROGRAM + (
    "from training_pro.records.report import curve_png\n"
    "graph = [{'current_steps': 1, 'loss': 1.0, 'smoothed_loss': 1.0, 'learning_rate': 1.0, 'epoch': 1.0}]\n"
    "curve_png.draw_graph(graph, 'a', Path(sys.argv[1]) / 'graph.png', cache=Path(sys.argv[1]) / 'cache')\n"
    "import matplotlib; print(matplotlib.get_cachedir())\n"
)


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path)


def test_a_lock_is_held_only_inside_and_by_the_first_of_several_processes(folders, monkeypatch):
    with pytest.raises(ZeroDivisionError), hold_run_lock("a", folders):
        assert is_in_progress("a", folders) and not is_in_progress("b", folders)
        with pytest.raises(BusyError, match=r"'a' is being trained\. Stop the run"), hold_run_lock("a", folders):
            pass
        monkeypatch.setenv("RANK", "1")
        with hold_run_lock("a", folders):
            pass
        raise ZeroDivisionError
    assert not is_in_progress("a", folders)
    assert not list((folders.user_data / "training").glob("*.lock"))


def test_another_process_holds_it_until_it_dies(folders):
    command = [sys.executable, "-c", HOLDING, str(folders.user_data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert is_in_progress("a", folders)
        other.kill()
    assert not is_in_progress("a", folders)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    folders = make_folders(tmp_path)
    (tmp_path / "user" / "training" / "datasets").rmdir()
    (tmp_path / "user" / "training").rmdir()
    (tmp_path / "user" / "training").touch()
    with pytest.raises(SavingError, match=r"Can't write to .*training"), hold_run_lock("a", folders):
        pass


def test_phases_evaluations_and_checkpoints_are_drawn_whatever_the_name(tmp_path):
    """A missing number leaves a gap, and a name may look like a formula."""
    graph = [dict(step, phase="by length" if step["current_steps"] < 3 else "sequential") for step in GRAPH]
    graph[1]["loss"] = None
    figures = {"perplexity": 1.0, "accuracy": 0.5, "tokens": 9, "seconds": 1.0}
    graph.append(graph_entry(EvaluationDone(step=2, epoch=1.0, why="end", loss=2.5, **figures)))
    picture = tmp_path / "graph.png"
    assert curve_png.draw_graph(GRAPH, "a", picture)
    plain = picture.read_bytes()
    assert curve_png.draw_graph(graph, r"$\frac{$ on tiny", picture, [Mark(2, "checkpoint-2")])
    assert picture.read_bytes().startswith(PNG) and picture.read_bytes() != plain
    assert [path.name for path in tmp_path.iterdir()] == ["graph.png"]


def test_the_font_cache_stays_out_of_the_home_folder(tmp_path):
    """In a process of its own, since matplotlib reads the folder only when it is imported."""
    env = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    env.pop("MPLCONFIGDIR", None)
    command = [sys.executable, "-c", DRAWING, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(tmp_path / "cache"), done.stderr
    assert not (tmp_path / "home").exists()
