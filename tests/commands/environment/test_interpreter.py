"""Environments are made with the real venv and pip, from a registry of tiny wheels in a folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from training_pro.commands.environment import interpreter
from training_pro.core import files
from training_pro.core.errors import TrainingProError
from training_pro.downloads import fetching, virtual_env, wheels
from training_pro.tests.registry import Mirror, put_wheel

ROOT = interpreter.ROOT
posix = pytest.mark.skipif(os.name == "nt", reason="leans on shell scripts and signals of POSIX")
TRAIN, PAGE = ("torch", "train"), ("torch", "train", "page")
PIN = "torch==2.13.0"
CPU = {"torch": "2.13.0", "filelock": "4"}
CUDA_13 = {**CPU, "nvidia-cuda-runtime": "13.0.88", "triton": "3.8"}
CUDA_12 = {**CPU, "nvidia-cuda-runtime-cu12": "12.6.77"}
NEW, OLD_DRIVER, PASCAL, BLACKWELL = ("13.0", "8.6"), ("12.4", "8.6"), ("13.1", "6.1"), ("12.8", "12.0")


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_python(folder, registry, *, reaches_pytorch=True):
    """An interpreter whose pip would install these packages."""
    wheels = [
        {"metadata": {"name": name, "version": version}, "download_info": {"url": "u"}}
        for name, version in registry.items()
    ]
    answer = f"""while [ "$1" != --report ]; do shift; done\necho '{json.dumps({"install": wheels})}' > "$2\""""
    refuse = "" if reaches_pytorch else 'case "$*" in *--extra-index-url*) echo no such host >&2; exit 1 ;; esac\n'
    return executable(folder / "python", refuse + answer)


def plug_in(folder, monkeypatch, card):
    """Set up the machine with this GPU: the CUDA version of its driver, and its compute capability."""
    if card:
        figures = f"*compute_cap*) echo {card[1]} ;;\n*) echo '| CUDA Version: {card[0]} |' ;;"
        executable(folder / "nvidia-smi", f'case "$*" in\n{figures}\nesac')
    monkeypatch.setenv("PATH", f"{folder}:/bin" if card else str(folder))


def from_pytorch(build):
    return [f"{PIN}+{build}", "--extra-index-url", f"https://download.pytorch.org/whl/{build}"]


@posix
@pytest.mark.parametrize(
    ("registry", "card", "expected"),
    [
        (CPU, None, [PIN]), (CUDA_13, None, from_pytorch("cpu")), (CUDA_13, NEW, [PIN]),
        (CUDA_13, OLD_DRIVER, from_pytorch("cu126")), (CUDA_13, PASCAL, from_pytorch("cu126")),
        (CUDA_13, BLACKWELL, [PIN]), (CUDA_13, ("x", "x"), [PIN]), (CUDA_12, NEW, from_pytorch("cu130")),
        (CUDA_12, PASCAL, [PIN]), (CPU, NEW, from_pytorch("cu130")), ({}, NEW, [PIN]),
    ],
)  # fmt: skip
def test_the_build_of_torch_fits_the_machine(tmp_path, monkeypatch, registry, card, expected):
    plug_in(tmp_path, monkeypatch, card)
    assert virtual_env.torch_arguments(wheels.Pip(fake_python(tmp_path, registry)), PIN, None) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("2.12.0", ["torch==2.12.0"]), ("cpu", from_pytorch("cpu")), ("rocm6.4", from_pytorch("rocm6.4")),
        ("2.12.0 --index-url http://i", ["torch==2.12.0", "--index-url", "http://i"]),
        ("torch==2.9.1+cu128", ["torch==2.9.1+cu128"]), ("https://host/torch.whl", ["https://host/torch.whl"]),
        ("gpu", None), ("torchvision-is-nice", None), ("cuda", None), (" ", None),
    ],
)  # fmt: skip
def test_the_wish_of_the_user_is_taken_without_asking_or_refused(spec, expected):
    if expected:
        assert virtual_env.torch_arguments(wheels.Pip(Path("no python")), PIN, spec) == expected
        return
    with pytest.raises(TrainingProError, match=r"--torch .* is not valid\. Use a version"):
        virtual_env.torch_arguments(wheels.Pip(Path("no python")), PIN, spec)


def put_pins(folder, torch="1.0", peft="1.0"):
    folder.mkdir(exist_ok=True)
    (folder / "torch.txt").write_text(f"# why\ntorch=={torch}\n")
    (folder / "train.txt").write_text(f"transformers==1.0\npeft=={peft}\n")
    (folder / "page.txt").write_text("gradio==1.0\n")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """An ordinary registry (its torch brings CUDA) and PyTorch's index, as folders; pip sees no other."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "registry").as_uri())
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setattr(virtual_env, "PYTORCH_INDEX", (tmp_path / "pytorch").as_uri())
    monkeypatch.setattr(virtual_env.own_environment, "PINS", tmp_path / "pins")
    plug_in(tmp_path / "bin", monkeypatch, None)
    put_pins(tmp_path / "pins")
    registry = tmp_path / "registry"
    put_wheel(registry, "torch", requires=["nvidia-cuda-runtime"])
    put_wheel(registry, "nvidia-cuda-runtime", "13.0")
    for name in ("transformers", "peft", "gradio"):
        put_wheel(registry, name)
    put_wheel(tmp_path / "pytorch" / "cpu", "torch", "1.0+cpu")
    return registry


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """An environment without packages."""
    folder = tmp_path_factory.mktemp("empty") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


def environment(folder, wish=None):
    return virtual_env.Environment(folder, wish)


@pytest.fixture
def begun(tmp_path, registry, empty):
    """An environment of ours into which nothing is installed yet."""
    shutil.copytree(empty, tmp_path / ".venv", symlinks=True)
    virtual_env.write_marker(tmp_path / ".venv", virtual_env.Marker())
    return environment(tmp_path / ".venv")


@pytest.fixture
def whole(begun):
    begun.make(TRAIN)
    return begun


def packages(home):
    return next(home.folder.glob("**/site-packages"))


def installed(home):
    code = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in m.distributions()), sep=',')"
    found = subprocess.run([home.python, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name for name in found.strip().split(",") if name.split()[0] not in ("pip", "setuptools")}


WHOLE = {"torch 1.0+cpu", "transformers 1.0", "peft 1.0"}


@pytest.mark.long
def test_pins_that_changed_and_other_lists_bring_the_difference(whole, tmp_path, registry):
    put_wheel(registry, "peft", "1.1")
    put_pins(tmp_path / "pins", peft="1.1")
    assert not whole.has_lists(TRAIN) and not whole.has_lists(PAGE)
    told = []
    replace(whole, emit=told.append).make(PAGE)
    assert installed(whole) == {"torch 1.0+cpu", "transformers 1.0", "peft 1.1", "gradio 1.0"}
    assert "2 packages" in str(told) and whole.has_lists(TRAIN) and whole.has_lists(PAGE)


@pytest.mark.long
def test_a_torch_of_the_users_choice_stays_also_in_an_environment_that_is_made_anew(begun, registry):
    put_wheel(registry, "torch", "0.9")
    wish = environment(begun.folder, "0.9")
    wish.make(TRAIN)
    assert wish.has_lists(TRAIN) and begun.has_lists(TRAIN)  # also when it is not asked for again
    assert not environment(begun.folder, "cpu").has_lists(TRAIN)
    begun.python.unlink()
    begun.make(PAGE)
    assert "torch 0.9" in installed(begun)
    marker = virtual_env.read_marker(begun.folder)
    assert marker.torch == "0.9" and marker.lists.keys() == set(PAGE)


@pytest.mark.long
def test_a_killed_installation_is_mended(whole):
    virtual_env.write_marker(whole.folder, virtual_env.Marker(installing=True))  # as it stands while pip works
    (packages(whole) / "peft" / "__init__.py").write_text("")  # pip takes it for installed
    assert not whole.has_lists(TRAIN)
    whole.make(TRAIN)
    assert (
        installed(whole) == WHOLE
        and whole.has_lists(TRAIN)
        and whole.has_modules(interpreter.NEEDED_MODULES["train"])
    )
    assert (packages(whole) / "peft" / "__init__.py").read_text() != ""


@pytest.mark.long
def test_an_installation_that_fails_is_a_sentence_and_no_promise(begun, tmp_path, registry, capfd, monkeypatch):
    wheel = next((registry / "peft").glob("*.whl"))
    good = wheel.read_bytes()
    wheel.write_bytes(good[:200])
    with pytest.raises(TrainingProError, match=r"(?s)peft.*pip could not install"):
        begun.make(TRAIN)
    assert not begun.has_lists(TRAIN) and begun.is_ours
    put_wheel(registry, "peft", code="raise OSError('DLL load failed')")
    with pytest.raises(TrainingProError, match=r"(?s)DLL load failed.*can't load them"):
        begun.make(TRAIN)
    assert not begun.has_lists(TRAIN)


@posix
@pytest.mark.long
def test_a_gpu_that_torch_cannot_use_is_no_run_on_the_cpu_without_a_word(begun, tmp_path, registry, monkeypatch):
    plug_in(tmp_path / "bin", monkeypatch, BLACKWELL)
    code = "class version: cuda = '13.0'\ndef ones(count, device): raise RuntimeError('The driver is too old')"
    put_wheel(registry, "torch", "1.1", requires=["nvidia-cuda-runtime"], code=code)
    with pytest.raises(TrainingProError, match=r"(?s)^The driver is too old\n.*Update the NVIDIA driver"):
        environment(begun.folder, "1.1").make(TRAIN)
    assert not begun.has_lists(TRAIN)
    put_wheel(registry, "torch", "1.2", code=code.replace("The driver is too old", "CUDA out of memory"))
    environment(begun.folder, "1.2").make(TRAIN)


COMMAND = """
import sys
from .environment import ensure_environment

def run(arguments):
    ensure_environment("train")
    print(sys.prefix, arguments)
    return 0
"""


@pytest.fixture
def project(tmp_path, registry):
    """A copy of the program with pins of its own, whose command `train` only makes sure of its environment."""
    put_wheel(registry, "torch")  # without CUDA, so that PyTorch's index is not asked
    (tmp_path / "copy").mkdir()
    for file in ROOT.glob("*.py"):
        shutil.copy(file, tmp_path / "copy")
    for name in ("commands", "core", "settings", "hosts", "downloads"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name)
    (tmp_path / "copy" / "commands" / "train.py").write_text(COMMAND)
    put_pins(tmp_path / "copy" / "commands" / "environment" / "pins")
    return tmp_path / "copy"


def start(python, project):
    command = [str(python), str(project / "script.py"), "train", "--name", "a b"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.long
@posix
def test_a_bare_interpreter_goes_on_in_an_environment_and_the_second_start_asks_nobody(
    project, registry, empty, monkeypatch
):
    first = start(empty / "bin" / "python", project)
    assert first.stdout == f"{project / '.venv'} ['--name', 'a b']\n", first.stderr  # no word of pip's
    told = [first.stderr.index(words) for words in (str(project), "3 packages, ", "Environment ready")]
    assert told == sorted(told)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    for python in (empty / "bin" / "python", project / ".venv" / "bin" / "python"):
        second = start(python, project)
        assert (second.stdout, second.stderr) == (first.stdout, "")


@pytest.mark.parametrize(("found", "is_enough"), [("4.57.1", False), ("5.6.0", True), ("5.24.0.dev0", True)])
def test_libraries_that_are_too_old_are_not_taken_as_they_are(monkeypatch, found, is_enough):
    monkeypatch.setattr("importlib.metadata.version", lambda name: found)
    assert interpreter._has_libraries(("torch", "transformers")) == is_enough


@posix
def test_a_child_ends_with_its_own_exit_code_and_ctrl_c_is_left_to_it():
    code = "import os, signal; os.kill(os.getppid(), signal.SIGINT); raise SystemExit(7)"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert interpreter.run_program([sys.executable, "-c", code]) == 7
    finally:
        signal.signal(signal.SIGINT, handler)


def test_every_list_is_there_and_pins_what_it_names():
    lists = {name for names in interpreter.REQUIREMENT_LISTS.values() for name in names}
    assert lists | {*interpreter.WEBUI_REQUIREMENT_LISTS} == {
        path.stem for path in virtual_env.own_environment.PINS.glob("*.txt")
    }
    for name in ("torch", "train", "page"):
        assert all("==" in line for line in virtual_env.read_pins(name)), name
    assert virtual_env.read_pins("torch") == [PIN]


@pytest.fixture
def mirror(registry, monkeypatch):
    """Give the registry over HTTP. pip keeps no cache, so wheels are downloaded here."""
    monkeypatch.setattr(Mirror, "root", registry)
    monkeypatch.setattr(Mirror, "asked", [])
    monkeypatch.setattr(fetching, "RETRY_PAUSES_SECONDS", (0, 0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
        yield Mirror
        server.shutdown()


def downloads(home, *names):
    """The downloads of these packages, after pip has asked for them."""
    (home.folder.with_name("down")).mkdir(exist_ok=True)
    found = wheels.WheelDownloads(
        home.folder.with_name("down"), home.python, wheels.Pip(home.python).resolve(*names)
    )
    Mirror.asked.clear()
    return found


@pytest.mark.long
def test_a_download_goes_on_after_a_break_and_what_is_damaged_is_left_to_pip(begun, mirror):
    wanted, told = downloads(begun, "peft", "gradio"), []
    assert wanted.size == wanted.total > 0 == wanted.done == wanted.unknown
    mirror.cut = 100
    wanted.fetch(told.append, lambda: False)
    assert mirror.asked == [("peft", 0), ("peft", 100), ("gradio", 0)] and told[-1].share == 1
    again = downloads(begun, "peft", "gradio")
    again.fetch(told.append, lambda: False)
    assert mirror.asked == [] and again.done == again.total
    peft = next(begun.folder.with_name("down").glob("peft*"))
    part = peft.rename(f"{peft}.part")
    part.write_bytes(b"x" * part.stat().st_size)
    downloads(begun, "peft").fetch(told.append, lambda: False)
    assert not part.exists()
    wheels.Pip(begun.python).install(*again.requirements())
    assert installed(begun) == {"peft 1.0", "gradio 1.0"}


@pytest.mark.long
def test_a_registry_with_a_password_is_left_to_pip(begun, mirror, monkeypatch):
    monkeypatch.setattr(Mirror, "is_locked", True)
    monkeypatch.setenv("PIP_INDEX_URL", os.environ["PIP_INDEX_URL"].replace("//", "//user:word@"))
    wanted = downloads(begun, "peft")
    wanted.fetch(lambda event: None, lambda: False)
    wheels.Pip(begun.python).install(*wanted.requirements())
    assert wanted.unknown == 1 and installed(begun) == {"peft 1.0"}


@posix
def test_a_python_that_can_make_environments_is_found_or_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "host", "exit 1")))  # without ensurepip
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    executable(tmp_path / "bin" / "python3.13", "echo 3; echo 9; echo /old/python")
    with pytest.raises(TrainingProError, match=r"No Python 3\.11 to 3\.13 .* Install one from python.org"):
        virtual_env.own_environment.find_python()
    executable(tmp_path / "bin" / "python3", "echo 3; echo 12; echo /other/python3.12")
    assert virtual_env.own_environment.find_python() == Path("/other/python3.12")
    executable(tmp_path / "bin" / "python3.11", "echo 3; echo 11; echo /other/python3.11")
    assert virtual_env.own_environment.find_python("3.12.1") == Path("/other/python3.12")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that are not UTF-8")
def test_a_python_whose_path_is_in_another_encoding_is_found(tmp_path):
    python = tmp_path / os.fsdecode(b"Gr\xf6\xdfe") / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert virtual_env.own_environment.probe_python(python).path == python


@posix
@pytest.mark.long
def test_a_disk_that_is_too_small_and_a_second_setup_are_refused_before_anything_is_installed(begun, monkeypatch):
    monkeypatch.setattr(wheels, "UNPACKED", 1e15)
    with pytest.raises(TrainingProError, match=r"About .* is needed on the disk .*, but only .* is free\."):
        begun.make(TRAIN)
    refused = pytest.raises(TrainingProError, match="is being set up by another program")
    with files.lock(begun.folder.with_name(".venv.downloads") / "lock"), refused:
        begun.make(TRAIN)
    assert installed(begun) == set() and begun.is_ours


@pytest.mark.parametrize(("shorter", "long_paths", "refused"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_a_folder_too_deep_for_torch_is_refused_on_windows(tmp_path, monkeypatch, shorter, long_paths, refused):
    key = nullcontext()
    registry = SimpleNamespace(HKEY_LOCAL_MACHINE=0, OpenKey=lambda *names: key)
    registry.QueryValueEx = lambda key, name: (long_paths, 4)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(virtual_env, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(virtual_env, "lock", lambda path: nullcontext(False))  # it gets as far as this
    below = 259 - len(str(tmp_path / "Lib/site-packages/")) - 1
    monkeypatch.setattr(virtual_env, "LONGEST_OF_TORCH", below + 1 - shorter)
    with pytest.raises(TrainingProError, match="260 characters" if refused else "by another program"):
        environment(tmp_path).make(TRAIN)
