"""The `test` command, the name that the webui's Gradio misses, and what CI runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from training_pro.commands import test as command

ROOT = command.ROOT
posix = pytest.mark.skipif(os.name == "nt", reason="CI runs bash")


@pytest.fixture
def start(monkeypatch):
    """Start the command, and return what it would start: the words after pytest's, and all that it was given."""
    seen = {}
    monkeypatch.setattr(command, "ensure_environment", lambda needs, **more: seen.update(needs=needs, **more))
    monkeypatch.setattr(command, "run_program", lambda words, **more: seen.update(words=words, **more) or 5)
    monkeypatch.setenv("PYTHONPATH", "theirs")

    def call(*words):
        assert command.run([*words]) == 5
        assert seen["words"][:3] == [sys.executable, "-m", "pytest"] and seen["cwd"] == ROOT
        return [word for word in seen["words"][3:] if word not in command.PARALLEL_OPTIONS], seen

    return call


def test_pytest_runs_the_short_tests_side_by_side_where_no_file_is_named(start):
    for given in ([], ["-k", "memory"], ["--ignore=tests/core"], ["-x", "tests/hosts"], ["tests/test_docs.py::x"]):
        words, seen = start(*given)
        assert words == ["-m", "not long", *given]
        named = any("tests/" in word and "=" not in word for word in given)
        assert (command.PARALLEL_OPTIONS[0] in seen["words"]) != named
    assert (seen["needs"], seen["webui_pins"], seen["torch_spec"]) == ({"test"}, False, None)
    assert seen["env"]["PYTHONPATH"] == "theirs"


@pytest.mark.parametrize("own", [["-m", "long"], ["-mlong"], ["-qm", "long or browser"], ["-m", ""]])
def test_marks_of_the_user_win(own):
    assert command.add_marks(own) == own


def test_the_webuis_pins_and_the_wished_torch_are_not_pytests(start):
    words, seen = start("--webui-pins", "--torch", "cpu", "-q")
    assert words == ["-m", "not long", "-q"] and seen["webui_pins"] and seen["torch_spec"] == "cpu"
    assert seen["env"]["PYTHONPATH"].split(os.pathsep) == [str(command.WEBUI_PINS), "theirs"]


def test_the_missing_name_is_there_for_children_and_nothing_is_imported_before_somebody_asks():
    code = (
        "import subprocess, sys\n"
        "assert 'huggingface_hub' not in sys.modules and 'sitecustomize' in sys.modules\n"
        "from huggingface_hub import HfFolder, hf_hub_download\n"
        "assert HfFolder.get_token() is None or HfFolder.get_token()\n"
        "again = [sys.executable, '-c', 'from huggingface_hub import HfFolder']\n"
        "subprocess.run(again, check=True)\n"
    )
    # Without the folder of this project in front: `data` and `settings` are others' names there.
    env = {**os.environ, "PYTHONPATH": str(command.WEBUI_PINS), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def ci(folder, *, fails="nothing", chromium=True):
    """Run .ci/run where the programs it calls only note their words."""

    def script(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    script("python3", f'echo "$* CI=$CI" >> {folder}/log; case "$*" in $FAILS) exit 3 ;; esac')
    script("apt-get", f'echo "apt-get $*" >> {folder}/log')
    for name in ("bash", "dirname", "id"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    if chromium:
        script("chromium-headless-shell", "")
    env = {"PATH": str(folder), "FAILS": fails}
    done = subprocess.run([str(folder / "bash"), ROOT / ".ci" / "run"], env=env, capture_output=True, check=False)
    return done.returncode, (folder / "log").read_text().splitlines()


@posix
@pytest.mark.parametrize(
    ("failing", "code"),
    [("nothing", 0), ("script.py test", 3), ("*--webui-pins*", 3)],
    ids=["", "first", "second"],
)
def test_ci_runs_both_kinds_of_tests_and_fails_when_either_fails(tmp_path, failing, code):
    ended, (newest, pinned) = ci(tmp_path, fails=failing)
    assert (ended, newest) == (code, "script.py test CI=true")
    assert pinned.startswith("script.py test --webui-pins -n 2 ") and pinned.endswith(" CI=true")
    smoke = [word for word in pinned.split() if word.startswith("tests/")]
    assert len(smoke) > 5 and all((ROOT / name).exists() for name in smoke)


@posix
@pytest.mark.skipif(os.name != "nt" and os.getuid() != 0, reason="asks sudo where it is not root")
def test_ci_gets_a_browser_where_there_is_none(tmp_path):
    code, log = ci(tmp_path, chromium=False)
    assert code == 0 and log[0].startswith("apt-get update") and len(log) == 4
    assert log[1].startswith("apt-get install") and "chromium" in log[1]
