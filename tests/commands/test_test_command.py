"""The `test` command, the name that the webui's Gradio misses, and what CI runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from training_pro.commands import test as command

ROOT = command.ROOT
PYTEST = [sys.executable, "-m", "pytest"]


@pytest.fixture
def started(monkeypatch):
    """What the command would start, and in which environment, without starting it."""
    seen = {}

    def ready(needs, *, torch_spec, webui_pins):
        seen.update(needs=needs, torch_spec=torch_spec, webui_pins=webui_pins)

    def wait_for(words, *, cwd, env):
        seen.update(words=words, cwd=cwd, env=env)
        return 5

    monkeypatch.setattr(command, "ensure_environment", ready)
    monkeypatch.setattr(command, "run_program", wait_for)
    monkeypatch.setenv("PYTHONPATH", "theirs")
    return seen


def test_pytest_runs_the_short_tests_in_the_projects_folder(started):
    assert command.run(["-x", "tests/hosts"]) == 5
    assert started["words"] == [*PYTEST, "-m", "not long", "-x", "tests/hosts"]
    assert started["cwd"] == ROOT
    assert (started["needs"], started["webui_pins"], started["torch_spec"]) == ({"test"}, False, None)
    assert started["env"]["PYTHONPATH"] == "theirs"


def test_files_go_side_by_side_where_none_is_named(started):
    command.run([])
    assert started["words"] == [*PYTEST, *command.PARALLEL_OPTIONS, "-m", "not long"]
    for words in (["-k", "memory"], ["--ignore=tests/core"]):
        command.run(words)
        assert started["words"] == [*PYTEST, *command.PARALLEL_OPTIONS, "-m", "not long", *words]
    for named in ("tests/hosts", "conftest.py", "tests/test_dementor.py::test_x"):
        command.run([named])
        assert started["words"] == [*PYTEST, "-m", "not long", named]


def test_the_webuis_pins_bring_their_folder_to_every_child(started):
    command.run(["--webui-pins", "-q"])
    assert started["webui_pins"]
    assert started["words"][-1] == "-q"
    assert "--webui-pins" not in started["words"]
    assert started["env"]["PYTHONPATH"].split(os.pathsep) == [str(ROOT / "tests" / "webui_pins"), "theirs"]


def test_the_wished_torch_is_not_pytests(started):
    command.run(["--torch", "cpu", "-q"])
    assert started["torch_spec"] == "cpu"
    assert "--torch" not in started["words"]


@pytest.mark.parametrize("own", [["-m", "long"], ["-mlong"], ["-qm", "long or browser"], ["-m", ""]])
def test_marks_of_the_user_win(own):
    assert command.add_marks(own) == own


@pytest.mark.parametrize("other", [["--maxfail=1"], ["-k", "memory"], ["-kmemory"], ["tests/m"], []])
def test_what_is_no_mark_leaves_the_long_ones_out(other):
    assert command.add_marks(other) == ["-m", "not long", *other]


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["no/such/folder"], 4)])
def test_the_exit_code_is_pytests(monkeypatch, arguments, code):
    monkeypatch.setattr(command, "ensure_environment", lambda *_, **__: None)
    assert command.run(arguments) == code


def under_pins(code):
    # Without the folder of this project in front: `data` and `settings` are others' names there.
    env = {**os.environ, "PYTHONPATH": str(command.WEBUI_PINS), "PYTHONSAFEPATH": "1"}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_the_missing_name_is_there_for_children_and_their_children():
    code = (
        "import subprocess, sys\n"
        "from huggingface_hub import HfFolder, hf_hub_download\n"
        "assert HfFolder.get_token() is None or HfFolder.get_token()\n"
        "again = [sys.executable, '-c', 'from huggingface_hub import HfFolder']\n"
        "subprocess.run(again, check=True)\n"
    )
    done = under_pins(code)
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_for_it_before_somebody_asks():
    done = under_pins("import sys; assert 'huggingface_hub' not in sys.modules and 'sitecustomize' in sys.modules")
    assert done.returncode == 0, done.stderr


posix = pytest.mark.skipif(os.name == "nt", reason="CI runs bash")


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def ci(folder, *, fails="nothing", chromium=True):
    """Run .ci/run where the programs it calls only note their words."""
    script(folder / "python3", f'echo "$* CI=$CI" >> {folder}/log; case "$*" in $FAILS) exit 3 ;; esac')
    script(folder / "apt-get", f'echo "apt-get $*" >> {folder}/log')
    for name in ("bash", "dirname", "id"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    if chromium:
        script(folder / "chromium-headless-shell", "")
    env = {"PATH": str(folder), "FAILS": fails}
    done = subprocess.run(
        [str(folder / "bash"), ROOT / ".ci" / "run"], env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, (folder / "log").read_text().splitlines()


IGNORED = (
    *("core", "settings", "bench", "seeds", "commands", "data", "downloads", "hardness", "records"),
    *("test_architecture.py", "test_docs.py"),
    *("interface/test_drawn_from_types.py", "interface/test_hostile_values.py"),
)
PINNED = " ".join(f"--ignore=tests/{name}" for name in IGNORED)
BOTH = ["script.py test CI=true", f"script.py test --webui-pins {PINNED} CI=true"]


@posix
def test_ci_runs_both_kinds_of_tests(tmp_path):
    assert ci(tmp_path) == (0, BOTH)
    assert all((ROOT / "tests" / name).exists() for name in IGNORED)


@posix
@pytest.mark.parametrize("failing", ["script.py test", "*--webui-pins*"])
def test_ci_fails_when_either_fails_and_still_runs_both(tmp_path, failing):
    assert ci(tmp_path, fails=failing) == (3, BOTH)


@posix
@pytest.mark.skipif(os.name != "nt" and os.getuid() != 0, reason="asks sudo where it is not root")
def test_ci_gets_a_browser_where_there_is_none(tmp_path):
    code, log = ci(tmp_path, chromium=False)
    assert code == 0
    assert log[0].startswith("apt-get update")
    assert log[1].startswith("apt-get install") and "chromium" in log[1]
    assert log[2:] == BOTH
